/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport without a device: a table of calls whose adapter is an array. It executes work requests when the
 * test says so, reads what they point to only then, and refuses what a real one would: more requests than there is
 * room, more inline bytes than were asked for, keys that it never gave out.
 */
#ifdef CVY_RDMA
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../../suite.h"
#include "channel.h"
#include "loop.h"
#include "verbs.h"

#define DEPTH 32
#define SLOT 65536
#define WINDOW ((size_t)16 << 20)
#define REGIONS_MAX 64

static struct {
	struct {
		struct ibv_send_wr wr;
		struct ibv_sge sge;
		uint8_t copy[64]; /* inline: as it was when it was posted */
	} at[DEPTH];
	uint64_t posted, done;
	struct ibv_wc wc[2 * DEPTH];
	int wcs, bells, errs, events, recvs, sends, fail_with, no_memory;
	uint32_t keys;
} hca;

static struct {
	struct cvy_mesh mesh;
	struct cvy_window window;
	struct cvy_peer peer;
	struct cvy_rdma rdma;
	struct cvy_link link;
	struct cvy_verbs *v;
	struct ibv_comp_channel channel;
	struct ibv_mr *own[REGIONS_MAX];
	uint8_t *mirror; /* the peer's, of my window */
	struct cvy_box far_box;
} t;

/* ---- the adapter ---- */

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	hca.bells++;
	for (; wr; wr = wr->next) {
		uint64_t i = hca.posted % DEPTH;

		*bad = wr;
		if (hca.posted - hca.done >= DEPTH)
			return ENOMEM;
		hca.at[i].wr = *wr;
		if (wr->num_sge) {
			hca.at[i].sge = wr->sg_list[0];
			ck_assert_int_eq(wr->num_sge, 1);
			ck_assert_uint_ne(wr->wr.rdma.rkey, 0);
		}
		if (wr->send_flags & IBV_SEND_INLINE) {
			ck_assert_uint_le(hca.at[i].sge.length, sizeof(hca.at[i].copy));
			memcpy(hca.at[i].copy, (void *)(uintptr_t)hca.at[i].sge.addr, hca.at[i].sge.length);
		} else if (wr->num_sge) {
			ck_assert_uint_ne(hca.at[i].sge.lkey, 0);
		}
		hca.posted++;
	}
	return 0;
}

static void complete(uint64_t id, int status)
{
	ck_assert_int_lt(hca.wcs, 2 * DEPTH);
	hca.wc[hca.wcs++] = (struct ibv_wc){ .wr_id = id, .status = (enum ibv_wc_status)status };
}

/* Executes the next @n requests. */
static void run(uint64_t n)
{
	for (; n && hca.done < hca.posted; n--, hca.done++) {
		const struct ibv_send_wr *wr = &hca.at[hca.done % DEPTH].wr;
		const struct ibv_sge *sge = &hca.at[hca.done % DEPTH].sge;

		hca.sends += wr->opcode == IBV_WR_SEND;
		if (wr->opcode == IBV_WR_RDMA_WRITE)
			memcpy((void *)(uintptr_t)wr->wr.rdma.remote_addr,
			       wr->send_flags & IBV_SEND_INLINE ? hca.at[hca.done % DEPTH].copy
								: (void *)(uintptr_t)sge->addr,
			       sge->length);
		if (wr->send_flags & IBV_SEND_SIGNALED || hca.fail_with)
			complete(wr->wr_id, hca.fail_with);
	}
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	(void)cq;
	if (n > hca.wcs)
		n = hca.wcs;
	memcpy(wc, hca.wc, (size_t)n * sizeof(*wc));
	memmove(hca.wc, hca.wc + n, (size_t)(hca.wcs - n) * sizeof(*wc));
	hca.wcs -= n;
	return n;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	hca.recvs++;
	return 0;
}

static int notify_cq(struct ibv_cq *cq, int solicited)
{
	(void)cq, (void)solicited;
	return 0;
}

