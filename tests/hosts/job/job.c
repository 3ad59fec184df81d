/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program for ep-run: sums until it has done some, and says of whom the last sum was. The rank named
 * by JOB_VICTIM kills itself on the way.
 */
#include <covey.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 400

static int fail(const char *what, int err, const struct covey_group *group)
{
	struct covey_error_info info;

	covey_last_error(group, &info);
	fprintf(stderr, "%s: %s: %s\n", what, covey_strerror(err), info.cause);
	return 1;
}

int main(void)
{
	const char *rank = getenv("RANK"), *victim = getenv("JOB_VICTIM");
	float in = 1, out = 0;
	struct covey_result result = { 0 };
	struct covey_group *group;
	int err = covey_join(NULL, &group);

	if (err)
		return fail("join", err, NULL);
	for (int step = 0; step < STEPS; step++) {
		err = covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, &result);
		if (err)
			return fail("allreduce", err, group);
		if (step == STEPS / 2 && rank && victim && atoi(rank) == atoi(victim))
			raise(SIGKILL);
	}
	printf("sum %g mask %llx host %s\n", (double)out, (unsigned long long)result.mask.word[0],
	       getenv("COVEY_HOST"));
	err = covey_leave(group, 0);
	if (err)
		return fail("leave", err, group);
	covey_close(group);
	return 0;
}
