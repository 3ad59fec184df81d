/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns calls into the arguments of a launch (kernels/message.cuh): for each peer a list of sends and one of receives,
 * in the order of the calls. A call is for the process that has the rank at that time, and carries its epoch; a
 * captured one is for the process that has the rank when it is replayed.
 */
#include "device_message.h"

#include <stdlib.h>
#include <string.h>

#include "device_state.h"

/* The messages of one launch. */
struct batch {
	struct batch *next;
	struct cvy_device *d;
	struct CUstream_st *stream;
	int captured; /* so is the stream */
	int n;
	struct cvy_gpu_messages all;
	struct covey_result *result[CVY_GPU_MESSAGES];
	struct cvy_gpu_receipt *receipt[CVY_GPU_MESSAGES];
};

/* The batches of the open group, in the order in which they were begun. */
static __thread struct batch *kept;

static int refuse(struct cvy_device *d, int err, const struct cvy_device_message *m, const char *why)
{
	return cvy_fail(d->box, err, m->peer, d->epoch, "%s: %s", m->sending ? "send" : "recv", why);
}

/* Asked once for a group of calls. */
static int is_captured(struct cvy_device *d, const struct cvy_device_message *m)
{
	const struct batch *b = m->grouped ? kept : NULL;

	while (b && b->d != d)
		b = b->next;
	return b && b->n && b->stream == m->stream ? b->captured : cvy_device_capturing(d, m->stream);
}

/* Epoch from which the peer has its rank; 0: captured, for any process that has the rank at replay. */
static int since_of(struct cvy_device *d, const struct cvy_device_message *m, uint32_t *since)
{
	int admitted;

	*since = 0;
	if (is_captured(d, m))
		return 0;
	pthread_mutex_lock(&d->lock);
	admitted = cvy_ranks_has(d->contributors, m->peer) && cvy_ranks_has(d->contributors, d->rank);
	*since = d->roll.since[m->peer];
	pthread_mutex_unlock(&d->lock);
	return admitted ? 0 : refuse(d, COVEY_ERR_PEER, m, "its peer is no member, or was not admitted yet");
}

static int check(struct cvy_device *d, const struct cvy_device_message *m, uint32_t *since)
{
	int err = __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);

	if (err)
		return err;
	if (m->peer >= CVY_GPU_RANKS)
		return cvy_fail(d->box, COVEY_ERR_PEER, m->peer, d->epoch,
				"%s: ranks of a group with devices are 0 to %d", m->sending ? "send" : "recv",
				CVY_GPU_RANKS - 1);
	if (m->peer != d->rank && cvy_device_is_far(d, m->peer))
		return refuse(d, COVEY_ERR_UNSUPPORTED, m, "messages on devices are for the ranks of one host");
	return since_of(d, m, since);
}

/* ---- one launch ---- */

static void begin(struct batch *b, struct cvy_device *d, struct CUstream_st *stream)
{
	memset(b, 0, offsetof(struct batch, all.message));
	b->d = d;
	b->stream = stream;
	b->all.call.rank = d->rank;
}

static struct cvy_gpu_with *with_peer(struct batch *b, int peer, uint32_t since)
{
	struct cvy_gpu_messages *all = &b->all;
	int i = 0;

	while (i < all->pairs && all->with[i].peer != peer)
		i++;
	if (i == all->pairs)
		all->with[all->pairs++] = (struct cvy_gpu_with){ peer, since, { -1, -1 }, { 0, 0 } };
	return &all->with[i];
}

static int add(struct batch *b, const struct cvy_device_message *m, uint32_t since)
{
	struct cvy_gpu_message *all = b->all.message;
	struct cvy_gpu_with *with;
	int at, way;

	if (b->n == CVY_GPU_MESSAGES)
		return refuse(b->d, COVEY_ERR_UNSUPPORTED, m,
			      "covey_group_start: on a device at most 128 messages are one group of calls");
	if (b->stream != m->stream)
		return refuse(b->d, COVEY_ERR_INVAL, m, "the calls of a group are for one stream");
	b->captured = !since;
	with = with_peer(b, m->peer, since);
	way = m->sending ? CVY_GPU_SENDS : CVY_GPU_TAKES;
	all[b->n] = (struct cvy_gpu_message){ m->at, m->bytes, m->tag, -1, 0 };
	b->result[b->n] = m->result;
	b->receipt[b->n] = m->receipt;
	if (m->receipt)
		all[b->n].receipt = (int16_t)b->d->message->promise(b->d->gpu, m->receipt);
	at = with->first[way];
	while (at >= 0 && all[at].next >= 0)
		at = all[at].next;
	if (at >= 0)
		all[at].next = (int16_t)b->n;
	else
		with->first[way] = (int16_t)b->n;
	b->n++;
	return 0;
}

