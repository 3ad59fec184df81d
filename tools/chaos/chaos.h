/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of ep-chaos. The parent owns the store, the ranks (this program again, with --rank) and a shared memory in
 * which every rank logs each operation. The parent alone kills, reads the logs, compares them and computes the figures.
 * A rank only works and logs its results.
 */
#ifndef CHAOS_H
#define CHAOS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CHAOS_MAX_RANKS 8
#define CHAOS_RING (1u << 15)  /* operations a rank may be ahead of the parent's reading */
#define CHAOS_ADMIT_EVERY 32   /* steps from one safe point to the next */
#define CHAOS_VIEWS 64	       /* view events kept for each rank */
#define CHAOS_SEQS (1u << 18)  /* outcomes kept to compare ranks with */
#define CHAOS_SAMPLES 4096     /* measurements of one kind */
#define CHAOS_GAPS (1u << 20)  /* operations looked at around one admission */
#define CHAOS_OUTCOME_MS 20000 /* bound on any outcome: past it the group counts as hung */
#define CHAOS_EXIT_FENCED 3

enum chaos_command { CHAOS_RUN, CHAOS_IDLE, CHAOS_STOP }; /* the highest that any rank saw counts */

enum chaos_op {
	CHAOS_ALLREDUCE,
	CHAOS_IN_PLACE,
	CHAOS_BROADCAST,
	CHAOS_ALLGATHER,
	CHAOS_BARRIER,
	CHAOS_ALLTOALL,
	CHAOS_MIXED, /* number of the above */
	CHAOS_ADMIT = CHAOS_MIXED,
	CHAOS_CONTROL,
	CHAOS_DISPATCH, /* the first half of a step */
	CHAOS_COMBINE	/* and the second: it counts from the beginning of the first */
};

/* Host and device operations are numbered apart. Plans keep them in seats of their own. */
enum chaos_numbers { CHAOS_HOST, CHAOS_DEVICE, CHAOS_STREAMS };

/* One operation of one rank. */
struct chaos_record {
	uint64_t seq, step;
	uint64_t enter_ns, done_ns; /* CLOCK_MONOTONIC */
	uint64_t checksum, mask;
	uint32_t epoch;
	int32_t status;
	uint32_t op;	 /* enum chaos_op */
	uint32_t own;	 /* 1: mask, status and part are this rank's alone; set only for some operations */
	uint32_t stream; /* enum chaos_numbers */
	uint8_t slip;	 /* 1 + enum chaos_slip: some rank called something else here; 0: none */
	uint8_t wrong;	 /* this rank did */
	uint8_t found;	 /* this rank got the error */
};

struct chaos_view {
	uint64_t time_ns;
	uint64_t epoch; /* written last */
};

/* The log of one rank: written by its process, @tail by the parent. */
struct chaos_slot {
	uint64_t head __attribute__((aligned(64)));
	uint64_t inside; /* 1: in an operation */
	uint64_t steps;
	uint64_t touch_ns;  /* time taken to touch --touch memory */
	uint64_t ready_ns;  /* covey_join was called, the device open */
	uint64_t joined_ns; /* and returned */
	uint64_t suspects;  /* members that it suspected */
	char cause[240];    /* why it gave up */
	struct chaos_view view[CHAOS_VIEWS];
	uint64_t tail __attribute__((aligned(64)));
	struct chaos_record ring[CHAOS_RING];
};

struct chaos_shared {
	int ranks, world, mix, devices, tokens;
	uint64_t bytes, touch_bytes;
	char store[160];
	uint32_t command; /* enum chaos_command, a futex; the parent writes it */
	struct chaos_slot slot[CHAOS_MAX_RANKS];
};

struct chaos_samples {
	const char *name;
	double bar_ms; /* 0: none */
	int count;
	double ms[CHAOS_SAMPLES];
};

/* Outcome of one sequence number from the first rank that logged it, and the ranks that agree. */
struct chaos_outcome {
	struct chaos_record record;
	uint32_t owners;
};

