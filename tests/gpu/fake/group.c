/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group on devices that are none (fake.c), under ep-run: every step is a safe point and collectives on "device" memory,
 * each checked against the mask of its outcome, and outcomes compared among all. `--kill RANK@STEP`: that rank dies at a
 * random moment of that step; with --restart on-failure its replacement comes in, and all go on for `--steps` whole steps.
 * `--again RANK`: the first time that the group is whole again, that rank dies while its device takes the newcomer in.
 * `--shy N`: the first N that come to take a place leave as soon as they are connected, before they are let in.
 * `--async 1`: safe points wait for no device, and while one is passed the sums of the step before are still under
 * way: each says by its bits who contributed, alike on all ranks, and with whom the safe point let in from the first on.
 */
#include <covey.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../outcome.h"
#include "library.h"

#define STREAM COVEY_STREAM_DEFAULT
#define COUNT 1500 /* of a block: two steps of four lanes */
#define RANKS 8
#define AHEAD 12 /* sums under way, before a safe point and after it */

static struct covey_group *group;
static int rank, size, replacement, kill_rank = -1, again_rank = -1, shy, above, failures;
static long kill_step = -1, steps = 30;
static struct {
	long step, whole, again; /* what joiners get: all end at the same step */
} state;
static int *send, *recv, *bit, *ahead, async;
static unsigned long checks, lost, cut;
static void *(*fake_alloc)(size_t);
static void (*fake_wait)(void);

static void must(int err, const char *what)
{
	struct covey_error_info info;

	if (!err)
		return;
	covey_last_error(group, &info);
	fprintf(stderr, "rank %d, step %ld: %s: %s: %s\n", rank, state.step, what, covey_strerror(err), info.cause);
	exit(1);
}

static int number(int r, size_t i)
{
	return (int)(i * 31 + (size_t)r * 7 + (size_t)state.step * 3) % 1000;
}

/* The device's memory is the host's. */
static int copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
	return 0;
}

static struct covey_device_outcome outcome(const char *what)
{
	struct covey_device_outcome o, all[RANKS];
	struct covey_result result;

	fake_wait();
	must(device_outcome(group, copy, &o), "outcome");
	memset(all, 0, sizeof(all));
	must(covey_allgather(&o, all, sizeof(o), COVEY_UINT8, group, NULL, &result), "allgather of outcomes");
	for (int r = 0; r < size; r++) {
		if (!covey_mask_has(&result.mask, r) || all[r].seq != o.seq ||
		    (all[r].status == o.status && all[r].epoch == o.epoch && all[r].mask == o.mask))
			continue;
		fprintf(stderr, "rank %d, step %ld, %s: epoch %u mask %llx here, %u %llx on rank %d\n", rank,
			state.step, what, o.epoch, (unsigned long long)o.mask, all[r].epoch,
			(unsigned long long)all[r].mask, r);
		failures++;
	}
	lost += o.status == COVEY_ERR_LOST;
	cut += o.missing != 0;
	if (o.status && o.status != COVEY_ERR_LOST)
		must(o.status, what);
	return o;
}

static void check(const char *what, size_t i, int got, int want, uint64_t mask)
{
	if (got == want || failures++ > 5)
		return;
	fprintf(stderr, "rank %d, step %ld, %s: element %zu is %d, not %d; contributors %llx\n", rank, state.step, what,
		i, got, want, (unsigned long long)mask);
}

static void fill(size_t count)
{
	for (size_t i = 0; i < count; i++)
		send[i] = number(rank, i);
	memset(recv, 0xc5, (size_t)size * COUNT * sizeof(int));
}

static void allreduce(int in_place)
{
	struct covey_device_outcome o;
	int *to = in_place ? send : recv;

	fill(COUNT);
	must(covey_allreduce(send, to, COUNT, COVEY_INT32, COVEY_SUM, group, STREAM, NULL), "allreduce");
	o = outcome("allreduce");
	checks++;
	if (o.status && !in_place && failures++ < 5)
		fprintf(stderr, "rank %d, operation %llu: lost, though its inputs stand\n", rank,
			(unsigned long long)o.seq);
	for (size_t i = 0; i < COUNT && !o.status; i++) {
		int sum = 0;

		for (int r = 0; r < size; r++)
			sum += o.mask >> r & 1 ? number(r, i) : 0;
		check("allreduce", i, to[i], sum, o.mask);
	}
}

