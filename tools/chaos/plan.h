/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run, by plan or without one. A *crew* is the processes of a run. Each sits at a *desk* of a shared memory, where it
 * logs its operations, in one *seat* for each of its groups. A desk is not used again for long, so that a zombie and
 * its replacement never share one. The plan is a list of steps; the parent alone injects, reads the logs and judges
 * them.
 */
#ifndef CHAOS_PLAN_H
#define CHAOS_PLAN_H

#include "../operations/operations.h"
#include "chaos.h"

#define CHAOS_DESKS 64
#define CHAOS_GROUPS 4
#define CHAOS_SIZES 8
#define CHAOS_SEAT_RING (1u << 13) /* operations a seat may be ahead of the parent's reading */
#define CHAOS_LEDGER (1u << 13)	   /* outcomes of a group kept to compare with */
#define CHAOS_STEPS 512
#define CHAOS_SETTINGS 8   /* environment variables of a plan */
#define CHAOS_EVENTS 8192  /* faults that the plot distinguishes */
#define CHAOS_KINDS 48	   /* different faults of one run */
#define CHAOS_BUCKETS 2000 /* columns of the plot */
#define CHAOS_BYTES_MAX (16u << 20)
#define CHAOS_EXIT_RETIRED 4
#define CHAOS_SKIPPED 77

/* Work: an operation of operations.h, or one of these. */
enum chaos_work {
	CHAOS_W_MESSAGES = OP_SENDRECV,
	CHAOS_W_DISPATCH,
	CHAOS_W_COMBINE,
	CHAOS_W_ADMIT,
	CHAOS_W_COME,	 /* of a device: ranks are admitted */
	CHAOS_W_CONTROL, /* which command to obey */
	CHAOS_W_COUNT
};

extern const char *const chaos_work_names[CHAOS_W_COUNT];

/* Points at which a process kills itself on command. */
enum chaos_trap {
	CHAOS_T_NONE,
	CHAOS_T_BEFORE_DISPATCH,
	CHAOS_T_IN_DISPATCH, /* sent, not received */
	CHAOS_T_BETWEEN,     /* dispatched, not combined */
	CHAOS_T_IN_COMBINE,
	CHAOS_T_AFTER_COMBINE,
	CHAOS_T_COUNT
};

extern const char *const chaos_trap_names[CHAOS_T_COUNT];

/* Mistakes of a rank in a call, on purpose. */
enum chaos_slip {
	CHAOS_L_ROOT,
	CHAOS_L_COUNT,
	CHAOS_L_TYPE,
	CHAOS_L_REDUCTION,
	CHAOS_L_OPERATION,
	CHAOS_L_BLOCK,	  /* alltoallv: the counts of a sender and a receiver differ */
	CHAOS_L_OWN,	  /* alltoallv: those of the own block */
	CHAOS_L_ARGUMENT, /* one that is wrong by itself */
	CHAOS_L_HANDLE,	  /* dispatch and combine: another handle, owners, rows, deadline or order */
	CHAOS_L_COUNTED
};

extern const char *const chaos_slip_names[CHAOS_L_COUNTED];

/* Special kinds of operations in the mix. */
struct chaos_mix {
	bool handles;	/* of dispatch and combine, and registered buffers, of changing sizes */
	bool fails;	/* COVEY_ON_LOSS_FAIL */
	int mistakes;	/* one step in this many is called wrongly; 0: none */
	uint32_t slips; /* bits of enum chaos_slip */
	int masks;	/* in one dispatch and combine of this many, one rank leaves out another; 0: none */
};

/* ---- Shared memory ---- */

/* One operation of one rank. */
struct chaos_record {
	uint64_t seq, step;
	uint64_t enter_ns, done_ns; /* CLOCK_MONOTONIC */
	uint64_t checksum, mask;
	uint32_t epoch;
	int32_t status;
	uint32_t op;   /* enum chaos_work */
	uint32_t own;  /* 1: mask, status and part are this rank's alone; set only for some operations */
	uint8_t slip;  /* 1 + enum chaos_slip: some rank called something else here; 0: none */
	uint8_t wrong; /* this rank did */
	uint8_t found; /* this rank got the error */
	uint8_t left;  /* a rank left this one out (active_ranks) */
};

