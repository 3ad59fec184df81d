/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The question of a split: an allgather of colors and keys on the group of the parent. It may be decided when its
 * communicator is gone, or the parent may end before. So its buffers belong to neither: they live until it is decided, or
 * until the parent's group is closed.
 */
#include "make.h"

#include <stdlib.h>

/* Guards all questions: their two ends are communicators with locks of their own. */
static pthread_mutex_t asking_lock = PTHREAD_MUTEX_INITIALIZER;

static void unlink_asking(struct cvy_nccl_asking *asking)
{
	struct cvy_nccl_asking **at = &asking->parent->askings;

	while (*at != asking)
		at = &(*at)->next;
	*at = asking->next;
	covey_work_free(asking->work);
	asking->parent = NULL;
}

ncclResult_t cvy_nccl_ask(struct ncclComm *parent, struct ncclComm *child, int color, int key)
{
	struct cvy_nccl_asking *asking = calloc(1, sizeof(*asking));
	int err;

	if (!asking)
		return cvy_nccl_fail(ncclSystemError, "no memory for a split");
	asking->own[0] = color;
	asking->own[1] = key;
	err = covey_allgather_start(asking->own, asking->all, 2, COVEY_INT32, parent->group, NULL, &asking->work);
	if (err) {
		free(asking);
		return cvy_nccl_covey(err, parent->group, "ncclCommSplit");
	}
	pthread_mutex_lock(&asking_lock);
	asking->parent = parent;
	asking->child = child;
	asking->next = parent->askings;
	parent->askings = asking;
	pthread_mutex_unlock(&asking_lock);
	if (child) {
		child->asking = asking;
		child->stage = CVY_NCCL_ASKING;
	}
	return ncclSuccess;
}

void cvy_nccl_reap(struct ncclComm *parent)
{
	pthread_mutex_lock(&asking_lock);
	for (struct cvy_nccl_asking *asking = parent->askings, *next; asking; asking = next) {
		next = asking->next;
		if (asking->child || covey_work_test(asking->work, NULL) == COVEY_ERR_AGAIN)
			continue;
		unlink_asking(asking);
		free(asking);
	}
	pthread_mutex_unlock(&asking_lock);
}

void cvy_nccl_ask_no_more(struct ncclComm *child)
{
	struct cvy_nccl_asking *asking = child->asking;

	if (!asking)
		return;
	pthread_mutex_lock(&asking_lock);
	asking->child = NULL;
	if (!asking->parent && !asking->closing)
		free(asking);
	child->asking = NULL;
	pthread_mutex_unlock(&asking_lock);
}

/* No answer comes any more; but until the group is closed, operations write into the buffers. */
static struct cvy_nccl_asking *take_askings(struct ncclComm *parent)
{
	struct cvy_nccl_asking *all;

	pthread_mutex_lock(&asking_lock);
	all = parent->askings;
	parent->askings = NULL;
	for (struct cvy_nccl_asking *asking = all; asking; asking = asking->next) {
		covey_work_free(asking->work);
		asking->parent = NULL;
		asking->closing = 1;
	}
	pthread_mutex_unlock(&asking_lock);
	return all;
}

static void free_askings(struct cvy_nccl_asking *all)
{
	pthread_mutex_lock(&asking_lock);
	while (all) {
		struct cvy_nccl_asking *asking = all;

		all = asking->next;
		asking->closing = 0;
		if (!asking->child)
			free(asking);
	}
	pthread_mutex_unlock(&asking_lock);
}

void cvy_nccl_close(struct ncclComm *parent)
{
	struct covey_group *group = parent->group;
	struct cvy_nccl_asking *askings = take_askings(parent);

	pthread_mutex_lock(&parent->group_lock);
	parent->group = NULL;
	pthread_mutex_unlock(&parent->group_lock);
	covey_close(group); /* it may take long: other questions go on */
	free_askings(askings);
}

/* The answer: ncclInProgress, or what became of the question. */
static ncclResult_t answer(struct ncclComm *comm)
{
	struct cvy_nccl_asking *asking = comm->asking;
	struct covey_result result;
	int err;

	if (!asking->parent)
		return cvy_nccl_fail(ncclInvalidUsage, "ncclCommSplit: the parent ended before all of its ranks had "
						       "called it");
	err = covey_work_test(asking->work, &result);
	if (err == COVEY_ERR_AGAIN)
		return ncclInProgress;
	if (!err)
		err = result.status;
	unlink_asking(asking);
	if (err)
		return cvy_nccl_fail(cvy_nccl_result(err), "ncclCommSplit: %s", covey_strerror(err));
	comm->size = cvy_nccl_split((const int32_t(*)[2])asking->all, comm->size, comm->rank, &comm->rank);
	return ncclSuccess;
}

ncclResult_t cvy_nccl_answer(struct ncclComm *child)
{
	ncclResult_t r;

	pthread_mutex_lock(&asking_lock);
	r = answer(child);
	pthread_mutex_unlock(&asking_lock);
	if (!r)
		cvy_nccl_ask_no_more(child);
	return r;
}
