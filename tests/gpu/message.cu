/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives on device memory, under ep-run. Each message is of bytes that say who sent it, in which step and as
 * what, its room is surrounded by others that must stay; so what arrives is right, or is not there and the host is told.
 * Every step: all sizes between all pairs, both ways in one group of calls; a ring of sends; several tags; to itself; what
 * does not match; a graph that was captured once; and after each an allreduce, which must be exact as ever.
 *
 * With `--kill RANK@STEP` that rank waits, in that step, until the others receive from it what it never sends, while large
 * messages are under way between all; then it dies (--early: at a random moment of them). Messages between survivors arrive,
 * those with the dead end with PEER. With --restart on-failure its replacement comes in, and all go on until `--steps` whole
 * steps have passed since; with `--without 1` nobody comes, and nothing but the removal ends what waits for the dead.
 *
 *	ep-run -n 3 --restart on-failure -- ./gpu-message --kill 1@2 --steps 2
 */
#include <covey.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 8
#define SLOT 30720 /* bytes that a slot of the ring has, head and all; the ring has 32 */
#define LARGE ((size_t)40 * SLOT + 5)
#define ROOM (LARGE + 64) /* of one message */
#define EDGE 32		  /* before and behind it */
#define PAD 0xc5

static struct covey_group *group;
static int rank, size, replacement, early, without, kill_rank = -1, failures, died;
static long kill_step = -1, steps = 2;
static struct {
	long step, whole; /* what joiners get: all end at the same step */
} state;
static uint8_t *host, *in, *out; /* ROOM for each rank */
static int *sums;
static cudaStream_t stream;
static cudaGraphExec_t graph;
static uint64_t members, checks, lost;

#define CUDA(call) \
	do { \
		cudaError_t got_ = (call); \
		if (got_ != cudaSuccess) { \
			fprintf(stderr, "rank %d: %s:%d: %s: %s\n", rank, __FILE__, __LINE__, #call, \
				cudaGetErrorString(got_)); \
			exit(1); \
		} \
	} while (0)
#define STREAM ((struct CUstream_st *)stream)

static void must(int err, const char *what)
{
	struct covey_error_info info;

	if (!err)
		return;
	covey_last_error(group, &info);
	fprintf(stderr, "rank %d, step %ld: %s: %s: %s\n", rank, state.step, what, covey_strerror(err), info.cause);
	exit(1);
}

static void wrong(const char *what, int peer, size_t i, int got, int want)
{
	if (failures++ < 10)
		fprintf(stderr, "rank %d, step %ld, %s: with rank %d at %zu: %d, not %d\n", rank, state.step, what,
			peer, i, got, want);
}

static int here(int r)
{
	return members >> r & 1;
}

/* ---- buffers ---- */

static uint8_t *at(uint8_t *buffers, int peer)
{
	return buffers + (size_t)peer * ROOM;
}

/* Byte @i of what @from sends to @to. */
static uint8_t byte_of(int from, int to, int what, size_t i)
{
	uint32_t v = (uint32_t)i * 2654435761u + (uint32_t)(from * 8 + to) * 40503u + (uint32_t)what * 977u +
		     (uint32_t)state.step * 131u;

	return (uint8_t)(v >> 13);
}

