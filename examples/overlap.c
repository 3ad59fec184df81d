/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations in flight while the caller works, a wait with a deadline, and events. ep-run -n 4 -- ./overlap
 */
#include <covey.h>
#include <stdio.h>
#include <time.h>

#define FLIGHT 8
#define COUNT 10000

static uint64_t in_ms(int ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + (uint64_t)ms * 1000000u;
}

int main(void)
{
	static float in[FLIGHT][COUNT], out[FLIGHT][COUNT];
	struct covey_work *work[FLIGHT];
	struct covey_group *group;
	struct covey_event event;
	struct covey_view view;
	int err = 0, wrong = 0;
	char text[200];

	if (covey_join(NULL, &group))
		return 1;
	covey_view(group, &view);
	for (int i = 0; i < FLIGHT && !err; i++) {
		for (int j = 0; j < COUNT; j++)
			in[i][j] = (float)(i + j);
		err = covey_allreduce_start(in[i], out[i], COUNT, COVEY_FLOAT32, COVEY_MAX, group, NULL, &work[i]);
	}
	if (err)
		return 1;
	/* ... work of one's own would stand here ... */
	for (int i = 0; i < FLIGHT; i++) {
		while ((err = covey_work_wait(work[i], in_ms(1000), NULL)) == COVEY_ERR_TIMEOUT) {
			covey_work_progress(work[i], text, sizeof(text));
			printf("still waiting: %s\n", text);
		}
		covey_work_free(work[i]);
		for (int j = 0; j < COUNT; j++)
			wrong += out[i][j] != (float)(i + j);
	}
	while (!covey_event_next(group, &event))
		printf("event %d: rank %d, view %u %s\n", event.kind, event.rank, event.epoch, event.cause);
	printf("rank %d: %d operations, %d wrong elements\n", view.rank, FLIGHT, wrong);
	covey_leave(group, 0);
	covey_close(group);
	return err || wrong;
}