static int get_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **ctx)
{
	(void)channel, (void)cq, (void)ctx;
	return -1;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	hca.errs += (mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_ERR;
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
	struct ibv_mr *mr = hca.no_memory ? NULL : calloc(1, sizeof(*mr));

	(void)pd, (void)access;
	errno = ENOMEM;
	if (mr)
		*mr = (struct ibv_mr){ .addr = at, .length = bytes, .lkey = ++hca.keys, .rkey = hca.keys };
	return mr;
}

static const char *status_text(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded" : "another error";
}

static const struct cvy_verbs_api fake = { .post_send = post_send,
					   .post_recv = post_recv,
					   .poll_cq = poll_cq,
					   .notify_cq = notify_cq,
					   .ibv_get_cq_event = get_event,
					   .ibv_modify_qp = modify_qp,
					   .ibv_reg_mr = reg_mr,
					   .ibv_wc_status_str = status_text };

static void set_up(void)
{
	memset(&hca, 0, sizeof(hca));
	memset(&t, 0, sizeof(t));
	ck_assert_int_eq(cvy_loop_new(&t.mesh.loop), 0);
	t.mesh.layout = cvy_layout(WINDOW, SLOT);
	t.mesh.window = &t.window;
	t.window.own = aligned_alloc(4096, WINDOW);
	t.mirror = aligned_alloc(4096, WINDOW);
	t.v = calloc(1, sizeof(*t.v));
	ck_assert(t.window.own && t.mirror && t.v);
	memset(t.window.own, 0, WINDOW);
	memset(t.mirror, 0, WINDOW);
	t.mesh.peer[1] = &t.peer;
	t.rdma = (struct cvy_rdma){ .api = &fake, .mesh = &t.mesh, .own = t.own, .device.max_mr_size = UINT64_MAX };
	t.rdma.ready_fd = eventfd(1, EFD_NONBLOCK);
	t.v->rdma = &t.rdma;
	t.v->rank = 1;
	t.v->inc = 7;
	t.v->depth = DEPTH;
	t.v->is_inline = 1;
	t.channel.fd = eventfd(0, EFD_NONBLOCK);
	t.v->events = &t.channel;
	t.v->qp = (struct ibv_qp *)&t.channel; /* only handed on */
	t.v->box = calloc(1, sizeof(*t.v->box));
	t.v->box_mr = reg_mr(NULL, t.v->box, sizeof(*t.v->box), 0);
	t.v->far.mirror = (uint64_t)(uintptr_t)t.mirror;
	t.v->far.box = (uint64_t)(uintptr_t)&t.far_box;
	t.v->far.box_key = 99;
	t.v->far.key[0] = 98;
	t.v->far.state[0] = CVY_KEY_HERE;
	t.link = (struct cvy_link){ .mesh = &t.mesh, .rank = 1, .inc = 7, .own = t.window.own, .window_bytes = WINDOW };
	cvy_verbs_open(&t.link, t.v);
}

static void tear_down(void)
{
	for (int i = 0; i < REGIONS_MAX; i++)
		free(t.own[i]);
	close(t.rdma.ready_fd);
	close(t.channel.fd);
	cvy_loop_free(t.mesh.loop);
	free(t.window.own);
	free(t.mirror);
	free(t.v->stage);
	free(t.v->stage_mr);
	free(t.v->box_mr);
	free(t.v->box);
	free(t.v);
}

static size_t first_line(int i)
{
	return offsetof(struct cvy_page, first[i]);
}

static void write_line(int i, uint64_t tag, uint8_t byte)
{
	struct cvy_line *line = (struct cvy_line *)(t.window.own + first_line(i));

	memset(line->data, byte, sizeof(line->data));
	line->tag = tag;
}

static const struct cvy_line *seen(int i)
{
	return (const struct cvy_line *)(t.mirror + first_line(i));
}

/* The peer's key of a region, as if it had been asked for. */
static void give_key(int i)
{
	t.v->far.key[i] = 50 + (uint32_t)i;
	t.v->far.state[i] = CVY_KEY_HERE;
	t.v->wanted = 0;
	ck_assert_int_ge(cvy_verbs_poll(t.v), 0);
}

/* ---- out ---- */

TEST(a_put_and_its_line_are_one_doorbell_and_the_tag_comes_last)
{
	size_t at = t.mesh.layout.slots;

	memset(t.window.own + at, 5, 1000);
	write_line(0, 42, 9);
	ck_assert_int_eq(t.link.ops->put(&t.link, at, 1000), 0);
	ck_assert_int_eq(hca.bells, 0);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), 0);
	ck_assert_int_eq(hca.bells, 1);
	ck_assert_uint_eq(hca.posted, 3);
	run(2);
	ck_assert_uint_eq(seen(0)->tag, 0);
	ck_assert_int_eq(seen(0)->data[3], 9);
	ck_assert_int_eq(t.mirror[at + 999], 5);
	run(1);
	ck_assert_uint_eq(seen(0)->tag, 42);
}

/* _i 0: inside the request, 1: the device has no inline data */
TEST_LOOP(a_line_is_sent_as_it_was_when_it_was_given, 0, 2)
{
	if (_i) {
		t.v->is_inline = 0;
		t.v->stage = aligned_alloc(64, DEPTH * sizeof(*t.v->stage));
		t.v->stage_mr = reg_mr(NULL, t.v->stage, DEPTH * sizeof(*t.v->stage), 0);
		ck_assert(t.v->stage);
	}
	write_line(1, 10, 1);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(1)), 0);
	write_line(1, 11, 2);
	run(2);
	ck_assert_uint_eq(seen(1)->tag, 10);
	ck_assert_int_eq(seen(1)->data[0], 1);
}

