/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks as processes: started, watched, given commands, and read. All die with this process. A rank that ends
 * without being killed is an unplanned death: it is counted and reported.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chaos.h"
#include "covey.h"

#define POLL_US 1000
#define CALM_EVERY 97 /* one in this many undisturbed operations is a sample */

int chaos_fleet_open(struct chaos *c)
{
	const struct chaos_options *opt = c->opt;
	const char *tmp = getenv("TMPDIR");

	c->outcome = calloc(CHAOS_SEQS, sizeof(*c->outcome));
	c->gap_ms = malloc(CHAOS_GAPS * sizeof(*c->gap_ms));
	c->shared_fd = memfd_create("ep-chaos", MFD_CLOEXEC);
	if (!c->outcome || !c->gap_ms || c->shared_fd < 0 || ftruncate(c->shared_fd, sizeof(*c->shared)))
		return -1;
	c->shared = mmap(NULL, sizeof(*c->shared), PROT_READ | PROT_WRITE, MAP_SHARED, c->shared_fd, 0);
	if (c->shared == MAP_FAILED) {
		c->shared = NULL;
		return -1;
	}
	c->shared->ranks = opt->ranks;
	c->shared->world = opt->world;
	c->shared->mix = opt->mix;
	c->shared->devices = opt->devices;
	c->shared->tokens = opt->tokens;
	c->shared->touch_bytes = opt->touch_mib << 20;
	c->shared->bytes = opt->bytes;
	snprintf(c->dir, sizeof(c->dir), "%.40s/covey-chaos-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(c->dir)) {
		c->dir[0] = '\0';
		return -1;
	}
	return chaos_store_start(c);
}

static void __attribute__((noreturn)) exec_rank(const struct chaos *c, int rank, bool joiner, pid_t parent)
{
	char rank_text[32], shared_text[32];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || fcntl(c->shared_fd, F_SETFD, 0))
		_exit(125);
	/* We cause these deaths: the library's messages about them are hidden unless requested. */
	setenv("COVEY_LOG", "error", 0);
	snprintf(rank_text, sizeof(rank_text), "--rank=%d", rank);
	snprintf(shared_text, sizeof(shared_text), "--shared=%d", c->shared_fd);
	execl("/proc/self/exe", "ep-chaos", rank_text, shared_text, joiner ? "--joiner" : (char *)NULL, (char *)NULL);
	_exit(127);
}

void chaos_fleet_spawn(struct chaos *c, int rank, bool joiner)
{
	struct chaos_process *p = &c->process[rank];
	struct chaos_slot *slot = &c->shared->slot[rank];
	pid_t parent = getpid();

	memset(p, 0, sizeof(*p));
	slot->head = slot->tail = slot->inside = 0;
	slot->cause[0] = '\0';
	memset(slot->view, 0, sizeof(slot->view));
	p->exec_ns = chaos_now_ns();
	p->pid = fork();
	if (!p->pid)
		exec_rank(c, rank, joiner, parent);
	if (p->pid < 0) {
		p->pid = 0;
		chaos_wrong(c, "rank %d: fork: %s", rank, strerror(errno));
	}
}

uint32_t chaos_fleet_alive(const struct chaos *c)
{
	uint32_t alive = 0;

	for (int r = 0; r < c->opt->ranks; r++)
		if (c->process[r].pid && !c->process[r].killed)
			alive |= 1u << r;
	return alive;
}

/* A measured unit: an operation, or a step of two. */
static bool whole(const struct chaos_record *record)
{
	return record->op < CHAOS_MIXED || record->op == CHAOS_COMBINE;
}

/* Updates the measurements under way from a new record. */
static void note(struct chaos *c, int rank, const struct chaos_record *record)
{
	struct chaos_process *p = &c->process[rank];

	if (!p->first_ns && whole(record))
		p->first_ns = record->done_ns;
	if (!p->after.seq && c->victims && !(record->mask & c->victims) && record->op != CHAOS_ADMIT &&
	    record->op != CHAOS_DISPATCH)
		p->after = *record;
	if (!c->victims && !c->watch && whole(record) && c->calls++ % CALM_EVERY == 0)
		chaos_sample(&c->calm, (double)(record->done_ns - record->enter_ns) / 1e6);
	if (c->watch && rank < c->opt->world && (double)(record->done_ns - record->enter_ns) / 1e6 > c->longest_ms)
		c->longest_ms = (double)(record->done_ns - record->enter_ns) / 1e6;
	if (c->watch && p->done_ns && c->gaps < CHAOS_GAPS && !(c->victims >> rank & 1))
		c->gap_ms[c->gaps++] = (double)(record->done_ns - p->done_ns) / 1e6;
	p->last[record->stream] = *record;
	p->done_ns = record->done_ns;
}

