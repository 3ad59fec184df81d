/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of ep-run. Two processes share the work: the *front*, which the user sees and signals, and the *keeper*,
 * its child in a session of its own, the ancestor of the store and all ranks. Each watches the other, so that killing
 * either of them leaves nothing behind.
 */
#ifndef RUN_H
#define RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../local/small.h"

#define RUN_MAX_HOSTS 256
#define RUN_MAX_WORDS 32      /* words of --launch */
#define RUN_MAX_RESTARTS 1000 /* replacements in one run: of them all */
#define RUN_EXIT_SELF 125     /* ep-run itself failed; 126, 127 as in sh; 64: usage */

struct run_options {
	int ranks;   /* started ranks: those that form the group, then joiners */
	int forming; /* ranks that form the group */
	int joiners; /* --grow */
	int first;   /* number of the first: of joiners alone not 0 */
	int world;   /* ranks that formed the group, for the environment */
	int max_ranks;
	const char *store; /* NULL: a private one is started */
	const char *group;
	char job[24]; /* identity of this run, for COVEY_JOB; empty: the environment has one */
	int meeting;  /* port for MASTER_PORT; 0: joiners alone, or the environment has one */
	bool restart, strict, verbose;
	const char *hosts[RUN_MAX_HOSTS];
	int slots[RUN_MAX_HOSTS]; /* ranks of each host; all 0: equal blocks */
	int host_count;
	bool local;			/* all hosts are this machine */
	const char *ssh[RUN_MAX_WORDS]; /* words that reach a host */
	int ssh_count;			/* 0: ranks are started here */
	const char *launch[RUN_MAX_WORDS];
	int launch_count;
	const char *address;	     /* where a private store listens for other hosts; NULL: chosen by us */
	char **argv;		     /* PROG ARGS NULL */
	char dir[TOOL_TMP_MAX + 14]; /* private directory of the store, removed at the end; empty: none is needed */
	bool group_named;	     /* by option or environment */
	char found[512];	     /* URL of the store of another run, for joiners alone */
	char found_group[80];
};

/* The private store: see store.c. */
struct run_store {
	pid_t pid;
	char url[256];	  /* has the password: environment only */
	char socket[100]; /* fits sun_path */
	char address[64], password[65];
	int port; /* 0: unix socket */
	int starts;
};

/* The store's answer about an ended process. */
enum run_fate { RUN_UNKNOWN, RUN_DIED, RUN_LEFT, RUN_RETIRED };

/* One process of a rank, and its end. */
struct run_rank {
	pid_t pid;		   /* 0: none */
	pid_t group;		   /* process group that may still exist; 0: none */
	int lifeline;		   /* of a rank on another host: see remote.c; -1: none */
	uint64_t start_ns, end_ns; /* of the last process */
	uint64_t retry_ns;	   /* when to start a replacement; 0: not due */
	uint64_t answer_ns;	   /* deadline of the store's answer about it; 0: none is awaited */
	int status;		   /* of wait(), of the last process */
	int before;		   /* of the process before that */
	int restarts;
	enum run_fate fate; /* of the last process, from the store */
	bool closed;	    /* and the group was closed when it had ended */
	bool late;	    /* another rank had ended with 0 when the last process ended */
	bool ended;	    /* the rank is over: no process, none to come */
};

/* Text of one stream of one rank, written by whole lines: see output.c. */
struct run_stream {
	int fd; /* -1: closed */
	int to; /* 1 or 2 */
	int rank;
	unsigned used;
	char *line;
};

const char *run_status_text(int status, char text[64]);			     /* of wait(): "ended with code 1" */
void run_say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* one line on stderr */

int run_keeper(const struct run_options *opt, int front); /* the keeper's life; its exit code */
void run_kill_all(pid_t spare_session);
int run_make_dir(struct run_options *opt); /* 0, or -1 after a message */

/* State that ep-run inherits: see inherit.c. */
void run_inherit(void);
bool run_ignored(int sig);			/* on purpose, by the process that started ep-run */
void run_give_back(void);			/* in a rank's process: signals and limits as they were */
bool run_limits(const struct run_options *opt); /* false: a message has named the one that is too small */
const char *run_why(int err);			/* for the end of a message: the limit that may be behind it, or "" */

/* Both return with a child that dies with its parent, in its own process group; < 0: no child. */
pid_t run_fork(void);
pid_t run_spawn(const struct run_options *opt, const char *url, int rank, bool replacement, const int out[2],
		int *lifeline);
void run_place(const struct run_options *opt, int rank, int *host, int *local);

/* Variables in the environment of a rank. */
#define RUN_VARIABLES 13
struct run_variable {
	const char *name, *value;
	char number[16];
};
int run_variables(const struct run_options *opt, const char *url, int rank, bool replacement,
		  struct run_variable list[RUN_VARIABLES]);

/* Ranks on other hosts: see remote.c. The end of a pipe to be the rank's standard input, -1: none; the other end. */
int run_lifeline(const struct run_options *opt, const char *url, int rank, bool replacement, size_t *bytes,
		 int *lifeline);
void run_exec_remote(const struct run_options *opt, int rank, size_t bytes) __attribute__((noreturn));
int run_remote_status(int status);

int run_free_port(const char *address);					       /* -1: none */
int run_store_start(const struct run_options *opt, struct run_store *store);   /* 0 after PONG, else -1 */
int run_store_restart(const struct run_options *opt, struct run_store *store); /* does not wait */

int run_stream_open(struct run_stream *stream, int fd, int to, int rank);
void run_stream_read(struct run_stream *stream); /* the available bytes, without waiting */
void run_stream_close(struct run_stream *stream);
extern volatile int run_output_gone; /* set: there is no reader, drop everything */
extern int run_output_lost;	     /* errno of the first line that could not be written; 0: none */

/* The prover tells the store which ranks are surely dead, and passes on its answers: see prove.c. */
struct run_prover {
	pid_t pid;
	int to, from; /* -1: there is none */
};
struct run_answer {
	int rank;
	enum run_fate fate;
	bool closed;	 /* the group is */
	uint64_t end_ns; /* of the process in question */
};
int run_prover_start(const struct run_options *opt, const char *url, bool proofs, struct run_prover *prover);
void run_prover_spawned(const struct run_prover *prover, int rank, pid_t pid);
bool run_prover_ended(const struct run_prover *prover, int rank, const struct run_rank *what); /* false: no answer */

/* A private store can be found by ep-admin and by ep-run --grow: see tools/local. The descriptor that shows it. */
int run_show_store(const struct run_options *opt, const char *url);
/* Fills the options of a run of joiners alone from the group in the store; 0, or -1 after a message. */
int run_find_group(struct run_options *opt);

#endif
