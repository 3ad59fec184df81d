/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hwcheck [DEVICE] - the mlx5 queues of this host, to itself: do a real adapter and its firmware take what we write?
 *
 * Each way to make a queue (verbs, DEVX) and to ring (the poster, a thread), then the ring of a proxy: calls arrive,
 * 200,000 entries wrap every index, a bad key is an error and a new queue works after it; then how many entries a
 * second. What cannot be had is said with its cause and is no failure; no mlx5 device at all: exit status 77. Under
 * LD_PRELOAD of libsoftmlx5.so the same runs on the adapter in software.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "queues.h"

#define BYTES ((size_t)1 << 20)
#define WAIT_NS 10000000000ull
#define ENTRIES 200000
#define BATCH 32
#define SKIPPED 77

struct loop {
	struct cvy_nic *nic;
	struct cvy_bells *bells;
	struct cvy_region *region;
	struct cvy_queue_pair *pair[2];
	struct cvy_queue q;
	uint8_t *memory; /* first half: from; second half: the far end */
	uint64_t abort;
};

static struct cvy_errbox *box;

static const char *cause(void)
{
	static struct covey_error_info info;

	cvy_errbox_get(box, &info);
	return info.cause;
}

static void loop_close(struct loop *l)
{
	for (int i = 0; i < 2; i++)
		cvy_pair_close(l->pair[i]);
	cvy_bells_close(l->bells);
	cvy_region_close(l->region);
	free(l->memory);
}

static int loop_open(struct loop *l, struct cvy_nic *nic, int mode, int assisted)
{
	struct cvy_pair_args args = { .mode = (enum cvy_pair_mode)mode, .depth = 128, .wait_ticks = WAIT_NS };
	struct cvy_pair_name name[2];
	int err;

	memset(l, 0, sizeof(*l));
	l->memory = aligned_alloc(4096, BYTES);
	if (!l->memory)
		return COVEY_ERR_NOMEM;
	memset(l->memory, 0, BYTES);
	err = cvy_region_open(nic, l->memory, BYTES, -1, &l->region);
	if (!err && assisted)
		err = cvy_bells_open(NULL, 2, &l->bells);
	args.abort = &l->abort;
	args.local = args.window = l->region;
	args.bells = l->bells;
	for (int i = 0; i < 2 && !err; i++) {
		err = cvy_pair_open(nic, &args, &l->pair[i]);
		if (!err)
			cvy_pair_name(l->pair[i], &name[i]);
	}
	for (int i = 0; i < 2 && !err; i++)
		err = cvy_pair_connect(l->pair[i], &name[!i]);
	if (!err)
		cvy_pair_queue(l->pair[0], &l->q);
	return err;
}

static uint64_t word(const struct loop *l, size_t at)
{
	return cvy_q_load((uint64_t *)(l->memory + at));
}

/* Every call once. */
static const char *arrives(struct loop *l, struct cvy_queue *q)
{
	size_t far = BYTES / 2;
	uint64_t before = word(l, far + 8);

	memcpy(l->memory + 100, "across the adapter", 18);
	if (cvy_queue_await(q, cvy_queue_put(q, 100, far + 300, 18)) != 1 ||
	    memcmp(l->memory + far + 300, l->memory + 100, 18))
		return "a put did not arrive";
	if (cvy_queue_await(q, cvy_queue_put_signal(q, 100, far + 400, 18, far, 0xfedcba9876543210ull)) != 1 ||
	    memcmp(l->memory + far + 400, l->memory + 100, 18) || word(l, far) != 0xfedcba9876543210ull)
		return "a put with a signal did not arrive";
	if (cvy_queue_await(q, cvy_queue_add64(q, far + 8, 0x100000001ull)) != 1 ||
	    word(l, far + 8) != before + 0x100000001ull)
		return "an add of 8 bytes did not arrive (byte order of atomics?)";
	return NULL;
}

