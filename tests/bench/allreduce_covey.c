/* SPDX-License-Identifier: Apache-2.0 */
/* covey's side of the allreduce benchmark: see bench.h. Started by ep-run, default settings. */
#include "bench.h"
#include "covey.h"

static struct covey_group *group;

static int failed(const char *what, int err)
{
	struct covey_error_info info = { 0 };

	covey_last_error(group, &info);
	fprintf(stderr, "%s: %s: %s\n", what, covey_strerror(err), info.cause);
	return err;
}

static int allreduce(const float *send, float *recv, size_t count)
{
	int err = covey_allreduce(send, recv, count, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL);

	return err ? failed("covey_allreduce", err) : 0;
}

static int barrier(void)
{
	return covey_barrier(group, NULL, NULL);
}

static int max(double *value)
{
	return covey_allreduce(value, value, 1, COVEY_FLOAT64, COVEY_MAX, group, NULL, NULL);
}

int main(void)
{
	struct bench_side side = { .allreduce = allreduce, .barrier = barrier, .max = max };
	struct covey_view view;
	int err = covey_join(NULL, &group);

	if (!err)
		err = covey_view(group, &view);
	if (err)
		return failed("covey_join", err), 1;
	side.rank = view.rank;
	side.ranks = covey_mask_count(&view.members);
	/* An operation that lost a contributor is no measurement. */
	covey_set_on_loss(group, COVEY_ON_LOSS_FAIL);
	err = bench_main(&side);
	if (!err && covey_leave(group, 0))
		err = 1;
	covey_close(group);
	return err;
}
