/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels alone: ranks of one process, one per device (or several on one), connected by hand. Every operation
 * against an oracle on the host, with canaries around the results; then view changes made by hand: a rank that does
 * not come is removed, before, between and after what others had of it. A build without fault tolerance does the first alone.
 */
#include "guard.h"
#include "played.cuh"

static unsigned every = 1; /* of the jobs one in so many, and smaller ones: for a CPU */

static void healthy(void)
{
	static const size_t counts[] = { 0, 1, 7, 64, 1000, 5000, 60001 };
	static const int types[] = { COVEY_INT8,     COVEY_UINT8,   COVEY_INT16,  COVEY_INT32,
				     COVEY_UINT32,   COVEY_INT64,   COVEY_UINT64, COVEY_FLOAT16,
				     COVEY_BFLOAT16, COVEY_FLOAT32, COVEY_FLOAT64 };
	static const int shapes[][3] = { { 1, 32, 1 },	{ 1, 256, 4 }, { 4, 256, 2 },
					 { 8, 512, 1 }, { 16, 64, 4 }, { 8, 128, 3 } };
	unsigned k = 0;

	for (int kind = 0; kind <= CVY_GPU_BARRIER; kind++) {
		for (size_t ci = 0; ci < 7; ci++) {
			for (size_t ti = 0; ti < 11; ti++, k++) {
				struct job j = {};
				const int *shape = shapes[k % 6];

				if (kind == CVY_GPU_BARRIER && (ti || ci))
					continue;
				if ((k * 2654435761u >> 16) % every)
					continue;
				j.kind = kind;
				j.packet = k / 7 % 2;
				j.dtype = types[ti];
				j.redop = (int)(k % 5);
				if (j.redop == COVEY_AVG && (elem_of(j.dtype) == 2 && j.dtype != COVEY_INT16))
					j.redop = COVEY_SUM; /* the oracle does not round */
				j.count = every > 1 ? counts[ci] / 4 : counts[ci];
				j.lanes = shape[0];
				j.threads = shape[1];
				j.rows = shape[2];
				j.shift = k % 7 == 0 ? 3 * elem_of(j.dtype) : 0;
				j.root = has_root(kind) ? (int)(k % (unsigned)n) : -1;
				if (kind == CVY_GPU_ALLREDUCE || kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
					j.in_place = k % 4 < 2 ? 0 : k % 4 == 2 ? ODD_IN_PLACE : 1;
				else
					j.in_place = k % 4 == 3 && cvy_gpu_is_reduce(kind);
				fit(&j);
				run(&j);
			}
		}
	}
}

/* Steps whose rows are all there and full, more than one of them, and one that is neither: the loops of large operations. */
static void whole_steps(void)
{
	static const int types[] = { COVEY_FLOAT32, COVEY_FLOAT64, COVEY_INT64 };

	for (int kind = 0; kind < CVY_GPU_BARRIER; kind++) {
		for (int lanes = 1; lanes <= 2; lanes++) {
			struct job j = job_of(kind, types[(kind + lanes) % 3], 0, lanes, 64, CVY_GPU_ROWS);
			size_t step, parts = cvy_gpu_has_rounds(kind) ? (size_t)n : 1;

			j.root = has_root(kind) ? (kind + lanes) % n : -1;
			step = cvy_gpu_tile_words(j.packet, j.rows * j.threads) * 8 * (size_t)lanes;
			j.count = (3 * step + 1000) * parts / elem_of(j.dtype);
			run(&j);
		}
	}
}

/* Buffers of one rank are off alignment: it goes the long way, the others the short one; the last warp is not full. */
static void mixed_ways(void)
{
	for (int k = 0; k <= 2 * CVY_GPU_BARRIER + 1; k++) {
		struct job j = job_of(k / 2, COVEY_INT32, 1000, 2, 256);

		j.packet = k % 2;
		j.shift = 4;
		j.shift_of = 2;
		j.root = has_root(j.kind) ? n - 1 : -1;
		fit(&j);
		run(&j);
	}
}

/* Blocks that are no whole words, and buffers that begin anywhere: the short way has a kernel for them. */
static void parts(void)
{
	static const int types[] = { COVEY_FLOAT32, COVEY_INT8, COVEY_BFLOAT16 };

	for (int kind = 0; kind < CVY_GPU_BARRIER; kind++) {
		for (unsigned k = 0; k < 18; k++) {
			struct job j = job_of(kind, types[k % 3], (size_t)1 + k / 3 % 3 * 16, 1, 32);

			if (cvy_gpu_has_rounds(kind))
				continue;
			j.packet = CVY_GPU_PAIR;
			j.shift = k / 9 * elem_of(j.dtype);
			j.root = has_root(kind) ? (int)(k % (unsigned)n) : -1;
			run(&j);
		}
	}
}

/* A graph of before the last rank came: what others send, it gets, and of scatter zeros. */
static void grown(void)
{
	static const int kinds[] = { CVY_GPU_BROADCAST, CVY_GPU_BROADCAST_TWO_HOP, CVY_GPU_SCATTER };

	for (int packet = 0; packet < 2; packet++) {
		for (int i = 0; i < 3; i++) {
			struct job j = job_of(kinds[i], COVEY_INT32, 3000, 2, 64, 2);

			j.packet = packet;
			j.root = 0;
			j.grown = 1;
			fit(&j);
			run(&j);
		}
	}
}

/* Lines that @from has pushed to the others in the last operation, in one of the rounds of its last step or one @before. */
static unsigned lines_pushed(const struct job *j, int from, int round, uint32_t before = 0)
{
	uint64_t packets[2048][2];
	const unsigned here = (unsigned)(j->rows * j->threads);
	struct cvy_gpu_counters c;
	unsigned lines = 0;

	for (int to = 0; to < n; to++) {
		if (to == from)
			continue;
		OK(ranks[to].gpu, ops->counters(ranks[to].gpu, &c, 1));
		for (int lane = 0; lane < j->lanes; lane++) {
			const uint32_t count = c.lane[lane].count - before;

			OK(ranks[to].gpu,
			   ops->read(ranks[to].gpu, from, (int)(ranks[to].in >> (2 * from) & 3),
				     cvy_gpu_slot_at(round, lane, count), packets, here * CVY_GPU_PACKET));
			for (unsigned u = 7; u < here; u += 8)
				lines += packets[u][1] == CVY_GPU_TAG(epoch, count);
		}
	}
	return lines;
}

/* The root's link carries a broadcast in two hops once; in one hop, once for each rank. In steps of four lines a warp. */
static void hops(void)
{
	struct job j = job_of(CVY_GPU_BROADCAST, COVEY_INT64, 480 * (size_t)(n - 1), 4, 64, 4);
	const unsigned once = (unsigned)(j.count / 15), others = (unsigned)(n - 1);

	j.root = n - 1;
	for (int hops = 1; hops <= 2; hops++) {
		unsigned root, passed, want;

		j.kind = hops == 1 ? CVY_GPU_BROADCAST : CVY_GPU_BROADCAST_TWO_HOP;
		run(&j);
		root = lines_pushed(&j, j.root, 0);
		passed = lines_pushed(&j, 0, 1);
		want = hops == 1 ? once * others : once;
		checks++;
		/* Who has a piece passes it on to all others, in the last step to the root, too. */
		if ((root != want || passed != (hops == 2 && n > 2 ? once : 0)) && ++failures)
			fprintf(stderr,
				"broadcast in %d hops: the root pushes %u lines, not %u; another passes on %u\n", hops,
				root, want, passed);
		printf("broadcast to %u ranks in %d hops: of %u lines the root pushes %u, another %u\n", others, hops,
		       once, root, passed);
	}
}

/* The root of a reduce hears of each word once, in two shots. In the last step of two all have the results, too. */
static void heard_once(void)
{
	const unsigned shard = 4 * 256 / 8; /* lines of a step */
	const unsigned others = (unsigned)(n - 1);
	struct job j = job_of(CVY_GPU_REDUCE_TWO_SHOT, COVEY_INT64, 2 * 15 * (size_t)shard * others, 4, 64, 4);

	for (j.root = 0; j.root < n; j.root++) {
		const int owner = (j.root + 1) % n;

		run(&j);
		checks++;
		if ((lines_pushed(&j, j.root, 0, 1) != shard * others ||
		     lines_pushed(&j, owner, 0, 1) != shard * (others - 1) || lines_pushed(&j, owner, 1, 1) != shard ||
		     lines_pushed(&j, owner, 1) != shard * others || lines_pushed(&j, j.root, 1)) &&
		    ++failures)
			fprintf(stderr,
				"reduce to rank %d: the root pushes %u lines in a step, another %u, and %u of "
				"results\n",
				j.root, lines_pushed(&j, j.root, 0, 1), lines_pushed(&j, owner, 0, 1),
				lines_pushed(&j, owner, 1, 1));
	}
}

/* Large blocks in registered memory: of all ranks, and of all but one. */
static void registered(void)
{
	static const int kinds[] = { CVY_GPU_ALLREDUCE,	       CVY_GPU_ALLREDUCE_TWO_SHOT, CVY_GPU_ALLGATHER,
				     CVY_GPU_REDUCE_SCATTER,   CVY_GPU_ALLTOALL,	   CVY_GPU_BROADCAST,
				     CVY_GPU_BROADCAST_TWO_HOP };
	static const int types[] = { COVEY_FLOAT32, COVEY_BFLOAT16, COVEY_INT8, COVEY_FLOAT64 };
	unsigned k = 0;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		for (int all = 0; all < 2; all++) {
			for (int in_place = 0; in_place <= (kinds[i] <= CVY_GPU_ALLREDUCE_TWO_SHOT ? ODD_IN_PLACE : 0);
			     in_place++, k++) {
				struct job j = {};

				j.kind = kinds[i];
				j.packet = CVY_GPU_LINE;
				j.dtype = types[k % 4];
				j.redop = j.dtype == COVEY_BFLOAT16 ? COVEY_MAX : COVEY_SUM;
				j.count = ((every > 1 ? 1 << 16 : 1 << 20) + 16 * (k * 37 % 100)) / elem_of(j.dtype);
				j.lanes = every > 1 ? 4 : k % 2 ? 32 : 8; /* all at a time on one device, too */
				j.threads = every > 1 ? 64 : 512;
				j.rows = 2;
				j.root = has_root(j.kind) ? (int)(k % (unsigned)n) : -1;
				j.in_place = in_place;
				j.registered = all ? (int)mask : (int)(mask & ~2u);
				run(&j);
			}
		}
	}
}

