/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of scaled sums, on a CPU. */
#include "../../src/nccl/scale.cu"
