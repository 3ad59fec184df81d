/* SPDX-License-Identifier: Apache-2.0 */
/* A handle of dispatch and combine and its buffers, and what is sent through it: app_ep.c calls, check_ep.c checks. */
#ifndef SIM_APP_EP_H
#define SIM_APP_EP_H

#include "ep.h"
#include "sim.h"

#define EP_ROWS (SIM_RANKS * EP_ROOM) /* kept for each expert at most */
#define UNTOUCHED 0x5a

struct app_layer {
	struct covey_ep *ep;
	uint64_t made; /* at this safe point, 0: before the first */
	int owner[EP_EXPERTS * EP_PLACES];
	uint64_t dispatched; /* number of the last dispatch taken, 0: it failed, or none was called since */
	int failed;
	int tokens, renormalise;
	uint16_t x[EP_TOKENS][EP_HIDDEN], out[EP_TOKENS][EP_HIDDEN];
	int32_t ids[EP_IDS], placed[EP_IDS];
	float weights[EP_IDS];
	int32_t active[SIM_RANKS];
	uint16_t packed[EP_EXPERTS * EP_ROWS][EP_HIDDEN], y[EP_EXPERTS * EP_ROWS][EP_HIDDEN];
	int32_t count[EP_EXPERTS], src[EP_EXPERTS * EP_ROWS];
	int64_t range[EP_EXPERTS * SIM_RANKS];
	int32_t flat[EP_EXPERTS * EP_ROWS * 2], triplets[EP_EXPERTS * EP_ROWS * 3];
	uint32_t arrived[COVEY_EP_ARRIVED_ROWS + EP_EXPERTS * EP_ROWS];
};

/* What the rank of @inc sends in operation @seq: tokens, the expert of entry @i, the row of a token. */
int app_ep_tokens(uint64_t inc, uint64_t seq);
int32_t app_ep_id(uint64_t inc, uint64_t seq, int i);
void app_ep_row(uint64_t inc, uint64_t seq, int token, uint16_t *row);
/* What an expert of the rank of @owner makes of element @h of a row. */
uint16_t app_ep_result(uint16_t x, uint64_t owner, int expert, int h);

int app_ep_close_by(const struct app_layer *l);
int app_ep_bin(const struct app_layer *l);		 /* rows kept for each expert; of WIN for all of them */
int app_ep_local(const struct app_layer *l, int expert); /* index among those here, -1: it has no place here */

#endif
