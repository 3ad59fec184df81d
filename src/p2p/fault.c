/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fault transport: wraps any link, counts operations on it, and applies the plan. All links of a mesh share one
 * plan and its counters, under the engine's lock.
 *
 * Reordering keeps each link's own order: a put never passes its signal, as a transport promises. Only the order
 * between peers is permuted, by a fixed generator, the same in every run.
 */
#include "fault.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "list.h"
#include "log.h"
#include "mesh.h"

#define RULES 32
#define DELAY_MAX_NS (10000 * CVY_MS)
#define HELD_MAX 1024
#define SCRIBBLE_VIEWS 3 /* views after the last one whose stamps a late writer forges */

enum kind { KILL, STOP, DELAY, CUT, LATE, SCRIBBLE, KINDS };
enum what { PUT, SIGNAL, READ, POINT };

static const char *const kind_names[KINDS] = { "kill", "stop", "delay", "cut", "late", "scribble" };
static const char *const what_names[POINT] = { "put", "signal", "read" };

struct rule {
	enum kind kind;
	enum what what;
	int rank; /* CUT */
	int in_op, fired;
	uint64_t seq; /* in_op: of the operation; 0: by name */
	char name[32];
	uint64_t nth;	/* of that name */
	uint64_t count; /* the N-th put, signal or read */
	uint64_t ns;
	uint64_t seen; /* operations of that name so far */
};

struct held {
	struct held *next;
	enum what what;
	size_t offset, bytes;
	uint64_t due_ns; /* 0: held for its order only */
	struct cvy_line line;
};

struct wrapped {
	struct wrapped *next;
	struct cvy_fault *fault;
	struct cvy_link *inner;
	struct held *first, **last; /* order */
	struct held *late;
};

struct cvy_fault {
	struct rule rule[RULES];
	int rules;
	unsigned int reorder, held;
	uint32_t random;
	uint64_t total[POINT], in_op[POINT];
	uint64_t seq;
	char name[32];
	struct wrapped *links;
};

/* ---- the plan ---- */

static int eat(const char **at, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(*at, word, n))
		return 0;
	*at += n;
	return 1;
}

/* One of the @n names, and the mark behind it: its index, or @n. */
static int one_of(const char **at, const char *const *names, int n, const char *mark)
{
	for (int i = 0; i < n; i++) {
		const char *behind = *at;

		if (!eat(&behind, names[i]) || !eat(&behind, mark))
			continue;
		*at = behind;
		return i;
	}
	return n;
}

static int number(const char **at, uint64_t *to)
{
	char *end;

	if (!isdigit((unsigned char)**at))
		return 0;
	*to = strtoull(*at, &end, 10);
	*at = end;
	return 1;
}

static int duration(const char **at, uint64_t *ns)
{
	if (!number(at, ns) || *ns > 10000)
		return 0;
	if (eat(at, "ms"))
		*ns *= CVY_MS;
	else if (eat(at, "s"))
		*ns *= 1000 * CVY_MS;
	else
		return 0;
	return *ns <= DELAY_MAX_NS;
}

static int parse_op(const char **at, struct rule *rule)
{
	size_t n;

	rule->in_op = 1;
	if (number(at, &rule->seq))
		return rule->seq > 0 && eat(at, ".");
	n = strcspn(*at, ":.;@");
	if (!n || n >= sizeof(rule->name))
		return 0;
	memcpy(rule->name, *at, n);
	*at += n;
	rule->nth = 1;
	if (eat(at, ":") && (!number(at, &rule->nth) || !rule->nth))
		return 0;
	return eat(at, ".");
}

static int parse_point(const char **at, struct rule *rule)
{
	static const char *const points[] = { "open",	"report", "decide", "ack",     "WAIT",	 "COMMIT",
					      "ACTIVE", "freeze", "learn",  "learned", "repair", "thaw" };
	size_t n = strcspn(*at, ":;");
	int known = 0;

	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++)
		known |= strlen(points[i]) == n && !strncmp(*at, points[i], n);
	if (!known || (rule->kind != KILL && rule->kind != STOP))
		return 0;
	memcpy(rule->name, *at, n);
	*at += n;
	rule->what = POINT;
	rule->count = 1;
	return !eat(at, ":") || (number(at, &rule->count) && rule->count);
}

