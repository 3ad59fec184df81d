/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of the job. Its loop has no code for deaths: covey_admit() says who is in, the operations say whose part
 * they hold, and the step goes on. When the group has grown the experts are laid out anew and their weights move by
 * covey_alltoallv() from owners that live; what no living rank holds is made from the seed, the job's checkpoint.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "moe.h"

#define LEAVE_MS 3000
#define GOODBYE_MS 5000

struct state { /* what a joiner must know: the members' copy at covey_admit() */
	uint64_t step, holders;
	int64_t size;
};

struct rank {
	const struct moe_options *opt;
	struct moe_model model;
	struct covey_group *group;
	struct covey_ep *ep;
	int self, local, fd;
	int fresh; /* came after the group was formed, nothing is known yet */
	struct state state;
	int *owner; /* [experts] of the present layout */
	uint16_t *x, *packed_x, *y, *out;
	int32_t *experts, *count, *src_info;
	float *weights;
	int64_t *range;
	struct moe_report report;
	int stop;
	struct moe_model ref; /* no director: the rank checks itself */
	struct moe_verdict bad;
};

static int fail(struct rank *r, const char *what, int err)
{
	struct covey_error_info info = { 0 };

	covey_last_error(r->group, &info);
	fprintf(stderr, "ep-moe: rank %d: step %llu: %s: %s%s%s\n", r->self, (unsigned long long)r->state.step, what,
		covey_strerror(err), info.err ? ": " : "", info.err ? info.cause : "");
	return err;
}

