/* SPDX-License-Identifier: Apache-2.0 */
/* The reductions as every CPU of the architecture runs them. */
#include "reduce_body.h"