static int parse_place(const char **at, struct rule *rule)
{
	if (eat(at, "agent:"))
		return parse_point(at, rule);
	if (eat(at, "op:") && !parse_op(at, rule))
		return 0;
	rule->what = (enum what)one_of(at, what_names, POINT, ":");
	if (rule->what == POINT || !number(at, &rule->count) || !rule->count)
		return 0;
	if (rule->kind == DELAY || rule->kind == LATE)
		return eat(at, ":") && duration(at, &rule->ns);
	return 1;
}

static int parse_rule(const char **at, struct rule *rule)
{
	uint64_t rank;

	rule->kind = (enum kind)one_of(at, kind_names, KINDS, "");
	if (rule->kind == KINDS)
		return 0;
	if (rule->kind == CUT) {
		if (!eat(at, ":") || !number(at, &rank) || rank >= COVEY_MAX_RANKS)
			return 0;
		rule->rank = (int)rank;
	}
	return eat(at, "@") && parse_place(at, rule) && (rule->kind != LATE || rule->what == SIGNAL);
}

static int parse(struct cvy_fault *fault, const char *plan, const char **at)
{
	uint64_t window;

	*at = plan;
	while (**at) {
		if (eat(at, "reorder:")) {
			if (!number(at, &window) || !window || window > HELD_MAX)
				return COVEY_ERR_INVAL;
			fault->reorder = (unsigned int)window;
		} else {
			if (fault->rules == RULES || !parse_rule(at, &fault->rule[fault->rules]))
				return COVEY_ERR_INVAL;
			fault->rules++;
		}
		if (**at && !eat(at, ";"))
			return COVEY_ERR_INVAL;
	}
	return 0;
}

int cvy_fault_open(const char *plan, struct cvy_errbox *box, struct cvy_fault **out)
{
	struct cvy_fault *fault = calloc(1, sizeof(*fault));
	const char *at;
	int err;

	if (!fault)
		return COVEY_ERR_NOMEM;
	fault->random = 1;
	err = parse(fault, plan, &at);
	if (err) {
		free(fault);
		return cvy_fail(
			box, err, -1, 0,
			"COVEY_FAULT cannot be read at '%.40s': want kill@put:37, stop@op:12.put:2, stop@read:4, "
			"delay@put:3:20ms, cut:RANK@put:9, late@signal:3:50ms, reorder:8, kill@agent:report, "
			"scribble@put:5, at most %d",
			at, RULES);
	}
	*out = fault;
	return 0;
}

void cvy_fault_close(struct cvy_fault *fault)
{
	free(fault);
}

void cvy_fault_op(struct cvy_fault *fault, uint64_t seq, const char *name)
{
	int again;

	if (!fault)
		return;
	again = fault->seq == seq; /* redone in a later view: the same operation */
	fault->seq = seq;
	snprintf(fault->name, sizeof(fault->name), "%s", name);
	memset(fault->in_op, 0, sizeof(fault->in_op));
	for (int i = 0; i < fault->rules && !again; i++)
		if (fault->rule[i].in_op && !fault->rule[i].seq && !strcmp(fault->rule[i].name, fault->name))
			fault->rule[i].seen++;
}

/* ---- strikes ---- */

static int due(const struct cvy_fault *fault, const struct rule *rule, enum what what)
{
	if (rule->fired || rule->what != what)
		return 0;
	if (!rule->in_op)
		return fault->total[what] == rule->count;
	if (fault->in_op[what] != rule->count)
		return 0;
	return rule->seq ? fault->seq == rule->seq : rule->seen == rule->nth && !strcmp(rule->name, fault->name);
}

static void cut(struct cvy_fault *fault, int rank)
{
	for (struct wrapped *w = fault->links; w; w = w->next)
		if (w->inner->rank == rank)
			cvy_mesh_lost(w->inner, "cut by the fault plan");
}

/* Leaves the own window as a late writer would: garbage in the slots, and lines with the stamps of a later view. */
static void smear(uint8_t *own, const struct cvy_layout *layout, uint32_t later)
{
	struct cvy_page *page = (struct cvy_page *)own;

	memset(own + layout->slots, 0xa5, layout->heap - layout->slots);
	for (int i = 0; i < 2 * CVY_SLOTS; i++) {
		struct cvy_line *line = i < CVY_SLOTS ? &page->first[i] : &page->second[i - CVY_SLOTS];

		memset(line->data, 0xa5, sizeof(line->data));
		line->tag += (uint64_t)later << 32;
	}
}

