/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that survives: a safe point and a sum, a millisecond apart, until the file that it is given is there. It
 * says every view that it sees, `rank 1 epoch 3 ranks 3`, and ends with code 1 when a sum is wrong or an epoch falls.
 * A replacement (COVEY_CREATE=never) gets the step of the others, and says so.
 */
#include <covey.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fail(const char *what, int err, const struct covey_group *group)
{
	struct covey_error_info info;

	covey_last_error(group, &info);
	fprintf(stderr, "%s: %s: %s\n", what, covey_strerror(err), info.cause);
	return 1;
}

/* Every rank gives 1, and that the work goes on: the end is agreed on by summing. */
static int step(struct covey_group *group, const char *stop, long *number, int sum[2], struct covey_result *result)
{
	int in[2] = { 1, access(stop, F_OK) ? 0 : 1 };
	int err = covey_admit(group, number, sizeof(*number), result);

	return err ? err : covey_allreduce(in, sum, 2, COVEY_INT32, COVEY_SUM, group, NULL, result);
}

int main(int argc, char **argv)
{
	const char *create = getenv("COVEY_CREATE");
	int replacement = create && create[0] == 'n', sum[2] = { 0, 0 }, err;
	struct covey_result result = { 0 };
	struct covey_group *group;
	struct covey_view view;
	unsigned epoch = 0;
	long number = 0;

	if (argc != 2)
		return 64;
	err = covey_join(NULL, &group);
	if (err)
		return fail("join", err, NULL);
	covey_view(group, &view);
	while (!sum[1]) {
		err = step(group, argv[1], &number, sum, &result);
		if (err)
			return fail("step", err, group);
		if (result.epoch < epoch || sum[0] != covey_mask_count(&result.mask)) {
			fprintf(stderr, "sum %d, epoch %u after %u\n", sum[0], result.epoch, epoch);
			return 1;
		}
		if (!epoch && replacement)
			printf("rank %d is back at step %ld\n", view.rank, number);
		if (result.epoch != epoch)
			printf("rank %d epoch %u ranks %d\n", view.rank, result.epoch, sum[0]);
		fflush(stdout);
		epoch = result.epoch;
		number++;
		poll(NULL, 0, 1);
	}
	printf("rank %d ends at step %ld\n", view.rank, number);
	err = covey_leave(group, 0);
	covey_close(group);
	return err ? fail("leave", err, NULL) : 0;
}