static void *room(void *old, size_t bytes)
{
	void *p = realloc(old, bytes ? bytes : 1);

	if (!p) {
		fprintf(stderr, "ep-moe: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	return p;
}

/* ---- Experts ---- */

static void make_room(struct rank *r, int size)
{
	const struct moe_shape *s = &r->model.shape;
	size_t rows, local;

	r->local = covey_ep_local_experts(r->ep);
	local = (size_t)r->local;
	rows = local * (size_t)covey_ep_rows(r->ep);
	r->packed_x = room(r->packed_x, 2 * rows * (size_t)s->hidden);
	r->y = room(r->y, 2 * rows * (size_t)s->hidden);
	r->src_info = room(r->src_info, rows * sizeof(*r->src_info));
	r->count = room(r->count, local * sizeof(*r->count));
	r->range = room(r->range, local * (size_t)size * sizeof(*r->range));
}

struct move { /* weights on their way to new owners, by rank */
	float *send, *recv;
	size_t to[MOE_MAX_RANKS], to_at[MOE_MAX_RANKS], from[MOE_MAX_RANKS], from_at[MOE_MAX_RANKS];
};

/* Does expert e go from rank a to rank b? Only between holders that live and others. */
static int goes(const int *old, const int *new, uint64_t holders, int e, int a, int b)
{
	return old[e] == a && new[e] == b && a != b && (holders >> a & 1);
}

static int pack(struct rank *r, struct move *m, const int *old, const int *new, uint64_t holders, int size)
{
	size_t n = moe_expert_floats(&r->model), send = 0, recv = 0, any = 0;

	memset(m, 0, sizeof(*m));
	for (int q = 0; q < size; q++) {
		m->to_at[q] = send;
		m->from_at[q] = recv;
		for (int e = 0; e < r->model.shape.experts; e++) {
			any += old[e] != new[e];
			if (goes(old, new, holders, e, q, r->self))
				recv += n;
			if (!goes(old, new, holders, e, r->self, q))
				continue;
			m->send = room(m->send, (send + n) * sizeof(float));
			if (!moe_expert_make(&r->model, e))
				return -1;
			memcpy(m->send + send, r->model.weights[e], n * sizeof(float));
			send += n;
		}
		m->to[q] = send - m->to_at[q];
		m->from[q] = recv - m->from_at[q];
	}
	m->recv = room(NULL, recv * sizeof(float));
	return any != 0;
}

static int unpack(struct rank *r, const struct move *m, const int *old, const int *new, uint64_t holders,
		  const struct covey_mask *here, int size)
{
	size_t n = moe_expert_floats(&r->model);

	for (int q = 0; q < size; q++) {
		const float *from = m->recv + m->from_at[q];

		for (int e = 0; e < r->model.shape.experts; e++) {
			if (!goes(old, new, holders, e, q, r->self))
				continue;
			if (covey_mask_has(here, q) && !r->model.weights[e]) {
				r->model.weights[e] = room(NULL, n * sizeof(float));
				memcpy(r->model.weights[e], from, n * sizeof(float));
				r->report.moved++;
			}
			from += n;
		}
	}
	return 0;
}

/* From the layout for old_size, held by @holders, to the one for @size. */
static int move_experts(struct rank *r, int old_size, uint64_t holders, int size)
{
	int experts = r->model.shape.experts, err = 0, any;
	int *old = room(NULL, (size_t)experts * sizeof(*old));
	struct covey_result result;
	struct move m;

	moe_owners(&r->model, old_size, old);
	moe_owners(&r->model, size, r->owner);
	any = pack(r, &m, old, r->owner, holders, size);
	if (any > 0)
		err = covey_alltoallv(m.send, m.to, m.to_at, m.recv, m.from, m.from_at, COVEY_FLOAT32, r->group, NULL, &result);
	if (any > 0 && !err)
		unpack(r, &m, old, r->owner, holders, &result.mask, size);
	for (int e = 0; e < experts; e++) {
		if (r->owner[e] != r->self) {
			moe_expert_drop(&r->model, e);
		} else if (!r->model.weights[e]) {
			any = moe_expert_make(&r->model, e) ? any : -1;
			r->report.made++;
		}
	}
	free(m.send);
	free(m.recv);
	free(old);
	return err ? err : any < 0 ? COVEY_ERR_NOMEM : 0;
}

/* ---- One step ---- */

static void note(struct rank *r, int op, const struct covey_result *result)
{
	r->report.epoch[op] = result->epoch;
	r->report.mask[op] = result->mask.word[0];
	r->report.wait_ns[op] = result->wait_ns;
}

static int admit(struct rank *r)
{
	struct covey_result result;
	int size, err = covey_admit(r->group, &r->state, sizeof(r->state), &result);

	if (err)
		return fail(r, "admit", err);
	note(r, MOE_ADMIT, &result);
	size = result.size;
	r->report.moved = r->report.made = 0;
	if (r->owner && size == r->state.size && (result.mask.word[0] & ~r->state.holders) == 0)
		return 0;
	if (r->state.size == 0) { /* the first step of all: everybody makes its own */
		r->state.size = size;
		r->state.holders = 0;
	}
	r->owner = room(r->owner, (size_t)r->model.shape.experts * sizeof(*r->owner));
	err = covey_ep_remap(r->ep, NULL);
	if (err)
		return fail(r, "remap", err);
	err = move_experts(r, (int)r->state.size, r->state.holders & result.mask.word[0], size);
	if (err)
		return fail(r, "moving the experts", err);
	r->state.size = size;
	make_room(r, size);
	return 0;
}

static int dispatch(struct rank *r)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct covey_result result;
	int err;

	moe_model_batch(&r->model, r->state.step, r->self, r->x, r->experts, r->weights);
	args.num_tokens = r->model.shape.tokens;
	args.x = r->x;
	args.experts = r->experts;
	args.packed_x = r->packed_x;
	args.count = r->count;
	args.src_info = r->src_info;
	args.range = r->range;
	err = covey_dispatch(r->ep, &args, NULL, &result);
	if (err)
		return fail(r, "dispatch", err);
	note(r, MOE_DISPATCH, &result);
	return 0;
}

static void run_experts(struct rank *r)
{
	size_t hidden = (size_t)r->model.shape.hidden, rows = (size_t)covey_ep_rows(r->ep);
	size_t le = 0;

	for (int e = 0; e < r->model.shape.experts; e++) {
		if (r->owner[e] != r->self)
			continue;
		for (size_t i = 0; i < (size_t)r->count[le]; i++) {
			size_t at = (le * rows + i) * hidden;

			moe_expert_run(&r->model, e, r->packed_x + at, r->y + at);
		}
		le++;
	}
}

static int combine(struct rank *r)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	struct covey_result result;
	int err;

	args.num_tokens = r->model.shape.tokens;
	args.y = r->y;
	args.count = r->count;
	args.src_info = r->src_info;
	args.range = r->range;
	args.experts = r->experts;
	args.weights = r->weights;
	args.out = r->out;
	err = covey_combine(r->ep, &args, NULL, &result);
	if (err)
		return fail(r, "combine", err);
	note(r, MOE_COMBINE, &result);
	return 0;
}