/* When a view was agreed, of a run without a plan. */
struct chaos_view {
	uint64_t time_ns;
	uint64_t epoch; /* written last */
};

#define CHAOS_VIEWS 64 /* kept for each rank */

struct chaos_seat {
	uint64_t head __attribute__((aligned(64)));
	uint32_t inside; /* 1 + int while in an operation */
	uint64_t tail __attribute__((aligned(64)));
	struct chaos_record ring[CHAOS_SEAT_RING];
};

struct chaos_desk {
	char cause[800];
	uint64_t handles, blocks; /* made: dispatch/combine handles, registered buffers */
	uint32_t trap;		  /* enum chaos_trap; the parent writes it */
	uint64_t suspects;	  /* members that it suspected */
	uint64_t ready_ns;	  /* covey_join was called, the device open */
	uint64_t touch_ns;	  /* its ballast was touched */
	struct chaos_view view[CHAOS_VIEWS];
	struct chaos_seat seat[CHAOS_GROUPS];
};

struct chaos_crew {
	int ranks;	     /* at the start */
	int devices;	     /* that the ranks share; 0: on host memory */
	int groups, members; /* group g has the ranks g * ranks / groups and on, modulo ranks */
	uint64_t seed;
	uint32_t work; /* bits of enum chaos_work */
	int sizes;
	uint32_t bytes[CHAOS_SIZES];
	struct chaos_mix mix;
	bool bench;	      /* no plan: view events are noted, rings touched in advance */
	bool plain;	      /* every call in its plainest form */
	int tokens;	      /* of a measured dispatch; 0: the plan's own */
	uint64_t touch_bytes; /* ballast of a rank */
	char store[256];
	uint32_t command;  /* enum chaos_command, a futex; the parent writes it */
	uint32_t proxy_us; /* delay of the slow proxy */
	struct chaos_desk desk[CHAOS_DESKS];
};

/* ---- The plan ---- */

enum chaos_verb {
	CHAOS_KILL,
	CHAOS_HALT,
	CHAOS_RESUME,
	CHAOS_START,
	CHAOS_REPLACE,
	CHAOS_EXTEND,
	CHAOS_RETIRE,
	CHAOS_EVICT,
	CHAOS_LEAVE,
	CHAOS_ARM,
	CHAOS_WAIT,
	CHAOS_SETTLE,
	CHAOS_FLOW,
	CHAOS_SERVER,
	CHAOS_CUT,
	CHAOS_HEAL,
	CHAOS_SLOW,
	CHAOS_LIMIT,
	CHAOS_UNLIMIT,
	CHAOS_STARVE,
	CHAOS_GONE,
	CHAOS_QUIET
};

enum chaos_server_act {
	CHAOS_S_STOP,
	CHAOS_S_CONTINUE,
	CHAOS_S_KILL,
	CHAOS_S_START,
	CHAOS_S_EMPTY,
	CHAOS_S_FLUSH,
	CHAOS_S_PAUSE,
	CHAOS_S_SLOW,
	CHAOS_S_CLOCK,
	CHAOS_S_FAILOVER, /* this and the rest need sentinels */
	CHAOS_S_FAILKILL,
	CHAOS_S_LAG,
	CHAOS_S_PROMOTED,
	CHAOS_S_REVIVE
};

struct chaos_step {
	enum chaos_verb verb;
	int line;
	uint32_t ranks; /* 0: any @count */
	int count;
	int what; /* enum chaos_server_act; kill: 1 + enum chaos_work, or -enum chaos_trap, 0: anywhere */
	int a, b; /* hosts, kbit, new size */
	uint64_t from_ms, to_ms;
	char text[96]; /* rule of arm; starve: the missing resource */
	char kind[40]; /* name in counts and tables */
};

