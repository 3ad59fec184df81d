/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a repair. */
#ifndef CVY_REPAIR_H
#define CVY_REPAIR_H

#include <stdint.h>

struct cvy_engine;
struct cvy_msg;

struct cvy_pull {
	uint64_t seq;
	uint64_t from_tick; /* first missing tick of the operation */
};

struct cvy_give {		   /* followed by `words` mask words and `bytes` bytes */
	uint64_t seq, ticks, tick; /* ticks 0: no data */
	uint64_t since;		   /* of struct cvy_engine, on the holder */
	int32_t status, size;
	uint32_t epoch, sig, bytes, words;
	int32_t root;  /* of an operation whose ranks get parts of their own, -1: all get the same */
	uint32_t past; /* the calls before it */
};

void cvy_repair_answer(struct cvy_engine *e, const struct cvy_msg *pull); /* gives what is asked for */

#endif
