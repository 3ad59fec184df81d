/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program to look at from outside: sums once, says how many descriptors it has beyond its own, and goes on with
 * sums, a millisecond apart, until the file that it is given is there. The last sum is agreed on by summing.
 * A rank does not call while the file HOLD.RANK is there, of a HOLD given as the second argument.
 */
#include <covey.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n - 3; /* ., .. and the directory itself */
}

static void hold(const char *prefix, int rank)
{
	char path[300];

	snprintf(path, sizeof(path), "%s.%d", prefix, rank);
	while (!access(path, F_OK))
		poll(NULL, 0, 1);
}

int main(int argc, char **argv)
{
	float in = 1, out = 0, goes = 1;
	struct covey_view view;
	struct covey_result result;
	struct covey_group *group;
	int before = descriptors(), err = argc == 2 || argc == 3 ? covey_join(NULL, &group) : -1;

	if (err)
		return 1;
	err = covey_allreduce(&in, &out, 1, COVEY_FLOAT32, COVEY_SUM, group, NULL, &result);
	printf("sum %g descriptors %d\n", (double)out, descriptors() - before);
	fflush(stdout);
	err = err ? err : covey_view(group, &view);
	while (!err && goes > 0) {
		poll(NULL, 0, 1);
		if (argc == 3)
			hold(argv[2], view.rank);
		in = access(argv[1], F_OK) ? 1 : 0;
		err = covey_allreduce(&in, &goes, 1, COVEY_FLOAT32, COVEY_MIN, group, NULL, &result);
	}
	if (!err)
		err = covey_leave(group, 0);
	covey_close(group);
	return err != 0;
}