struct chaos_plan {
	char name[64];
	int ranks, hosts, groups, members, rounds;
	uint32_t work;
	int sizes;
	uint32_t bytes[CHAOS_SIZES];
	int settings;
	char setting[CHAOS_SETTINGS][2][64];
	struct chaos_mix mix;
	bool logs_full, needs_data, needs_proxy, needs_clock, needs_sentinel, needs_single;
	int steps;
	struct chaos_step step[CHAOS_STEPS];
};

/* ---- The run ---- */

/* Conditions: every group continues without missing ranks; groups with all their ranks continue; all are there. */
enum chaos_until { CHAOS_SETTLED, CHAOS_FLOWING, CHAOS_WHOLE };

enum chaos_state { CHAOS_P_NONE, CHAOS_P_LIVE, CHAOS_P_HALTED, CHAOS_P_KILLED, CHAOS_P_LIMBO };

struct chaos_worker {
	pid_t pid; /* 0: none */
	int rank;
	enum chaos_state state;
	bool halted;	/* stopped, in the view or not */
	bool doubt;	/* may know outcomes that no survivor knows */
	bool cut_off;	/* by us: may be left out of a view */
	bool armed;	/* may kill itself */
	bool scribbles; /* spoils its own window: its outcomes do not count */
	bool starved;	/* must fail, and name the cause */
	bool retiring;	/* may end */
	uint64_t exec_ns;
	struct chaos_record last[CHAOS_GROUPS];
	struct chaos_record seen[CHAOS_GROUPS]; /* last outcome that is the same on all */
	/* Without a plan: */
	uint64_t begun_ns, done_ns; /* of a dispatch, and of the last operation */
	uint64_t first_ns;	    /* first completed operation; 0: not yet */
	double first_took_ms;
	struct chaos_record after; /* first operation without the victims; seq 0: not yet */
};

struct chaos_event {
	int kind;
	uint64_t begin_ns, end_ns; /* end 0: still open */
	uint64_t longest_ns;
};

struct chaos_entry {
	struct chaos_record record;
	uint64_t owners;	/* bits of desks */
	bool wrong, found;	/* a call of it was wrong; some rank got the error */
	uint32_t epoch;		/* of a dispatch or combine: the latest in which it succeeded */
	uint64_t named, behind; /* in that epoch: members that masks name, and that were left behind */
};

/* Two ranks logged different outcomes: a fault, unless one side turns out to be fenced. */
struct chaos_dispute {
	uint64_t owners; /* desks of the older side */
	uint32_t epoch;	 /* of the newer one */
	int group;
	bool never; /* both are of one view: always a fault */
	char text[400];
};

#define CHAOS_DISPUTES 64

struct chaos_server {
	char dir[64];
	pid_t pid;
	bool data;	  /* keeps its data over a restart */
	const char *bind; /* address to listen at too; NULL: the socket alone */
	bool clock;	  /* under a clock that we control */
};

struct chaos_bench;

struct chaos_run {
	const struct chaos_options *opt;
	struct chaos_bench *bench; /* NULL: by plan */
	uint64_t random;
	int wrong; /* wrong outcomes: different ones, or not the right result */
	struct chaos_plan plan;
	struct chaos_crew *crew;
	int crew_fd, target; /* target: the planned size of the group */
	struct chaos_worker worker[CHAOS_DESKS];
	int next_desk;
	char rule[CHAOS_MAX_RANKS][96]; /* COVEY_FAULT of the next process of a rank */
	struct chaos_entry *ledger[CHAOS_GROUPS];
	struct chaos_record uniform[CHAOS_GROUPS]; /* last replicated outcome with the greatest seq */
	struct chaos_dispute dispute[CHAOS_DISPUTES];
	int disputes;
	struct chaos_server server;
	pid_t proxy;
	bool net, sentinel, lags;
	uint64_t start_ns, end_ns, settle_ns, checked, compared, alarms, fenced;
	uint64_t alarms_seen; /* of these, when all ranks last took part */
	uint64_t failed;      /* outcomes that are an error, the same on all: LOST, ROOT */
	uint64_t on_device;
	uint64_t slips[CHAOS_L_COUNTED]; /* wrong calls that were made */
	uint64_t found[CHAOS_L_COUNTED]; /* those for which some rank got an error */
	uint64_t handles, blocks;	 /* made */
	int rounds, kinds, events;
	char kind[CHAOS_KINDS][40];
	struct chaos_event event[CHAOS_EVENTS];
	uint64_t bucket_ns;
	uint64_t longest[CHAOS_BUCKETS];
};

