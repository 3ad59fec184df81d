/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program: join, add up, leave. ep-run -n 4 -- ./hello */
#include <covey.h>
#include <stdio.h>

int main(void)
{
	struct covey_group *group;
	struct covey_view view;
	float in, out;
	int err = covey_join(NULL, &group); /* store, rank and number of ranks from the environment */

	if (err) {
		struct covey_error_info info;

		covey_last_error(NULL, &info);
		fprintf(stderr, "join: %s: %s\n", covey_strerror(err), info.cause);
		return 1;
	}
	covey_view(group, &view);
	in = (float)view.rank;
	err = covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL);
	if (!err)
		printf("rank %d of %d: the sum of all ranks is %g\n", view.rank, view.size, (double)out);
	covey_leave(group, 0);
	covey_close(group);
	return err != 0;
}
