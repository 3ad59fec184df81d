/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expert parallelism: tokens go to the ranks that hold their experts and come back, weighted. The experts here
 * do nothing, so every token must come back as it was. ep-run -n 4 -- ./experts
 */
#include <covey_ep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 16
#define HIDDEN 64
#define TOP_K 2
#define EXPERTS 8

int main(void)
{
	static uint16_t x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
	static int32_t experts[TOKENS][TOP_K];
	static float weights[TOKENS][TOP_K];
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct covey_dispatch_args there = COVEY_DISPATCH_INIT;
	struct covey_combine_args back = COVEY_COMBINE_INIT;
	struct covey_group *group;
	struct covey_view view;
	struct covey_ep *ep;
	int err, rows, local;

	if (covey_join(NULL, &group))
		return 1;
	covey_view(group, &view);
	config.max_tokens = TOKENS;
	config.hidden = HIDDEN;
	config.top_k = TOP_K;
	config.experts = EXPERTS;
	if (covey_ep_create(group, &config, &ep))
		return 1;
	for (int t = 0; t < TOKENS; t++) {
		for (int h = 0; h < HIDDEN; h++)
			x[t][h] = (uint16_t)(0x3f80 + (t + h + view.rank) % 64); /* bf16, from 1 to 1.5 */
		for (int k = 0; k < TOP_K; k++) {
			experts[t][k] = (t + k) % EXPERTS;
			weights[t][k] = 1.0f / TOP_K;
		}
	}
	local = covey_ep_local_experts(ep);
	rows = covey_ep_rows(ep);
	there.num_tokens = back.num_tokens = TOKENS;
	there.x = x;
	there.experts = back.experts = experts[0];
	there.packed_x = calloc((size_t)local * (size_t)rows, sizeof(x[0]));
	there.count = calloc((size_t)local, sizeof(int32_t));
	there.src_info = calloc((size_t)local * (size_t)rows, sizeof(int32_t));
	there.range = calloc((size_t)local * (size_t)view.size, sizeof(int64_t));
	if (!there.packed_x || !there.count || !there.src_info || !there.range)
		return 1;
	err = covey_dispatch(ep, &there, NULL, NULL);
	back.y = there.packed_x; /* the experts' work would stand between */
	back.count = there.count;
	back.src_info = there.src_info;
	back.range = there.range;
	back.weights = weights[0];
	back.out = y;
	if (!err)
		err = covey_combine(ep, &back, NULL, NULL);
	printf("rank %d: %d experts here, tokens came back %s\n", view.rank, local,
	       !err && !memcmp(x, y, sizeof(x)) ? "as they were" : "changed");
	err |= memcmp(x, y, sizeof(x)) != 0;
	covey_ep_destroy(ep);
	free(there.packed_x);
	free(there.count);
	free(there.src_info);
	free(there.range);
	covey_leave(group, 0);
	covey_close(group);
	return err != 0;
}
