/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a run: started at a desk, read, and buried. An unplanned end is judged here: to be removed from the
 * view without cause is a false alarm and counted; anything else is a fault.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../local/twin.h"
#include "bench.h"
#include "net.h"

#define STARVED_FILES 14
#define STARVED_BYTES (64 << 10)

bool chaos_in_group(const struct chaos_crew *crew, int group, int rank, int *member)
{
	if (crew->groups == 1) {
		*member = rank;
		return true;
	}
	*member = (rank - group * crew->ranks / crew->groups + crew->ranks) % crew->ranks;
	return rank < crew->ranks && *member < crew->members;
}

int chaos_sequences(const struct chaos_crew *crew)
{
	return crew->devices ? 2 : crew->groups;
}

int chaos_crew_open(struct chaos_run *run)
{
	const struct chaos_plan *plan = &run->plan;
	struct chaos_crew *crew;

	run->crew_fd = memfd_create("ep-chaos", MFD_CLOEXEC);
	if (run->crew_fd < 0 || ftruncate(run->crew_fd, sizeof(*crew)))
		return -1;
	crew = mmap(NULL, sizeof(*crew), PROT_READ | PROT_WRITE, MAP_SHARED, run->crew_fd, 0);
	if (crew == MAP_FAILED)
		return -1;
	run->crew = crew;
	crew->ranks = plan->ranks;
	crew->groups = plan->groups;
	crew->devices = run->opt->devices;
	crew->bench = run->bench != NULL;
	crew->plain = run->bench && !run->opt->mix;
	crew->tokens = run->opt->tokens;
	crew->touch_bytes = run->bench ? (uint64_t)run->opt->touch_mib << 20 : 0;
	crew->members = plan->groups > 1 ? plan->members : plan->ranks;
	crew->seed = (uint64_t)run->opt->seed;
	crew->work = plan->work;
	crew->sizes = plan->sizes;
	crew->mix = plan->mix;
	memcpy(crew->bytes, plan->bytes, sizeof(crew->bytes));
	for (int g = 0; g < chaos_sequences(crew); g++) {
		run->ledger[g] = calloc(CHAOS_LEDGER, sizeof(*run->ledger[g]));
		if (!run->ledger[g])
			return -1;
	}
	return 0;
}

static void starve(const char *what)
{
	struct rlimit limit = { 0, 0 };

	if (!strcmp(what, "files")) {
		limit.rlim_cur = limit.rlim_max = STARVED_FILES;
		setrlimit(RLIMIT_NOFILE, &limit);
	} else {
		limit.rlim_cur = limit.rlim_max = STARVED_BYTES;
		setrlimit(RLIMIT_FSIZE, &limit); /* a memfd is a file, too */
	}
}

static void environment(const struct chaos_run *run, int rank)
{
	const struct chaos_plan *plan = &run->plan;

	for (int i = 0; i < plan->settings; i++)
		setenv(plan->setting[i][0], plan->setting[i][1], 1);
	/* We cause these deaths: the library's messages about them are hidden unless requested. */
	setenv("COVEY_LOG", plan->logs_full ? "debug" : "error", plan->logs_full);
	if (*run->rule[rank])
		setenv("COVEY_FAULT", run->rule[rank], 1);
	else
		unsetenv("COVEY_FAULT");
}

static void __attribute__((noreturn))
exec_member(const struct chaos_run *run, int desk, bool joiner, const char *lack, pid_t parent)
{
	char rank_text[32], desk_text[32], shared_text[32];
	int rank = run->worker[desk].rank, full;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || fcntl(run->crew_fd, F_SETFD, 0))
		_exit(125);
	environment(run, rank);
	tool_device_choose(run->crew->devices, rank);
	if (run->net && chaos_net_enter(rank * run->plan.hosts / run->plan.ranks % run->plan.hosts))
		_exit(125);
	/* Every write fails: no space left on device. */
	full = run->plan.logs_full ? open("/dev/full", O_WRONLY | O_CLOEXEC) : -1;
	if (full >= 0)
		dup2(full, STDERR_FILENO);
	if (lack)
		starve(lack);
	snprintf(rank_text, sizeof(rank_text), "--rank=%d", rank);
	snprintf(desk_text, sizeof(desk_text), "--desk=%d", desk);
	snprintf(shared_text, sizeof(shared_text), "--shared=%d", run->crew_fd);
	execl("/proc/self/exe", "ep-chaos", rank_text, desk_text, shared_text, joiner ? "--joiner" : (char *)NULL,
	      (char *)NULL);
	_exit(127);
}