static void blocks(int all)
{
	const char *what = all ? "alltoall" : "allgather";
	struct covey_device_outcome o;

	fill((size_t)(all ? size : 1) * COUNT);
	must(all ? covey_alltoall(send, recv, COUNT, COVEY_INT32, group, STREAM, NULL)
		 : covey_allgather(send, recv, COUNT, COVEY_INT32, group, STREAM, NULL),
	     what);
	o = outcome(what);
	checks++;
	for (size_t i = 0; i < (size_t)size * COUNT; i++) {
		int r = (int)(i / COUNT), here = (o.mask & ~o.missing) >> r & 1;

		if (o.missing >> r & 1)
			continue; /* this device keeps what had come; the kernels clear it */
		check(what, i, recv[i], here ? number(r, all ? (size_t)rank * COUNT + i % COUNT : i % COUNT) : 0,
		      o.mask);
	}
}

/* What @from has for @to (of allgatherv: for everybody, 0): none, or up to three steps of four lanes. */
static size_t share(int from, int to)
{
	return (size_t)((from * 3 + to * 5 + (int)state.step) % 4) * (COUNT / 3);
}

static void uneven(int all)
{
	const char *what = all ? "alltoallv" : "allgatherv";
	size_t out[RANKS], in[RANKS], at[RANKS];
	struct covey_device_outcome o;

	for (int r = 0; r < size; r++) {
		out[r] = share(rank, all ? r : 0);
		in[r] = share(r, all ? rank : 0);
		at[r] = (size_t)r * COUNT;
	}
	fill((size_t)size * COUNT);
	must(all ? covey_alltoallv(send, out, at, recv, in, at, COVEY_INT32, group, STREAM, NULL)
		 : covey_allgatherv(send, out[0], recv, in, at, COVEY_INT32, group, STREAM, NULL),
	     what);
	o = outcome(what);
	checks++;
	for (size_t i = 0; i < (size_t)size * COUNT; i++) {
		int r = (int)(i / COUNT), here = (o.mask & ~o.missing) >> r & 1;
		size_t from = all ? (size_t)rank * COUNT + i % COUNT : i % COUNT;

		check(what, i, recv[i], i % COUNT >= in[r] ? (int)0xc5c5c5c5 : here ? number(r, from) : 0, o.mask);
	}
}

/* What devices, or this one, do not do is said, and nothing is done on the host instead. */
static void refused(void)
{
	size_t none[RANKS] = { 0 }, ones[RANKS], at[RANKS];
	struct covey_work *work;

	for (size_t r = 0; r < RANKS; r++) {
		ones[r] = 1;
		at[r] = r;
	}

	if (covey_send(send, 1, COVEY_INT32, (rank + 1) % size, 0, group, STREAM, NULL) == COVEY_ERR_UNSUPPORTED &&
	    covey_send_start(send, 1, COVEY_INT32, (rank + 1) % size, 0, group, STREAM, &work) ==
		    COVEY_ERR_UNSUPPORTED &&
	    covey_allreduce_start(send, recv, 1, COVEY_INT32, COVEY_SUM, group, STREAM, &work) ==
		    COVEY_ERR_UNSUPPORTED &&
	    covey_allgatherv_start(send, 0, recv, none, none, COVEY_INT32, group, STREAM, &work) ==
		    COVEY_ERR_UNSUPPORTED &&
	    covey_alltoallv(send, ones, at, send, ones, at, COVEY_INT32, group, STREAM, NULL) == COVEY_ERR_UNSUPPORTED)
		return;
	fprintf(stderr, "rank %d: what devices cannot do was not refused\n", rank);
	failures++;
}

/* Launched and not waited for: half 0 before a safe point, half 1 after it. */
static void launch_ahead(int half)
{
	bit[0] = 1 << rank;
	for (int i = half * AHEAD; i < (half + 1) * AHEAD; i++) {
		ahead[i] = 0;
		must(covey_allreduce(bit, &ahead[i], 1, COVEY_INT32, COVEY_SUM, group, STREAM, NULL), "a sum ahead");
	}
}

