/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives on device memory, under ep-run. Each message is of bytes that say who sent it, in which step and as
 * what, its room is surrounded by others that must stay; so what arrives is right, or is not there and the host is told.
 * Every step: sizes about the borders of cells, pieces and the ring between all pairs, both ways in one group of calls; a ring of
 * sends; several of a pair in a group; launches of few CTAs against many; to itself; what does not match; works; a graph that was
 * captured once; and after each an allreduce, which must be exact as ever.
 *
 * With `--kill RANK@STEP` that rank waits, in that step, until the others receive from it what it never sends, while large
 * messages are under way between all; then it dies (--early: at a random moment of them). Messages between survivors arrive,
 * those with the dead end with PEER. With --restart on-failure its replacement comes in, and all go on until `--steps` whole
 * steps have passed since; with `--without 1` nobody comes, and nothing but the removal ends what waits for the dead. With
 * `--extend 1` one more rank comes in at last, and as many steps follow. With `--abort 1` all abort at the end, while a
 * receive waits.
 *
 *	ep-run -n 3 --restart on-failure -- ./gpu-message --kill 1@2 --steps 2
 */
#include "messages.cuh"

static int early, without, extends, aborts, captured_from;
static uint64_t *sums;

static void sum(void)
{
	struct covey_result o;
	uint64_t own = 1ull << rank, got = 0, want;

	CUDA(cudaMemcpyAsync(sums, &own, sizeof(own), cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
	must(covey_allreduce(sums, sums + 1, 1, COVEY_UINT64, COVEY_SUM, group, STREAM, NULL), "allreduce");
	CUDA(cudaStreamSynchronize(stream));
	must(covey_device_result(group, &o), "outcome");
	must(o.status, "allreduce");
	CUDA(cudaMemcpy(&got, sums + 1, sizeof(got), cudaMemcpyDeviceToHost));
	want = o.mask.word[0];
	if (got != want || (members & ~o.mask.word[0] & ~(died ? 1ull << kill_rank : 0)))
		wrong("allreduce", -1, 0, (int)(got ^ want), 0);
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
static void mismatch(const char *name, int tag, size_t dropped, size_t room)
{
	const int to = next_of(rank), from = before(rank);
	const size_t bytes = 32 * PIECE;

	fill(62, dropped > bytes ? dropped : bytes);
	must(covey_group_start(), "group");
	must(send(to, 9, 1), name);
	must(send(to, dropped, 2), name);
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

/* Many in one group, each with room for all that follow: they are received in their order, and end where the next begins. */
static void several(const char *name, const size_t *sizes, int n)
{
	const int to = next_of(rank), from = before(rank);
	size_t bytes = 0;

	for (int k = 0; k < n; k++)
		bytes += sizes[k];
	fill(64, bytes);
	must(covey_group_start(), "group");
	for (size_t k = 0, i = EDGE; k < (size_t)n; i += sizes[k++]) {
		must(covey_recv(at(in, from) + i, bytes + EDGE - i, COVEY_UINT8, from, (int)k, group, STREAM, NULL),
		     name);
		must(covey_send(at(out, to) + i, sizes[k], COVEY_UINT8, to, (int)k, group, STREAM, NULL), name);
	}
	must(covey_group_end(), name);
	outcome(name, 0, -1);
	check(name, from, 64, bytes, 1);
}

/* More than there are cells, until they are given back. */
static void short_ones(void)
{
	size_t sizes[60];

	for (int k = 0; k < 60; k++)
		sizes[k] = (size_t)k % 7 * 5;
	for (int i = 0; i < 6; i++)
		several("short ones", sizes, 60);
}

/* Two launches, of few threads and of many CTAs, each on the other side of one of the other kind. */
static void sides(void)
{
	const int to = next_of(rank), from = before(rank);

	fill(65, 100 * PIECE);
	must(send(to, 100 * PIECE, 1), "sides");
	must(recv(from, 100, 1), "sides");
	outcome("many CTAs to one", COVEY_ERR_MISMATCH, from);
	check("many CTAs to one", from, 65, 0, 1);
	must(send(to, 100, 1), "sides");
	must(recv(from, LARGE, 1), "sides");
	outcome("one CTA to many", 0, -1);
	check("one CTA to many", from, 65, 100, 1);
	must(send(to, CELL, 1), "sides");
	must(send(to, 100 * PIECE, 2), "sides");
	must(recv(from, LARGE, 1), "sides");
	must(recv(from, LARGE, 2), "sides");
	outcome("room for more", 0, -1);
	check("room for more", from, 65, 100 * PIECE, 1);
}

static void refused(void)
{
	struct covey_work *work = NULL;
	int err;

	if (covey_send_start(out, 1, COVEY_UINT8, next_of(rank), 0, group, STREAM, NULL) != COVEY_ERR_INVAL)
		wrong("a work that nobody takes", -1, 0, 0, COVEY_ERR_INVAL);
	if (send(rank, 1, 0) != COVEY_ERR_INVAL)
		wrong("to itself, and no receive", -1, 0, 0, COVEY_ERR_INVAL);
	if (size < RANKS && send(size, 1, 0) != COVEY_ERR_PEER && send(size, 1, 0) != COVEY_ERR_INVAL)
		wrong("to nobody", -1, 0, 0, COVEY_ERR_PEER);
	err = covey_send_start(out, 1, COVEY_UINT8, 40, 0, group, STREAM, &work); /* devices have no such rank */
	if ((err != COVEY_ERR_PEER && err != COVEY_ERR_INVAL) || work)
		wrong("a work to nobody", 40, 0, err, COVEY_ERR_PEER);
}

/* ---- works ---- */

static void hold(void *held)
{
	while (__atomic_load_n((int *)held, __ATOMIC_ACQUIRE))
		usleep(100);
}

static void undecided(const char *name, struct covey_work *work, uint64_t deadline_ns, int want)
{
	int got = covey_work_test(work, NULL);

	if (got != COVEY_ERR_AGAIN)
		wrong(name, -1, 0, got, COVEY_ERR_AGAIN);
	got = covey_work_wait(work, deadline_ns, NULL);
	if (got != want)
		wrong(name, -1, 1, got, want);
}

/* Both ways in one group of calls, while the stream stands before it. A receive has more room, and takes any tag. */
static void works(size_t bytes)
{
	static int held;
	const int to = next_of(rank), from = before(rank);
	struct covey_work *sent, *came;
	char text[200];

	fill(70, bytes);
	__atomic_store_n(&held, 1, __ATOMIC_RELEASE);
	CUDA(cudaLaunchHostFunc(stream, hold, &held));
	must(covey_group_start(), "group");
	sent = send_start(to, bytes, 11);
	came = recv_start(from, bytes + 9, COVEY_TAG_ANY);
	undecided("a work before the group's end", came, 0, COVEY_ERR_INVAL);
	covey_work_progress(sent, text, sizeof(text));
	if (!strstr(text, "send: covey_group_end() launches it"))
		wrong(text, to, 0, 0, 1);
	must(covey_group_end(), "works");
	undecided("a work before the stream comes past", came, 1, COVEY_ERR_TIMEOUT);
	__atomic_store_n(&held, 0, __ATOMIC_RELEASE);
	decided("a work of a receive", came, 0, from, bytes, 11);
	decided("a work of a send", sent, 0, to, bytes, 11);
	check("works", from, 70, bytes, 1);
	outcome("works", 0, -1);
}

/* The second of three is not what was asked for: its own work says so, and nothing else does. */
static void works_apart(size_t bytes)
{
	const int to = next_of(rank), from = before(rank);
	struct covey_work *came[3], *dropped;

	fill(71, bytes);
	must(covey_group_start(), "group");
	for (int k = 0; k < 3; k++) {
		must(send(to, bytes, k), "works apart");
		came[k] = recv_start(from, bytes, k == 1 ? 9 : k);
	}
	dropped = recv_start(rank, bytes, 5);
	covey_work_free(send_start(rank, bytes, 5)); /* before it is launched */
	must(covey_group_end(), "works apart");
	decided("the first of three", came[0], 0, from, bytes, 0);
	decided("another tag", came[1], COVEY_ERR_MISMATCH, from, bytes, 9);
	decided("the third of three", came[2], 0, from, bytes, 2);
	decided("to itself", dropped, 0, rank, bytes, 5);
	check("works apart", from, 71, bytes, 1);
	check("to itself", rank, 71, bytes, 1);
	outcome("works apart", 0, -1);
}

/* A group's end that launches nothing decides its works. */
static void works_refused(void)
{
	struct covey_work *work;
	int err;

	must(covey_group_start(), "group");
	work = send_start(rank, 1, 0);
	err = covey_group_end();
	if (err != COVEY_ERR_INVAL)
		wrong("to itself, and no receive", rank, 0, err, COVEY_ERR_INVAL);
	decided("a work that is not launched", work, COVEY_ERR_INVAL, rank, 1, 0);
}

/* As many as there may be, in one launch after the other, and none is read: those that follow find room again. */
static void many_works(void)
{
	const int to = next_of(rank), from = before(rank);

	fill(72, 40);
	for (int k = 0; k < 2 * CVY_GPU_RECEIPTS; k++) {
		must(covey_group_start(), "group");
		covey_work_free(send_start(to, 40, k));
		covey_work_free(recv_start(from, 40, k));
		must(covey_group_end(), "many works");
		if (k % 64 == 63)
			CUDA(cudaStreamSynchronize(stream));
	}
	outcome("many works", 0, -1);
	check("many works", from, 72, 40, 1);
}

/* Who comes in when the group grows has no place in the ring of the others' graphs, but in their barriers. */
static void capture(void)
{
	struct covey_work *work = NULL;
	cudaGraph_t captured;
	int err;

	captured_from = before(rank);
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	err = covey_recv_start(in, 1, COVEY_UINT8, captured_from, 0, group, STREAM, &work);
	if (err != COVEY_ERR_INVAL || work)
		wrong("a work of a stream that is captured", captured_from, 0, err, COVEY_ERR_INVAL);
	for (int i = 0; i < 3; i++) {
		if (rank < world())
			exchange(i == 1 ? LARGE : 16 * PIECE);
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
	if (rank < world())
		check("graph", captured_from, 63, LARGE, 1);
}

static void ended_by_abort(const char *name, int got)
{
	if (got != COVEY_ERR_ABORTED && got != COVEY_ERR_PEER)
		wrong(name, -1, 0, got, COVEY_ERR_ABORTED);
}

/*
 * All wait for what nobody sends. The waits end; the kernels do so when the handle is closed. A group of calls that ends
 * after the abort launches nothing.
 */
static void aborted(void)
{
	struct covey_work *work = recv_start(before(rank), 8, 0), *kept = NULL;

	must(covey_barrier(group, NULL, NULL), "all wait");
	must(covey_group_start(), "group");
	covey_recv_start(in, 8, COVEY_UINT8, before(rank), 0, group, STREAM, &kept); /* PEER: others were faster */
	covey_abort(group);
	ended_by_abort("a group of calls", covey_group_end());
	ended_by_abort("a wait that is aborted", covey_work_wait(work, 0, NULL));
	if (kept)
		ended_by_abort("a work that is not launched", covey_work_wait(kept, 0, NULL));
	covey_work_free(work);
	covey_work_free(kept);
}

/* ---- death ---- */

/* Large ones between all while somebody dies, then one from the dead, which nothing but its removal ends. */
static void death(void)
{
	static const unsigned at_once[2] = { 0, 30000 }, later[2] = { 50000, 30000 };
	struct covey_work *sent[RANKS] = { NULL }, *from_dead[2];
	int known; /* that it is dead, when it is called */

	if (rank == kill_rank && early)
		die_soon(at_once);
	died = 1;
	everyone("large, and a death", 50, LARGE);
	if (rank == kill_rank) {
		die_soon(later);
		pause();
	}
	fill(51, LARGE);
	must(covey_group_start(), "group");
	known = recv(kill_rank, 100, 51);
	called(known, kill_rank, "from the dead");
	for (int k = 0; k < 2; k++)
		from_dead[k] = recv_start(kill_rank, 100, 52 + k);
	for (int p = 0; p < size; p++) {
		if (!here(p) || p == rank || p == kill_rank)
			continue;
		sent[p] = send_start(p, LARGE, 51);
		called(recv(p, LARGE, 51), p, "beside the dead");
	}
	ended(covey_group_end(), "beside the dead");
	for (int k = 0; k < 2; k++)
		decided("a work from the dead", from_dead[k], COVEY_ERR_PEER, kill_rank, 0, 0);
	for (int p = 0; p < size; p++)
		decided("a work beside the dead", sent[p], 0, p, LARGE, 51);
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
	static const size_t sizes[] = {
		0,    1,	13,	   31 * 8,	  31 * 8 + 1,	  255 * 8,     255 * 8 + 1,
		CELL, CELL + 1, 2 * PIECE, 2 * PIECE + 1, 16 * PIECE + 7, 100 * PIECE, LARGE - PIECE,
		LARGE
	};
	static const size_t mixed[] = { 0, 7, CELL, 100 * PIECE, CELL + 1, 3, 31 * PIECE + 9, 2 * PIECE, 8, 40 * PIECE };

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
	mismatch("another tag", 9, 9, 32 * PIECE);
	mismatch("another tag, more than the ring", 9, LARGE, LARGE);
	mismatch("too little room", 2, 32 * PIECE, 32 * PIECE - 1);
	several("several", mixed, sizeof(mixed) / sizeof(mixed[0]));
	short_ones();
	sides();
	works(13);
	works(100 * PIECE);
	works_apart(20 * PIECE);
	works_refused();
	if (!state.step)
		many_works();
	sum();
	if (__builtin_popcountll(members) == size)
		replay();
	sum();
}

int main(int argc, char **argv)
{
	static const struct number own[] = { { "--early", &early },
					     { "--abort", &aborts },
					     { "--without", &without },
					     { "--extend", &extends },
					     { NULL, NULL } };
	struct covey_result result;

	steps = 2;
	options(argc, argv, own);
	setenv("COVEY_HANG_MS", "30000", 0); /* who is starved is not left out: all that happens here is deaths */
	if (world() + 1 > RANKS) {
		fprintf(stderr, "gpu-message: at most %d ranks in this build, and one more with --extend\n", RANKS - 1);
		return 2;
	}
	start();
	CUDA(cudaMalloc(&in, RANKS * ROOM));
	CUDA(cudaMalloc(&out, RANKS * ROOM));
	CUDA(cudaMalloc(&sums, 2 * sizeof(*sums)));
	host = (uint8_t *)malloc(RANKS * ROOM);
	for (;; state.step++) {
		must(covey_admit_async(group, &state, sizeof(state), STREAM, &result), "admit");
		size = result.size;
		members = result.mask.word[0];
		died = 0;
		if (!graph)
			capture();
		one_step();
		if (another(&result, world() - without + state.extended))
			continue;
		if (failures || !extends || state.extended)
			break;
		extend(argv, __builtin_ctzll(members));
	}
	if (!failures) /* who leaves takes no part any more in what others have not completed */
		must(covey_barrier(group, NULL, NULL), "the end");
	if (aborts && !failures)
		aborted();
	printf("rank %d: %llu checks, %d failed, %llu ended by a death, epoch %u\n", rank, (unsigned long long)checks,
	       failures, (unsigned long long)lost, result.epoch);
	return finish();
}
