/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operations take on this machine's devices, covey and NCCL by turns in one process: CUDA graphs of 50 operations (5 large ones),
 * replayed; the median over rounds of the time of one operation on rank 0. NCCL is opened when it runs
 * (libnccl.so.2); without it its column is empty. The floor is bytes over the wire at 370 GB/s and one hop (0.7 us) a phase.
 * Beside large ones: what copy engines take to bring the same bytes to the same ranks, bare: nobody waits for anybody.
 * With more ranks than devices, alone: what an operation takes that crosses no wire. Large ones tell little then.
 */
#include <dlfcn.h>

#include "world.cuh"

#define ROUNDS 15
#define BIG ((size_t)2 << 30)

typedef void *comm_t;
static struct {
	int (*init)(comm_t *, int, const int *);
	int (*allreduce)(const void *, void *, size_t, int, int, comm_t, cudaStream_t);
	int (*allgather)(const void *, void *, size_t, int, comm_t, cudaStream_t);
	int (*reduce_scatter)(const void *, void *, size_t, int, int, comm_t, cudaStream_t);
	int (*broadcast)(const void *, void *, size_t, int, int, comm_t, cudaStream_t);
	int (*send)(const void *, size_t, int, int, comm_t, cudaStream_t);
	int (*recv)(void *, size_t, int, int, comm_t, cudaStream_t);
	int (*begin)(void);
	int (*end)(void);
} nccl;
static comm_t comms[RANKS];
static uint8_t *from[RANKS], *to[RANKS];

static int open_nccl(void)
{
	void *library = dlopen("libnccl.so.2", RTLD_NOW);
	int devices[RANKS];

	if (!library)
		return 0;
	*(void **)&nccl.init = dlsym(library, "ncclCommInitAll");
	*(void **)&nccl.allreduce = dlsym(library, "ncclAllReduce");
	*(void **)&nccl.allgather = dlsym(library, "ncclAllGather");
	*(void **)&nccl.reduce_scatter = dlsym(library, "ncclReduceScatter");
	*(void **)&nccl.broadcast = dlsym(library, "ncclBroadcast");
	*(void **)&nccl.send = dlsym(library, "ncclSend");
	*(void **)&nccl.recv = dlsym(library, "ncclRecv");
	*(void **)&nccl.begin = dlsym(library, "ncclGroupStart");
	*(void **)&nccl.end = dlsym(library, "ncclGroupEnd");
	for (int r = 0; r < n; r++)
		devices[r] = ranks[r].device;
	return nccl.init(comms, n, devices) == 0;
}

/* One operation of all ranks with @count floats a block. */
static void peer(int kind, size_t count)
{
	const int f32 = COVEY_FLOAT32; /* their number too */

	nccl.begin();
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		switch (kind) {
		case CVY_GPU_ALLREDUCE:
			nccl.allreduce(from[r], to[r], count, f32, 0, comms[r], ranks[r].stream);
			break;
		case CVY_GPU_ALLGATHER:
			nccl.allgather(from[r], to[r], count, f32, comms[r], ranks[r].stream);
			break;
		case CVY_GPU_REDUCE_SCATTER:
			nccl.reduce_scatter(from[r], to[r], count, f32, 0, comms[r], ranks[r].stream);
			break;
		case CVY_GPU_BROADCAST:
			nccl.broadcast(from[r], to[r], count, f32, 0, comms[r], ranks[r].stream);
			break;
		default:
			for (int p = 0; p < n; p++) {
				nccl.send(from[r] + (size_t)p * count * 4, count, f32, p, comms[r], ranks[r].stream);
				nccl.recv(to[r] + (size_t)p * count * 4, count, f32, p, comms[r], ranks[r].stream);
			}
		}
	}
	nccl.end();
}

static void ours(int kind, size_t count)
{
	for (int r = 0; r < n; r++) {
		struct cvy_gpu_call call = {};

		call.send = from[r];
		call.recv = to[r];
		call.bytes = count * 4;
		call.kind = kind;
		call.dtype = COVEY_FLOAT32;
		call.root = kind == CVY_GPU_BROADCAST ? 0 : -1;
		call.rank = r;
		call.size = n;
		cvy_gpu_shape(&call);
		call.levels = 0; /* as in a group on one host */
		CUDA(cudaSetDevice(ranks[r].device));
		OK(ranks[r].gpu, ops->launch(ranks[r].gpu, &call, (struct CUstream_st *)ranks[r].stream));
	}
}

/* The blocks of one operation, from device to device, by copy engines. */
static void copies(int kind, size_t count)
{
	const size_t bytes = count * 4;

	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		for (int k = 1; k < n && (kind != CVY_GPU_BROADCAST || !r); k++) {
			const int p = (r + k) % n;

			CUDA(cudaMemcpyAsync(to[p] + (kind == CVY_GPU_BROADCAST ? 0 : (size_t)r * bytes),
					     from[r] + (kind == CVY_GPU_ALLTOALL ? (size_t)p * bytes : 0), bytes,
					     cudaMemcpyDeviceToDevice, ranks[r].stream));
		}
	}
}

enum side { OURS, COPIES, THEIRS, SIDES };

static int ops_of(size_t bytes)
{
	return bytes < ((size_t)32 << 20) ? 50 : 5;
}

static void capture(cudaGraphExec_t *exec, int kind, size_t count, int side)
{
	cudaGraph_t graph;

	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeRelaxed));
	}
	for (int i = 0; i < ops_of(count * 4); i++)
		(side == THEIRS ? peer : side == COPIES ? copies : ours)(kind, count);
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamEndCapture(ranks[r].stream, &graph));
		CUDA(cudaGraphInstantiate(&exec[r], graph, 0));
		CUDA(cudaGraphDestroy(graph));
	}
}