/* Contributors of sum @i, where the safe point before said @let_in: nobody else, nobody who left, and all who are left. */
static void check_sum(int i, uint32_t let_in, uint32_t left)
{
	uint32_t got = (uint32_t)ahead[i], before = i % AHEAD ? (uint32_t)ahead[i - 1] : let_in;

	checks++;
	if ((!(got & ~before) && (got & left & let_in) == (left & let_in)) || failures++ > 5)
		return;
	fprintf(stderr, "rank %d, step %ld, sum %d: contributors %x, before %x, let in %x, left %x\n", rank, state.step,
		i, got, before, let_in, left);
}

/* When the device has passed them all. A newcomer has the second half alone. */
static void check_ahead(uint32_t before, uint32_t after)
{
	struct covey_device_outcome o;
	struct covey_result result;
	int all[RANKS * 2 * AHEAD], own[2 * AHEAD];

	must(device_outcome(group, copy, &o), "outcome");
	memset(all, 0, sizeof(all));
	memcpy(own, ahead, sizeof(own));
	if (covey_allgather(ahead, all, 2 * AHEAD, COVEY_INT32, group, NULL, &result) != COVEY_ERR_INVAL) {
		fprintf(stderr, "rank %d: one buffer on the device and one on the host were taken\n", rank);
		failures++;
	}
	if (covey_allgather(own, own, 1, COVEY_INT32, group, STREAM, NULL) != COVEY_ERR_INVAL ||
	    covey_allgather(bit, recv, 1, COVEY_INT32, group, NULL, NULL) != COVEY_ERR_INVAL) {
		fprintf(stderr,
			"rank %d: a stream with memory of the host, or none with that of the device, was taken\n",
			rank);
		failures++;
	}
	must(covey_allgather(own, all, 2 * AHEAD, COVEY_INT32, group, NULL, &result), "allgather of sums");
	for (int i = before ? 0 : AHEAD; i < 2 * AHEAD; i++) {
		/* Who has the first half's place may be another process by now. */
		check_sum(i, i < AHEAD ? before : after, i < AHEAD ? 1u << rank : (uint32_t)o.mask);
		for (int r = 0; r < size; r++)
			if (all[r * 2 * AHEAD + i] && all[r * 2 * AHEAD + i] != ahead[i] && failures++ < 5)
				fprintf(stderr, "rank %d, step %ld, sum %d: of %x here, of %x on rank %d\n", rank,
					state.step, i, (unsigned)ahead[i], (unsigned)all[r * 2 * AHEAD + i], r);
	}
}

static void *die(void *arg)
{
	unsigned seed = (unsigned)getpid();

	usleep((unsigned)rand_r(&seed) % *(unsigned *)arg);
	raise(SIGKILL);
	return NULL;
}

static void die_within(unsigned us)
{
	static unsigned within;
	pthread_t thread;

	within = us;
	pthread_create(&thread, NULL, die, &within);
}

static void one_step(void)
{
	if (rank == kill_rank && state.step == kill_step && !replacement)
		die_within(3000);
	for (int i = 0; i < (state.step == kill_step ? 20 : 1); i++) {
		for (int k = 0; k < (kill_rank % 2 ? 4 : 2); k++) /* a victim with an odd number dies in these */
			uneven((i + k) % 2);
		allreduce(0);
		allreduce(1);
		blocks(0);
		blocks(1);
	}
	refused();
}

static void start(const char *program)
{
	const char *create = getenv("COVEY_CREATE"), *slash = strrchr(program, '/');
	char path[4096];
	void *library;

	snprintf(path, sizeof(path), "%.*s" CVY_GPU_LIBRARY, slash ? (int)(slash - program) + 1 : 0, program);
	library = dlopen(path, RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	*(void **)&fake_alloc = dlsym(library, "fake_alloc");
	*(void **)&fake_wait = dlsym(library, "fake_wait");
	replacement = create && create[0] == 'n';
	send = fake_alloc((size_t)RANKS * COUNT * sizeof(int));
	recv = fake_alloc((size_t)RANKS * COUNT * sizeof(int));
	bit = fake_alloc(sizeof(int));
	ahead = fake_alloc(2 * AHEAD * sizeof(int));
	setenv("COVEY_DEVICE", "local", 1);
	must(covey_join(NULL, &group), "join");
}

/* A handle for more than devices take is one for host memory: its first call on the device says why. */
static void above_the_limits(void)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct covey_error_info info;
	struct covey_ep *ep;

	config.max_tokens = COVEY_DEVICE_MAX_TOKENS + 1;
	config.hidden = 8;
	config.top_k = 1;
	config.experts = 2;
	must(covey_ep_create(group, &config, &ep), "covey_ep_create above the limits");
	args.num_tokens = 1;
	args.route = fake_alloc(covey_ep_route_bytes(ep));
	args.x = args.packed_x = fake_alloc(4096);
	args.experts = args.count = args.src_info = args.packed_x;
	args.range = args.packed_x;
	checks++;
	if (covey_dispatch(ep, &args, STREAM, NULL) != COVEY_ERR_UNSUPPORTED) {
		fprintf(stderr, "dispatch above the limits is not refused\n");
		failures++;
	}
	covey_last_error(group, &info);
	printf("refused: %s\n", info.cause);
	covey_ep_destroy(ep);
}

