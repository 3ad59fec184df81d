/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of NCCL: it calls nothing of covey. The parent starts the ranks; an id goes from rank to rank in a file, and no
 * environment is needed. Small integers in every type, so that each result is exact and compared byte by byte, with
 * bytes before and behind it that must stay.
 *
 *	nccl-api PLAN RANKS
 *
 *	calls	every operation with every type and reduction, groups, streams, a graph, wrong arguments
 *	life	splits, shrinks, growth, an init that is not waited for
 *	kill, shrink	a rank dies under operations; the others end, and go on by a new id, or by a shrink
 *	wait, sum	a rank dies that the others receive from, or sum with
 *	idle	a rank dies while nothing is under way
 *	split	a rank dies that the others wait for in a split
 *	refused	a rank dies after an operation that another is refused
 *	one	all ranks in one process
 *	adopt	ids of a rank that got its store by an id
 *	order	two communicators, destroyed in another order on each rank
 *	untouched	what a calling thread has is the same afterwards, and captures of others stay valid
 */
#include <dirent.h>
#include <math.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "api.h"

extern char **environ;

int rank, size, own_device;
ncclComm_t comm;
cudaStream_t stream;
uint8_t *host, *in, *out;
size_t room;
struct plan plan;
static int failures;
static long checks;
static const char *directory;

int gives(int got, int want, const char *call, int line)
{
	checks++;
	if (got == want)
		return 1;
	if (failures++ < 10)
		fprintf(stderr, "rank %d, line %d: %s: %d, not %d: %s\n", rank, line, call, got, want,
			ncclGetLastError(NULL));
	return 0;
}

uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void nap(void)
{
	usleep(200);
}

/* ---- ids in files ---- */

static void id_path(char *path, size_t bytes, const char *name)
{
	snprintf(path, bytes, "%s/%s", directory, name);
}

void id_tell(const char *name, const void *bytes, size_t n)
{
	char path[512], hidden[520];
	FILE *f;

	id_path(path, sizeof(path), name);
	snprintf(hidden, sizeof(hidden), "%s.new", path);
	f = fopen(hidden, "w");
	if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) || rename(hidden, path)) {
		perror(path);
		exit(1);
	}
}

int id_hear(const char *name, void *bytes, size_t n)
{
	uint64_t until = now_us() + ID_MS * 1000u;
	char path[512];

	id_path(path, sizeof(path), name);
	while (now_us() < until) {
		FILE *f = fopen(path, "r");

		if (f) {
			int whole = fread(bytes, 1, n, f) == n;

			fclose(f);
			return whole;
		}
		nap();
	}
	fprintf(stderr, "rank %d: no %s\n", rank, path);
	exit(1);
}

ncclUniqueId id_of(const char *name, int root)
{
	ncclUniqueId id;

	if (rank == root) {
		OK(ncclGetUniqueId(&id));
		id_tell(name, &id, sizeof(id));
	} else {
		id_hear(name, &id, sizeof(id));
	}
	return id;
}

void meet(const char *name, unsigned ranks)
{
	char file[64];
	int unused;

	snprintf(file, sizeof(file), "%s-%d", name, rank);
	id_tell(file, &rank, sizeof(rank));
	for (int r = 0; r < RANKS; r++) {
		snprintf(file, sizeof(file), "%s-%d", name, r);
		if (ranks >> r & 1)
			id_hear(file, &unused, sizeof(unused));
	}
}

/* ---- elements ---- */

static const int elements[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 }; /* bytes, by type */

/* The value of a code without a sign. */
static double float8_value(int type, int code)
{
	const int bits = type == ncclFloat8e4m3 ? 3 : 2, bias = type == ncclFloat8e4m3 ? 7 : 15;
	const int exponent = code >> bits, fraction = code & ((1 << bits) - 1);

	return exponent ? ldexp((1 << bits) + fraction, exponent - bias - bits) : ldexp(fraction, 1 - bias - bits);
}

/* The nearest code; of two that are as near, the even one. */
static uint8_t float8_code(int type, double v)
{
	int best = 0;

	for (int code = 1; code < (type == ncclFloat8e4m3 ? 0x7f : 0x7c); code++) {
		double d = fabs(float8_value(type, code) - v) - fabs(float8_value(type, best) - v);

		if (d < 0 || (d == 0 && code % 2 == 0))
			best = code;
	}
	return (uint8_t)best;
}

