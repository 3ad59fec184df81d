/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace of a device's kernels (trace.h): its memory, and the file that it goes to when the device is closed, as JSON
 * of Chrome's trace events. All ranks add to one file. Times are those of the host's clock: cycles become ns of
 * %globaltimer by what CTAs recorded of both, and these become ns of the host by two comparisons of the clocks, when the
 * device was opened and now.
 */
#include "gpu_state.cuh"
#include "trace.h"

#if !CVY_TRACES

int cvy_gpu_trace_open(struct cvy_gpu *gpu)
{
	const char *path = getenv("COVEY_TRACE");

	if (!path || !*path)
		return 0;
	return fail(gpu, COVEY_ERR_UNSUPPORTED,
		    "COVEY_TRACE is \"%.80s\", but these kernels record no trace: build with -DCOVEY_TRACE=ON, or "
		    "unset it",
		    path);
}

void cvy_gpu_trace_close(struct cvy_gpu *)
{
}

#else

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ep_call.h"
#include "word.cuh"

#define LANES CVY_GPU_LANES
#define BYTES (LANES * CVY_TRACE_WORDS * sizeof(uint64_t))
#define ROWS (CVY_TRACE_FROM + CVY_GPU_RANKS)
#define ROUNDS 32		    /* of a comparison of clocks: the quickest counts */
#define PATIENCE_NS 2000000000ull   /* that a comparison takes at most */
#define EARLIER_NS 3600000000000ull /* the origin of times is so long before the first rank opened its device */
#define HEAD "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"origin_ns\":\"%020llu\"},\"traceEvents\":[\n"
#define HEAD_BYTES 83
#define FIRST "{\"name\":\"covey\",\"ph\":\"M\",\"pid\":0,\"args\":{}}"
#define TAIL "\n]}\n"
#define TAIL_BYTES (sizeof(TAIL) - 1)

/* One moment on two clocks, in ns. */
struct moment {
	uint64_t host, device; /* CLOCK_MONOTONIC, %globaltimer */
	uint64_t error;	       /* of the host's time, at most */
};

struct cvy_gpu_trace {
	const char *path;
	uint64_t *rings; /* of all lanes, on the device */
	struct moment opened, closed;
	double cycles_per_ns;
	uint64_t origin;	      /* of the file, by CLOCK_REALTIME */
	uint64_t realtime;	      /* CLOCK_REALTIME - CLOCK_MONOTONIC */
	unsigned long long lost;      /* events */
	uint8_t named[CVY_GPU_RANKS]; /* this rank has events: one, but for a process that began anew */
	uint8_t rows[LANES][ROWS];    /* has events */
	FILE *file;
};

/* ---- clocks ---- */

struct clock_args {
	uint64_t *ask;
	uint8_t *answer; /* a packet: the time, and which question it answers */
};

static __global__ void __launch_bounds__(1) tell_time(const __grid_constant__ struct clock_args a)
{
	const uint64_t since = cvy_global_ns();

	for (uint64_t n = 1; n <= ROUNDS; n++) {
		while (cvy_load_word(a.ask) < n) {
			if (cvy_global_ns() - since > PATIENCE_NS)
				return;
			__nanosleep(20);
		}
		cvy_store_packet(a.answer, cvy_global_ns(), n);
	}
}

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Asks again and again: the time told was some time between question and answer. *out: of the quickest. 0: no answer. */
static int ask_time(uint64_t *ask, const uint64_t *answer, struct moment *out)
{
	uint64_t best = UINT64_MAX;

	for (uint64_t n = 1; n <= ROUNDS; n++) {
		uint64_t asked = now(CLOCK_MONOTONIC), got;

		__atomic_store_n(ask, n, __ATOMIC_SEQ_CST);
		do {
			got = now(CLOCK_MONOTONIC);
			if (got - asked > PATIENCE_NS)
				return 0;
		} while (__atomic_load_n(&answer[1], __ATOMIC_ACQUIRE) != n);
		if (got - asked >= best)
			continue;
		best = got - asked;
		out->host = asked + best / 2;
		out->error = best - best / 2;
		out->device = __atomic_load_n(&answer[0], __ATOMIC_RELAXED);
	}
	return 1;
}

