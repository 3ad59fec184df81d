/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels alone: ranks of one process, one per device (or several on one), connected by hand. Every operation
 * against an oracle on the host, with canaries around the results; then view changes made by hand: a rank that does
 * not come is removed, before, between and after what others had of it. 
 */
#include "world.cuh"

static int failures, checks;

/* Small whole numbers: sums and products of all ranks are exact in every type. */
static int number(int rank, size_t i)
{
	return (int)((i * 7 + (size_t)rank * 3 + i / 1000) % 4) + 1;
}

static void put(uint8_t *at, int dtype, size_t i, double v)
{
	switch (dtype) {
	case COVEY_INT8:
	case COVEY_UINT8:
		at[i] = (uint8_t)(int)v;
		break;
	case COVEY_INT16:
		((int16_t *)at)[i] = (int16_t)v;
		break;
	case COVEY_INT32:
	case COVEY_UINT32:
		((int32_t *)at)[i] = (int32_t)v;
		break;
	case COVEY_INT64:
	case COVEY_UINT64:
		((int64_t *)at)[i] = (int64_t)v;
		break;
	case COVEY_FLOAT64:
		((double *)at)[i] = v;
		break;
	case COVEY_FLOAT32:
		((float *)at)[i] = (float)v;
		break;
	case COVEY_BFLOAT16: {
		float f = (float)v;
		uint32_t b;
		memcpy(&b, &f, 4);
		((uint16_t *)at)[i] = (uint16_t)(b >> 16);
		break;
	}
	default: { /* f16 of a small whole number */
		int e = 0, k = (int)v;
		if (!k) {
			((uint16_t *)at)[i] = 0;
			break;
		}
		while (k >> (e + 1))
			e++;
		((uint16_t *)at)[i] = (uint16_t)((15 + e) << 10 | ((k << (10 - e)) & 0x3ff));
	}
	}
}

static double folded(int redop, uint32_t members, size_t i)
{
	double v = 0;
	int begun = 0, k = 0;

	for (int r = 0; r < n; r++) {
		double x = number(r, i);

		if (!(members >> r & 1))
			continue;
		v = !begun		  ? x
		    : redop == COVEY_PROD ? v * x
		    : redop == COVEY_MAX  ? (x > v ? x : v)
		    : redop == COVEY_MIN  ? (x < v ? x : v)
					  : v + x;
		begun = 1;
		k++;
	}
	return redop == COVEY_AVG ? v / k : v;
}

static void prepare(const struct job *j, int r)
{
	size_t elem = elem_of(j->dtype), total = send_blocks(j) * j->count;

	for (size_t i = 0; i < total; i++)
		put(ranks[r].host, j->dtype, i, number(r, i));
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaMemset(ranks[r].recv, 0xc5, MOST));
	CUDA(cudaMemset(ranks[r].send, 0xc5, MOST));
	CUDA(cudaMemcpy(ranks[r].send + CANARY + j->shift, ranks[r].host, total * elem, cudaMemcpyHostToDevice));
	CUDA(cudaDeviceSynchronize());
}

static void expect(const struct job *j, int r, uint32_t members, uint8_t *want)
{
	size_t elem = elem_of(j->dtype), blocks = recv_blocks(j);

	memset(want, 0xc5, j->count * elem * blocks);
	for (size_t b = 0; b < blocks; b++) {
		for (size_t i = 0; i < j->count; i++) {
			double v;

			switch (j->kind) {
			case CVY_GPU_ALLREDUCE:
			case CVY_GPU_ALLREDUCE_TWO_SHOT:
				v = folded(j->redop, members, i);
				break;
			case CVY_GPU_REDUCE:
				if (r != j->root)
					return;
				v = folded(j->redop, members, i);
				break;
			case CVY_GPU_REDUCE_SCATTER:
				v = folded(j->redop, members, (size_t)r * j->count + i);
				break;
			case CVY_GPU_ALLGATHER:
				v = members >> b & 1 ? number((int)b, i) : 0;
				break;
			case CVY_GPU_GATHER:
				if (r != j->root)
					return;
				v = members >> b & 1 ? number((int)b, i) : 0;
				break;
			case CVY_GPU_ALLTOALL:
				v = members >> b & 1 ? number((int)b, (size_t)r * j->count + i) : 0;
				break;
			case CVY_GPU_SCATTER:
				v = number(j->root, (size_t)r * j->count + i);
				break;
			default:
				v = number(j->root, i);
			}
			put(want, j->dtype, b * j->count + i, v);
		}
	}
}