void put(int type, void *at, int64_t v)
{
	float f = (float)v;
	double d = (double)v;
	uint32_t u;
	uint16_t h;

	memcpy(&u, &f, 4);
	switch (type) {
	case ncclFloat16:
		h = (uint16_t)(v ? (u >> 16 & 0x8000) | (((u >> 23 & 0xff) - 112) << 10) | (u >> 13 & 0x3ff) : 0);
		memcpy(at, &h, 2);
		break;
	case ncclBfloat16:
		h = (uint16_t)(u >> 16);
		memcpy(at, &h, 2);
		break;
	case ncclFloat32:
		memcpy(at, &f, 4);
		break;
	case ncclFloat64:
		memcpy(at, &d, 8);
		break;
	case ncclFloat8e4m3:
	case ncclFloat8e5m2:
		*(uint8_t *)at = float8_code(type, d);
		break;
	default:
		memcpy(at, &v, (size_t)elements[type]);
	}
}

/* Element @i of @from: a multiple of the number of ranks, so that an average is whole. */
int64_t input(int from, size_t i, int n)
{
	return (int64_t)n * (int64_t)((size_t)(2 * from) + i) % (3 * n) + n;
}

static int64_t fold(size_t i, int op, int n)
{
	int64_t v = input(0, i, n);

	for (int r = 1; r < n; r++) {
		int64_t w = input(r, i, n);

		v = op == ncclProd ? v * w : op == ncclMax ? (v > w ? v : w) : op == ncclMin ? (v < w ? v : w) : v + w;
	}
	return op == ncclAvg ? v / n : v;
}

/* ---- buffers ---- */

