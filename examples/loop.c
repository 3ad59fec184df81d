/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps for ten minutes, so that there is time to kill a rank by hand. Each new view prints a line.
 * ep-run -n 3 --restart on-failure -- ./loop     and, in another terminal: kill -9 $(pgrep -n -x loop)
 */
#include <covey.h>
#include <poll.h>
#include <stdio.h>

#define STEP_MS 100
#define STEPS 6000

/* The lowest rank that took part tells for all. */
static void tell(const struct covey_view *view, const struct covey_result *result, long step, float sum)
{
	for (int rank = 0; rank < view->rank; rank++)
		if (covey_mask_has(&result->mask, rank))
			return;
	printf("step %ld: the sum is %g, from %d ranks, in view %u\n", step, (double)sum,
	       covey_mask_count(&result->mask), result->epoch);
	fflush(stdout);
}

int main(void)
{
	struct covey_result result;
	struct covey_group *group;
	struct covey_view view;
	float one = 1, sum = 0;
	uint32_t epoch = 0;
	int err = covey_join(NULL, &group); /* store, rank and world from the environment */
	long step = 0;

	if (err)
		return 1;
	covey_view(group, &view);
	while (!err && step++ < STEPS) {
		err = covey_admit(group, &step, sizeof(step), NULL); /* safe point: newcomers come in, with step */
		if (!err)
			err = covey_allreduce(&one, &sum, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, &result);
		if (!err && result.epoch != epoch) {
			epoch = result.epoch;
			tell(&view, &result, step, sum);
		}
		poll(NULL, 0, STEP_MS);
	}
	if (err)
		fprintf(stderr, "rank %d: %s\n", view.rank, covey_strerror(err));
	covey_leave(group, 0);
	covey_close(group);
	return err != 0;
}