/* A call of @config on the device is refused, and the cause names @what. */
static void hops_refuse(const struct covey_ep_config *config, int timeout_ms, int32_t *active, const char *what)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct covey_error_info info;
	struct covey_ep *ep;

	must(covey_ep_create(group, config, &ep), "covey_ep_create of two hops");
	args.num_tokens = 1;
	args.route = fake_alloc(covey_ep_route_bytes(ep));
	args.x = args.packed_x = args.packed_scales = fake_alloc(4096);
	args.experts = args.count = args.src_info = args.recv_experts = args.packed_x;
	args.range = args.packed_x;
	args.weights = args.recv_weights = args.packed_x;
	args.timeout_ms = timeout_ms;
	args.active_ranks = active;
	checks++;
	if (covey_dispatch(ep, &args, STREAM, NULL) != COVEY_ERR_UNSUPPORTED ||
	    (covey_last_error(group, &info), !strstr(info.cause, what))) {
		fprintf(stderr, "two hops: %s: not refused\n", what);
		failures++;
	}
	covey_ep_destroy(ep);
}

static void two_hops_refuse(void)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;

	config.max_tokens = 4;
	config.hidden = 8;
	config.top_k = 1;
	config.experts = RANKS;
	config.preset = COVEY_EP_HT;
	hops_refuse(&config, 7, NULL, "one of 7 ms");
	hops_refuse(&config, -1, fake_alloc(4096), "active_ranks");
	config.rows = COVEY_EP_ROWS_INT8;
	hops_refuse(&config, -1, NULL, "rows or results of integers");
	config.rows = COVEY_EP_ROWS_BF16;
	config.combine_rows = COVEY_EP_BACK_INT8;
	hops_refuse(&config, -1, NULL, "rows or results of integers");
}

int main(int argc, char **argv)
{
	int whole = atoi(getenv("WORLD_SIZE") ? getenv("WORLD_SIZE") : "1");
	struct covey_result result;
	struct covey_view view;
	uint32_t before = 0; /* contributors by the safe point before, 0: this rank was not there */

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--kill"))
			sscanf(argv[i + 1], "%d@%ld", &kill_rank, &kill_step);
		else if (!strcmp(argv[i], "--async"))
			async = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--again"))
			again_rank = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--shy"))
			shy = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--steps"))
			steps = atol(argv[i + 1]);
		else if (!strcmp(argv[i], "--above"))
			above = atoi(argv[i + 1]);
	}
	start(argv[0]);
	if (above) {
		above_the_limits();
		two_hops_refuse();
	}
	covey_view(group, &view);
	rank = view.rank;
	if (replacement && view.incarnation <= (uint64_t)(whole + shy))
		_exit(1);
	for (;; state.step++) {
		must(async ? covey_admit_async(group, &state, sizeof(state), STREAM, &result)
			   : covey_admit(group, &state, sizeof(state), &result),
		     "admit");
		size = result.size;
		if (covey_mask_count(&result.mask) == whole && result.epoch > 1 && !state.again++ && rank == again_rank)
			die_within(400);
		launch_ahead(1);
		one_step();
		check_ahead(before, (uint32_t)result.mask.word[0]);
		before = (uint32_t)result.mask.word[0];
		launch_ahead(0);
		state.whole += covey_mask_count(&result.mask) == whole && (kill_rank < 0 || result.epoch > 1);
		if (failures || state.whole >= steps)
			break;
	}
	printf("rank %d: %lu checks, %d failed, %lu lost, %lu without a part, epoch %u\n", rank, checks, failures, lost,
	       cut, result.epoch);
	fake_wait();
	covey_leave(group, 0);
	covey_close(group);
	return failures != 0;
}
