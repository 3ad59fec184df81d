/* SPDX-License-Identifier: Apache-2.0 */
/* The reductions as every CPU of the architecture runs them. */
#define TARGET
#define TABLE cvy_reduce_plain

#include "reduce_body.h"
