/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a rank: it joins, works step by step until all agree to stop, and leaves. See rank.h. */
#include "rank.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LEAVE_MS 3000
#define GOODBYE_MS 5000

/* The rank that the launcher gave; -1: none. */
static int given(void)
{
	const char *rank = getenv("COVEY_RANK");

	rank = rank ? rank : getenv("RANK");
	return rank ? atoi(rank) : -1;
}

int moe_rank_fail(struct moe_rank *r, const char *what, int err)
{
	struct covey_error_info info = { 0 };

	covey_last_error(r->group, &info);
	fprintf(stderr, "ep-moe: rank %d: step %llu: %s: %s%s%s\n", r->self >= 0 ? r->self : given(),
		(unsigned long long)r->state.step, what, covey_strerror(err), info.err ? ": " : "",
		info.err ? info.cause : "");
	return err;
}

void *moe_room(void *old, size_t bytes)
{
	void *p = realloc(old, bytes ? bytes : 1);

	if (!p) {
		fprintf(stderr, "ep-moe: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	return p;
}

static int dial(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	return fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) ? -1 : fd;
}

static int join(struct moe_rank *r)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	const char *store = getenv("COVEY_STORE"), *group = getenv("COVEY_GROUP");
	const struct moe_shape *s = &r->model.shape;
	struct covey_view view;
	int err;

	tool_device_choose(r->opt->devices, given() < 0 ? 0 : given());
	err = covey_join(NULL, &r->group);
	if (!err)
		err = covey_view(r->group, &view);
	if (err)
		return moe_rank_fail(r, "join", err);
	r->self = view.rank;
	r->report.kind = MOE_HELLO;
	r->report.rank = view.rank;
	r->report.pid = (int)getpid();
	r->report.incarnation = view.incarnation;
	if (store && strlen(store) >= sizeof(r->report.store)) {
		fprintf(stderr, "ep-moe: COVEY_STORE is longer than %zu bytes: set COVEY_STORE_PASSWORD beside it\n",
			sizeof(r->report.store) - 1);
		return -1;
	}
	snprintf(r->report.store, sizeof(r->report.store), "%s", store ? store : "");
	snprintf(r->report.group, sizeof(r->report.group), "%s", group ? group : "covey");
	if (r->fd >= 0 && send(r->fd, &r->report, sizeof(r->report), MSG_NOSIGNAL) < 0)
		return -1;
	config.max_tokens = s->tokens;
	config.hidden = s->hidden;
	config.top_k = s->top_k;
	config.experts = s->experts;
	config.preset = r->opt->preset;
	config.places = r->opt->replicas;
	err = covey_ep_create(r->group, &config, &r->ep);
	return err ? moe_rank_fail(r, "ep_create", err) : moe_device_open(r);
}

/* The store may be a child of the launcher, which ends with its last rank: so ranks wait for the director. */
static void say_goodbye(struct moe_rank *r, int err)
{
	struct timeval bound = { .tv_sec = GOODBYE_MS / 1000 };
	char word;

	if (r->fd < 0)
		return;
	r->report.kind = err ? MOE_FAILED : MOE_END;
	r->report.err = err;
	setsockopt(r->fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound));
	if (send(r->fd, &r->report, sizeof(r->report), MSG_NOSIGNAL) > 0 && !err)
		while (recv(r->fd, &word, 1, 0) == 1)
			;
}

static void set_fault(const struct moe_options *opt)
{
	for (int i = 0; i < opt->plans; i++)
		if (opt->plan[i].kind == MOE_FAULT && opt->plan[i].rank == given())
			setenv("COVEY_FAULT", opt->plan[i].fault, 1);
}

static void close_group(struct moe_rank *r)
{
	moe_device_close(r);
	covey_ep_destroy(r->ep);
	covey_close(r->group);
}

static void free_all(struct moe_rank *r)
{
	moe_model_close(&r->model);
	moe_model_close(&r->ref);
	free(r->owner);
	free(r->x), free(r->packed_x), free(r->y), free(r->out);
	free(r->experts), free(r->placed), free(r->count), free(r->src_info), free(r->flat), free(r->triplets),
		free(r->recv_experts);
	free(r->weights), free(r->recv_weights);
	free(r->range);
	if (r->fd >= 0)
		close(r->fd);
}

int moe_rank_main(struct moe_options *opt)
{
	size_t entries = (size_t)opt->shape.tokens * (size_t)opt->shape.top_k, rows = 2 * (size_t)opt->shape.tokens;
	const char *create = getenv("COVEY_CREATE");
	struct moe_rank r = { .opt = opt, .fd = -1, .self = -1, .fresh = create && !strcmp(create, "never") };
	int err;

	r.report.start_ns = tool_now_ns();
	if (!r.fresh)
		set_fault(opt);
	if (opt->report && (r.fd = dial(opt->report)) < 0)
		return 1;
	if (moe_model_open(&r.model, &opt->shape, opt->ffn, opt->seed, opt->text) ||
	    moe_model_open(&r.ref, &opt->shape, opt->ffn, opt->seed, opt->text)) {
		fprintf(stderr, "ep-moe: %s: %s\n", opt->text, strerror(errno));
		return 1;
	}
	r.x = moe_room(NULL, rows * (size_t)opt->shape.hidden);
	r.out = moe_room(NULL, rows * (size_t)opt->shape.hidden);
	r.model.places = r.ref.places = opt->replicas;
	r.experts = moe_room(NULL, entries * sizeof(*r.experts));
	r.placed = moe_room(NULL, entries * sizeof(*r.placed));
	r.weights = moe_room(NULL, entries * sizeof(*r.weights));
	err = join(&r);
	while (!err && !r.stop)
		err = moe_rank_step(&r);
	if (!err && (err = covey_leave(r.group, tool_now_ns() + LEAVE_MS * UINT64_C(1000000))))
		err = err == COVEY_ERR_TIMEOUT || err == COVEY_ERR_CLOSED ? 0 : moe_rank_fail(&r, "leave", err);
	close_group(&r);
	say_goodbye(&r, err);
	if (!err && r.fd < 0 && r.self == 0)
		printf("ep-moe: %llu steps, own tokens checked: wrong %d, lost %d, steps with wrong counts %d\n",
		       (unsigned long long)r.state.step, r.bad.wrong, r.bad.lost, r.bad.counts_bad);
	err = err || r.bad.wrong || r.bad.counts_bad;
	free_all(&r);
	return err ? 1 : 0;
}