/* alltoallv, allgatherv: counts with nothing in them, a word, some steps; on one lane and on several. */
static void uneven(void)
{
	static const size_t counts[] = { 0, 1, 4, 100, 3001, 60001 };
	static const int types[] = { COVEY_INT8, COVEY_BFLOAT16, COVEY_FLOAT32, COVEY_INT64 };
	static const int shapes[][3] = { { 1, 32, 1 }, { 2, 64, 4 }, { 4, 256, 2 }, { 8, 512, 1 } };
	unsigned k = 0;

	for (int kind = CVY_GPU_ALLTOALLV; kind <= CVY_GPU_ALLGATHERV; kind++) {
		for (size_t ci = 0; ci < 6; ci++) {
			for (size_t ti = 0; ti < 4; ti++, k++) {
				struct job j = {};

				if (every > 1 && (k * 2654435761u >> 16) % (every / 8 + 1))
					continue;
				j.kind = kind;
				j.packet = (int)(k / 2 + ti) % 2;
				j.dtype = types[ti];
				j.root = -1;
				j.count = every > 1 && ci > 3 ? counts[ci] / 4 : counts[ci];
				j.lanes = shapes[(k + ci) % 4][0];
				j.threads = shapes[(k + ci) % 4][1];
				j.rows = shapes[(k + ci) % 4][2];
				j.shift = k % 3 == 0 ? 3 * elem_of(j.dtype) : 0;
				j.in_place = kind == CVY_GPU_ALLGATHERV && k % 2;
				run(&j);
			}
		}
	}
}