struct chaos_process {
	pid_t pid;   /* 0: none */
	bool killed; /* by us, or ended */
	uint64_t exec_ns;
	struct chaos_record last[CHAOS_STREAMS];
	uint64_t done_ns;	   /* of its last operation; 0: none yet */
	struct chaos_record after; /* first operation without the victims; seq 0: not yet */
	uint64_t first_ns;	   /* first completed operation; 0: not yet */
};

struct chaos_options {
	int ranks, kills, burst, idle_s, steps, extends, overload_s;
	int world; /* founders: ranks without later joiners */
	bool bench, leak, mix, json, strict, stop, both, signal_named, verbose;
	uint64_t bytes, touch_mib, seed;
	int rank, shared_fd; /* of a rank's process; -1: the parent */
	bool joiner;
	int desk; /* of a process of a plan's run; -1: none */
	int devices, tokens;
	int seconds;
	bool show, ranks_named;
	const char *plan, *plot;
};

struct chaos {
	const struct chaos_options *opt;
	struct chaos_shared *shared;
	int shared_fd;
	char dir[64];
	pid_t store;
	uint64_t random;
	struct chaos_process process[CHAOS_MAX_RANKS];
	uint32_t victims; /* ranks killed last */
	struct chaos_outcome *outcome;
	uint64_t compared;
	int wrong;     /* wrong outcomes: different ones, or not the right result */
	int unplanned; /* ranks that ended and were not killed */
	int spared;    /* kills after which no operation needed a view change */
	int inside;    /* kills inside an operation */
	int done;      /* kills */
	bool watch;    /* collect gaps */
	double *gap_ms;
	uint32_t gaps;
	struct chaos_samples calm; /* undisturbed operations */
	struct chaos_samples killed, stopped, replaced, pause, extended;
	uint32_t calls;	   /* operations seen, to take some as samples */
	double longest_ms; /* operation of a founder, while `watch` is on */
};

/* Resources of a process: they must not grow. */
struct chaos_usage {
	long rss_kib, fds, maps, threads;
};

struct CUstream_st;
struct cvy_gpu_tool;

uint64_t chaos_now_ns(void);
/* For deadlines: time in which this process stood still, and so perhaps the whole machine, does not count. */
uint64_t chaos_awake_ns(void);
/* The deadline of any outcome, in the time of chaos_awake_ns. */
uint64_t chaos_outcome_end(void);
void chaos_sleep_us(unsigned us);
int chaos_rank_main(const struct chaos_options *opt);

/* device.c */
void chaos_device_choose(int devices, int rank); /* the device of @rank, before covey_join() */
const struct cvy_gpu_tool *chaos_tool_open(int device, struct CUstream_st **stream); /* NULL, after a message */

int chaos_store_start(struct chaos *c);
long chaos_store_ask(const struct chaos *c, const char *command); /* an integer reply; -1: none */

int chaos_fleet_open(struct chaos *c);
int chaos_fleet_start(struct chaos *c); /* all ranks, until each has done an operation */
void chaos_fleet_spawn(struct chaos *c, int rank, bool joiner);
void chaos_fleet_poll(struct chaos *c); /* reads the logs, notes which ranks ended, sleeps a moment */
void chaos_fleet_command(struct chaos *c, enum chaos_command command);
int chaos_fleet_stop(struct chaos *c);
void chaos_fleet_close(struct chaos *c);
uint32_t chaos_fleet_alive(const struct chaos *c);

void chaos_verify(struct chaos *c, int rank, const struct chaos_record *record);
void chaos_wrong(struct chaos *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

int chaos_cycle(struct chaos *c, uint32_t victims, int signal);
int chaos_strike(struct chaos *c, uint32_t victims, int signal); /* without a replacement */
void chaos_run_for(struct chaos *c, unsigned ms);
uint64_t chaos_random(struct chaos *c, uint64_t below);

int chaos_idle(struct chaos *c);
int chaos_leak(struct chaos *c);
int chaos_steps(struct chaos *c);
int chaos_extend(struct chaos *c);
int chaos_overload(struct chaos *c);

void chaos_sample(struct chaos_samples *samples, double ms);
double chaos_percentile(const struct chaos_samples *samples, double percent);
int chaos_report(struct chaos *c); /* bars missed */

#endif