/* The desk that has been free longest; -1: all are taken. */
static int free_desk(struct chaos_run *run)
{
	for (int i = 0; i < CHAOS_DESKS; i++) {
		int d = (run->next_desk + i) % CHAOS_DESKS;

		if (run->worker[d].pid)
			continue;
		run->next_desk = d + 1;
		return d;
	}
	return -1;
}

int chaos_crew_spawn(struct chaos_run *run, int rank, bool joiner, const char *lack)
{
	int d = free_desk(run);
	struct chaos_worker *w = &run->worker[d < 0 ? 0 : d];
	pid_t parent = getpid();

	if (d < 0) {
		chaos_wrong(run, "all %d desks are taken: processes do not end", CHAOS_DESKS);
		return -1;
	}
	memset(w, 0, sizeof(*w));
	for (int g = 0; g < chaos_sequences(run->crew); g++)
		run->crew->desk[d].seat[g].head = run->crew->desk[d].seat[g].tail = run->crew->desk[d].seat[g].inside =
			0;
	run->crew->desk[d].trap = CHAOS_T_NONE;
	run->crew->desk[d].cause[0] = '\0';
	run->crew->desk[d].handles = run->crew->desk[d].blocks = 0;
	run->crew->desk[d].touch_ns = 0;
	memset(run->crew->desk[d].view, 0, sizeof(run->crew->desk[d].view));
	w->rank = rank;
	w->state = CHAOS_P_LIVE;
	w->starved = lack != NULL;
	w->armed = run->rule[rank][0] != '\0';
	w->scribbles = strstr(run->rule[rank], "scribble") != NULL;
	w->exec_ns = tool_now_ns();
	w->pid = fork();
	if (!w->pid)
		exec_member(run, d, joiner, lack, parent);
	run->rule[rank][0] = '\0';
	if (w->pid > 0)
		return 0;
	w->pid = 0;
	w->state = CHAOS_P_NONE;
	chaos_wrong(run, "rank %d: fork: %s", rank, strerror(errno));
	return -1;
}

struct chaos_worker *chaos_crew_at(struct chaos_run *run, int rank)
{
	for (int d = 0; d < CHAOS_DESKS; d++) {
		struct chaos_worker *w = &run->worker[d];

		if (w->pid && w->rank == rank && !w->starved &&
		    (w->state == CHAOS_P_LIVE || w->state == CHAOS_P_HALTED))
			return w;
	}
	return NULL;
}

/* Adds the wait to every slice of time that the operation was under way in. */
static void draw(struct chaos_run *run, const struct chaos_record *record, uint64_t wait)
{
	uint64_t enter = record->enter_ns < run->start_ns ? run->start_ns : record->enter_ns;
	uint64_t from = (enter - run->start_ns) / run->bucket_ns,
		 to = (record->done_ns - run->start_ns) / run->bucket_ns;

	for (; from <= to && from < CHAOS_BUCKETS; from++)
		if (run->longest[from] < wait)
			run->longest[from] = wait;
}

/* Updates the waits shown and the faults under way from a record. */
static void note(struct chaos_run *run, struct chaos_worker *w, int group, const struct chaos_record *record)
{
	uint64_t wait = record->done_ns - record->enter_ns;
	bool joins = !w->last[group].seq; /* waits for its group, not for a fault */

	w->last[group] = *record;
	if (run->bench)
		chaos_bench_note(run, w, record);
	if (!chaos_private(record) && !record->status)
		w->seen[group] = *record;
	if (joins || w->state != CHAOS_P_LIVE || record->done_ns < run->start_ns)
		return;
	draw(run, record, wait);
	for (int i = run->events - 1; i >= 0 && i >= run->events - 32; i--) {
		struct chaos_event *e = &run->event[i];

		if (record->done_ns > e->begin_ns && (!e->end_ns || record->enter_ns < e->end_ns) &&
		    e->longest_ns < wait)
			e->longest_ns = wait;
	}
}