/* Sums what the ranks made, and their wishes to stop: so all stop after the same step. */
static int sum(struct rank *r)
{
	size_t n = (size_t)r->model.shape.tokens * (size_t)r->model.shape.hidden;
	struct covey_result result;
	int64_t in[2] = { 0, 0 }, out[2];
	char word;
	int err;

	for (size_t i = 0; i < n; i++)
		in[0] += r->out[i];
	if (r->fd >= 0)
		in[1] = recv(r->fd, &word, 1, MSG_DONTWAIT) == 1;
	else
		in[1] = r->state.step + 1 >= (uint64_t)r->opt->steps;
	err = covey_allreduce(in, out, 2, COVEY_INT64, COVEY_SUM, r->group, NULL, &result);
	if (err)
		return fail(r, "allreduce", err);
	note(r, MOE_SUM, &result);
	r->report.sum = out[0];
	r->stop = out[1] > 0;
	r->state.holders = result.mask.word[0];
	return 0;
}

static int send_step(struct rank *r)
{
	const struct moe_shape *s = &r->model.shape;
	size_t ranges = (size_t)r->local * (size_t)r->state.size * sizeof(*r->range), counts = (size_t)r->local * sizeof(*r->count);
	size_t rows = 2 * (size_t)s->tokens * (size_t)s->hidden;
	struct moe_verdict v;
	uint8_t *body;
	int err = 0;

	r->report.kind = MOE_STEP;
	r->report.step = r->state.step;
	r->report.size = (int32_t)r->state.size;
	r->report.tokens = s->tokens;
	r->report.local = r->local;
	r->report.fresh = r->fresh;
	r->report.end_ns = moe_now_ns();
	r->report.body = (uint32_t)(ranges + counts + rows);
	body = room(NULL, r->report.body);
	memcpy(body, r->range, ranges);
	memcpy(body + ranges, r->count, counts);
	memcpy(body + ranges + counts, r->out, rows);
	if (r->fd >= 0) {
		err = moe_write(r->fd, &r->report, sizeof(r->report)) || moe_write(r->fd, body, r->report.body);
	} else {
		moe_check(&r->ref, &r->report, body, &v);
		r->bad.wrong += v.wrong;
		r->bad.counts_bad += v.counts_bad;
		r->bad.lost += v.lost;
	}
	free(body);
	return err ? -1 : 0;
}

static int step(struct rank *r)
{
	int err = admit(r);

	if (!err)
		err = dispatch(r);
	if (!err)
		run_experts(r);
	if (!err)
		err = combine(r);
	if (!err)
		err = sum(r);
	if (!err)
		err = send_step(r);
	r->fresh = 0;
	r->state.step++;
	return err;
}

/* ---- Life ---- */

