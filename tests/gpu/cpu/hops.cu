/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine over two hops where queues lead to ranks of other hosts, or to all ranks: neighbours without mapped
 * memory, too. Every byte against the oracle, and no line is written while a put of it is under way. Then two ranks are
 * lost, one after the other, each at one of several places: all that are left agree on the result, and it is right.
 *
 * Each group is a process of its own, which ends if its ranks wait for each other for ever.
 */
#include "ep_hosts.cuh"
#include "wires.cuh"

#include <sys/wait.h>

#define HANGS_S 60
#define BRINGS 12 /* lines, at most, that come between two looks of a proxy */

enum links { HOSTS, ALL, LINKS }; /* where queues lead */
static const char *const link_names[] = { "hosts by queues", "all by queues" };

/* Of who is lost: it never came, it has sent and passes nothing on, it is anywhere, a survivor's gate has closed before. */
enum place { ABSENT, SENT, ANYWHERE, GATE, WHERES };
static const char *const place_names[] = { "absent", "sent", "anywhere", "gate" };

static const struct topology worlds[] = {
	{ "2x2", 4, { 0, 0, 1, 1 } },
	{ "2x2, in turn", 4, { 0, 1, 0, 1 } },
	{ "3+1", 4, { 0, 0, 0, 1 } },
	{ "2 and three alone", 5, { 0, 0, 1, 2, 3 } }, /* so many blocks that a step has a part of a row */
};

static enum links links;

static int far(int a, int b)
{
	return links == ALL || hosts[a] != hosts[b];
}

static void connect(const struct topology *t, enum links given)
{
	n = t->ranks;
	links = given;
	wire_lines = BRINGS;
	open_all();
	make_room();
	for (int r = 0; r < n; r++)
		freeze(r);
	memcpy(hosts, t->host, sizeof(hosts));
	for (int r = 0; r < n; r++)
		open_post(r);
	for (int a = 0; a < n; a++)
		for (int b = a + 1; b < n; b++)
			connect_anew(a, b);
	by_queues = CVY_GPU_FAR;
	place_ranks(t);
}

static struct setup setup_of(int hidden, int tokens, int lanes)
{
	struct setup s = {};

	s.shape.hidden = hidden;
	s.shape.tokens = tokens;
	s.shape.top_k = 4;
	s.shape.experts = 3 * n;
	s.shape.once = s.shape.hops = 1;
	s.lanes = lanes;
	s.fill_tail = 1;
	for (int e = 0; e < s.shape.experts; e++)
		s.owner[e] = e % n;
	return s;
}

static void expect_whole_lines(const struct setup *s, const char *what)
{
	settle();
	checks++;
	if (wire_spoilt)
		complain(s, what, 0, "lines that were written while they were under way", 0, (unsigned)wire_spoilt, 0);
}

/* By all who are there. */
static void pair(const struct setup *s, const char *what)
{
	go(s, CVY_GPU_DISPATCH, mask);
	synchronise();
	check_dispatch(s, what, mask, mask, 0);
	expect_missing(s, what, mask, 0);
	compute(s, mask);
	go(s, CVY_GPU_COMBINE, mask);
	synchronise();
	check_combine(s, what, mask, mask);
	expect_missing(s, what, mask, 0);
	expect_whole_lines(s, what);
}