static struct cvy_gpu_status status_of(int r)
{
	struct cvy_gpu_status s;

	OK(ranks[r].gpu, ops->status_read(ranks[r].gpu, &s));
	return s;
}

/* The last rank sends the first an element less than that expects: the first says so, and nothing else goes wrong. */
static void lied_to(size_t count)
{
	struct job j = job_of(CVY_GPU_ALLTOALLV, COVEY_INT32, count, 4, 64, 2);

	j.lies = n;
	while (!pair_count(&j, n - 1, 0))
		j.count++;
	for (int r = 0; r < n; r++)
		prepare(&j, r);
	for (int r = 0; r < n; r++)
		launch(&j, r);
	synchronise();
	for (int r = 0; r < n; r++, checks++) {
		if (status_of(r).status != (r ? 0 : COVEY_ERR_MISMATCH) && ++failures)
			fprintf(stderr, "a wrong count: rank %d ends with %d\n", r, status_of(r).status);
		if (r)
			compare(&j, r, mask, "beside a wrong count");
	}
	j.lies = 0;
	run(&j);
}

/* The next view counts the last rank in, with the others' number and counts; its kernel waits for them. */
static void let_in_by_host(int last)
{
	struct cvy_gpu_verdict v = {};
	struct cvy_gpu_counters c;

	for (int r = 0; r < last; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamSynchronize(ranks[r].stream));
		freeze(r);
	}
	OK(ranks[0].gpu, ops->counters(ranks[0].gpu, &c, 1));
	v.epoch = ++epoch;
	v.base = ranks[last].roll.begin = c.finished / CVY_GPU_QUANTA;
	for (int i = 0; i < CVY_GPU_LANES; i++)
		c.lane[i] = { c.lane[i].count, epoch, mask, 0, ranks[last].in, ranks[last].outgen };
	OK(ranks[last].gpu, ops->words(ranks[last].gpu, c.lane, &ranks[last].roll, &v));
	OK(ranks[last].gpu, ops->gate(ranks[last].gpu, CVY_GPU_GATE_OPEN(epoch)));
	for (int r = 0; r < last; r++)
		thaw(r, mask, v.base, 0);
}

