/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of scaled sums and of 8-bit floats, on a CPU. */
#include "../../src/nccl/scale.cu"
