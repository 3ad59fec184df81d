/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group on devices that are none (fake.c), under ep-run: every step is a safe point and collectives on "device" memory,
 * each checked against the mask of its outcome, and outcomes compared among all. `--kill RANK@STEP`: that rank dies at a
 * random moment of that step; with --restart on-failure its replacement comes in, and all go on for `--steps` whole steps.
 */
#include <covey.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 1500 /* of a block: two steps of four lanes */
#define RANKS 8

static struct covey_group *group;
static int rank, size, replacement, kill_rank = -1, failures;
static long kill_step = -1, steps = 30;
static struct {
	long step, whole; /* what joiners get: all end at the same step */
} state;
static int *send, *recv;
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

static struct covey_device_outcome outcome(const char *what)
{
	struct covey_device_outcome o, all[RANKS];
	struct covey_result result;

	fake_wait();
	must(covey_device_outcome(group, &o), "outcome");
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
	must(covey_allreduce(send, to, COUNT, COVEY_INT32, COVEY_SUM, group, NULL, NULL), "allreduce");
	o = outcome("allreduce");
	checks++;
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
	must(all ? covey_alltoall(send, recv, COUNT, COVEY_INT32, group, NULL, NULL)
		 : covey_allgather(send, recv, COUNT, COVEY_INT32, group, NULL, NULL),
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

static void *die(void *arg)
{
	unsigned seed = (unsigned)getpid();

	(void)arg;
	usleep((unsigned)rand_r(&seed) % 3000);
	raise(SIGKILL);
	return NULL;
}

static void one_step(void)
{
	pthread_t thread;

	if (rank == kill_rank && state.step == kill_step && !replacement)
		pthread_create(&thread, NULL, die, NULL);
	for (int i = 0; i < (state.step == kill_step ? 20 : 1); i++) {
		allreduce(0);
		allreduce(1);
		blocks(0);
		blocks(1);
	}
}

static void start(const char *program)
{
	const char *create = getenv("COVEY_CREATE"), *slash = strrchr(program, '/');
	char path[4096];
	void *library;

	snprintf(path, sizeof(path), "%.*slibcovey_cuda.so.0", slash ? (int)(slash - program) + 1 : 0, program);
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
	setenv("COVEY_DEVICE", "local", 1);
	must(covey_join(NULL, &group), "join");
}

int main(int argc, char **argv)
{
	const char *world = getenv("WORLD_SIZE");
	struct covey_result result;
	struct covey_view view;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--kill"))
			sscanf(argv[i + 1], "%d@%ld", &kill_rank, &kill_step);
		else if (!strcmp(argv[i], "--steps"))
			steps = atol(argv[i + 1]);
	}
	start(argv[0]);
	covey_view(group, &view);
	rank = view.rank;
	for (;; state.step++) {
		must(covey_admit(group, &state, sizeof(state), &result), "admit");
		size = result.size;
		one_step();
		state.whole += covey_mask_count(&result.mask) == atol(world ? world : "1") &&
			       (kill_rank < 0 || result.epoch > 1);
		if (failures || state.whole >= steps)
			break;
	}
	printf("rank %d: %lu checks, %d failed, %lu lost, %lu without a part, epoch %u\n", rank, checks, failures, lost,
	       cut, result.epoch);
	covey_leave(group, 0);
	covey_close(group);
	return failures != 0;
}
