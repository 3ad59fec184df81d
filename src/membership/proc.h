/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a peer's agent thread on this host, from /proc. */
#ifndef CVY_PROC_H
#define CVY_PROC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum cvy_proc_state {
	CVY_PROC_UNKNOWN, /* cannot be seen from here: another PID namespace, no /proc */
	CVY_PROC_RUNNING, /* runs, wants to run, or waits for a disk: it may only be starved */
	CVY_PROC_SLEEPING,
	CVY_PROC_STOPPED,
	CVY_PROC_EXITING /* exiting, a zombie, or ended */
};

/* Descriptors outlive the process and never name another one with its number. -1: none. */
struct cvy_proc {
	int leader; /* /proc/PID/stat */
	int thread; /* /proc/PID/task/TID/stat */
};

/* Field 22 of /proc/PID/stat; 0: not known. */
uint64_t cvy_proc_start(pid_t pid);
/* Opens both for the process that began at @start; leaves -1 if that has ended. */
void cvy_proc_open(struct cvy_proc *proc, pid_t pid, pid_t tid, uint64_t start);
void cvy_proc_close(struct cvy_proc *proc);
int cvy_proc_state(const struct cvy_proc *proc);

/*
 * The calling thread as a word for the store, before the address of its rank: `proc:PID.TID.START.TIMENS`: START in ticks
 * since the machine started, as that time namespace sees it. It is the agent's thread, which lives exactly as long as the handle.
 */
#define CVY_PROC_WORD 64 /* its bytes */
void cvy_proc_word(char *text, size_t bytes);

enum cvy_proc_found {
	CVY_PROC_NOT_SEEN, /* it may live, on another machine or in another PID namespace */
	CVY_PROC_LIVES,
	CVY_PROC_GONE /* for certain */
};

/* Does the process live whose word is in @addr and that runs on @host? @own: this host, as the store knows it. */
int cvy_proc_find(const char *host, const char *own, const char *addr);
int cvy_proc_pid(const char *addr); /* for messages; 0: the address has no such word */

#endif