/* A rank's messages to itself must match within the launch: no other launch serves them. */
static int own_are_even(const struct batch *b)
{
	for (int i = 0; i < b->all.pairs; i++) {
		const struct cvy_gpu_with *with = &b->all.with[i];
		int sends = 0, receives = 0;

		if (with->peer != b->d->rank)
			continue;
		for (int k = with->first[CVY_GPU_SENDS]; k >= 0; k = b->all.message[k].next)
			sends++;
		for (int k = with->first[CVY_GPU_TAKES]; k >= 0; k = b->all.message[k].next)
			receives++;
		return sends == receives;
	}
	return 1;
}

void cvy_device_message_known(const struct cvy_device *d, const struct cvy_device_message *m,
			      struct covey_result *result)
{
	memset(result, 0, sizeof(*result));
	result->epoch = d->epoch;
	cvy_device_tell_mask(&result->mask, cvy_ranks_with(cvy_ranks_one(m->peer), d->rank));
	result->bytes = m->bytes;
	result->peer = m->peer;
	result->tag = m->tag;
}

/* Fills in the known part of the results of launched messages. */
static void tell(const struct batch *b, int peer, int at)
{
	for (; at >= 0; at = b->all.message[at].next) {
		const struct cvy_gpu_message *x = &b->all.message[at];
		const struct cvy_device_message m = { .bytes = x->bytes, .peer = peer, .tag = x->tag };

		if (b->result[at])
			cvy_device_message_known(b->d, &m, b->result[at]);
	}
}

/* The kernels of a group that has ended or was aborted may never end: none is launched. */
static int ended(struct cvy_device *d)
{
	int aborted, err = __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);

	pthread_mutex_lock(&d->drain.lock);
	aborted = d->drain.aborted;
	pthread_mutex_unlock(&d->drain.lock);
	return err || !aborted ? err : COVEY_ERR_ABORTED;
}

static int launch_all(struct batch *b)
{
	struct cvy_device *d = b->d;
	int err = ended(d);

	if (err)
		return err;
	if (!own_are_even(b))
		return cvy_fail(d->box, COVEY_ERR_INVAL, d->rank, d->epoch,
				"what a rank sends to itself on a device must be received in the same group of calls");
	err = d->message->launch(d->gpu, &b->all, b->stream);
	if (err)
		return cvy_device_tells(d, err);
	for (int i = 0; i < b->all.pairs; i++) {
		tell(b, b->all.with[i].peer, b->all.with[i].first[CVY_GPU_SENDS]);
		tell(b, b->all.with[i].peer, b->all.with[i].first[CVY_GPU_TAKES]);
	}
	return 0;
}

/* Works of messages that were not launched end with the same error. */
static int launch(struct batch *b)
{
	struct cvy_device *d = b->d;
	struct cvy_gpu_scope had;
	int err, first;

	cvy_device_enter(d, &had);
	first = err = launch_all(b);
	for (int i = 0; i < b->n; i++) {
		int failed = b->receipt[i] ? d->message->promised(d->gpu, b->receipt[i], b->stream, err) : 0;

		if (failed && !first)
			first = cvy_device_tells(d, failed);
	}
	return cvy_device_leave(d, &had, first);
}

/* ---- calls ---- */

/* The batch of @d in the open group; NULL: no memory. */
static struct batch *kept_for(struct cvy_device *d, struct CUstream_st *stream)
{
	struct batch **at = &kept;

	while (*at && (*at)->d != d)
		at = &(*at)->next;
	if (!*at) {
		*at = malloc(sizeof(**at));
		if (*at)
			begin(*at, d, stream);
	}
	return *at;
}

int cvy_device_message(struct cvy_device *d, const struct cvy_device_message *m)
{
	uint32_t since = 0;
	int err = check(d, m, &since);
	struct batch *b, alone;

	if (!err && m->grouped) {
		b = kept_for(d, m->stream);
		err = b ? add(b, m, since) : refuse(d, COVEY_ERR_NOMEM, m, "no memory for grouped calls");
	} else if (!err) {
		begin(&alone, d, m->stream);
		err = add(&alone, m, since);
		if (!err)
			err = launch(&alone);
	}
	return err;
}

int cvy_device_message_is_kept(const struct cvy_gpu_receipt *receipt)
{
	for (const struct batch *b = kept; b; b = b->next)
		for (int i = 0; i < b->n; i++)
			if (b->receipt[i] == receipt)
				return 1;
	return 0;
}

/* Their memory stays: after a fork it may not be freed. */
void cvy_device_messages_forget(void)
{
	kept = NULL;
}

int cvy_device_messages_drop(const struct cvy_device *d)
{
	struct batch **at = &kept, *b;

	while (*at && (*at)->d != d)
		at = &(*at)->next;
	b = *at;
	if (!b)
		return 0;
	*at = b->next;
	free(b);
	return 1;
}

int cvy_device_messages_end(void)
{
	int first = 0;

	while (kept) {
		struct batch *b = kept;
		int err = b->n ? launch(b) : 0;

		kept = b->next;
		free(b);
		if (!first)
			first = err;
	}
	return first;
}