/* While no other kernel of this process runs. */
static int compare_clocks(struct cvy_gpu *gpu, struct moment *out)
{
	const cudaLaunchConfig_t config = { dim3(1), dim3(1), 0, gpu->stream, NULL, 0 };
	struct clock_args a = {};
	uint64_t *words = NULL, *there = NULL;
	int told = 0, err;

	err = check(gpu, cudaHostAlloc((void **)&words, 4 * sizeof(*words), cudaHostAllocMapped), "words for clocks");
	if (err)
		return err;
	memset(words, 0, 4 * sizeof(*words));
	err = check(gpu, cudaHostGetDevicePointer((void **)&there, words, 0), "words for clocks");
	if (!err) {
		a.ask = there;
		a.answer = (uint8_t *)(there + 2);
		err = check(gpu, cudaLaunchKernelEx(&config, tell_time, a), "comparing clocks");
	}
	if (!err) {
		told = ask_time(words, words + 2, out);
		err = check(gpu, cudaStreamSynchronize(gpu->stream), "comparing clocks");
	}
	cudaFreeHost(words);
	return err || told ? err
			   : fail(gpu, COVEY_ERR_TIMEOUT, "comparing clocks on device %d: no answer", gpu->device);
}

/* ---- the file ---- */

/* Is the file a whole trace? Then *origin is that of its times. */
static int is_trace(int fd, off_t bytes, uint64_t *origin)
{
	char head[HEAD_BYTES + 1] = "", tail[TAIL_BYTES] = "";
	unsigned long long ns;

	if (pread(fd, head, HEAD_BYTES, 0) != HEAD_BYTES || sscanf(head, HEAD, &ns) != 1 ||
	    pread(fd, tail, TAIL_BYTES, bytes - (off_t)TAIL_BYTES) != (ssize_t)TAIL_BYTES ||
	    memcmp(tail, TAIL, TAIL_BYTES))
		return 0;
	*origin = ns;
	return 1;
}

