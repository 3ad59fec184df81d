/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Meshes on one loop: their handshakes, messages and puts meet without any wait but the loop's. A loop
 * runs once, on a thread of its own; test and loop take turns, and never run at the same time.
 */
#ifndef CVY_P2P_RIG_H
#define CVY_P2P_RIG_H

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "mesh.h"

#define RIG_BOUND_NS (30000 * CVY_MS) /* only calls a hang */

struct rig_rank {
	struct cvy_mesh *mesh;
	struct cvy_errbox *box;
	struct cvy_identity id;
	int ups, downs, msgs;
	uint32_t bytes;
	uint64_t sum;
	char cause[256];
};

struct rig {
	struct cvy_loop *loop;
	struct rig_rank rank[3];
	int (*until)(struct rig *rig);
	uint64_t deadline_ns;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	int running, loops_turn, end;
};

static inline void rig_post(void *ctx, const struct cvy_event *e)
{
	struct rig_rank *r = ctx;

	r->ups += e->kind == CVY_EV_LINK_UP;
	r->downs += e->kind == CVY_EV_LINK_DOWN;
	if (e->kind == CVY_EV_LINK_DOWN)
		snprintf(r->cause, sizeof(r->cause), "%s", e->text);
	if (e->kind == CVY_EV_MSG) {
		r->msgs++;
		r->bytes = e->msg.bytes;
		r->sum = 0;
		for (uint32_t i = 0; i < e->msg.bytes; i++)
			r->sum = r->sum * 31 + ((const uint8_t *)e->msg.body)[i];
	}
}

static inline void rig_config(struct cvy_config *c, int transport, const char *host)
{
	memset(c, 0, sizeof(*c));
	c->host = (char *)(uintptr_t)host;
	c->interface = (char *)(uintptr_t) "127.0.0.1";
	c->max_ranks = 4;
	c->transport = transport;
	c->slot_bytes = 65536;
	c->window_bytes = 16 << 20;
}

static inline void rig_open(struct rig *rig, int rank, const struct cvy_config *config)
{
	struct rig_rank *r = &rig->rank[rank];
	struct cvy_mesh_args args = { config, rig->loop, { rig_post, r }, NULL };

	r->box = args.box = cvy_errbox_new();
	ck_assert_int_eq(cvy_mesh_open(&args, &r->mesh), 0);
	strcpy(r->id.gid, "00112233445566778899aabbccddeeff");
	memset(r->id.secret, 7, sizeof(r->id.secret));
	r->id.rank = rank;
	r->id.max_ranks = config->max_ranks;
	r->id.inc = 100 + (uint64_t)rank;
	r->id.nonce = (uint64_t)getpid() << 20 | (uint64_t)rank | 0x4000;
}

/* The loop's thread: hands over when the condition holds, and waits for its next turn. */
static inline void rig_tick(void *ctx, uint64_t now_ns)
{
	struct rig *rig = ctx;

	if (now_ns <= rig->deadline_ns && !rig->until(rig))
		return;
	pthread_mutex_lock(&rig->lock);
	rig->loops_turn = 0;
	pthread_cond_broadcast(&rig->moved);
	while (!rig->loops_turn)
		pthread_cond_wait(&rig->moved, &rig->lock);
	if (rig->end)
		cvy_loop_stop(rig->loop);
	pthread_mutex_unlock(&rig->lock);
}

static inline void *rig_thread(void *ctx)
{
	static const int ms = 1;
	struct rig *rig = ctx;

	cvy_loop_run(rig->loop, rig_tick, rig, &ms);
	return NULL;
}

static inline void rig_turn(struct rig *rig)
{
	if (!rig->running) {
		rig->running = 1;
		rig->loops_turn = 1;
		pthread_mutex_init(&rig->lock, NULL);
		pthread_cond_init(&rig->moved, NULL);
		ck_assert_int_eq(pthread_create(&rig->thread, NULL, rig_thread, rig), 0);
		pthread_mutex_lock(&rig->lock);
	} else {
		pthread_mutex_lock(&rig->lock);
		rig->loops_turn = 1;
		pthread_cond_broadcast(&rig->moved);
	}
	while (rig->loops_turn && !rig->end)
		pthread_cond_wait(&rig->moved, &rig->lock);
	pthread_mutex_unlock(&rig->lock);
}

static inline void rig_run(struct rig *rig, int (*until)(struct rig *rig))
{
	rig->until = until;
	rig->deadline_ns = cvy_now_ns() + RIG_BOUND_NS;
	rig_turn(rig);
	ck_assert_msg(until(rig), "nothing happened: causes '%s' '%s'", rig->rank[0].cause, rig->rank[1].cause);
}

/* Rank 1 dials rank 0. */
static inline void rig_connect(struct rig *rig)
{
	struct rig_rank *a = &rig->rank[0], *b = &rig->rank[1];

	cvy_mesh_identity(a->mesh, &a->id);
	cvy_mesh_identity(b->mesh, &b->id);
	cvy_mesh_expect(a->mesh, 1, b->id.inc);
	cvy_mesh_dial(b->mesh, 0, a->id.inc, cvy_mesh_addr(a->mesh), cvy_mesh_host(a->mesh));
}

static inline int rig_both_up(struct rig *rig)
{
	return rig->rank[0].ups == 1 && rig->rank[1].ups == 1;
}

static inline void rig_close(struct rig *rig)
{
	if (rig->running) {
		rig->end = 1;
		rig_turn(rig);
		pthread_join(rig->thread, NULL);
	}
	for (int i = 0; i < 3; i++) {
		cvy_mesh_close(rig->rank[i].mesh);
		cvy_errbox_free(rig->rank[i].box);
	}
	cvy_loop_free(rig->loop);
}

#endif
