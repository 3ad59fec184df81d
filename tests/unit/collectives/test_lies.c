/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member that writes what no member writes into the channel of another: messages with it fail with
 * COVEY_ERR_PEER, nothing is read or written past anything, messages with others and collectives go on.
 *
 * labels: redis tsan
 */
#include "harness.h"

#include "handle.h"
#include "pair_state.h"

enum lie {
	COUNT_PAST_RING,
	HALF_A_RECORD,
	NO_SUCH_KIND,
	WRONG_NUMBER,
	NEGATIVE_TAG,
	LONGER_THAN_TOLD,
	LONGER_THAN_WHOLE,
	PART_OF_NOTHING,
	PART_TOO_LONG,
	WANT_OF_NOTHING,
	CREDIT_PAST_WRITTEN,
	NOTE_PAST_SENT,
	LIES
};

static void put_record(struct cvy_channel *ch, uint32_t kind, int tag, uint64_t number, uint64_t bytes)
{
	struct cvy_pair_record r = { kind, tag, number, bytes };

	cvy_channel_write(ch, &r, sizeof(r));
}

/* As rank 0, to rank 1, which waits for a message of 100 bytes with tag 1. */
static void lie(struct covey_group *group, int what)
{
	static const uint8_t body[200];
	struct cvy_engine *e = group->engine;
	const struct cvy_member *m = e->view->member;
	struct cvy_channel_args args = { e->mesh, 0, 1, e->view->max_ranks, m[0].inc, m[1].inc };
	struct cvy_channel ch;

	pthread_mutex_lock(&e->lock);
	must(!cvy_channel_open(&ch, &args), "open");
	cvy_channel_look(&ch, 0);
	switch (what) {
	case COUNT_PAST_RING:
		ch.written = ch.ring + 1;
		break;
	case HALF_A_RECORD:
		cvy_channel_write(&ch, body, sizeof(struct cvy_pair_record) / 2);
		break;
	case NO_SUCH_KIND:
		put_record(&ch, 0x1234, 1, 0, 0);
		break;
	case WRONG_NUMBER:
		put_record(&ch, CVY_RECORD_WHOLE, 1, 1, 0);
		break;
	case NEGATIVE_TAG:
		put_record(&ch, CVY_RECORD_OFFER, -1, 0, 100000);
		break;
	case LONGER_THAN_TOLD:
		put_record(&ch, CVY_RECORD_WHOLE, 1, 0, 1000);
		break;
	case LONGER_THAN_WHOLE:
		put_record(&ch, CVY_RECORD_WHOLE, 1, 0, UINT64_MAX - 8);
		break;
	case PART_OF_NOTHING:
		put_record(&ch, CVY_RECORD_PART, 1, 0, 10);
		cvy_channel_write(&ch, body, 10);
		break;
	case PART_TOO_LONG:
		put_record(&ch, CVY_RECORD_OFFER, 1, 0, 120);
		put_record(&ch, CVY_RECORD_PART, 1, 0, 150);
		cvy_channel_write(&ch, body, 150);
		break;
	case WANT_OF_NOTHING:
		put_record(&ch, CVY_RECORD_WANT, 0, 7, 10);
		break;
	case CREDIT_PAST_WRITTEN:
		ch.read = 1000;
		break;
	default:
		ch.note = 1000;
	}
	cvy_channel_flush(&ch, 0);
	pthread_mutex_unlock(&e->lock);
}

static void run_lie(struct member *m)
{
	int what = *(const int *)m->arg;
	uint8_t in[104] = { 0 };
	struct covey_result res;
	int64_t one = 1;

	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	if (m->rank == 0)
		lie(m->group, what);
	if (m->rank == 1) {
		in[100] = 0x5a;
		must(covey_recv(in, 100, COVEY_UINT8, 0, 1, m->group, NULL, &res) == COVEY_ERR_PEER,
		     "lie %d is believed", what);
		must(in[100] == 0x5a, "lie %d: bytes past the buffer", what);
		must(covey_send(in, 1, COVEY_UINT8, 0, 1, m->group, NULL, NULL) == COVEY_ERR_PEER, "no more messages");
		must(!covey_send("x", 1, COVEY_UINT8, 2, 1, m->group, NULL, NULL), "to another");
	}
	if (m->rank == 2)
		must(!covey_recv(in, 1, COVEY_UINT8, 1, 1, m->group, NULL, NULL) && in[0] == 'x', "of another");
	must(!covey_allreduce(&one, &one, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, NULL) && one == 3, "sum");
}

TEST_LOOP(a_lie_ends_messages_with_the_liar_alone, 0, 2 * LIES)
{
	struct covey_config config = harness_config_over(_i % 2, "lies", 3);
	int what = _i / 2;

	harness_threads(&config, run_lie, &what);
}

HARNESS_MAIN(.name = "collectives/lies")
