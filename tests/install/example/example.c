/* SPDX-License-Identifier: Apache-2.0 */
/* A program of a user: joins, adds up over all ranks, leaves. Without COVEY_STORE it only shows that it is linked. */
#include <covey.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add_up(void)
{
	struct covey_group *group;
	struct covey_result result;
	double one = 1, sum = 0;
	int err = covey_join(NULL, &group);

	if (err)
		return err;
	err = covey_allreduce(&one, &sum, 1, COVEY_FLOAT64, COVEY_SUM, group, NULL, &result);
	if (!err)
		printf("sum %.0f\n", sum);
	covey_leave(group, 0);
	covey_close(group);
	return err;
}

int main(void)
{
	struct covey_config config = COVEY_CONFIG_INIT;
	int err = getenv("COVEY_STORE") ? add_up() : 0;

	if (err)
		fprintf(stderr, "%s\n", covey_strerror(err));
	printf("covey %d.%d.%d\n", COVEY_VERSION_MAJOR, COVEY_VERSION_MINOR, COVEY_VERSION_PATCH);
	return err || config.rank != COVEY_RANK_ANY || !strlen(covey_strerror(COVEY_ERR_FENCED));
}
