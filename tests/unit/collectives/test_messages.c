/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send and receive between threads of one process: sizes around pieces and rings, tags in random orders
 * against an oracle, wildcards, self-sends, lengths that differ, rings of ranks, grouped calls, many works
 * of mixed operations in flight. Over shared memory, over sockets, and over both.
 *
 * labels: redis tsan
 */
#include "harness.h"

#include <stdlib.h>

#define FLAVOURS 3 /* shm, tcp, two hosts */

static void run_flavour(const char *name, int world, int flavour, member_fn fn, void *arg)
{
	struct covey_config config = harness_config(name, world);

	config.transport = flavour == 0 ? COVEY_TRANSPORT_SHM : flavour == 1 ? COVEY_TRANSPORT_TCP : 0;
	if (flavour ==
	    2) /* what was done is told between hosts by PINGs, four in that time, and leaving waits for them */
		config.link_ms = 4000;
	harness_threads_on(&config, fn, arg, flavour == 2 ? 2 : 0);
}

/* A test whose body each of @WORLD ranks runs: it is the rank @m. */
#define TEST_FLAVOURS(NAME, WORLD) \
	static void NAME##_of(struct member *m); \
	TEST_LOOP(NAME, 0, FLAVOURS) \
	{ \
		run_flavour("ranks", WORLD, _i, NAME##_of, NULL); \
	} \
	static void NAME##_of(struct member *m)

/* Byte @i of message @number from one rank to another. */
static uint8_t byte_of(int from, int to, uint64_t number, size_t i)
{
	uint64_t h =
		((uint64_t)from * 64 + (uint64_t)to + number * 0x9e3779b97f4a7c15ull + i / 8) * 0xd6e8feb86659fd93ull;

	return (uint8_t)(h >> (i % 8 * 8));
}

static void fill(uint8_t *at, size_t n, int from, int to, uint64_t number)
{
	for (size_t i = 0; i < n; i++)
		at[i] = byte_of(from, to, number, i);
}

static void check(const uint8_t *at, size_t n, int from, int to, uint64_t number)
{
	for (size_t i = 0; i < n; i++)
		must(at[i] == byte_of(from, to, number, i), "byte %zu of %zu of message %llu from %d to %d is another",
		     i, n, (unsigned long long)number, from, to);
}

static int wait_free(struct covey_work *work, struct covey_result *res)
{
	int err = covey_work_wait(work, harness_deadline(WATCHDOG_MS), res);

	covey_work_free(work);
	return err;
}

/* ---- sizes ---- */

/* The rings of 16 ranks in a window of 256 MiB have 256 KiB; whole messages a quarter of that. */
static const size_t sizes[] = { 0,	 1,	  3,	      31,     64,      4095,   65536 - 33,
				65536,	 65537,	  131072 + 5, 262111, 262144,  262145, 300001,
				1000003, 3333333, 9,	      0,      1 << 22, 17 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

TEST_FLAVOURS(messages_of_any_size_both_ways_at_once, 2)
{
	int other = 1 - m->rank;
	uint8_t *out = malloc((4u << 20) + 64), *in = malloc((4u << 20) + 64);

	for (size_t i = 0; i < SIZES; i++) {
		size_t n = sizes[i], skew = i % 7 + 1; /* no address is aligned */
		struct covey_result res;
		struct covey_work *work;
		int err;

		fill(out + skew, n, m->rank, other, i);
		memset(in, 0x5a, n + 64);
		err = covey_send_start(out + skew, n, COVEY_UINT8, other, 7, m->group, NULL, &work);
		must(!err, "send_start: %s", covey_strerror(err));
		err = covey_recv(in + skew, n, COVEY_UINT8, other, 7, m->group, NULL, &res);
		must(!err && res.bytes == n && res.peer == other && res.tag == 7 && res.seq == i,
		     "recv %zu bytes: %s, %zu bytes of rank %d, number %llu", n, covey_strerror(err), res.bytes,
		     res.peer, (unsigned long long)res.seq);
		check(in + skew, n, other, m->rank, i);
		must(in[skew - 1] == 0x5a && in[skew + n] == 0x5a, "bytes beside the buffer were written");
		must(!wait_free(work, &res) && res.bytes == n, "send %zu", n);
	}
	free(out);
	free(in);
}

/* ---- tags against an oracle ---- */

#define TAGGED 240
#define TAGS 5

struct plan { /* of one ordered pair, known to both */
	int tag[TAGGED];
	size_t bytes[TAGGED];
};

static void plan_make(struct plan *p, uint64_t seed, int from, int to)
{
	uint64_t s = seed * 1000 + (uint64_t)from * 31 + (uint64_t)to;

	for (int i = 0; i < TAGGED; i++) {
		uint64_t h = harness_random(&s);

		p->tag[i] = (int)(h % TAGS);
		p->bytes[i] = h >> 8 & 15 ? (h >> 16) % 700 : (h >> 16) % 200000;
	}
}

struct got {
	struct covey_work *work;
	uint8_t *buffer;
	int want; /* number of the message that must come */
	size_t room;
};

/* Receives in a random order of tags; each must get the oldest message of its tag that no earlier receive took. */
static void run_tags(struct member *m)
{
	const uint64_t seed = *(const uint64_t *)m->arg;
	int other = (m->rank + 1) % m->n, from = (m->rank + m->n - 1) % m->n, sent = 0, posted = 0;
	struct plan out, in;
	struct covey_work *send[TAGGED];
	uint8_t *data[TAGGED];
	struct got got[TAGGED];
	uint64_t s = seed + (uint64_t)m->rank * 77;
	int taken[TAGGED] = { 0 };

	plan_make(&out, seed, m->rank, other);
	plan_make(&in, seed, from, m->rank);
	while (sent < TAGGED || posted < TAGGED) {
		if (sent < TAGGED && harness_random(&s) % 2) {
			data[sent] = malloc(out.bytes[sent] + 1);
			fill(data[sent], out.bytes[sent], m->rank, other, (uint64_t)sent);
			must(!covey_send_start(data[sent], out.bytes[sent], COVEY_UINT8, other, out.tag[sent], m->group,
					       NULL, &send[sent]),
			     "send %d", sent);
			sent++;
		} else if (posted < TAGGED) {
			struct got *g = &got[posted];
			int pick = (int)(harness_random(&s) % TAGGED), i;

			while (taken[pick]) /* some message that is left says which tag is asked for */
				pick = (pick + 1) % TAGGED;
			for (i = 0; taken[i] || in.tag[i] != in.tag[pick]; i++)
				;
			taken[i] = 1;
			*g = (struct got){ .want = i, .room = in.bytes[i] + harness_random(&s) % 3 };
			g->buffer = malloc(g->room + 1);
			must(!covey_recv_start(g->buffer, g->room, COVEY_UINT8, from, in.tag[i], m->group, NULL,
					       &g->work),
			     "recv %d", posted);
			posted++;
		}
	}
	for (int k = 0; k < TAGGED; k++) { /* taken in another order than they were posted */
		struct got *g = &got[(k * 7 + 3) % TAGGED];
		struct covey_result res;
		int err = wait_free(g->work, &res);

		must(!err && res.seq == (uint64_t)g->want && res.bytes == in.bytes[g->want] &&
			     res.tag == in.tag[g->want],
		     "seed %llu: tag %d: %s, message %llu of %zu bytes; %d of %zu was due", (unsigned long long)seed,
		     res.tag, covey_strerror(err), (unsigned long long)res.seq, res.bytes, g->want, in.bytes[g->want]);
		check(g->buffer, res.bytes, from, m->rank, res.seq);
		free(g->buffer);
	}
	for (int i = 0; i < TAGGED; i++) {
		must(!wait_free(send[i], NULL), "send %d", i);
		free(data[i]);
	}
}

TEST_LOOP(tags_select_in_order, 0, FLAVOURS)
{
	uint64_t seed = harness_seed();

	run_flavour("tags", 3, _i, run_tags, &seed);
}

/* A wildcard takes the oldest of all tags, with what tagged receives left. */
TEST_FLAVOURS(wildcard_takes_the_oldest, 2)
{
	struct covey_result res;
	int tag, big = 200000;
	uint8_t *room = calloc(1, (size_t)big);

	for (int round = 0; round < 20 && m->rank == 0; round++) {
		struct covey_work *work[4];

		for (tag = 0; tag < 4; tag++)
			must(!covey_send_start(room, tag == 2 ? (size_t)big : (size_t)tag * 10, COVEY_UINT8, 1, tag,
					       m->group, NULL, &work[tag]),
			     "send");
		for (tag = 0; tag < 4; tag++)
			must(!wait_free(work[tag], NULL), "send");
	}
	for (int round = 0; round < 20 && m->rank == 1; round++) {
		must(!covey_recv(room, (size_t)big, COVEY_UINT8, 0, 1, m->group, NULL, &res) && res.bytes == 10,
		     "tag 1");
		for (int k = 0; k < 3; k++) {
			tag = k ? k + 1 : 0;
			must(!covey_recv(room, (size_t)big, COVEY_UINT8, 0, COVEY_TAG_ANY, m->group, NULL, &res),
			     "any");
			must(res.tag == tag && res.seq == (uint64_t)(round * 4 + tag), "any gives tag %d, number %llu",
			     res.tag, (unsigned long long)res.seq);
		}
	}
	free(room);
}

/* ---- lengths that differ ---- */

TEST_FLAVOURS(longer_is_truncated_and_consumed_shorter_says_so, 2)
{
	static const size_t sent[] = { 10, 10, 500000, 500000, 100, 500000 }, room[] = { 4, 20, 400000, 600000, 0, 0 };
	uint8_t *data = malloc(600064);
	struct covey_result res;

	for (uint64_t i = 0; i < 6; i++) {
		int err;

		if (!m->rank) {
			fill(data, sent[i], 0, 1, i);
			err = covey_send(data, sent[i], COVEY_UINT8, 1, 0, m->group, NULL, &res);
			must(!err, "send %llu: %s", (unsigned long long)i, covey_strerror(err));
			continue;
		}
		memset(data, 0x5a, 600064);
		err = covey_recv(data, room[i], COVEY_UINT8, 0, 0, m->group, NULL, &res);
		must(err == (sent[i] > room[i] ? COVEY_ERR_TRUNCATED : 0), "recv %llu: %s", (unsigned long long)i,
		     covey_strerror(err));
		must(res.status == err && res.bytes == (sent[i] < room[i] ? sent[i] : room[i]), "%zu bytes", res.bytes);
		check(data, res.bytes, 0, 1, i);
		must(data[room[i]] == 0x5a && data[res.bytes] == 0x5a, "message %llu: more was written",
		     (unsigned long long)i);
	}
	free(data);
}

/* ---- itself ---- */

static void run_self(struct member *m)
{
	uint8_t *out = malloc(1 << 20), *in = malloc(1 << 20);
	static const size_t n[] = { 0, 8, 60000, 70000, 1 << 20, 5 };
	struct covey_result res;
	struct covey_work *work;

	for (uint64_t i = 0; i < 6; i++) {
		fill(out, n[i], 0, 0, i);
		if (i % 2) {
			must(!covey_recv_start(in, n[i], COVEY_UINT8, m->rank, 3, m->group, NULL, &work), "recv");
			must(!covey_send(out, n[i], COVEY_UINT8, m->rank, 3, m->group, NULL, NULL), "send");
		} else {
			must(!covey_send_start(out, n[i], COVEY_UINT8, m->rank, 3, m->group, NULL, &work), "send");
			must(!covey_recv(in, n[i], COVEY_UINT8, m->rank, 3, m->group, NULL, NULL), "recv");
		}
		must(!wait_free(work, &res) && res.seq == i && res.bytes == n[i], "message %llu",
		     (unsigned long long)i);
		check(in, n[i], 0, 0, i);
	}
	free(out);
	free(in);
}

TEST_LOOP(a_rank_may_send_to_itself, 0, 2)
{
	run_flavour("self", 1, _i, run_self, NULL);
}

/* ---- grouped ---- */

#define SHIFT 100000

/* Everybody passes its block on to the right, in blocking style: without the group it would deadlock. */
static void run_ring(struct member *m)
{
	int right = (m->rank + 1) % m->n, left = (m->rank + m->n - 1) % m->n;
	int32_t *out = malloc(4 * SHIFT), *in = malloc(4 * SHIFT), *swap;
	struct covey_result sent, got;

	for (int i = 0; i < SHIFT; i++)
		out[i] = m->rank * SHIFT + i;
	for (int step = 1; step <= m->n; step++) {
		int origin = (m->rank + m->n - step) % m->n;

		must(!covey_group_start(), "start");
		must(!covey_send(out, SHIFT, COVEY_INT32, right, step, m->group, NULL, &sent), "send");
		must(!covey_recv(in, SHIFT, COVEY_INT32, left, step, m->group, NULL, &got), "recv");
		must(!covey_group_end(), "end");
		must(sent.bytes == 4 * SHIFT && got.bytes == 4 * SHIFT && got.tag == step && got.peer == left,
		     "results");
		for (int i = 0; i < SHIFT; i++)
			must(in[i] == origin * SHIFT + i, "step %d: element %d is %d", step, i, in[i]);
		swap = out;
		out = in;
		in = swap;
	}
	free(out);
	free(in);
}

TEST_LOOP(exchange_around_a_ring, 0, FLAVOURS)
{
	run_flavour("ring", _i == 0 ? 8 : 5, _i, run_ring, NULL);
}

/* Collectives of two groups posted in another order on every rank, messages between them. */
static void run_groups(struct member *m)
{
	struct covey_config config = *(struct covey_config *)m->arg;
	struct covey_group *group[2] = { m->group, harness_join(&config, m->rank) };
	int64_t sum[2], in[2], out[2] = { m->rank + 10, m->rank + 20 };
	struct covey_result res[2];
	char text[4] = "abc";

	must(covey_group_end() == COVEY_ERR_INVAL, "end without start");
	must(!covey_group_start() && covey_allgatherv(in, 1, in, NULL, NULL, COVEY_INT64, m->group, NULL, NULL),
	     "allgatherv without counts");
	must(covey_group_end() == COVEY_ERR_INVAL, "the end tells what a call in the group was refused for");
	for (int round = 0; round < 10; round++) {
		must(!covey_group_start(), "start");
		for (int k = 0; k < 2; k++) {
			int g = (k + m->rank) % 2, other = (m->rank + 1 + g) % m->n, from = (m->rank + 2 - g) % m->n;

			sum[g] = (m->rank + 1) * (g + 1);
			must(!covey_recv(&in[g], 1, COVEY_INT64, from, 1, group[g], NULL, &res[g]), "recv");
			must(!covey_group_start(), "nested");
			must(!covey_allreduce(&sum[g], &sum[g], 1, COVEY_INT64, COVEY_SUM, group[g], NULL, NULL),
			     "sum");
			must(!covey_group_end(), "nested");
			must(!covey_send(&out[g], 1, COVEY_INT64, other, 1, group[g], NULL, NULL), "send");
		}
		must(!covey_group_end(), "end");
		for (int g = 0; g < 2; g++) {
			int from = (m->rank + 2 - g) % m->n;

			must(sum[g] == 6 * (g + 1) && in[g] == from + 10 * (g + 1) && res[g].bytes == 8 &&
				     res[g].peer == from,
			     "group %d: %lld, %lld", g, (long long)sum[g], (long long)in[g]);
		}
	}
	must(!covey_group_start(), "start");
	must(covey_admit(m->group, text, 3, NULL) == COVEY_ERR_INVAL, "a safe point in a group");
	must(covey_send(text, 1, 99, 0, 0, m->group, NULL, NULL) == COVEY_ERR_INVAL, "a type that is none");
	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	must(covey_group_end() == COVEY_ERR_INVAL, "what was refused is told at the end");
	must(!covey_barrier(m->group, NULL, NULL), "the barrier was called all the same");
	must(!covey_leave(group[1], harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(group[1]);
}

TEST_LOOP(grouped_calls_of_several_groups, 0, FLAVOURS)
{
	struct covey_config second = harness_config("second", 3);

	run_flavour("first", 3, _i, run_groups, &second);
}

/* ---- many works ---- */

#define WORKS 400

TEST_FLAVOURS(hundreds_of_works_of_mixed_operations, 3)
{
	int right = (m->rank + 1) % m->n, left = (m->rank + m->n - 1) % m->n, works = 0, sums = 0;
	struct covey_work *work[WORKS * 3];
	int64_t *value = calloc(WORKS * 3, sizeof(*value));
	uint8_t *in = malloc(WORKS * 1000), *out = malloc(WORKS * 1000);

	for (int i = 0; i < WORKS; i++) {
		size_t n = (size_t)(i * 37) % 1000;

		fill(out + i * 1000, n, m->rank, right, (uint64_t)i);
		must(!covey_recv_start(in + i * 1000, 1000, COVEY_UINT8, left, i % 3, m->group, NULL, &work[works++]),
		     "recv");
		must(!covey_send_start(out + i * 1000, n, COVEY_UINT8, right, i % 3, m->group, NULL, &work[works++]),
		     "send");
		if (i % 5)
			continue;
		value[i] = m->rank + i;
		must(!covey_allreduce_start(&value[i], &value[i], 1, COVEY_INT64, COVEY_SUM, m->group, NULL,
					    &work[works++]),
		     "sum");
		sums++;
	}
	for (int k = 0; k < works; k++) {
		int i = (int)((unsigned)k * 7919u % (unsigned)works); /* a prime that divides no number of works here */

		if (i % 11 == 0) /* freed early; the last barrier and what comes back show that it went on */
			covey_work_free(work[i]);
		else
			must(!wait_free(work[i], NULL), "work %d", i);
	}
	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	must(!covey_send(NULL, 0, COVEY_UINT8, right, 9, m->group, NULL, NULL) &&
		     !covey_recv(NULL, 0, COVEY_UINT8, left, 9, m->group, NULL, NULL),
	     "the last message");
	for (int i = 0; i < WORKS; i++) { /* of each tag the messages come in order, so all before the last are here */
		check(in + i * 1000, (size_t)(i * 37) % 1000, left, m->rank, (uint64_t)i);
		if (i % 5 == 0)
			must(value[i] == (int64_t)m->n * (m->n - 1) / 2 + (int64_t)m->n * i, "sum %d", i);
	}
	must(sums == WORKS / 5, "%d sums", sums);
	free(value);
	free(in);
	free(out);
}

/* ---- refusals, ends, deadlines ---- */

TEST_FLAVOURS(refusals_deadlines_and_ends, 2)
{
	struct covey_work *work;
	struct covey_result res;
	char c = 0, text[128];

	if (!m->rank) {
		must(covey_send(&c, 1, COVEY_UINT8, 1, -1, m->group, NULL, NULL) == COVEY_ERR_INVAL, "tag -1");
		must(covey_recv(&c, 1, COVEY_UINT8, 1, -2, m->group, NULL, NULL) == COVEY_ERR_INVAL, "tag -2");
		must(covey_send(&c, 1, COVEY_UINT8, 16, 0, m->group, NULL, NULL) == COVEY_ERR_INVAL, "rank 16");
		must(covey_send(&c, 1, COVEY_UINT8, -1, 0, m->group, NULL, NULL) == COVEY_ERR_INVAL, "rank -1");
		must(covey_send(NULL, 1, COVEY_UINT8, 1, 0, m->group, NULL, NULL) == COVEY_ERR_INVAL, "NULL");
		must(covey_recv(&c, SIZE_MAX / 4, COVEY_INT64, 1, 0, m->group, NULL, NULL) == COVEY_ERR_INVAL, "count");
		must(covey_send_start(&c, 1, COVEY_UINT8, 1, 0, m->group, NULL, NULL) == COVEY_ERR_INVAL, "no work");
		must(covey_send(&c, 1, COVEY_UINT8, 7, 0, m->group, NULL, &res) == COVEY_ERR_PEER, "nobody there");
		must(res.status == COVEY_ERR_PEER && res.peer == 7, "its result");
		must(!covey_recv_start(&c, 1, COVEY_UINT8, 1, 5, m->group, NULL, &work), "recv");
		must(covey_work_test(work, NULL) == COVEY_ERR_AGAIN, "it is not there yet");
		must(covey_work_wait(work, harness_now_ns() + 5000000, NULL) == COVEY_ERR_TIMEOUT, "deadline");
		must(!covey_work_progress(work, text, sizeof(text)) && strstr(text, "rank 1") && strstr(text, "tag 5"),
		     "progress is \"%s\"", text);
		must(!covey_barrier(m->group, NULL, NULL), "barrier");
		must(!wait_free(work, &res) && c == 'x' && res.bytes == 1, "after the deadline");
		must(!covey_recv_start(&c, 1, COVEY_UINT8, 1, 6, m->group, NULL, &work), "recv");
		covey_abort(m->group);
		must(wait_free(work, &res) == COVEY_ERR_ABORTED, "abort");
		must(covey_recv(&c, 1, COVEY_UINT8, 1, 6, m->group, NULL, NULL) == COVEY_ERR_ABORTED, "after an abort");
		m->no_leave = 1;
	} else {
		must(!covey_barrier(m->group, NULL, NULL), "barrier");
		must(!covey_send("x", 1, COVEY_UINT8, 0, 5, m->group, NULL, NULL), "send");
		/* rank 0 closes its handle: it is removed, and what waits for it fails */
		must(covey_recv(&c, 1, COVEY_UINT8, 0, 8, m->group, NULL, &res) == COVEY_ERR_PEER, "removed");
		must(res.status == COVEY_ERR_PEER && res.epoch > 1, "epoch %u", res.epoch);
		must(covey_send(&c, 1, COVEY_UINT8, 0, 8, m->group, NULL, NULL) == COVEY_ERR_PEER, "removed");
	}
}

/* Leaving waits until what was sent was received. */
static void run_leave(struct member *m)
{
	uint64_t *word = m->arg;
	uint8_t data[100];

	if (!m->rank) {
		for (uint64_t i = 0; i < 20; i++) {
			fill(data, sizeof(data), 0, 1, i);
			must(!covey_send(data, sizeof(data), COVEY_UINT8, 1, 0, m->group, NULL, NULL), "send");
		}
		must(covey_leave(m->group, harness_deadline(50)) == COVEY_ERR_TIMEOUT, "nobody received yet");
		__atomic_store_n(word, 1, __ATOMIC_RELEASE);
		return;
	}
	harness_until(word, 1, "rank 0");
	for (uint64_t i = 0; i < 20; i++) {
		must(!covey_recv(data, sizeof(data), COVEY_UINT8, 0, 0, m->group, NULL, NULL), "recv");
		check(data, sizeof(data), 0, 1, i);
	}
}

TEST_LOOP(leaving_waits_until_messages_are_received, 0, 2)
{
	uint64_t word = 0;

	run_flavour("leave", 2, _i, run_leave, &word);
}

HARNESS_MAIN(.name = "collectives/messages")