/* For each peer its message of @bytes, and rooms where nothing is yet. */
static void fill(int what, size_t bytes)
{
	for (int p = 0; p < size; p++)
		for (size_t i = 0; i < bytes; i++)
			at(host, p)[EDGE + i] = byte_of(rank, p, what, i);
	CUDA(cudaMemcpyAsync(out, host, (size_t)size * ROOM, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemsetAsync(in, PAD, (size_t)size * ROOM, stream));
	CUDA(cudaStreamSynchronize(stream));
}

/* What came of @peer: @bytes, and nothing beside them. @came -1: some of them, maybe. */
static void check(const char *name, int peer, int what, size_t bytes, int came)
{
	uint8_t *to = at(host, peer);

	CUDA(cudaMemcpyAsync(to, at(in, peer), ROOM, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	checks++;
	for (size_t i = 0; i < ROOM; i++) {
		int inside = i >= EDGE && i < EDGE + bytes;
		int want = inside ? byte_of(peer, rank, what, i - EDGE) : PAD;

		if (to[i] == want || (inside && came < 0))
			continue;
		wrong(name, peer, i, to[i], want);
		break;
	}
}

static int send(int peer, size_t bytes, int tag)
{
	return covey_send(at(out, peer) + EDGE, bytes, COVEY_UINT8, peer, tag, group, STREAM, NULL);
}

static int recv(int peer, size_t bytes, int tag)
{
	return covey_recv(at(in, peer) + EDGE, bytes, COVEY_UINT8, peer, tag, group, STREAM, NULL);
}

/* ---- what became of it ---- */

/* Waits for the stream. The failure that is known of the messages until here: @want, of @peer if that is not -1. */
static void outcome(const char *name, int want, int peer)
{
	struct covey_device_message_outcome o;

	CUDA(cudaStreamSynchronize(stream));
	must(covey_device_message_outcome(group, &o), "message outcome");
	if (o.status != want && !(died && o.status == COVEY_ERR_PEER && o.peer == kill_rank))
		wrong(name, o.peer, 0, o.status, want);
	if (o.status && want == o.status && peer >= 0 && o.peer != peer)
		wrong(name, o.peer, 1, o.peer, peer);
	lost += o.status == COVEY_ERR_PEER;
}

/* A call says so at once where its peer is known to be gone. */
static void called(int err, int peer, const char *name)
{
	if (died && err == COVEY_ERR_PEER && peer == kill_rank)
		lost++;
	else
		must(err, name);
}

/* A group's end tells of the first call that was refused. */
static void ended(int err, const char *name)
{
	if (!died || err != COVEY_ERR_PEER)
		must(err, name);
}

static void sum(void)
{
	struct covey_device_outcome o;
	int own = 1 << rank, got = -1, want;

	CUDA(cudaMemcpyAsync(sums, &own, sizeof(int), cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
	must(covey_allreduce(sums, sums + 1, 1, COVEY_INT32, COVEY_SUM, group, STREAM, NULL), "allreduce");
	CUDA(cudaStreamSynchronize(stream));
	must(covey_device_outcome(group, &o), "outcome");
	must(o.status, "allreduce");
	CUDA(cudaMemcpy(&got, sums + 1, sizeof(int), cudaMemcpyDeviceToHost));
	want = (int)o.mask;
	if (got != want || (members & ~o.mask & ~(died ? 1ull << kill_rank : 0)))
		wrong("allreduce", -1, 0, got, want);
}

/* ---- messages ---- */

/* Between all pairs, both ways, in one launch. */
static void everyone(const char *name, int what, size_t bytes)
{
	fill(what, bytes);
	must(covey_group_start(), "group");
	for (int p = 0; p < size; p++) {
		if (!here(p))
			continue;
		called(send(p, bytes, what), p, name);
		called(recv(p, bytes, what), p, name);
	}
	ended(covey_group_end(), name);
	outcome(name, 0, -1);
	for (int p = 0; p < size; p++)
		if (here(p))
			check(name, p, what, bytes, died && p == kill_rank ? -1 : 1);
}

static int next_of(int r)
{
	do
		r = (r + 1) % size;
	while (!here(r));
	return r;
}

static int before(int r)
{
	do
		r = (r + size - 1) % size;
	while (!here(r));
	return r;
}

static void exchange(size_t bytes)
{
	must(covey_group_start(), "group");
	called(send(next_of(rank), bytes, 0), next_of(rank), "ring");
	called(recv(before(rank), bytes, 0), before(rank), "ring");
	ended(covey_group_end(), "ring");
}

/* From each to the next: more than the ring of slots, so none ends before all are under way. */
static void ring(void)
{
	fill(60, LARGE);
	exchange(LARGE);
	outcome("ring", 0, -1);
	check("ring", before(rank), 60, LARGE, 1);
}

/* Outside of a group: short ones are sent before anybody receives. */
static void alone(void)
{
	fill(61, 3000);
	for (int k = 0; k < 3; k++)
		must(send(next_of(rank), 1000, 7), "send");
	for (int k = 0; k < 3; k++)
		must(covey_recv(at(in, before(rank)) + EDGE + k * 1000, 1000, COVEY_UINT8, before(rank),
				k == 1 ? COVEY_TAG_ANY : 7, group, STREAM, NULL),
		     "recv");
	outcome("alone", 0, -1);
	CUDA(cudaMemcpyAsync(host, at(in, before(rank)) + EDGE, 3000, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	for (size_t i = 0; i < 3000; i++)
		if (host[i] != byte_of(before(rank), rank, 61, i % 1000)) {
			wrong("alone", before(rank), i, host[i], byte_of(before(rank), rank, 61, i % 1000));
			break;
		}
}

/* The second of three is not what was asked for: it is not written, the host is told, and the third is right. */
static void mismatch(const char *name, int tag, size_t room)
{
	const int to = next_of(rank), from = before(rank);
	const size_t bytes = 2 * SLOT;

	fill(62, bytes);
	must(covey_group_start(), "group");
	must(send(to, 9, 1), name);
	must(send(to, bytes, 2), name);
	must(send(to, bytes, 3), name);
	must(recv(from, 9, 1), name);
	must(recv(from, room, tag), name);
	must(covey_group_end(), name);
	outcome(name, COVEY_ERR_MISMATCH, from);
	check(name, from, 62, 9, 1);
	must(recv(from, bytes + 1, 3), name);
	outcome(name, 0, -1);
	check(name, from, 62, bytes, 1);
}

static void refused(void)
{
	struct covey_work *work;

	if (covey_send_start(out, 1, COVEY_UINT8, next_of(rank), 0, group, STREAM, &work) != COVEY_ERR_UNSUPPORTED)
		wrong("a work", -1, 0, 0, COVEY_ERR_UNSUPPORTED);
	if (send(rank, 1, 0) != COVEY_ERR_INVAL)
		wrong("to itself, and no receive", -1, 0, 0, COVEY_ERR_INVAL);
	if (size < RANKS && send(size, 1, 0) != COVEY_ERR_PEER && send(size, 1, 0) != COVEY_ERR_INVAL)
		wrong("to nobody", -1, 0, 0, COVEY_ERR_PEER);
}

static void capture(void)
{
	cudaGraph_t captured;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	for (int i = 0; i < 3; i++) {
		exchange(i == 1 ? LARGE : SLOT);
		must(covey_barrier(group, STREAM, NULL), "capture");
	}
	CUDA(cudaStreamEndCapture(stream, &captured));
	CUDA(cudaGraphInstantiate(&graph, captured, 0));
}

static void replay(void)
{
	fill(63, LARGE);
	for (int i = 0; i < 2; i++)
		CUDA(cudaGraphLaunch(graph, stream));
	outcome("graph", 0, -1);
	check("graph", before(rank), 63, LARGE, 1);
}

/* ---- death ---- */

static void *die(void *arg)
{
	unsigned seed = (unsigned)getpid();

	usleep((unsigned)rand_r(&seed) % 30000 + (arg ? 0 : 50000));
	raise(SIGKILL);
	return NULL;
}

/* Large ones between all while somebody dies, then one from the dead, which nothing but its removal ends. */
static void death(void)
{
	pthread_t thread;
	int known; /* that it is dead, when it is called */

	if (rank == kill_rank && early)
		pthread_create(&thread, NULL, die, &early);
	died = 1;
	everyone("large, and a death", 50, LARGE);
	if (rank == kill_rank) {
		pthread_create(&thread, NULL, die, NULL);
		pause();
	}
	fill(51, LARGE);
	must(covey_group_start(), "group");
	known = recv(kill_rank, 100, 51);
	called(known, kill_rank, "from the dead");
	for (int p = 0; p < size; p++) {
		if (!here(p) || p == rank || p == kill_rank)
			continue;
		called(send(p, LARGE, 51), p, "beside the dead");
		called(recv(p, LARGE, 51), p, "beside the dead");
	}
	ended(covey_group_end(), "beside the dead");
	outcome("beside the dead", known ? 0 : COVEY_ERR_PEER, kill_rank);
	for (int p = 0; p < size; p++)
		if (here(p) && p != rank && p != kill_rank)
			check("beside the dead", p, 51, LARGE, 1);
	if (!lost)
		wrong("a dead peer is not told", kill_rank, 0, 0, COVEY_ERR_PEER);
	sum();
}

/* ---- steps ---- */

static void one_step(void)
{
	static const size_t sizes[] = { 0, 1, 8, 13, 4099, SLOT - 16, SLOT - 15, 5 * SLOT, 33 * SLOT + 1 };

	if (state.step == kill_step && !replacement) {
		death();
		return;
	}
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		everyone("everyone", (int)i, sizes[i]);
	sum();
	refused();
	if (next_of(rank) == rank)
		return;
	ring();
	alone();
	mismatch("another tag", 9, 2 * SLOT);
	mismatch("too little room", 2, 2 * SLOT - 1);
	sum();
	if (__builtin_popcountll(members) == size)
		replay();
	sum();
}

static void start(void)
{
	const char *local = getenv("LOCAL_RANK"), *create = getenv("COVEY_CREATE");
	char device[16];
	int count = 0, number;

	if (cudaGetDeviceCount(&count) != cudaSuccess || !count) {
		printf("skipped: no device\n");
		exit(77);
	}
	number = (local ? atoi(local) : 0) % count;
	snprintf(device, sizeof(device), "%d", number);
	setenv("COVEY_DEVICE", device, 1);
	setenv("COVEY_HANG_MS", "30000", 0); /* who is starved is not left out: all that happens here is deaths */
	replacement = create && create[0] == 'n';
	CUDA(cudaSetDevice(number));
	must(covey_join(NULL, &group), "join");
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&in, RANKS * ROOM));
	CUDA(cudaMalloc(&out, RANKS * ROOM));
	CUDA(cudaMalloc(&sums, 2 * sizeof(int)));
	host = (uint8_t *)malloc(RANKS * ROOM);
}

int main(int argc, char **argv)
{
	struct covey_result result;
	struct covey_view view;
	long wanted;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--kill"))
			sscanf(argv[i + 1], "%d@%ld", &kill_rank, &kill_step);
		else if (!strcmp(argv[i], "--steps"))
			steps = atol(argv[i + 1]);
		else if (!strcmp(argv[i], "--early"))
			early = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--without"))
			without = atoi(argv[i + 1]);
	}
	start();
	covey_view(group, &view);
	rank = view.rank;
	wanted = atol(getenv("WORLD_SIZE") ? getenv("WORLD_SIZE") : "1");
	wanted -= without;
	for (;; state.step++) {
		must(covey_admit_async(group, &state, sizeof(state), STREAM, &result), "admit");
		size = result.size;
		members = result.mask.word[0];
		died = 0;
		if (!graph)
			capture();
		one_step();
		state.whole += covey_mask_count(&result.mask) == wanted && (kill_rank < 0 || result.epoch > 1);
		if (failures || state.whole >= steps)
			break;
	}
	if (!failures) /* who leaves takes no part any more in what others have not completed */
		must(covey_barrier(group, NULL, NULL), "the end");
	printf("rank %d: %llu checks, %d failed, %llu ended by a death, epoch %u\n", rank, (unsigned long long)checks,
	       failures, (unsigned long long)lost, result.epoch);
	covey_leave(group, 0);
	covey_close(group);
	return failures != 0;
}