static void drain(struct chaos *c, int rank)
{
	struct chaos_slot *slot = &c->shared->slot[rank];
	uint64_t head = __atomic_load_n(&slot->head, __ATOMIC_ACQUIRE), tail = slot->tail;

	for (; tail < head; tail++) {
		const struct chaos_record *record = &slot->ring[tail % CHAOS_RING];

		chaos_verify(c, rank, record);
		note(c, rank, record);
	}
	__atomic_store_n(&slot->tail, tail, __ATOMIC_RELEASE);
}

/* A death that we did not cause. Exit 0 is one too, unless the ranks have the command to stop. */
static void reap(struct chaos *c, int rank)
{
	struct chaos_process *p = &c->process[rank];
	int status;

	if (!p->pid || p->killed || waitpid(p->pid, &status, WNOHANG) != p->pid)
		return;
	drain(c, rank);
	p->pid = 0;
	p->killed = true;
	if (c->shared->command == CHAOS_STOP && WIFEXITED(status) && !WEXITSTATUS(status))
		return;
	c->unplanned++;
	fprintf(stderr, "ep-chaos: rank %d ended by itself, status 0x%x: %s\n", rank, (unsigned)status,
		c->shared->slot[rank].cause);
	/* To be fenced while starved of processor time is a false alarm; any other end breaks a promise. */
	if (!WIFEXITED(status) || WEXITSTATUS(status) != CHAOS_EXIT_FENCED)
		chaos_wrong(c, "rank %d failed", rank);
}

void chaos_fleet_poll(struct chaos *c)
{
	chaos_sleep_us(POLL_US);
	for (int r = 0; r < c->opt->ranks; r++)
		drain(c, r);
	for (int r = 0; r < c->opt->ranks; r++)
		reap(c, r);
}

int chaos_fleet_start(struct chaos *c)
{
	uint64_t end = chaos_outcome_end();
	int ready;

	for (int r = 0; r < c->opt->world; r++)
		chaos_fleet_spawn(c, r, false);
	do {
		chaos_fleet_poll(c);
		ready = 0;
		for (int r = 0; r < c->opt->world; r++)
			ready += c->process[r].first_ns != 0;
		if (ready == c->opt->world)
			return 0;
	} while (chaos_awake_ns() < end && !c->unplanned);
	chaos_wrong(c, "%d of %d ranks came to an operation within %d ms", ready, c->opt->world, CHAOS_OUTCOME_MS);
	return -1;
}

void chaos_fleet_command(struct chaos *c, enum chaos_command command)
{
	__atomic_store_n(&c->shared->command, command, __ATOMIC_RELEASE);
	syscall(SYS_futex, &c->shared->command, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* All ranks leave and end with 0. */
int chaos_fleet_stop(struct chaos *c)
{
	uint64_t end = chaos_outcome_end();

	chaos_fleet_command(c, CHAOS_STOP);
	while (chaos_fleet_alive(c) && chaos_awake_ns() < end)
		chaos_fleet_poll(c);
	if (!chaos_fleet_alive(c))
		return 0;
	chaos_wrong(c, "ranks %#x did not stop within %d ms", chaos_fleet_alive(c), CHAOS_OUTCOME_MS);
	return -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)type, (void)at;
	return remove(path);
}

void chaos_fleet_close(struct chaos *c)
{
	for (int r = 0; r < CHAOS_MAX_RANKS; r++) {
		if (c->process[r].pid <= 0)
			continue;
		kill(c->process[r].pid, SIGKILL);
		waitpid(c->process[r].pid, NULL, 0);
	}
	if (c->store > 0) {
		kill(c->store, SIGKILL);
		waitpid(c->store, NULL, 0);
	}
	if (c->dir[0])
		nftw(c->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	if (c->shared)
		munmap(c->shared, sizeof(*c->shared));
	if (c->shared_fd >= 0)
		close(c->shared_fd);
	free(c->outcome);
	free(c->gap_ms);
}