TEST(what_waits_is_bounded_and_no_queue_of_the_device_overruns)
{
	size_t at = t.mesh.layout.slots, n = 0;

	t.link.ops->put(&t.link, at, 64);
	write_line(0, 1, 1);
	for (int i = 0; i < DEPTH; i++) /* until the device is full, and nothing completes */
		ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), 0);
	ck_assert_uint_le(hca.posted, DEPTH - CVY_RDMA_RESERVE);
	while (!t.link.ops->put(&t.link, at + n * 64, 64))
		n++;
	ck_assert_int_eq(t.link.ops->put(&t.link, at, 64), COVEY_ERR_AGAIN);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), COVEY_ERR_AGAIN);
	ck_assert_int_eq(t.link.ops->unsent(&t.link), CVY_RDMA_QUEUE);
	for (size_t i = 0; i < n; i++)
		memset(t.window.own + at + i * 64, (int)(i % 251) + 1, 64);
	for (int rounds = 0; t.link.ops->unsent(&t.link); rounds++) {
		ck_assert_int_lt(rounds, CVY_RDMA_QUEUE);
		run(5);
		ck_assert_int_ge(t.link.ops->poll(&t.link), 0);
	}
	run(DEPTH);
	ck_assert_int_eq(t.v->dead, 0);
	for (size_t i = 0; i < n; i++)
		ck_assert_int_eq(t.mirror[at + i * 64 + 63], (int)(i % 251) + 1);
}

/* Operations hear no AGAIN: what of theirs did not fit would be missing behind a line that says it is there. */
TEST(messages_leave_room_in_the_queue_for_operations)
{
	struct cvy_channel_args args = { .mesh = &t.mesh, .rank = 1, .max_ranks = 2, .own_inc = 3, .inc = 7 };
	size_t at = t.mesh.layout.slots;
	struct cvy_channel ch;
	uint64_t word = 1;

	ck_assert_int_eq(cvy_channel_open(&ch, &args), 0);
	t.link.id = 1;
	t.peer.link = &t.link;
	cvy_channel_look(&ch, 0);
	for (size_t n = 0; n + sizeof(word) <= ch.ring; n += sizeof(word)) { /* nothing completes, no key comes */
		cvy_channel_write(&ch, &word, sizeof(word));
		cvy_channel_flush(&ch, 1);
	}
	ck_assert_int_gt(t.link.ops->unsent(&t.link), 0);
	for (int i = 0; i < CVY_RDMA_QUEUE / 2; i++)
		ck_assert_int_eq(t.link.ops->put(&t.link, at + (size_t)i * 64, 64), 0);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), 0);
	ck_assert_int_eq(cvy_channel_behind(&ch), 1);
	give_key(cvy_region_of(&t.mesh.layout, t.mesh.layout.pool));
	while (t.link.ops->unsent(&t.link)) { /* the rest of the bytes leaves when there is room */
		give_key(cvy_region_of(&t.mesh.layout, t.v->ring[t.v->head].at));
		run(DEPTH);
		ck_assert_int_ge(t.link.ops->poll(&t.link), 0);
	}
	cvy_channel_flush(&ch, 1);
	ck_assert_uint_eq(ch.pushed, ch.written);
}

TEST(a_put_across_regions_is_split_and_waits_for_keys_in_order)
{
	struct cvy_verbs_region one = cvy_region_get(&t.mesh.layout, 1);
	size_t at = one.at + one.bytes - 100;

	memset(t.window.own + at, 3, 300);
	write_line(0, 5, 5);
	ck_assert_int_eq(t.link.ops->put(&t.link, at, 300), 0);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), 0);
	ck_assert_uint_eq(hca.posted, 0);
	ck_assert_int_eq(t.v->far.state[1], CVY_KEY_WANTED);
	ck_assert_int_eq(t.v->wanted, 1);
	write_line(0, 6, 6); /* used again while that one waits */
	ck_assert_int_eq(t.link.ops->poll(&t.link), 0);
	ck_assert_int_eq(t.v->wanted, 1); /* asked once */
	give_key(1);
	ck_assert_uint_eq(hca.posted, 1);
	ck_assert_uint_eq(hca.at[0].sge.length, 100);
	ck_assert_int_eq(t.v->far.state[2], CVY_KEY_WANTED);
	give_key(2);
	ck_assert_uint_eq(hca.posted, 4); /* the rest, and the line behind it */
	ck_assert_uint_eq(hca.at[1].sge.length, 200);
	run(4);
	ck_assert_int_eq(t.mirror[at + 299], 3);
	ck_assert_uint_eq(seen(0)->tag, 5);
	ck_assert_int_eq(seen(0)->data[0], 5);
}