static void compare(const struct job *j, int r, uint32_t members, const char *what)
{
	size_t bytes = j->count * elem_of(j->dtype) * recv_blocks(j), pad = CANARY + j->shift;
	uint8_t *got = ranks[r].out, *want = ranks[r].host;

	checks++;
	if (j->kind == CVY_GPU_BARRIER)
		return;
	CUDA(cudaSetDevice(ranks[r].device));
	CUDA(cudaMemcpy(got, recv_at(j, r) - pad, pad + bytes + CANARY, cudaMemcpyDeviceToHost));
	expect(j, r, members, want);
	if (j->in_place && j->kind == CVY_GPU_REDUCE && r != j->root)
		return;
	for (size_t i = 0; i < bytes; i++) {
		if (got[pad + i] != want[i]) {
			fprintf(stderr,
				"%s: kind %d packet %d type %d op %d count %zu lanes %d x %d x %d rank %d of %x: byte "
				"%zu is %02x, not %02x\n",
				what, j->kind, j->packet, j->dtype, j->redop, j->count, j->lanes, j->threads, j->rows,
				r, members, i, got[pad + i], want[i]);
			failures++;
			return;
		}
	}
	for (size_t i = 0; i < CANARY && !j->in_place; i++) {
		if (got[i] != 0xc5 || got[pad + bytes + i] != 0xc5) {
			fprintf(stderr, "%s: kind %d type %d count %zu rank %d: a canary died\n", what, j->kind,
				j->dtype, j->count, r);
			failures++;
			return;
		}
	}
}

static void run(const struct job *j)
{
	for (int r = 0; r < n; r++)
		prepare(j, r);
	for (int r = 0; r < n; r++)
		launch(j, r);
	synchronise();
	for (int r = 0; r < n; r++)
		compare(j, r, mask, "healthy");
}

static void healthy(void)
{
	static const size_t counts[] = { 0, 1, 7, 64, 1000, 5000, 60001 };
	static const int types[] = { COVEY_INT8,     COVEY_UINT8,   COVEY_INT16,  COVEY_INT32,
				     COVEY_UINT32,   COVEY_INT64,   COVEY_UINT64, COVEY_FLOAT16,
				     COVEY_BFLOAT16, COVEY_FLOAT32, COVEY_FLOAT64 };
	static const int shapes[][3] = { { 1, 32, 1 }, { 1, 256, 4 }, { 4, 256, 2 }, { 8, 512, 1 }, { 16, 64, 4 } };
	unsigned k = 0;

	for (int kind = 0; kind <= CVY_GPU_BARRIER; kind++) {
		for (size_t ci = 0; ci < 7; ci++) {
			for (size_t ti = 0; ti < 11; ti++, k++) {
				struct job j = {};
				const int *shape = shapes[k % 5];

				if (kind == CVY_GPU_BARRIER && (ti || ci))
					continue;
				j.kind = kind;
				j.packet = k / 3 % 2;
				j.dtype = types[ti];
				j.redop = (int)(k % 5);
				if (j.redop == COVEY_AVG && (elem_of(j.dtype) == 2 && j.dtype != COVEY_INT16))
					j.redop = COVEY_SUM; /* the oracle does not round */
				if (j.redop == COVEY_AVG && (j.dtype == COVEY_FLOAT32 || j.dtype == COVEY_FLOAT64))
					j.redop = n == 2 || n == 4 ? COVEY_AVG : COVEY_SUM;
				j.count = counts[ci];
				j.lanes = shape[0];
				j.threads = shape[1];
				j.rows = shape[2];
				j.shift = k % 7 == 0 ? 3 * elem_of(j.dtype) : 0;
				j.root = kind == CVY_GPU_BROADCAST || kind == CVY_GPU_REDUCE ||
							 kind == CVY_GPU_GATHER || kind == CVY_GPU_SCATTER
						 ? (int)(k % (unsigned)n)
						 : -1;
				j.in_place =
					k % 4 == 3 && (kind == CVY_GPU_ALLREDUCE ||
						       kind == CVY_GPU_ALLREDUCE_TWO_SHOT || kind == CVY_GPU_REDUCE);
				run(&j);
			}
		}
	}
}