static int dial(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	if (!connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return fd;
	close(fd);
	return -1;
}

static int join(struct rank *r)
{
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	const char *store = getenv("COVEY_STORE"), *group = getenv("COVEY_GROUP");
	const struct moe_shape *s = &r->model.shape;
	struct covey_view view;
	int err = covey_join(NULL, &r->group);

	if (err)
		return fail(r, "join", err);
	err = covey_view(r->group, &view);
	if (err)
		return fail(r, "view", err);
	r->self = view.rank;
	r->report.kind = MOE_HELLO;
	r->report.rank = view.rank;
	r->report.pid = (int32_t)getpid();
	r->report.incarnation = view.incarnation;
	r->report.fresh = r->fresh;
	snprintf(r->report.store, sizeof(r->report.store), "%s", store ? store : "");
	snprintf(r->report.group, sizeof(r->report.group), "%s", group ? group : "covey");
	if (r->fd >= 0 && moe_write(r->fd, &r->report, sizeof(r->report)))
		return -1;
	config.max_tokens = s->tokens;
	config.hidden = s->hidden;
	config.top_k = s->top_k;
	config.experts = s->experts;
	err = covey_ep_create(r->group, &config, &r->ep);
	return err ? fail(r, "ep_create", err) : 0;
}

/* The store may be a child of the launcher, which ends with its last rank: so ranks stay until the director lets go. */
static void say_goodbye(struct rank *r)
{
	struct timeval bound = { .tv_sec = GOODBYE_MS / 1000 };
	char word;

	if (r->fd < 0)
		return;
	r->report.kind = MOE_END;
	r->report.body = 0;
	setsockopt(r->fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound));
	if (!moe_write(r->fd, &r->report, sizeof(r->report)))
		while (recv(r->fd, &word, 1, 0) == 1)
			;
}

static void set_fault(const struct moe_options *opt)
{
	const char *rank = getenv("COVEY_RANK");

	for (int i = 0; rank && i < opt->plans; i++)
		if (opt->plan[i].kind == MOE_FAULT && opt->plan[i].rank == atoi(rank))
			setenv("COVEY_FAULT", opt->plan[i].fault, 1);
}

static void close_rank(struct rank *r)
{
	covey_ep_destroy(r->ep);
	covey_close(r->group);
	moe_model_close(&r->model);
	moe_model_close(&r->ref);
	free(r->owner);
	free(r->x), free(r->packed_x), free(r->y), free(r->out);
	free(r->experts), free(r->count), free(r->src_info);
	free(r->weights);
	free(r->range);
	if (r->fd >= 0)
		close(r->fd);
}

int moe_rank_main(struct moe_options *opt)
{
	size_t entries = (size_t)opt->shape.tokens * (size_t)opt->shape.top_k, rows = 2 * (size_t)opt->shape.tokens;
	const char *create = getenv("COVEY_CREATE");
	struct rank r = { .opt = opt, .fd = -1, .self = -1, .fresh = create && !strcmp(create, "never") };
	int err;

	if (!r.fresh)
		set_fault(opt);
	if (opt->report && (r.fd = dial(opt->report)) < 0)
		return 1;
	if (moe_model_open(&r.model, &opt->shape, opt->ffn, opt->seed, opt->text) ||
	    (!opt->report && moe_model_open(&r.ref, &opt->shape, opt->ffn, opt->seed, opt->text))) {
		fprintf(stderr, "ep-moe: %s: %s\n", opt->text, strerror(errno));
		return 1;
	}
	r.x = room(NULL, rows * (size_t)opt->shape.hidden);
	r.out = room(NULL, rows * (size_t)opt->shape.hidden);
	r.experts = room(NULL, entries * sizeof(*r.experts));
	r.weights = room(NULL, entries * sizeof(*r.weights));
	err = join(&r);
	while (!err && !r.stop)
		err = step(&r);
	if (!err && (err = covey_leave(r.group, moe_now_ns() + LEAVE_MS * UINT64_C(1000000))))
		err = err == COVEY_ERR_TIMEOUT || err == COVEY_ERR_CLOSED ? 0 : fail(&r, "leave", err);
	if (!err)
		say_goodbye(&r);
	if (!err && r.fd < 0 && r.self == 0)
		printf("ep-moe: %llu steps, own tokens checked: wrong %d, lost %d, steps with wrong counts %d\n",
		       (unsigned long long)r.state.step, r.bad.wrong, r.bad.lost, r.bad.counts_bad);
	err = err || r.bad.wrong || r.bad.counts_bad;
	close_rank(&r);
	return err ? 1 : 0;
}