void clear_out(void)
{
	memset(host, PAD, room);
	CUDA(cudaMemcpyAsync(out, host, room, cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
}

uint8_t *to(void)
{
	return out + EDGE;
}

void fill_in(const struct shape *s, size_t count)
{
	const size_t width = (size_t)elements[s->type];

	for (size_t i = 0; i < count; i++)
		put(s->type, host + i * width, input(s->me, i, s->n));
	CUDA(cudaMemcpyAsync(in, host, count * width, cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
	clear_out();
}

void compare(const char *what, const struct shape *s, size_t n, value *v)
{
	size_t width = (size_t)elements[s->type];
	uint8_t want[8];

	CUDA(cudaMemcpyAsync(host, out, room, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	checks++;
	for (size_t at = 0; at < room;) {
		size_t i = (at - EDGE) / width;
		int inside = at >= EDGE && i < n;
		size_t step = inside ? width : 1;

		memset(want, PAD, sizeof(want));
		if (inside)
			put(s->type, want, v(s, i));
		if (memcmp(host + at, want, step)) {
			if (failures++ < 10)
				fprintf(stderr,
					"rank %d of %d: %s, type %d, op %d: byte %zu (element %zu) is %02x, not %02x\n",
					rank, size, what, s->type, s->op, at, i, host[at], want[0]);
			return;
		}
		at += step;
	}
}

/* ---- what collectives give ---- */

int64_t folded(const struct shape *s, size_t i)
{
	return fold(i, s->op, s->n);
}

int64_t own_block(const struct shape *s, size_t i)
{
	return fold(s->count * (size_t)s->me + i, s->op, s->n);
}

int64_t of_root(const struct shape *s, size_t i)
{
	return input(s->root, i, s->n);
}

int64_t gathered(const struct shape *s, size_t i)
{
	return input((int)(i / s->count), i % s->count, s->n);
}

int64_t exchanged(const struct shape *s, size_t i)
{
	return input((int)(i / s->count), s->count * (size_t)s->me + i % s->count, s->n);
}

int64_t scattered(const struct shape *s, size_t i)
{
	return input(s->root, s->count * (size_t)s->me + i, s->n);
}

void sum_of(ncclComm_t c, int n, int me, const char *what)
{
	struct shape s = { ncclInt32, ncclSum, n, me, 0, 10 };

	fill_in(&s, 10);
	OK(ncclAllReduce(in, to(), 10, ncclInt32, ncclSum, c, stream));
	compare(what, &s, 10, folded);
}

/* ---- processes ---- */

static const struct plan plans[] = {
	{ "calls", plan_calls, 1, NOBODY, 0 },	 { "life", plan_life, 1, NOBODY, 0 },
	{ "one", plan_one, 0, NOBODY, 0 },	 { "kill", plan_killed, 1, 1, 0 },
	{ "shrink", plan_killed, 1, 0, 1 },	 { "wait", plan_waited, 1, LAST, 0 },
	{ "sum", plan_waited, 1, LAST, 1 },	 { "idle", plan_idle, 1, LAST, 0 },
	{ "refused", plan_refused, 1, LAST, 0 }, { "split", plan_split, 1, LAST, 0 },
	{ "sleep", plan_sleep, 1, NOBODY, 0 },	 { "storeless", plan_storeless, 0, NOBODY, 0 },
	{ "adopt", plan_adopt, 0, NOBODY, 0 },	 { "unanswered", plan_unanswered, 0, NOBODY, 0 },
	{ "order", plan_order, 0, NOBODY, 0 },	 { "untouched", plan_untouched, 0, NOBODY, 0 },
};

static int take_plan(const char *name)
{
	for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
		if (!strcmp(name, plans[i].name))
			plan = plans[i];
	if (plan.dead == LAST)
		plan.dead = size - 1;
	return plan.run != NULL;
}

static int rank_main(void)
{
	int devices;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	CUDA(cudaGetDeviceCount(&devices));
	own_device = rank % devices;
	CUDA(cudaSetDevice(own_device));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	room = (size_t)MOST * 8 * RANKS + 2 * EDGE;
	host = (uint8_t *)malloc(room);
	CUDA(cudaMalloc((void **)&in, room));
	CUDA(cudaMalloc((void **)&out, room));
	if (plan.joins)
		OK(ncclCommInitRank(&comm, size, id_of("first", 0), rank));
	plan.run();
	printf("rank %d: %ld checks, %d failed\n", rank, checks, failures);
	return failures ? 1 : 0;
}

static int wait_for(pid_t *pids, int n)
{
	int bad = 0;

	for (int r = 0; r < n; r++) {
		int status = 0, right;

		waitpid(pids[r], &status, 0);
		right = r == plan.dead ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : !status;
		if (!right)
			fprintf(stderr, "rank %d: status %x\n", r, status);
		bad += !right;
	}
	return bad;
}

static void remove_all(const char *path)
{
	DIR *d = opendir(path);
	char file[600];

	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
		unlink(file);
	}
	if (d)
		closedir(d);
	rmdir(path);
}

int main(int argc, char **argv)
{
	const char *tmp = getenv("TMPDIR");
	char here[256], text[16];
	pid_t pids[RANKS];
	int n, bad;

	if (argc < 3 || (n = atoi(argv[2])) < 1 || n > RANKS) {
		fprintf(stderr, "usage: %s PLAN RANKS (1 to 8)\n", argv[0]);
		return 2;
	}
	size = n;
	if (!take_plan(argv[1])) {
		fprintf(stderr, "no plan %s\n", argv[1]);
		return 2;
	}
	if (argc == 5) {
		rank = atoi(argv[3]);
		directory = argv[4];
		return rank_main();
	}
	snprintf(here, sizeof(here), "%s/nccl-api-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
	if (!mkdtemp(here))
		return 2;
	setenv("COVEY_HANG_MS", "20000", 0); /* on a busy machine a rank may be silent for long: that is no death */
	if (plan.run == plan_one)
		n = 1;
	for (int r = 0; r < n; r++) {
		char *const args[] = { argv[0], argv[1], argv[2], text, here, NULL };

		snprintf(text, sizeof(text), "%d", r);
		if (posix_spawn(&pids[r], "/proc/self/exe", NULL, NULL, args, environ))
			return 2;
	}
	bad = wait_for(pids, n);
	remove_all(here);
	printf("%s, %d ranks: %d failed\n", argv[1], size, bad);
	return bad ? 1 : 0;
}
