/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation, N times: what its links count is printed by the library when the group is closed (COVEY_LOG=info).
 * The difference between two numbers is what an operation costs in work requests and doorbells.
 */
#include <covey.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX ((size_t)1 << 20)
#define RANKS 2

static int once(struct covey_group *group, const char *op, size_t bytes, uint8_t *from, uint8_t *to)
{
	if (!strcmp(op, "barrier"))
		return covey_barrier(group, NULL, NULL);
	if (!strcmp(op, "allreduce"))
		return covey_allreduce(from, to, bytes / 4, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL);
	if (!strcmp(op, "alltoall"))
		return covey_alltoall(from, to, bytes, COVEY_INT8, group, NULL, NULL);
	if (!strcmp(op, "broadcast"))
		return covey_broadcast(from, to, bytes, COVEY_INT8, 0, group, NULL, NULL);
	return COVEY_ERR_INVAL;
}

int main(int argc, char **argv)
{
	uint8_t *from = calloc(RANKS, BYTES_MAX), *to = calloc(RANKS, BYTES_MAX);
	size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 0;
	long count = argc > 3 ? atol(argv[3]) : 0;
	struct covey_group *group;
	int err = from && to && argc == 4 && bytes <= BYTES_MAX ? covey_join(NULL, &group) : COVEY_ERR_INVAL;

	if (err) {
		fprintf(stderr, "verbs-entries OPERATION BYTES COUNT: %s\n", covey_strerror(err));
		return 1;
	}
	for (long i = 0; i < count && !err; i++)
		err = once(group, argv[1], bytes, from, to);
	if (!err)
		err = covey_leave(group, 0);
	covey_close(group);
	free(from);
	free(to);
	return err ? 1 : 0;
}
