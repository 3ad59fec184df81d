/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations in two levels: ranks of several hosts, with a network between them that counts the bytes. Against an oracle that
 * folds host by host; with view changes at whatever moment, after which hosts are uneven, or even again.
 */
#include "jobs.cuh"
#include "wires.cuh"

static int far(int a, int b)
{
	return a / width != b / width;
}

/* Words of a view of @members for rank @r, of several hosts. @wide: two levels, by so many ranks of a host; 0: flat */
static void part(int r, uint32_t members, uint64_t base, uint32_t gone, int wide)
{
	const struct cvy_gpu_era eras[] = { { 0, epoch - 1, mask, 0, 0 }, { base, epoch, members, 0, 0 } };
	struct cvy_gpu_verdict v = { epoch, 0, base, gone, 0 };
	uint32_t failed = CVY_GPU_FAR | (uint32_t)wide << CVY_GPU_WIDTH_SHIFT;
	struct cvy_gpu_counters c;

	OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &c, 1));
	if (c.finished / CVY_GPU_QUANTA < base)
		failed |= CVY_GPU_LAGS;
	for (int i = 0; i < CVY_GPU_LANES; i++)
		c.lane[i] = { c.lane[i].count, epoch, members, failed, ranks[r].in, ranks[r].outgen };
	memcpy(ranks[r].roll.era, eras, sizeof(eras));
	ranks[r].roll.eras = 2;
	OK(ranks[r].gpu, ops->words(ranks[r].gpu, c.lane, &ranks[r].roll, &v));
	OK(ranks[r].gpu, ops->gate(ranks[r].gpu, CVY_GPU_GATE_OPEN(epoch)));
}

/* Everybody stands still; another view, of all. */
static void part_all(int wide)
{
	for (int r = 0; r < n; r++)
		freeze(r);
	settle();
	epoch++;
	for (int r = 0; r < n; r++)
		part(r, mask, finished(r), 0, wide);
}

static size_t step_bytes(const struct job *j)
{
	return cvy_gpu_tile_words(j->packet, j->rows * j->threads) * 8 * (size_t)j->lanes;
}

/* Job number @k of all shapes, of one kind, type and count. */
static struct job one_of(int kind, int dtype, size_t count, unsigned k)
{
	static const int shapes[][3] = { { 1, 32, 1 }, { 2, 64, 4 }, { 4, 256, 2 }, { 8, 64, 1 }, { 4, 128, 3 } };
	const int *shape = shapes[k % 5];
	struct job j = job_of(kind, dtype, count);

	j.redop = (int)(k % 5);
	if (j.redop == COVEY_AVG && elem_of(dtype) == 2 && dtype != COVEY_INT16)
		j.redop = COVEY_SUM; /* the oracle does not round */
	j.lanes = shape[0];
	j.threads = shape[1];
	j.rows = shape[2];
	j.shift = k % 7 == 0 ? 3 * elem_of(dtype) : 0;
	if (has_root(kind))
		j.root = (int)(k % (unsigned)n);
	return j;
}

