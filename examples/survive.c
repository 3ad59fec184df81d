/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 1 dies in the middle of the work. The others get the same answer for every step, and see in the result who
 * contributed. ep-run -n 4 -- ./survive
 */
#include <covey.h>
#include <signal.h>
#include <stdio.h>

#define STEPS 100

int main(void)
{
	struct covey_group *group;
	struct covey_result result;
	struct covey_view view;
	double in = 1, out;
	int err = covey_join(NULL, &group), before = 0;

	if (err)
		return 1;
	covey_view(group, &view);
	for (int step = 0; step < STEPS && !err; step++) {
		if (step == STEPS / 2 && view.rank == 1)
			raise(SIGKILL);
		err = covey_allreduce(&in, &out, 1, COVEY_FLOAT64, COVEY_SUM, group, NULL, &result);
		if (!err && covey_mask_count(&result.mask) != before) {
			before = covey_mask_count(&result.mask);
			printf("step %d: the sum is %g, from %d ranks, in view %u\n", step, out, before, result.epoch);
		}
	}
	if (err)
		fprintf(stderr, "%s\n", covey_strerror(err));
	covey_leave(group, 0);
	covey_close(group);
	return err != 0;
}