static void drain(struct chaos_run *run, int d)
{
	for (int g = 0; g < chaos_sequences(run->crew); g++) {
		struct chaos_seat *seat = &run->crew->desk[d].seat[g];
		uint64_t head = __atomic_load_n(&seat->head, __ATOMIC_ACQUIRE), tail = seat->tail;

		for (; tail != head; tail++) {
			const struct chaos_record *record = &seat->ring[tail % CHAOS_SEAT_RING];

			chaos_check(run, d, g, record);
			note(run, &run->worker[d], g, record);
		}
		__atomic_store_n(&seat->tail, tail, __ATOMIC_RELEASE);
	}
}

static bool ended_with(int status, int code)
{
	return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

static bool killed_itself(const struct chaos_worker *w, int status)
{
	return w->armed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void judge(struct chaos_run *run, int d, int status)
{
	const struct chaos_worker *w = &run->worker[d];
	const char *cause = run->crew->desk[d].cause;

	if (ended_with(status, CHAOS_EXIT_FENCED)) {
		run->fenced++;
		if (w->state == CHAOS_P_LIMBO || w->cut_off)
			return;
		run->alarms++;
		fprintf(stderr, "ep-chaos: false alarm: rank %d is fenced and was not struck: %s\n", w->rank, cause);
		return;
	}
	if (killed_itself(w, status) || (w->state == CHAOS_P_KILLED && !ended_with(status, 1)))
		return; /* a fault that it found before the signal counts */
	if (w->starved && ended_with(status, 1) && *cause) {
		if (run->opt->verbose)
			fprintf(stderr, "ep-chaos: starved as it should: %s\n", cause);
		return;
	}
	if (w->state != CHAOS_P_LIMBO && run->crew->command == CHAOS_STOP && ended_with(status, 0))
		return;
	if (w->retiring && (ended_with(status, CHAOS_EXIT_RETIRED) || ended_with(status, 0)))
		return;
	chaos_wrong(run, "rank %d ended%s with status 0x%x: %s", w->rank,
		    w->state == CHAOS_P_LIMBO ? ", stopped or cut off and left out of the view, not fenced but" : "",
		    (unsigned)status, *cause ? cause : "no cause told");
}

static void reap(struct chaos_run *run, int d)
{
	struct chaos_worker *w = &run->worker[d];
	int status;

	if (!w->pid || waitpid(w->pid, &status, WNOHANG) != w->pid)
		return;
	w->doubt = !ended_with(status, 0) && !ended_with(status, CHAOS_EXIT_RETIRED);
	drain(run, d);
	run->handles += run->crew->desk[d].handles;
	run->blocks += run->crew->desk[d].blocks;
	judge(run, d, status);
	w->pid = 0;
	w->state = CHAOS_P_NONE;
}

void chaos_crew_poll(struct chaos_run *run)
{
	for (int d = 0; d < CHAOS_DESKS; d++)
		if (run->worker[d].pid)
			drain(run, d);
	for (int d = 0; d < CHAOS_DESKS; d++)
		reap(run, d);
	chaos_check_disputes(run, false);
}

void chaos_crew_close(struct chaos_run *run)
{
	for (int d = 0; d < CHAOS_DESKS; d++) {
		if (run->worker[d].pid <= 0)
			continue;
		kill(run->worker[d].pid, SIGKILL);
		waitpid(run->worker[d].pid, NULL, 0);
	}
	for (int g = 0; g < CHAOS_GROUPS; g++)
		free(run->ledger[g]);
	if (run->crew)
		munmap(run->crew, sizeof(*run->crew));
	if (run->crew_fd >= 0)
		close(run->crew_fd);
}