/*
 * The last rank does not launch. The others freeze; where @holder, the first has the operation though, as if all but
 * the others' view of the last one's packets were there: tested by a launch of the last rank that pushes to the first only.
 */
static void removed(int kind, size_t count, int packet, int in_place)
{
	uint32_t left = mask & ~(1u << (n - 1));
	struct job j = { kind, packet, COVEY_FLOAT32, COVEY_SUM, -1, 4, 256, 2, in_place, count, 0 };
	uint64_t base = 0;

	if (getenv("VERBOSE"))
		fprintf(stderr, "kind %d packet %d in place %d\n", kind, packet, in_place);
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
	/* back again: the last rank counts as new, with the others' counts */
	{
		struct cvy_gpu_counters c;
		struct cvy_gpu_verdict v = { ++epoch, 0, 0, 0, 0 };
		uint64_t fresh;
		int last = n - 1;

		for (int r = 0; r < last; r++)
			freeze(r);
		OK(ranks[0].gpu, ops->counters(ranks[0].gpu, &c, 1));
		fresh = c.finished / CVY_GPU_QUANTA;
		for (int r = 0; r < last; r++) {
			int g = (int)(ranks[r].in >> (2 * last) & 3);

			connect_pair(last, r, (g + 1) % 4);
			g = (int)(ranks[last].in >> (2 * r) & 3);
			connect_pair(r, last, (g + 1) % 4);
		}
		v.base = fresh;
		for (int i = 0; i < CVY_GPU_LANES; i++)
			c.lane[i] = { c.lane[i].count, epoch, mask, 0, ranks[last].in, ranks[last].outgen };
		OK(ranks[last].gpu, ops->words(ranks[last].gpu, c.lane, &fresh, &v));
		OK(ranks[last].gpu, ops->gate(ranks[last].gpu, CVY_GPU_GATE_OPEN(epoch)));
		for (int r = 0; r < last; r++)
			thaw(r, mask, fresh, 0);
	}
	run(&j);
}

int main(int argc, char **argv)
{
	n = argc > 1 ? atoi(argv[1]) : 2;
	if (cudaGetDeviceCount(&checks) != cudaSuccess || !checks) {
		printf("skipped: no device\n");
		return 77;
	}
	checks = 0;
	if (n < 2 || n > RANKS) {
		fprintf(stderr, "gpu-kernels [RANKS]: 2 to %d ranks\n", RANKS);
		return 2;
	}
	open_all();
	healthy();
	printf("healthy: %d checks, %d failed\n", checks, failures);
	for (int kind = 0; kind <= CVY_GPU_ALLTOALL; kind++)
		for (int packet = 0; packet < 2; packet++)
			for (int in_place = 0; in_place < 2; in_place++)
				if (!in_place || kind == CVY_GPU_ALLREDUCE)
					removed(kind, 1500, packet, in_place);
	for (int r = 0; r < n; r++)
		ops->close(ranks[r].gpu);
	printf("%d checks, %d failed\n", checks, failures);
	return failures != 0;
}
