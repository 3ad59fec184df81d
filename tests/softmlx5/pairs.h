/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends of the library's own queues in this process: what posters would see, and the memory of both. */
#ifndef PAIRS_H
#define PAIRS_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "queues.h"
#include "softmlx5.h"

#define PAIRS_BYTES ((size_t)1 << 20)
#define PAIRS_WAIT_NS 20000000000ull

struct pairs {
	struct cvy_errbox *box;
	struct cvy_nic *nic;
	struct cvy_bells *bells;
	struct cvy_region *region[2];
	struct cvy_queue_pair *pair[2];
	struct cvy_queue q; /* of end 0 */
	uint8_t *memory[2];
	uint64_t abort;
};

static inline const char *pairs_cause(const struct pairs *p)
{
	static struct covey_error_info info;

	cvy_errbox_get(p->box, &info);
	return info.cause;
}

static inline void pairs_open(struct pairs *p, int mode, int assisted, uint32_t depth)
{
	struct cvy_pair_args args = { .mode = (enum cvy_pair_mode)mode, .depth = depth, .wait_ticks = PAIRS_WAIT_NS };
	struct cvy_nic_args nic = { 0 };
	struct cvy_pair_name name[2];

	memset(p, 0, sizeof(*p));
	p->box = cvy_errbox_new();
	nic.box = p->box;
	ck_assert_msg(cvy_nic_open(&nic, &p->nic) == 0, "%s", pairs_cause(p));
	if (assisted)
		ck_assert_int_eq(cvy_bells_open(NULL, 8, &p->bells), 0);
	args.abort = &p->abort;
	args.bells = p->bells;
	args.timeout = 8;
	args.retry = 1;
	for (int i = 0; i < 2; i++) {
		p->memory[i] = aligned_alloc(4096, PAIRS_BYTES);
		memset(p->memory[i], 0, PAIRS_BYTES);
		ck_assert_int_eq(cvy_region_open(p->nic, p->memory[i], PAIRS_BYTES, -1, &p->region[i]), 0);
		args.local = args.window = p->region[i];
		ck_assert_msg(cvy_pair_open(p->nic, &args, &p->pair[i]) == 0, "%s", pairs_cause(p));
		cvy_pair_name(p->pair[i], &name[i]);
	}
	for (int i = 0; i < 2; i++)
		ck_assert_msg(cvy_pair_connect(p->pair[i], &name[!i]) == 0, "%s", pairs_cause(p));
	cvy_pair_queue(p->pair[0], &p->q);
}

static inline void pairs_close(struct pairs *p)
{
	for (int i = 0; i < 2; i++) {
		cvy_pair_close(p->pair[i]);
		cvy_region_close(p->region[i]);
		free(p->memory[i]);
	}
	cvy_bells_close(p->bells);
	cvy_nic_close(p->nic);
	cvy_errbox_free(p->box);
}

#endif
