/* SPDX-License-Identifier: Apache-2.0 */
/* What tokens.c has and calls with, and what tokens_check.c says of it. */
#ifndef TOKENS_H
#define TOKENS_H

#include <covey_device.h>
#include <covey_ep.h>

#include "routed.h"

#ifndef RANKS
#define RANKS 8
#endif
#define ROWS (EXPERTS * RANKS * TOKENS)

struct tokens_of { /* of one rank, on the host; the device has the same at the same places */
	uint16_t x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], packed[ROWS][HIDDEN];
	int64_t range[EXPERTS * RANKS], experts64[TOKENS][TOP_K]; /* of odd ranks: experts */
	int32_t experts[TOKENS][TOP_K], count[EXPERTS], src_info[ROWS];
	float weights[TOKENS][TOP_K];
	int32_t named[ROWS][TOP_K]; /* compact: experts here of each row, and their weights */
	float named_weights[ROWS][TOP_K];
	int64_t expert_tokens[EXPERTS];
	int32_t triplets[ROWS][3], flat[ROWS][2];
	uint32_t arrived[COVEY_EP_ARRIVED_ROWS + ROWS];
	float expert_scale[EXPERTS];
	uint8_t mask[TOKENS]; /* of some ranks, which give all that there may be and mask what is not of the step */
};
extern struct tokens_of host;

extern struct tokens_state {
	long step, calm, cycle; /* what joiners get */
} state;

extern struct covey_ep *ep;
extern int rank, size, compact, flat, win;
extern int announces; /* this dispatch tells its rows */
extern uint64_t checks, again;

void wrong(const char *what, int i, long got, long want, const struct covey_device_outcome *o);
int masks(void);
float sign(int id); /* of an expert's results */
void check_dispatch(const struct covey_device_outcome *o);
void check_combine(const struct covey_device_outcome *o);

#endif
