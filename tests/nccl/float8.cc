/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of 8-bit floats, on a CPU. */
#include "../../src/nccl/float8.cu"
