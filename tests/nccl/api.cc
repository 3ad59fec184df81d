/* SPDX-License-Identifier: Apache-2.0 */
/* The program of NCCL, on a CPU. */
#include "api.cu"
#include "calls.cu"
#include "deaths.cu"
#include "ends.cu"
#include "life.cu"
