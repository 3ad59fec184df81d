/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 1 dies, and its replacement takes over at a safe point, with the step that the others are at.
 * ep-run -n 3 --restart on-failure -- ./replace
 */
#include <covey.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define AFTER 50 /* steps of the whole group after the replacement came */

int main(void)
{
	const char *create = getenv("COVEY_CREATE"); /* ep-run tells a replacement so */
	int replacement = create && create[0] == 'n', err, whole = 0;
	struct covey_group *group;
	struct covey_result result;
	struct covey_view view;
	long step = 0;

	if (covey_join(NULL, &group))
		return 1;
	covey_view(group, &view);
	for (;;) {
		int in = 1, out = 0;

		/* The safe point: joiners come in here, and get `step` of the members. */
		err = covey_admit(group, &step, sizeof(step), &result);
		if (!err && replacement && !whole)
			printf("rank %d is back at step %ld\n", view.rank, step);
		if (!err)
			err = covey_allreduce(&in, &out, 1, COVEY_INT32, COVEY_SUM, group, NULL, &result);
		if (err)
			break;
		/* Both are alike on all ranks, so all end at the same step. */
		whole += out == 3 && result.epoch > 1;
		if (view.rank == 1 && !replacement && step == 20)
			raise(SIGKILL);
		if (whole == AFTER)
			break;
		step++;
		poll(NULL, 0, 1);
	}
	if (!err)
		printf("rank %d: whole again, step %ld\n", view.rank, step);
	covey_leave(group, 0);
	covey_close(group);
	return err != 0;
}