static float replay(cudaGraphExec_t *exec, size_t bytes, cudaEvent_t begin, cudaEvent_t end)
{
	float ms;

	for (int r = n - 1; r >= 0; r--) {
		CUDA(cudaSetDevice(ranks[r].device));
		if (!r)
			CUDA(cudaEventRecord(begin, ranks[0].stream));
		CUDA(cudaGraphLaunch(exec[r], ranks[r].stream));
	}
	CUDA(cudaEventRecord(end, ranks[0].stream));
	synchronise();
	CUDA(cudaEventElapsedTime(&ms, begin, end));
	return ms * 1000 / (float)ops_of(bytes);
}

static int ascending(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return x < y ? -1 : x > y;
}

/* Microseconds at the floor: what the busiest wire carries. */
static double floor_us(int kind, size_t bytes)
{
	double wire = kind == CVY_GPU_ALLREDUCE	  ? 2.0 * (n - 1) / n * (double)bytes
		      : kind == CVY_GPU_BROADCAST ? (double)bytes
						  : (double)(n - 1) * (double)bytes;

	return wire / 370e3 + 0.7;
}

#define COPIED ((size_t)8 << 20) /* from here on it is asked what copy engines take */

static int has_side(int side, int kind, size_t bytes, int with_peer)
{
	if (side == COPIES)
		return bytes >= COPIED && kind != CVY_GPU_ALLREDUCE && kind != CVY_GPU_REDUCE_SCATTER;
	return side == OURS || with_peer;
}

static void cell(double v, int width, int there)
{
	if (there)
		printf("%*.2f ", width, v);
	else
		printf("%*s ", width, "-");
}

static void row(const char *name, int kind, size_t bytes, int with_peer, cudaEvent_t begin, cudaEvent_t end)
{
	cudaGraphExec_t exec[SIDES][RANKS];
	float us[SIDES][ROUNDS];
	double middle[SIDES];
	int has[SIDES];

	for (int side = 0; side < SIDES; side++) {
		has[side] = has_side(side, kind, bytes, with_peer);
		if (has[side]) {
			capture(exec[side], kind, bytes / 4, side);
			replay(exec[side], bytes, begin, end);
		}
	}
	for (int i = 0; i < ROUNDS; i++)
		for (int side = 0; side < SIDES; side++)
			if (has[side])
				us[side][i] = replay(exec[side], bytes, begin, end);
	for (int side = 0; side < SIDES; side++) {
		if (!has[side])
			continue;
		qsort(us[side], ROUNDS, sizeof(float), ascending);
		middle[side] = us[side][ROUNDS / 2];
		for (int r = 0; r < n; r++)
			CUDA(cudaGraphExecDestroy(exec[side][r]));
	}
	printf("%-14s %10zu ", name, bytes);
	cell(middle[OURS], 10, 1);
	cell(has[THEIRS] ? middle[THEIRS] : 0, 10, has[THEIRS]);
	cell(has[THEIRS] ? middle[THEIRS] / middle[OURS] : 0, 8, has[THEIRS]);
	cell(has[COPIES] ? middle[COPIES] : 0, 10, has[COPIES]);
	printf("%10.2f %8.2f\n", floor_us(kind, bytes), middle[OURS] / floor_us(kind, bytes));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int kind;
	} kinds[] = { { "allreduce", CVY_GPU_ALLREDUCE },
		      { "allgather", CVY_GPU_ALLGATHER },
		      { "reduce_scatter", CVY_GPU_REDUCE_SCATTER },
		      { "alltoall", CVY_GPU_ALLTOALL },
		      { "broadcast", CVY_GPU_BROADCAST } };
	static const size_t sizes[] = { 8,	 256,	  2048,	    8192,     32768,	131072,	   524288,
					2 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20, 128 << 20, (size_t)1 << 30 };
	cudaEvent_t begin, end;
	int devices, with_peer;
	size_t least, apart;

	if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1) {
		printf("skipped: no device\n");
		return 77;
	}
	n = argc > 1 ? atoi(argv[1]) : devices > 1 ? devices : 2;
	if (n < 2 || n > RANKS) {
		fprintf(stderr,
			"gpu-times [RANKS [alone|beside [LEAST [APART]]]]: 2 to %d ranks, beside NCCL or alone, from "
			"LEAST bytes on; results begin APART bytes behind where inputs do\n",
			RANKS);
		return 2;
	}
	least = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	apart = argc > 4 ? strtoull(argv[4], NULL, 10) / 256 * 256 : 0;
	open_all();
	for (int r = 0; r < n; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		for (int p = 0; p < n; p++)
			if (p != r && cudaDeviceEnablePeerAccess(ranks[p].device, 0) != cudaSuccess)
				(void)cudaGetLastError(); /* it is, or copies go by the host */
		CUDA(cudaMalloc(&from[r], BIG));
		CUDA(cudaMalloc(&to[r], BIG + apart));
		to[r] += apart;
		CUDA(cudaMemset(from[r], 0x3c, BIG));
	}
	CUDA(cudaSetDevice(0));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	with_peer = argc > 2 && !strcmp(argv[2], "alone") ? 0 : open_nccl();
	printf("%-14s %10s %10s %10s %8s %10s %10s %8s\n", "operation", "bytes", "covey us", "NCCL us", "times",
	       "copies us", "floor us", "x floor");
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			if (sizes[i] * (size_t)n <= BIG && sizes[i] >= least)
				row(kinds[k].name, kinds[k].kind, sizes[i], with_peer, begin, end);
	for (int r = 0; r < n; r++)
		ops->close(ranks[r].gpu);
	return 0;
}
