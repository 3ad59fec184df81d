/* SPDX-License-Identifier: Apache-2.0 */
/* The in-memory store of the simulator, for the unit tests of this folder. */
#include "../../sim/store_hash.c"
#include "../../sim/store_memory.c"