TEST(a_put_outside_the_window_is_refused)
{
	ck_assert_int_eq(t.link.ops->put(&t.link, WINDOW - 8, 9), COVEY_ERR_INVAL);
	ck_assert_int_eq(t.link.ops->put(&t.link, WINDOW + 1, 0), COVEY_ERR_INVAL);
	ck_assert_int_eq(t.link.ops->put(&t.link, WINDOW - 8, 8), 0);
}

/* ---- lost ---- */

TEST(a_failed_completion_ends_the_path_once)
{
	write_line(0, 1, 1);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), 0);
	hca.fail_with = IBV_WC_RETRY_EXC_ERR;
	run(2);
	ck_assert_int_eq(t.link.ops->poll(&t.link), COVEY_ERR_PEER);
	ck_assert_int_eq(hca.errs, 1);
	ck_assert_ptr_nonnull(strstr(t.peer.lost, "transport retry counter exceeded"));
	ck_assert_int_eq(t.link.ops->poll(&t.link), COVEY_ERR_PEER);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), COVEY_ERR_PEER);
	ck_assert_int_eq(t.link.ops->put(&t.link, t.mesh.layout.slots, 8), COVEY_ERR_PEER);
	ck_assert_int_eq(t.link.ops->unsent(&t.link), 0);
	ck_assert_int_eq(hca.errs, 1);
	ck_assert_uint_eq(hca.posted, 2);
}

TEST(own_memory_that_cannot_be_registered_is_named_and_rdma_not_tried_again)
{
	hca.no_memory = 1;
	t.link.ops->put(&t.link, t.mesh.layout.slots, 8);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), COVEY_ERR_PEER);
	ck_assert_ptr_nonnull(strstr(t.peer.lost, "registering"));
	ck_assert_uint_eq(t.peer.rdma_off, 7);
}

TEST(a_region_too_large_for_the_device_is_named)
{
	char why[CVY_CAUSE] = "";

	t.rdma.device.max_mr_size = 1 << 20;
	ck_assert_ptr_null(cvy_rdma_register(&t.rdma, t.window.own, 2 << 20, 0, why, sizeof(why)));
	ck_assert_ptr_nonnull(strstr(why, "too large for the RDMA device"));
}

/* ---- asleep ---- */

TEST(who_sleeps_says_so_once_and_again_after_it_was_woken)
{
	short events = 0;

	ck_assert_int_eq(t.link.ops->fd(&t.link, 0, &events), t.channel.fd);
	ck_assert_int_eq(events, POLLIN);
	ck_assert_int_eq(t.link.ops->fd(&t.link, 1, &events), -1);
	run(1);
	ck_assert_uint_eq(t.far_box.asleep, 1);
	ck_assert_int_eq(t.link.ops->fd(&t.link, 0, &events), t.rdma.ready_fd); /* that completion: it looks again */
	ck_assert_int_eq(t.link.ops->fd(&t.link, 0, &events), t.channel.fd);
	ck_assert_uint_eq(hca.posted, 1);
	complete(1ull << 63, 0); /* the peer's send */
	ck_assert_int_eq(t.link.ops->fd(&t.link, 0, &events), t.rdma.ready_fd);
	ck_assert_int_eq(hca.recvs, 1);
	ck_assert_int_eq(t.link.ops->fd(&t.link, 0, &events), t.channel.fd);
	run(1);
	ck_assert_uint_eq(t.far_box.asleep, 2);
}

TEST(a_line_wakes_who_had_said_that_it_sleeps)
{
	t.v->box->asleep = 1;
	ck_assert_int_eq(cvy_verbs_poll(t.v), 0); /* nothing was sent: nothing to wake for */
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), 0);
	ck_assert_int_eq(hca.bells, 1);
	run(3);
	ck_assert_int_eq(hca.sends, 1);
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), 0); /* it is awake already */
	run(DEPTH);
	ck_assert_int_eq(hca.sends, 1);
}

TEST(a_line_that_crossed_with_the_word_of_sleep_wakes_too)
{
	ck_assert_int_eq(t.link.ops->signal(&t.link, first_line(0)), 0);
	run(2);
	t.v->box->asleep = 1;
	ck_assert_int_eq(cvy_verbs_poll(t.v), 1);
	run(1);
	ck_assert_int_eq(hca.sends, 1);
	cvy_verbs_poll(t.v);
	run(DEPTH);
	ck_assert_int_eq(hca.sends, 1);
}

TEST(a_forked_child_posts_nothing)
{
	short events;

	t.mesh.forgotten = 1;
	ck_assert_int_eq(t.link.ops->fd(&t.link, 0, &events), t.channel.fd);
	ck_assert_uint_eq(hca.posted, 0);
}

SUITE_MAIN(.name = "p2p/verbs", .setup = set_up, .teardown = tear_down)
#else
#include <stdio.h>

int main(void)
{
	printf("no verbs transport in this build\n");
	return 77;
}
#endif