/*
 * Another process in the last rank's place, by an ADMIT in the streams. @by_host: a view change comes between, and the
 * newcomer, whose kernel is parked, hears of it from that.
 */
static void come_back(int by_host)
{
	int last = n - 1;

	ops->close(ranks[last].gpu);
	open_rank(last);
	for (int r = 0; r < last; r++) {
		freeze(r);
		connect_pair(last, r, (int)((ranks[r].in >> (2 * last) & 3) + 1) % 4);
		connect_pair(r, last, (int)((ranks[last].in >> (2 * r) & 3) + 1) % 4);
	}
	epoch++;
	memset(&ranks[last].roll, 0, sizeof(ranks[last].roll));
	for (int r = 0; r < n; r++) {
		ranks[r].roll.members = mask;
		ranks[r].roll.since[last] = epoch;
		thaw(r, mask & ~(1u << last), r == last ? 0 : finished(r), 0);
	}
	launch_admit(last, 1u << (n - 1), 1);
	if (by_host)
		freeze(last);
	for (int r = 0; r < last; r++)
		launch_admit(r, 1u << (n - 1), 0);
	if (by_host)
		let_in_by_host(last);
}

/*
 * The last rank does not launch. The others freeze; where @holder, the first has the operation though, as if all but
 * the others' view of the last one's packets were there: tested by a launch of the last rank that pushes to the first only.
 */
static void removed(int kind, size_t count, int packet, int in_place, int lent)
{
	uint32_t left = mask & ~(1u << (n - 1));
	struct job j = job_of(kind, COVEY_FLOAT32, count, 4, 256, 2);
	uint64_t base = 0;

	j.packet = packet;
	j.root = has_root(kind) - 1;
	j.in_place = in_place;
	j.registered = lent ? (int)mask : 0;
	if (getenv("VERBOSE"))
		fprintf(stderr, "kind %d packet %d in place %d\n", kind, packet, in_place);
	fit(&j);
	for (int r = 0; r < n; r++)
		prepare(&j, r);
	for (int r = 0; r < n - 1; r++)
		launch(&j, r);
	usleep(20000);
	for (int r = 0; r < n - 1; r++)
		freeze(r);
	for (int r = 0; r < n - 1; r++)
		base = finished(r) > base ? finished(r) : base;
	epoch++;
	for (int r = 0; r < n - 1; r++)
		thaw(r, left, base, 1u << (n - 1));
	synchronise();
	for (int r = 0; r < n - 1; r++)
		compare(&j, r, left, "one removed");
	come_back((kind + packet) % 2);
	run(&j);
}