/* parse.c; -1 after a line on stderr. */
int chaos_plan_read(struct chaos_plan *plan, const char *name, uint64_t seed);
int chaos_plan_parse(struct chaos_plan *plan, const char *file, char *text);
/* random.c: the text of a plan, to be freed */
char *chaos_plan_random(uint64_t seed);

/* run.c */
void chaos_run_init(struct chaos_run *run, const struct chaos_options *opt);
int chaos_run_open(struct chaos_run *run);  /* 0, CHAOS_SKIPPED if this machine lacks something, or -1 */
int chaos_run_start(struct chaos_run *run); /* all ranks, until the group is whole */
int chaos_run_stop(struct chaos_run *run);
void chaos_run_close(struct chaos_run *run);
void chaos_run_for(struct chaos_run *run, uint64_t ms);
void chaos_command(struct chaos_run *run, enum chaos_command command);
uint64_t chaos_random(struct chaos_run *run, uint64_t below);
void chaos_wrong(struct chaos_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
int chaos_await(struct chaos_run *run, enum chaos_until until);
void chaos_run_poll(struct chaos_run *run);

/* act.c */
int chaos_act(struct chaos_run *run, const struct chaos_step *step);
int chaos_resume(struct chaos_run *run); /* all stopped processes; a removed one must end fenced */
void chaos_event_open(struct chaos_run *run, const char *kind);
void chaos_event_close(struct chaos_run *run, uint64_t now);
int chaos_heal_all(struct chaos_run *run);
/* false: @w was not inside @op (1 + enum chaos_work; 0: any) within @ms */
bool chaos_await_inside(struct chaos_run *run, const struct chaos_worker *w, uint32_t op, unsigned ms);
int chaos_await_end(struct chaos_run *run, const struct chaos_worker *w, unsigned ms, const char *what);

/* server.c, proxy.c; -1 after a line on stderr */
int chaos_server_open(struct chaos_run *run);
int chaos_server_start(struct chaos_server *server);
int chaos_server_say(const struct chaos_server *server, const char *command, char *reply, size_t bytes);
int chaos_server_act(struct chaos_run *run, const struct chaos_step *step);
void chaos_server_close(struct chaos_run *run);
int chaos_proxy_start(struct chaos_run *run);

/* crew.c */
int chaos_crew_open(struct chaos_run *run);
int chaos_crew_spawn(struct chaos_run *run, int rank, bool joiner, const char *starve);
struct chaos_worker *chaos_crew_at(struct chaos_run *run, int rank); /* live or halted; NULL: none */
void chaos_crew_poll(struct chaos_run *run);
void chaos_crew_close(struct chaos_run *run);
int chaos_sequences(const struct chaos_crew *crew); /* of records: of each group, or of the group and its devices */
bool chaos_in_group(const struct chaos_crew *crew, int group, int rank, int *member);

/* check.c */
void chaos_check(struct chaos_run *run, int desk, int group, const struct chaos_record *record);
bool chaos_private(const struct chaos_record *record); /* each rank has a mask of its own */
void chaos_check_disputes(struct chaos_run *run, bool last);

/* table.c, plot.c */
void chaos_table(struct chaos_run *run);
int chaos_plot(const struct chaos_run *run, const char *file);

/* member.c: the process of a rank */
int chaos_member_main(const struct chaos_options *opt);

#endif