/* Stops, and continues as a zombie that knows no later decision. */
static void scribble(struct cvy_fault *fault)
{
	struct cvy_layout layout;

	raise(SIGSTOP); /* to this thread: it must not run on while another takes the signal */
	for (uint32_t later = 0; later < SCRIBBLE_VIEWS && fault->links; later++) {
		layout = cvy_mesh_layout(fault->links->inner->mesh);
		smear(fault->links->inner->own, &layout, later ? 1 : 0);
		for (struct wrapped *w = fault->links; w; w = w->next) {
			struct cvy_link *link = w->inner;

			if (link->ops->put)
				link->ops->put(link, layout.slots, layout.heap - layout.slots);
			for (int i = 0; i < CVY_SLOTS && link->ops->signal; i++) {
				link->ops->signal(link, offsetof(struct cvy_page, first[i]));
				link->ops->signal(link, offsetof(struct cvy_page, second[i]));
			}
			if (link->ops->poll)
				link->ops->poll(link);
		}
	}
}

static void strike(struct cvy_fault *fault, struct rule *rule, int peer)
{
	struct timespec pause = { (time_t)(rule->ns / 1000000000), (long)(rule->ns % 1000000000) };

	rule->fired = 1;
	cvy_warn("p2p", "fault plan: %s in operation %llu %s at its %s %llu (%llu of all), peer %d",
		 kind_names[rule->kind], (unsigned long long)fault->seq, fault->name, what_names[rule->what],
		 (unsigned long long)fault->in_op[rule->what], (unsigned long long)fault->total[rule->what], peer);
	if (rule->kind == KILL)
		kill(getpid(), SIGKILL);
	else if (rule->kind == STOP)
		raise(SIGSTOP);
	else if (rule->kind == DELAY)
		nanosleep(&pause, NULL);
	else if (rule->kind == CUT)
		cut(fault, rule->rank);
	else if (rule->kind == SCRIBBLE)
		scribble(fault);
}

void cvy_fault_point(struct cvy_fault *fault, const char *name)
{
	for (int i = 0; fault && i < fault->rules; i++) {
		struct rule *rule = &fault->rule[i];

		if (rule->what != POINT || rule->fired || strcmp(rule->name, name) || ++rule->seen < rule->count)
			continue;
		rule->fired = 1;
		cvy_warn("p2p", "fault plan: %s at %s %llu of the agent", kind_names[rule->kind], name,
			 (unsigned long long)rule->count);
		raise(rule->kind == KILL ? SIGKILL : SIGSTOP);
	}
}

/* Counts one put, signal or read; returns the time for which a LATE rule holds it, else 0. */
static uint64_t pass(struct cvy_fault *fault, enum what what, int peer)
{
	uint64_t late_ns = 0;

	fault->total[what]++;
	fault->in_op[what]++;
	for (int i = 0; i < fault->rules; i++) {
		struct rule *rule = &fault->rule[i];

		if (!due(fault, rule, what))
			continue;
		strike(fault, rule, peer);
		if (rule->kind == LATE)
			late_ns = rule->ns;
	}
	return late_ns;
}

void cvy_fault_read(struct cvy_fault *fault)
{
	pass(fault, READ, -1);
}

/* ---- the transport ---- */

static int forward(struct cvy_link *inner, const struct held *h)
{
	if (h->what == PUT)
		return inner->ops->put ? inner->ops->put(inner, h->offset, h->bytes) : 0;
	if (inner->ops == &cvy_transport_tcp) /* the line as it was when the signal was given */
		return cvy_tcp_signal_line(inner, h->offset, &h->line);
	if (inner->ops == &cvy_transport_verbs)
		return cvy_verbs_signal_line(inner, h->offset, &h->line);
	return inner->ops->signal ? inner->ops->signal(inner, h->offset) : 0;
}

static int release(struct wrapped *w)
{
	int err = 0;

	while (w->first) {
		struct held *h = w->first;

		err = forward(w->inner, h);
		if (err == COVEY_ERR_AGAIN)
			return 0; /* with the next poll */
		w->first = h->next;
		if (!w->first)
			w->last = &w->first;
		w->fault->held--;
		free(h);
	}
	return err;
}

static struct wrapped *pick(struct cvy_fault *fault)
{
	struct wrapped *w, *chosen = NULL;
	unsigned int n = 0;