/*
 * All launch, and a change comes at whatever moment that is: some have completed the operation, others must still, or all
 * do it again. @leaves: without the last, who may have given its part to some.
 */
static unsigned interrupted(int kind, int root, size_t count, unsigned us, int leaves)
{
	struct job j = job_of(kind, COVEY_INT32, count, 4);
	uint32_t left = leaves ? mask & ~(1u << (n - 1)) : mask;
	uint64_t base = 0, least = UINT64_MAX, op = finished(0);
	int rootless;

	j.root = root;
	for (int r = 0; r < n; r++)
		prepare(&j, r);
	for (int r = 0; r < n; r++)
		launch(&j, r);
	usleep(us);
	for (int r = 0; r < n; r++)
		freeze(r);
	how_far(left, &least, &base);
	epoch++;
	for (int r = 0; r < n; r++)
		if (left >> r & 1)
			thaw(r, left, base, mask & ~left);
	for (int r = 0; r < n; r++) {
		struct cvy_gpu_status s;

		if (!(left >> r & 1))
			continue;
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamSynchronize(ranks[r].stream));
		s = status_of(r);
		if (!s.status)
			compare(&j, r, (uint32_t)(s.mask & ~s.missing), "interrupted");
		/* Nobody has it of a root that left: that is alike for all, by the number of the operation that is first done again. */
		rootless = root >= 0 && !(left >> root & 1) && base == op;
		if (s.status != (rootless ? COVEY_ERR_ROOT : 0) && ++failures)
			fprintf(stderr, "kind %d, interrupted: rank %d ends with %d\n", kind, r, s.status);
	}
	if (leaves)
		come_back(us % 2);
	run(&j);
	return base != least;
}

/* Until changes have come between some that had completed it and others, in operations of one step and of several. */
static void interruptions(int kind, int root)
{
	static const size_t counts[] = { 300, 20000 };
	unsigned between = 0, tries = 0, us = 0, most = every > 1 ? 12 / (unsigned)n : 40;

	for (int i = 0; i < 2; i++)
		for (tries = 0; tries < most; tries++, us = (us * 7 + 400) % 9000)
			between += interrupted(kind, root, counts[i], us, tries % 2);
	printf("kind %d, root %d: of %u changes %u found it completed by some alone\n", kind, root, 2 * most, between);
}

/* Every rank's counters go on from operation @op, as a newcomer's do that the words count in. */
static void leap(uint64_t op)
{
	for (int r = 0; r < n; r++)
		freeze(r);
	epoch++;
	for (int r = 0; r < n; r++) {
		ranks[r].roll.begin = op;
		thaw(r, mask, 0, 0);
		launch_admit(r, 1u << (n - 1), 1);
	}
	synchronise();
}

/* Numbers about 2^32: half words that hold one, and say "none" by another, must not take it for that. */
static void numbers_past_words(void)
{
	const uint64_t round = (uint64_t)1 << 32;
	struct job j = job_of(CVY_GPU_ALLREDUCE, COVEY_INT32, 40, 1, 32);

	j.packet = CVY_GPU_PAIR;
	leap(round - 2);
	for (int i = 0; i < 3; i++) {
		run(&j);
		for (int r = 0; r < n; r++, checks++)
			if (status_of(r).status && ++failures)
				fprintf(stderr, "operation %llu: rank %d ends with %d\n",
					(unsigned long long)(finished(r) - 1), r, status_of(r).status);
	}
	for (int in_place = 0; in_place <= ODD_IN_PLACE; in_place++) {
		leap((2 + (uint64_t)in_place) * round - 1);
		removed(CVY_GPU_ALLREDUCE, 1500, CVY_GPU_LINE, in_place, 0);
	}
}

/* What reductions of single bytes take. All threads that find room on a device have it: more would be more of its memory. */
#define STACK_MOST 2432

