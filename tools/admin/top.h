/* SPDX-License-Identifier: Apache-2.0 */
/* What ep-admin top shows of a group: rates between two numbers of each member, and who waits for whom. */
#ifndef ADMIN_TOP_H
#define ADMIN_TOP_H

#include "admin.h"

struct top_row {
	int rank;
	const char *state;
	const struct admin_member *member;
	bool told;		  /* its numbers are there and young */
	bool rated;		  /* so are earlier ones: the rates are known */
	double operations, bytes; /* per second */
	double waiting;		  /* share of the time, 0 to 1 */
	int awaits;		  /* member that it waits for, -1: none */
	double awaits_s;
	int in_the_end;	  /* the rank at the end of the waits that begin here, -1: none */
	int waiters;	  /* members that wait for it in the end, through others or not */
	double longest_s; /* of these */
};

struct top {
	const struct admin_group *group;
	const char *name;
	struct top_row row[COVEY_MAX_RANKS];
	int rows;
	int active, pending, gone; /* ranks in these states; gone: of the group's size */
	double operations, bytes;  /* of all */
};

void top_print(const struct top *top, const char *time, FILE *to);
void top_draw(const struct top *top, const char *time); /* on the terminal, in the place of what is there */
void top_json(const struct top *top, const char *time); /* one line */

#endif