/* Every type and reduction; no words, some, and many steps; in place; buffers off alignment. */
static void healthy(int kind)
{
	static const size_t counts[] = { 0, 1, 7, 64, 1000, 5000, 20001 };
	static const int types[] = { COVEY_FLOAT32, COVEY_INT8,	   COVEY_UINT8,	  COVEY_INT16,
				     COVEY_INT32,   COVEY_UINT32,  COVEY_INT64,	  COVEY_UINT64,
				     COVEY_FLOAT64, COVEY_FLOAT16, COVEY_BFLOAT16 };
	unsigned k = 0;

	for (size_t ci = 0; ci < 7; ci++) {
		for (size_t ti = 0; ti < 11; ti++, k++) {
			struct job j = one_of(kind, types[ti], counts[ci], k + (unsigned)ci);

			if (!cvy_gpu_folds(kind) && ti % 3) /* no type is anything to them */
				continue;
			if (!j.count && !cvy_gpu_has_rounds(kind)) /* a barrier (api.c) */
				continue;
			if (kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
				j.in_place = (int)(k % 3);
			j.registered = k % 5 == 4 ? (int)mask : 0;
			if (j.registered)
				j.shift = 0;
			run(&j);
		}
	}
}

/* The sum of a host is more than fp16 has, but not the average. */
static void large_average(void)
{
	const uint16_t large = 0x78e2; /* 40000 */
	struct job j = job_of(CVY_GPU_ALLREDUCE_TWO_SHOT, COVEY_FLOAT16, 1000, 2, 64, 2);
	size_t wrong = 0;

	j.redop = COVEY_AVG;
	for (int r = 0; r < n; r++) {
		prepare(&j, r);
		for (size_t i = 0; i < j.count; i++)
			memcpy(ranks[r].host + 2 * i, &large, 2);
		CUDA(cudaMemcpy(ranks[r].send + pad_at(&j, r) + send_shift(&j, r), ranks[r].host, 2 * j.count,
				cudaMemcpyHostToDevice));
	}
	for (int r = 0; r < n; r++)
		launch(&j, r);
	synchronise();
	for (int r = 0; r < n; r++) {
		CUDA(cudaMemcpy(ranks[r].out, recv_at(&j, r), 2 * j.count, cudaMemcpyDeviceToHost));
		for (size_t i = 0; i < j.count; i++)
			wrong += memcmp(ranks[r].out + 2 * i, &large, 2) != 0;
	}
	checks++;
	if (wrong && ++failures)
		fprintf(stderr, "an average of large elements: %zu are wrong\n", wrong);
}

static uint64_t crossed(int from)
{
	uint64_t bytes = 0;

	for (int to = 0; to < n; to++)
		bytes += wires[from * RANKS + to].bytes;
	return bytes;
}

/* What each rank puts for one operation. */
static void bytes_of(const struct job *j, uint64_t bytes[RANKS])
{
	settle();
	for (int r = 0; r < n; r++)
		bytes[r] = crossed(r);
	run(j);
	settle();
	for (int r = 0; r < n; r++)
		bytes[r] = crossed(r) - bytes[r];
}

static void alike(const uint64_t bytes[RANKS], const char *what)
{
	for (int r = 1; r < n; r++)
		if (bytes[r] != bytes[0] && ++failures)
			fprintf(stderr, "%s: rank %d puts %llu bytes, rank 0 %llu\n", what, r,
				(unsigned long long)bytes[r], (unsigned long long)bytes[0]);
}

/* The same operation by kernels of one level, and in two levels. */
static void both(const struct job *j, uint64_t flat[RANKS], uint64_t levels[RANKS])
{
	const int wide = width;

	part_all(0);
	width = 0;
	bytes_of(j, flat);
	width = wide;
	part_all(width);
	bytes_of(j, levels);
	checks++;
}

/* A rank sends the bytes of the flat form over the network, divided by the ranks of a host. */
static void counted(const char *name, const struct job *j)
{
	uint64_t flat[RANKS], levels[RANKS];

	both(j, flat, levels);
	alike(flat, "flat");
	alike(levels, "two levels");
	printf("%d hosts of %d, %s: %zu bytes: a rank puts %llu flat, %llu in two levels\n", n / width, width, name,
	       j->count * 4, (unsigned long long)flat[0], (unsigned long long)levels[0]);
	if ((levels[0] * (uint64_t)width != flat[0] || !flat[0]) && ++failures)
		fprintf(stderr, "%s: %llu bytes in two levels are not %llu / %d\n", name, (unsigned long long)levels[0],
			(unsigned long long)flat[0], width);
}

/* Each host owns as many rows: a step, or two, is full. */
static struct job full(int kind)
{
	struct job j = job_of(kind, COVEY_FLOAT32, 0, 2, 64, n / width == 3 ? 3 : 4);

	j.count = 2 * step_bytes(&j) / 4;
	return j;
}

static void counted_allreduce(void)
{
	struct job j = full(CVY_GPU_ALLREDUCE_TWO_SHOT);
	uint64_t levels[RANKS], in_place[RANKS];

	j.count *= (size_t)width;
	counted("allreduce", &j);
	bytes_of(&j, levels);
	j.in_place = 1;
	bytes_of(&j, in_place);
	if (in_place[0] != levels[0] && ++failures)
		fprintf(stderr, "%llu bytes in place, not %llu\n", (unsigned long long)in_place[0],
			(unsigned long long)levels[0]);
}

static void counted_allgather(void)
{
	struct job j = full(CVY_GPU_ALLGATHER);

	counted("allgather", &j);
}

static void counted_reduce_scatter(void)
{
	struct job j = full(CVY_GPU_REDUCE_SCATTER);

	counted("reduce_scatter", &j);
}

/* The data go to each other host once: each rank of the root's host sends its piece. With more hosts it is in one level. */
static void counted_broadcast(void)
{
	struct job j = full(CVY_GPU_BROADCAST_TWO_HOP);
	uint64_t flat[RANKS], levels[RANKS], packets;

	j.count *= (size_t)width;
	j.root = n - 1;
	both(&j, flat, levels);
	packets = j.count * 4 / (uint64_t)width / 120 * 128 * (uint64_t)(n / width - 1);
	printf("%d hosts of %d, broadcast: %zu bytes: the root puts %llu flat, %llu in two levels\n", n / width, width,
	       j.count * 4, (unsigned long long)flat[n - 1], (unsigned long long)levels[n - 1]);
	for (int r = 0; r < n; r++)
		if (levels[r] != (n / width > width		 ? flat[r]
				  : r / width == (n - 1) / width ? packets
								 : 0) &&
		    ++failures)
			fprintf(stderr, "broadcast: rank %d puts %llu bytes\n", r, (unsigned long long)levels[r]);
}

/* Other processes in the place of those @gone, counted in by the words of a view. */
static void come_back(uint32_t gone)
{
	int first = 0;
	uint64_t op;

	while (gone >> first & 1)
		first++;
	for (int r = 0; r < n; r++)
		if (!(gone >> r & 1))
			freeze(r);
	settle();
	op = finished(first);
	for (int r = 0; r < n; r++) /* a device is closed when none has anything under way: here they are one */
		if (gone >> r & 1)
			end(r);
	for (int r = 0; r < n; r++) {
		if (!(gone >> r & 1))
			continue;
		close_post(r);
		ops->close(ranks[r].gpu);
		close(ranks[r].window_fd);
		open_rank(r);
		open_post(r);
		memset(&ranks[r].roll, 0, sizeof(ranks[r].roll));
		ranks[r].roll.begin = op;
	}
	for (int a = 0; a < n; a++)
		for (int b = a + 1; b < n; b++)
			if ((gone >> a | gone >> b) & 1)
				connect_anew(a, b);
	epoch++;
	for (int r = 0; r < n; r++) {
		struct cvy_gpu_counters c, own;

		if (gone >> r & 1) { /* with the others' counts */
			struct cvy_gpu_verdict v = { epoch, 0, op, 0, 0 };

			OK(ranks[first].gpu, ops->counters(ranks[first].gpu, &c, 1));
			OK(ranks[r].gpu, ops->counters(ranks[r].gpu, &own, 1));
			for (int i = 0; i < CVY_GPU_LANES; i++)
				own.lane[i].count = c.lane[i].count;
			OK(ranks[r].gpu, ops->words(ranks[r].gpu, own.lane, &ranks[r].roll, &v));
		}
		part(r, mask, op, 0, width);
		if (gone >> r & 1)
			launch_admit(r, 1u << r, 1);
	}
	synchronise();
}

/*
 * All launch, and a change comes at whatever moment that is, without @gone. Some have completed it, and so do the others; or
 * all do it again. Says whether somebody had completed it before others.
 */
static unsigned interrupted(const struct job *j, unsigned us, uint32_t gone)
{
	const uint32_t left = mask & ~gone;
	uint64_t base = 0, least = UINT64_MAX;

	for (int r = 0; r < n; r++)
		prepare(j, r);
	for (int r = 0; r < n; r++)
		launch(j, r);
	usleep(us);
	for (int r = 0; r < n; r++)
		freeze(r);
	settle();
	how_far(left, &least, &base);
	epoch++;
	for (int r = 0; r < n; r++)
		if (left >> r & 1)
			part(r, left, base, gone, width);
	for (int r = 0; r < n; r++) {
		struct cvy_gpu_status s;
		int rootless;

		if (!(left >> r & 1))
			continue;
		CUDA(cudaStreamSynchronize(ranks[r].stream));
		OK(ranks[r].gpu, ops->status_read(ranks[r].gpu, &s));
		rootless = has_root(j->kind) && !(s.mask >> j->root & 1);
		if ((s.status != (rootless ? COVEY_ERR_ROOT : 0) || (s.mask != left && s.mask != mask)) && ++failures)
			fprintf(stderr, "interrupted: kind %d, rank %d ends with %d, of %x\n", j->kind, r, s.status,
				(unsigned)s.mask);
		if (!rootless)
			compare(j, r, (uint32_t)s.mask, "interrupted");
	}
	come_back(gone);
	return base != least;
}

/* Each rank is lost once; then one of each host, so that hosts are even, and have holes; then nobody. */
static void interruptions(int kind)
{
	unsigned us = 0, between = 0, tries = 0;

	for (int k = 0; k < n + 3; k++, tries++, us = (us * 7 + 400) % 9000) {
		size_t count = k % 2 ? 20000 : kind == CVY_GPU_ALLREDUCE_TWO_SHOT ? 300 : 2000;
		struct job j = job_of(kind, k % 3 ? COVEY_FLOAT32 : COVEY_INT32, count, 2, 64, 2);
		uint32_t gone = k < n ? 1u << k : 0;

		for (int h = 0; k >= n && k < n + 2 && h * width < n; h++)
			gone |= 1u << (h * width + k % width);
		if (has_root(kind))
			j.root = (3 * k + 1) % n;
		between += interrupted(&j, us, gone);
		run(&j);
	}
	printf("kind %d: of %u changes %u found it completed by some alone\n", kind, tries, between);
}

/* Hosts of one rank, or of different numbers of ranks, go the flat way in the same kernels. */
static void other_hosts(int kind)
{
	const int wide = width;
	struct job j = job_of(kind, COVEY_FLOAT32, 5000, 2, 64, 2);

	if (has_root(kind))
		j.root = 1;
	for (int uneven = 0; uneven < 2; uneven++) {
		const int other = uneven ? n - 1 : n; /* the last rank alone; all on one host */

		part_all(other);
		width = other;
		run(&j);
		width = wide;
	}
	part_all(wide);
	run(&j);
}

static const struct operation {
	const char *name;
	int kind;
	void (*counted)(void);
} operations[] = {
	{ "allreduce", CVY_GPU_ALLREDUCE_TWO_SHOT, counted_allreduce },
	{ "allgather", CVY_GPU_ALLGATHER, counted_allgather },
	{ "reduce_scatter", CVY_GPU_REDUCE_SCATTER, counted_reduce_scatter },
	{ "broadcast", CVY_GPU_BROADCAST_TWO_HOP, counted_broadcast },
};

/* @asked: the name of one, or NULL: all. */
static int is_asked(const struct operation *o, const char *asked)
{
	return !asked || !strcmp(asked, o->name);
}

static void test(const struct operation *o)
{
	healthy(o->kind);
	if (o->kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
		large_average();
	o->counted();
	other_hosts(o->kind);
	printf("healthy: %d checks, %d failed\n", checks, failures);
	interruptions(o->kind);
}

int main(int argc, char **argv)
{
	const int hosts = argc > 1 ? atoi(argv[1]) : 2;
	const char *asked = argc > 3 ? argv[3] : NULL;
	int any = 0;

	width = argc > 2 ? atoi(argv[2]) : 2;
	n = hosts * width;
	for (const struct operation &o : operations)
		any |= is_asked(&o, asked);
	if (hosts < 2 || width < 2 || n > RANKS || !any) {
		fprintf(stderr,
			"cpu-levels [HOSTS RANKS [OPERATION]]: 2 hosts or more of 2 ranks or more, %d ranks at most; "
			"allreduce, allgather, reduce_scatter or broadcast\n",
			RANKS);
		return 2;
	}
	open_all();
	for (int r = 0; r < n; r++)
		freeze(r);
	for (int r = 0; r < n; r++)
		open_post(r);
	for (int a = 0; a < n; a++)
		for (int b = a + 1; b < n; b++)
			connect_anew(a, b);
	part_all(width);
	for (const struct operation &o : operations)
		if (is_asked(&o, asked))
			test(&o);
	printf("%d checks, %d failed\n", checks, failures);
	for (int r = 0; r < n; r++) {
		close_post(r);
		ops->close(ranks[r].gpu);
	}
	return failures != 0;
}