static void stacks(void)
{
	size_t bytes;

	CUDA(cudaDeviceGetLimit(&bytes, cudaLimitStackSize));
	checks++;
	if (bytes <= STACK_MOST)
		return;
	printf("kernels take stacks of %zu bytes, %d are meant\n", bytes, STACK_MOST);
	failures++;
}

int main(int argc, char **argv)
{
	n = argc > 1 ? atoi(argv[1]) : 2;
	every = argc > 2 && atoi(argv[2]) > 0 ? (unsigned)atoi(argv[2]) : 1;
	if (cudaGetDeviceCount(&checks) != cudaSuccess || !checks) {
		printf("skipped: no device\n");
		return 77;
	}
	checks = 0;
	if (n < 2 || n > RANKS) {
		fprintf(stderr, "gpu-kernels [RANKS [EVERY [healthy]]]: 2 to %d ranks\n", RANKS);
		return 2;
	}
	open_all();
	stacks();
	healthy();
	whole_steps();
	mixed_ways();
	parts();
	grown();
	hops();
	if (n > 2)
		heard_once();
	registered();
	uneven();
	lied_to(10);
	lied_to(3000);
	printf("healthy: %d checks, %d failed\n", checks, failures);
	if (!CVY_GUARDED || (argc > 3 && !strcmp(argv[3], "healthy"))) /* it survives nothing; or is not asked to */
		return failures != 0;
	for (int kind = 0; kind <= CVY_GPU_ALLTOALL; kind++)
		for (int packet = 0; packet < 2; packet++)
			for (int in_place = 0; in_place <= ODD_IN_PLACE; in_place++)
				if (!in_place || kind <= CVY_GPU_ALLREDUCE_TWO_SHOT)
					removed(kind, 1500, packet, in_place, 0);
	for (int kind = 0; kind <= CVY_GPU_ALLTOALL; kind++)
		removed(kind, every > 1 ? 1 << 12 : 1 << 18, CVY_GPU_LINE, 0, 1);
	for (int kind = CVY_GPU_ALLTOALLV; kind <= CVY_GPU_ALLGATHERV; kind++) {
		for (int packet = 0; packet < 2; packet++)
			removed(kind, 1500, packet, 0, 0);
		interruptions(kind, -1);
	}
	removed(CVY_GPU_BROADCAST_TWO_HOP, 15000, CVY_GPU_LINE, 0, 0);
	removed(CVY_GPU_BROADCAST_TWO_HOP, every > 1 ? 1 << 12 : 1 << 18, CVY_GPU_LINE, 0, 1);
	interruptions(CVY_GPU_BROADCAST_TWO_HOP, 0);
	interruptions(CVY_GPU_BROADCAST_TWO_HOP, n - 1);
	for (int in_place = 0; in_place <= ODD_IN_PLACE; in_place++)
		removed(CVY_GPU_REDUCE_TWO_SHOT, 1500, CVY_GPU_LINE, in_place, 0);
	removed(CVY_GPU_REDUCE_TWO_SHOT, 15000, CVY_GPU_LINE, 0, 0);
	for (int root = 0; root < n; root++)
		interruptions(CVY_GPU_REDUCE_TWO_SHOT, root);
	numbers_past_words();
	for (int kind = CVY_GPU_ALLREDUCE; kind <= CVY_GPU_ALLREDUCE_TWO_SHOT; kind++)
		completed_without(kind);
	for (int kind = CVY_GPU_ALLREDUCE; kind <= CVY_GPU_ALLREDUCE_TWO_SHOT; kind++)
		thin_end(kind);
	for (int kind = CVY_GPU_BROADCAST_TWO_HOP; n > 2 && kind <= CVY_GPU_REDUCE_TWO_SHOT; kind++)
		if (cvy_gpu_has_rounds(kind))
			passed_on_by_one(kind);
	read_by_one(CVY_GPU_ALLGATHER, 0, 0);
	read_by_one(CVY_GPU_ALLREDUCE, 1, 1);
	posted_by_one();
	for (int r = 0; r < n; r++)
		ops->close(ranks[r].gpu);
	printf("%d checks, %d failed\n", checks, failures);
	return failures != 0;
}
