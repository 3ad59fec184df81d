/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of ep-run on this host that have a private store: ep-run shows them, ep-admin and ep-run --grow find them. */
#ifndef LOCAL_H
#define LOCAL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct local_run {
	pid_t pid;     /* of the ep-run that a user sees */
	char url[512]; /* of its store; may hold a password: for the program, not to be printed */
	char group[80];
	char program[80]; /* the name of its program */
};

/* The descriptor by which others of this user find the run while it is open; -1: they will not. */
int local_show(const struct local_run *run);

/* Runs of this user (root: of root), by pid; @group: only of this name, NULL: of any. Their number, at most @max. */
int local_find(const char *group, struct local_run *list, int max);

/* Does the ep-run of that process, which local_find() has listed, still hold its store? */
bool local_lives(pid_t pid);

/* The URL without secrets, for people. */
void local_printable(const char *url, char *text, size_t bytes);

/*
 * One run for a tool without a given store: of @pid (0: any) and @group (NULL: any). 0, or -1 after a message. @how:
 * the tool's option that chooses one of several.
 */
int local_choose(const char *tool, const char *how, const char *group, pid_t pid, struct local_run *run);

#endif
