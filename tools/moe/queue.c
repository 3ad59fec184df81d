/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports to the checker, verdicts back. The checker works behind the ranks: reports wait here, and its process yields
 * the cores to the ranks, so that checking delays no rank. Only past MAX_BEHIND bytes do the ranks wait.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "director.h"

#define MAX_BEHIND (512u << 20)
#define CHECKER_NICE 10

struct moe_item {
	struct moe_item *next;
	struct moe_report report;
	uint8_t *body;
	size_t sent;
};

int moe_queue_start(struct moe_queue *q, const struct moe_options *opt)
{
	int pair[2];

	q->first = NULL;
	q->last = &q->first;
	q->bytes = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return -1;
	q->pid = fork();
	if (q->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		setpriority(PRIO_PROCESS, 0, CHECKER_NICE);
		_exit(moe_check_main(opt, pair[1]));
	}
	close(pair[1]);
	q->fd = pair[0];
	return q->pid < 0 ? -1 : 0;
}

int moe_queue_add(struct moe_queue *q, const struct moe_report *report, uint8_t *body)
{
	struct moe_item *item = calloc(1, sizeof(*item));

	if (!item) {
		free(body);
		return -1;
	}
	item->report = *report;
	item->body = body;
	*q->last = item;
	q->last = &item->next;
	q->bytes += sizeof(*item) + report->body;
	return moe_queue_send(q);
}

bool moe_queue_full(const struct moe_queue *q)
{
	return q->bytes > MAX_BEHIND;
}

static void drop_first(struct moe_queue *q)
{
	struct moe_item *item = q->first;

	q->first = item->next;
	if (!q->first)
		q->last = &q->first;
	q->bytes -= sizeof(*item) + item->report.body;
	free(item->body);
	free(item);
}

int moe_queue_send(struct moe_queue *q)
{
	while (q->first) {
		struct moe_item *item = q->first;
		size_t head = sizeof(item->report);
		bool in_head = item->sent < head;
		const uint8_t *from =
			in_head ? (const uint8_t *)&item->report + item->sent : item->body + (item->sent - head);
		size_t left = in_head ? head - item->sent : head + item->report.body - item->sent;
		ssize_t n = left ? send(q->fd, from, left, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -1;
		item->sent += (size_t)n;
		if (item->sent == head + item->report.body)
			drop_first(q);
	}
	return 0;
}

int moe_queue_take(struct moe_queue *q, struct moe_story *s)
{
	struct moe_verdict v;
	ssize_t n;

	while ((n = recv(q->fd, &v, sizeof(v), MSG_PEEK | MSG_DONTWAIT)) == (ssize_t)sizeof(v)) {
		if (moe_read(q->fd, &v, sizeof(v)))
			return -1;
		s->checked++;
		s->wrong += (uint64_t)v.wrong;
		s->counts_bad += (uint64_t)v.counts_bad;
		s->lost += (uint64_t)v.lost;
		s->partial += (uint64_t)v.partial;
		if (v.worst > s->worst || v.worst != v.worst)
			s->worst = v.worst;
	}
	return n == 0 ? -1 : 0;
}

void moe_queue_end(struct moe_queue *q)
{
	while (q->first)
		drop_first(q);
	if (q->fd >= 0)
		close(q->fd);
	if (q->pid <= 0)
		return;
	kill(q->pid, SIGKILL);
	waitpid(q->pid, NULL, 0);
}