/* Steps that take the last ones' place in slots, parts of rows, rows in e4m3, two phases. */
static void healthy(void)
{
	static const struct {
		int hidden, tokens, lanes, code, split;
	} all[] = {
		{ 136, 8, 8, 0, 0 },  { 264, 40, 1, 1, 0 }, { 2048, 24, 2, 0, 1 },
		{ 7168, 9, 1, 1, 0 }, { 8192, 3, 1, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && !failures; i++) {
		struct setup s = setup_of(all[i].hidden, all[i].tokens, all[i].lanes);
		struct cvy_ep_form form;

		seed = i + 1;
		s.shape.code = all[i].code;
		s.split = all[i].split;
		prepare(&s);
		form_now(&s, 0, &form);
		printf("  hidden %d: %d steps, rows in %d parts\n", s.shape.hidden, form.steps, form.slices);
		for (int again = 0; again < 3; again++)
			pair(&s, "healthy");
	}
}

/* Launches of an operation in which @victim is lost. */
static void begin(const struct setup *s, int kind, enum place place, int victim)
{
	const uint32_t left = mask & ~(1u << victim);

	if (place == SENT)
		launch_ep(s, victim, kind, CVY_EP_SEND);
	if (place == GATE) {
		const int one = __builtin_ctz(left);

		OK(ranks[one].gpu, ops->gate(ranks[one].gpu, CVY_GPU_GATE_CLOSED(epoch)));
	}
	go(s, kind, place == ABSENT || place == SENT ? left : mask);
	usleep(1000 + (useconds_t)below(4000));
}

/* The next view, by what the others have completed. */
static void remove_rank(int victim)
{
	const uint32_t left = mask & ~(1u << victim);
	uint64_t base = 0;

	for (int r = 0; r < n; r++)
		if (mask >> r & 1)
			freeze(r);
	settle();
	for (int r = 0; r < n; r++)
		if (left >> r & 1 && finished(r) > base)
			base = finished(r);
	epoch++;
	for (int r = 0; r < n; r++)
		if (left >> r & 1)
			thaw(r, left, base, 1u << victim);
	end(victim);
	for (int r = 0; r < n; r++)
		if (left >> r & 1)
			CUDA(cudaStreamSynchronize(ranks[r].stream));
	mask = left;
}

/* Contributors by the status of all who are left: with the victim, or without it. */
static uint32_t agreed(const struct setup *s, const char *what, uint32_t before)
{
	uint32_t first = 0;

	for (int r = 0; r < n; r++) {
		uint32_t said;

		if (!(mask >> r & 1))
			continue;
		said = (uint32_t)status_of(r).mask;
		first = first ? first : said;
		checks++;
		if (said != first || (said != mask && said != before))
			complain(s, what, r, "contributors", 0, said, first);
	}
	return first;
}

static void lose(int kind, enum place place, int victim)
{
	struct setup s = setup_of(264, 24, 2);
	const uint32_t before = mask;
	uint32_t with;

	prepare(&s);
	if (kind == CVY_GPU_COMBINE) {
		go(&s, CVY_GPU_DISPATCH, mask);
		synchronise();
		check_dispatch(&s, "before it is lost", mask, mask, 0);
		compute(&s, mask);
	}
	begin(&s, kind, place, victim);
	remove_rank(victim);
	with = agreed(&s, place_names[place], before);
	expect_missing(&s, place_names[place], mask, 0);
	if (kind == CVY_GPU_DISPATCH)
		check_dispatch(&s, place_names[place], with, mask, 0);
	else
		check_combine(&s, place_names[place], with, mask);
	printf("  %d lost, %s, in a %s that ends with %x\n", victim, place_names[place],
	       kind == CVY_GPU_DISPATCH ? "dispatch" : "combine", with);
	pair(&s, "without it");
}

/* First @victim, then another one of another host or of the same, at the next place, in the other operation. */
static void losses(int victim, int place)
{
	const int kind = (victim + place) % 2 ? CVY_GPU_COMBINE : CVY_GPU_DISPATCH;

	seed = (uint64_t)(victim * WHERES + place + 1);
	lose(kind, (enum place)place, victim);
	lose(CVY_GPU_DISPATCH + CVY_GPU_COMBINE - kind, (enum place)((place + 1) % WHERES),
	     (victim + 1 + place % 3) % 4);
}

/* A group in a process of its own. @victim: -1: nobody is lost. */
static int group(const struct topology *t, enum links given, int victim, int place)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		alarm(HANGS_S);
		connect(t, given);
		if (victim < 0)
			healthy();
		else
			losses(victim, place);
		printf("%s, %s: %d checks, %d failed\n", t->name, link_names[given], checks, failures);
		fflush(stdout);
		_exit(failures != 0);
	}
	if (waitpid(pid, &status, 0) == pid && !status)
		return 0;
	printf("%s, %s, victim %d, %s: %s\n", t->name, link_names[given], victim, victim < 0 ? "-" : place_names[place],
	       WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "ranks wait for ever" : "failed");
	return 1;
}

int main(void)
{
	int failed = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int l = 0; l < LINKS; l++) {
		for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++)
			failed += group(&worlds[i], (enum links)l, -1, 0);
		for (int i = 0; i < 4 * WHERES; i++)
			failed += group(&worlds[0], (enum links)l, i / WHERES, i % WHERES);
	}
	printf("%d groups failed\n", failed);
	return failed != 0;
}