static const char *goes_round(struct loop *l, struct cvy_queue *q, double *rate)
{
	uint64_t since = cvy_q_ticks();
	int64_t t = 0;

	for (uint64_t i = 1; i <= ENTRIES; i++) {
		t = cvy_queue_signal(q, BYTES / 2 + i % 64 * 8, i);
		if (t < 0)
			return "entries ended early";
		if (i % BATCH == 0)
			cvy_queue_flush(q);
	}
	if (cvy_queue_await(q, t) != 1)
		return "the last entries did not complete";
	*rate = ENTRIES * 1e3 / (double)(cvy_q_ticks() - since);
	for (uint64_t i = ENTRIES - 63; i <= ENTRIES; i++)
		if (word(l, BYTES / 2 + i % 64 * 8) != i)
			return "an entry was lost";
	return NULL;
}

static const char *fails_well(struct loop *l)
{
	struct cvy_queue bad = l->q;

	bad.mlx5.rkey_be ^= 0x01000000;
	if (cvy_queue_await(&bad, cvy_queue_signal(&bad, BYTES / 2, 1)) != CVY_QUEUE_FAILED)
		return "a bad key is no error";
	if (cvy_pair_check(l->pair[0], 0) != COVEY_ERR_PEER)
		return "a failed queue says that it is healthy";
	printf("      a bad key: %s\n", cause());
	return NULL;
}

static int report(const char *what, const char *why, double rate)
{
	if (why)
		printf("FAIL  %s: %s (%s)\n", what, why, cause());
	else
		printf("ok    %-22s %6.2f M entries/s\n", what, rate);
	return why != NULL;
}

static int check_way(struct cvy_nic *nic, int mode, int assisted)
{
	const char *why;
	struct loop l;
	double rate = 0;
	char what[64];

	snprintf(what, sizeof(what), "%s, %s", mode == CVY_PAIR_DEVX ? "DEVX" : "verbs",
		 assisted ? "assisted" : "direct");
	if (loop_open(&l, nic, mode, assisted)) {
		printf("none  %s: %s\n", what, cause());
		loop_close(&l);
		return 0;
	}
	why = arrives(&l, &l.q);
	if (!why)
		why = goes_round(&l, &l.q, &rate);
	if (!why)
		why = fails_well(&l);
	loop_close(&l);
	return report(what, why, rate);
}

static int check_proxy(struct cvy_nic *nic)
{
	struct cvy_proxy_args args = { .depth = 1024, .queues = 1, .wait_ticks = WAIT_NS };
	struct cvy_proxy_link link;
	struct cvy_proxy *proxy = NULL;
	const char *why = "no proxy";
	struct cvy_queue q;
	struct loop l;
	double rate = 0;

	if (loop_open(&l, nic, CVY_PAIR_VERBS, 0)) {
		printf("none  proxy: %s\n", cause());
		loop_close(&l);
		return 0;
	}
	args.abort = &l.abort;
	cvy_proxy_pair_link(&l.q, &link);
	if (!cvy_proxy_open(&args, &proxy) && !cvy_proxy_attach(proxy, 0, &link)) {
		cvy_proxy_queue(proxy, 0, &q);
		why = arrives(&l, &q);
		if (!why)
			why = goes_round(&l, &q, &rate);
	}
	cvy_proxy_close(proxy);
	loop_close(&l);
	return report("ring to a proxy", why, rate);
}

int main(int argc, char **argv)
{
	struct cvy_nic_args args = { .device = argc > 1 ? argv[1] : NULL };
	struct cvy_nic *nic;
	int failed = 0;

	box = cvy_errbox_new();
	args.box = box;
	if (cvy_nic_open(&args, &nic)) {
		printf("skipped: %s\n", cause());
		return SKIPPED;
	}
	printf("mlx5 queues of %s\n", cvy_nic_name(nic));
	for (int way = 0; way < 4; way++)
		failed += check_way(nic, way & 1 ? CVY_PAIR_DEVX : CVY_PAIR_VERBS, way >> 1);
	failed += check_proxy(nic);
	cvy_nic_close(nic);
	cvy_errbox_free(box);
	printf("%d failed\n", failed);
	return failed ? 1 : 0;
}