	for (w = fault->links; w; w = w->next) {
		if (!w->first)
			continue;
		fault->random = fault->random * 1103515245u + 12345u;
		if ((fault->random >> 16) % ++n == 0)
			chosen = w;
	}
	return chosen;
}

static int hold(struct wrapped *w, const struct held *from)
{
	struct held *h = malloc(sizeof(*h));
	struct wrapped *out;

	if (!h)
		return COVEY_ERR_NOMEM;
	*h = *from;
	if (h->due_ns) {
		h->next = w->late;
		w->late = h;
		return 0;
	}
	*w->last = h;
	w->last = &h->next;
	if (++w->fault->held <= w->fault->reorder)
		return 0;
	out = pick(w->fault);
	return release(out) < 0 && out == w ? COVEY_ERR_PEER : 0;
}

static int submit(struct cvy_link *link, const struct held *h)
{
	struct wrapped *w = link->state;

	if (h->due_ns || w->fault->reorder)
		return hold(w, h);
	return forward(w->inner, h);
}

static int fault_put(struct cvy_link *link, size_t offset, size_t bytes)
{
	struct held h = { .what = PUT, .offset = offset, .bytes = bytes };
	struct wrapped *w = link->state;

	pass(w->fault, PUT, w->inner->rank);
	return submit(link, &h);
}

static int fault_signal(struct cvy_link *link, size_t offset)
{
	struct held h = { .what = SIGNAL, .offset = offset };
	struct wrapped *w = link->state;
	uint64_t late_ns = pass(w->fault, SIGNAL, w->inner->rank);

	h.line = *(const struct cvy_line *)(link->own + offset);
	if (late_ns)
		h.due_ns = cvy_now_ns() + late_ns;
	return submit(link, &h);
}

static int late_go(struct wrapped *w)
{
	int err = 0;

	for (struct held **at = &w->late; *at;) {
		struct held *h = *at;

		if (cvy_now_ns() < h->due_ns || (err = forward(w->inner, h)) == COVEY_ERR_AGAIN) {
			at = &h->next;
			continue;
		}
		*at = h->next;
		free(h);
	}
	return err == COVEY_ERR_AGAIN ? 0 : err;
}

static int fault_poll(struct cvy_link *link)
{
	struct wrapped *w = link->state;

	if (late_go(w) < 0 || release(w) < 0)
		return COVEY_ERR_PEER;
	return w->inner->ops->poll ? w->inner->ops->poll(w->inner) : 0;
}

/* A late signal does not count: it represents a write of a stopped process. */
static int fault_unsent(struct cvy_link *link)
{
	struct wrapped *w = link->state;

	return (w->first != NULL) + (w->inner->ops->unsent ? w->inner->ops->unsent(w->inner) : 0);
}

static int fault_fd(struct cvy_link *link, int i, short *events)
{
	struct wrapped *w = link->state;

	return w->inner->ops->fd ? w->inner->ops->fd(w->inner, i, events) : -1;
}

static void forget(struct wrapped *w)
{
	struct held *h;

	while ((h = w->first)) {
		w->first = h->next;
		w->fault->held--;
		free(h);
	}
	w->last = &w->first;
	while ((h = w->late)) {
		w->late = h->next;
		free(h);
	}
}

static void fault_fence(struct cvy_link *link)
{
	struct wrapped *w = link->state;

	forget(w);
	w->inner->ops->fence(w->inner);
}

static void fault_close(struct cvy_link *link)
{
	struct wrapped *w = link->state;

	forget(w);
	CVY_UNLINK(w->fault->links, w, next);
	w->inner->ops->close(w->inner);
	free(w->inner);
	free(w);
	link->state = NULL;
}

const struct cvy_transport cvy_transport_fault = {
	.name = "fault",
	.put = fault_put,
	.signal = fault_signal,
	.poll = fault_poll,
	.unsent = fault_unsent,
	.fd = fault_fd,
	.fence = fault_fence,
	.close = fault_close,
};

struct cvy_link *cvy_fault_wrap(struct cvy_fault *fault, struct cvy_link *inner)
{
	struct cvy_link *link = malloc(sizeof(*link));
	struct wrapped *w = calloc(1, sizeof(*w));

	if (!link || !w) {
		free(link);
		free(w);
		return NULL;
	}
	*link = *inner;
	link->ops = &cvy_transport_fault;
	link->state = w;
	*w = (struct wrapped){ .next = fault->links, .fault = fault, .inner = inner };
	w->last = &w->first;
	fault->links = w;
	return link;
}