/* Opens it, if it is empty or a trace, for this process alone until it is closed. Returns the descriptor, -1: why says more. */
static int open_file(struct cvy_gpu *gpu, struct cvy_gpu_trace *t, off_t *bytes)
{
	int fd = open(t->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	struct stat st;
	int err = -1;

	while (fd >= 0 && (err = flock(fd, LOCK_EX)) && errno == EINTR)
		;
	if (err || fstat(fd, &st)) {
		fail(gpu, 0, "COVEY_TRACE is \"%.80s\": it must be a file that can be written: %s", t->path,
		     strerror(errno));
	} else if (st.st_size && !is_trace(fd, st.st_size, &t->origin)) {
		fail(gpu, 0,
		     "COVEY_TRACE is \"%.80s\": this file is there, and is not a whole trace: name another, or remove "
		     "it",
		     t->path);
	} else {
		*bytes = st.st_size;
		return fd;
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Its tail is taken off, or its head is written: events may follow. */
static int begin_file(struct cvy_gpu *gpu, struct cvy_gpu_trace *t)
{
	off_t bytes = 0;
	int fd = open_file(gpu, t, &bytes);

	if (fd < 0)
		return COVEY_ERR_INVAL;
	if (!bytes || !ftruncate(fd, bytes - (off_t)TAIL_BYTES))
		t->file = fdopen(fd, "r+");
	if (!t->file) {
		fail(gpu, 0, "writing %.80s: %s", t->path, strerror(errno));
		close(fd);
		return COVEY_ERR_IO;
	}
	fseek(t->file, 0, SEEK_END);
	if (!bytes)
		fprintf(t->file, HEAD FIRST, (unsigned long long)t->origin);
	return 0;
}

/* ---- events ---- */

/* An event, and the two clocks when its CTA began. */
struct event {
	uint64_t start, duration, tag, id;
	uint64_t began_ns, began, what;
};

static uint64_t word(const uint64_t *ring, uint64_t i, int at)
{
	return ring[1 + i % CVY_TRACE_EVENTS * 4 + (uint64_t)at];
}

/*
 * The first event from number *i on whose CTA's beginning has not been written over; *i becomes the number behind it. @e: the
 * event before. 0: there are no more.
 */
static int next_event(const uint64_t *ring, uint64_t *i, struct event *e)
{
	uint64_t first = ring[0] > CVY_TRACE_EVENTS ? ring[0] - CVY_TRACE_EVENTS : 0;

	if (*i < first)
		*i = first;
	for (; *i < ring[0]; ++*i) {
		e->start = word(ring, *i, 0);
		e->duration = word(ring, *i, 1);
		e->tag = word(ring, *i, 2);
		e->id = word(ring, *i, 3);
		if (e->tag == CVY_TRACE_BEGIN) {
			e->began_ns = e->start;
			e->began = e->duration;
			e->what = e->id;
		} else if (e->began) {
			++*i;
			return 1;
		}
	}
	return 0;
}

/* Processors vary their clocks, and %globaltimer is coarse beside a short kernel: the ratio is of all CTAs together. */
static double cycles_per_ns(const struct cvy_gpu *gpu, const uint64_t *rings)
{
	double cycles = 0, ns = 0;

	for (int lane = 0; lane < LANES; lane++) {
		struct event e = {};

		for (uint64_t i = 0; next_event(rings + (size_t)lane * CVY_TRACE_WORDS, &i, &e);) {
			if (e.tag != CVY_TRACE_END)
				continue;
			cycles += (double)(e.duration - e.began);
			ns += (double)(e.start - e.began_ns);
		}
	}
	return cycles > 0 && ns > 0 ? cycles / ns : gpu->khz / 1e6;
}

/* ns since the origin, @cycles after the CTA of @e began. */
static uint64_t ns_at(const struct cvy_gpu_trace *t, const struct event *e, uint64_t cycles)
{
	double device = (double)(t->closed.device - t->opened.device), host = (double)(t->closed.host - t->opened.host);
	double since = (double)(e->began_ns - t->opened.device) + (double)cycles / t->cycles_per_ns;

	return t->opened.host + t->realtime - t->origin + (uint64_t)(since * (device > 0 ? host / device : 1));
}

static const struct {
	const char *name, *id;
	enum cvy_trace_row row;
} tags[] = { { "", "", CVY_TRACE_LANE },   /* CVY_TRACE_BEGIN */
	     { "", "op", CVY_TRACE_LANE }, /* CVY_TRACE_END */
#define TAG(tag, name, row, id) { name, id, CVY_TRACE_##row },
	     CVY_TRACE_LIST(TAG)
#undef TAG
};

/* The number of a thread in the picture, by which they are sorted. */
static int tid(int lane, int row)
{
	return 100 * (lane + 1) + row;
}

static void name_row(const struct cvy_gpu_trace *t, int rank, int lane, int row)
{
	char name[60];

	if (row == CVY_TRACE_LANE)
		snprintf(name, sizeof(name), "lane %d", lane);
	else if (row == CVY_TRACE_PUTS)
		snprintf(name, sizeof(name), "lane %d puts", lane);
	else
		snprintf(name, sizeof(name), "lane %d from rank %d", lane, row - CVY_TRACE_FROM);
	fprintf(t->file,
		",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}"
		",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
		rank, tid(lane, row), name, rank, tid(lane, row), tid(lane, row));
}

static void name_rank(const struct cvy_gpu_trace *t, int rank)
{
	uint64_t error = t->opened.error > t->closed.error ? t->opened.error : t->closed.error;
	char lost[60] = "";

	if (t->lost)
		snprintf(lost, sizeof(lost), " (%llu earlier events lost)", t->lost);
	fprintf(t->file,
		",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d%s\","
		"\"clock_error_ns\":%llu}}"
		",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
		rank, rank, lost, (unsigned long long)error, rank, rank);
}

/* What an operation is called, by its phases. */
static const char *kind_name(uint64_t what)
{
	static const char *const names[2][4] = { { "dispatch", "dispatch, send", "dispatch, receive", "dispatch" },
						 { "combine", "combine, send", "combine, receive", "combine" } };

	return names[(what & 0xff) == CVY_GPU_COMBINE][what >> 8 & 3];
}

static void write_event(struct cvy_gpu_trace *t, int lane, const struct event *e)
{
	const int whole = e->tag == CVY_TRACE_END, rank = (int)(e->what >> 16 & 0xff) % CVY_GPU_RANKS;
	uint64_t from = ns_at(t, e, whole ? 0 : e->start - e->began), ns, id = whole ? e->what >> 24 : e->id;
	const char *name = whole ? kind_name(e->what) : tags[e->tag].name;
	int row = tags[e->tag].row;

	ns = ns_at(t, e, whole ? e->duration - e->began : e->start - e->began + e->duration) - from;
	if (row == CVY_TRACE_FROM)
		row += (int)(id % CVY_GPU_RANKS);
	if (!t->named[rank])
		name_rank(t, rank);
	if (!t->rows[lane][row])
		name_row(t, rank, lane, row);
	t->named[rank] = t->rows[lane][row] = 1;
	fprintf(t->file,
		",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%llu.%03u,\"dur\":%llu.%03u,"
		"\"args\":{\"%s\":%llu}}",
		name, rank, tid(lane, row), (unsigned long long)(from / 1000), (unsigned)(from % 1000),
		(unsigned long long)(ns / 1000), (unsigned)(ns % 1000), tags[e->tag].id, (unsigned long long)id);
}

/* Events that are not there any more, nor is what their CTA began with. */
static unsigned long long lost_of(const uint64_t *ring)
{
	uint64_t i = ring[0] > CVY_TRACE_EVENTS ? ring[0] - CVY_TRACE_EVENTS : 0;

	while (i < ring[0] && word(ring, i, 2) != CVY_TRACE_BEGIN)
		i++;
	return i;
}

static void write_all(struct cvy_gpu_trace *t, const uint64_t *rings)
{
	for (int lane = 0; lane < LANES; lane++)
		t->lost += lost_of(rings + (size_t)lane * CVY_TRACE_WORDS);
	for (int lane = 0; lane < LANES; lane++) {
		struct event e = {};

		for (uint64_t i = 0; next_event(rings + (size_t)lane * CVY_TRACE_WORDS, &i, &e);)
			if (e.tag < sizeof(tags) / sizeof(*tags))
				write_event(t, lane, &e);
	}
}

/* ---- open and close ---- */

static int open_trace(struct cvy_gpu *gpu, struct cvy_gpu_trace *t)
{
	off_t bytes;
	int fd = open_file(gpu, t, &bytes), err;

	if (fd < 0)
		return COVEY_ERR_INVAL;
	close(fd);
	err = check(gpu, cudaMalloc((void **)&t->rings, BYTES), "memory for a trace");
	if (!err)
		err = check(gpu, cudaMemsetAsync(t->rings, 0, BYTES, gpu->stream), "memory for a trace");
	if (!err)
		err = copy(gpu, &gpu->control->trace, &t->rings, sizeof(t->rings), "memory for a trace");
	return err ? err : compare_clocks(gpu, &t->opened);
}

int cvy_gpu_trace_open(struct cvy_gpu *gpu)
{
	const char *path = getenv("COVEY_TRACE");

	if (!path || !*path)
		return 0;
	gpu->trace = (struct cvy_gpu_trace *)calloc(1, sizeof(*gpu->trace));
	if (!gpu->trace)
		return fail(gpu, COVEY_ERR_NOMEM, "no memory for a trace");
	gpu->trace->path = path;
	gpu->trace->origin = now(CLOCK_REALTIME) - EARLIER_NS;
	return open_trace(gpu, gpu->trace);
}

static int write_trace(struct cvy_gpu *gpu, struct cvy_gpu_trace *t)
{
	uint64_t *rings = (uint64_t *)malloc(BYTES);
	int err = rings ? compare_clocks(gpu, &t->closed) : fail(gpu, COVEY_ERR_NOMEM, "no memory for a trace");

	if (!err)
		err = copy(gpu, rings, t->rings, BYTES, "reading a trace");
	if (!err)
		err = begin_file(gpu, t);
	if (!err) {
		t->cycles_per_ns = cycles_per_ns(gpu, rings);
		t->realtime = now(CLOCK_REALTIME) - now(CLOCK_MONOTONIC);
		write_all(t, rings);
		fputs(TAIL, t->file);
		if (ferror(t->file) | fclose(t->file))
			err = fail(gpu, COVEY_ERR_IO, "writing %.80s: %s", t->path, strerror(errno));
	}
	free(rings);
	return err;
}

/* A trace that is not written is no reason why a group should not close. */
void cvy_gpu_trace_close(struct cvy_gpu *gpu)
{
	struct cvy_gpu_trace *t = gpu->trace;

	if (!t)
		return;
	if (t->opened.host && write_trace(gpu, t)) /* else it was not opened */
		fprintf(stderr, "covey: warn: trace: device %d: %s\n", gpu->device, gpu->why);
	cudaFree(t->rings);
	free(t);
	gpu->trace = NULL;
}

#endif
