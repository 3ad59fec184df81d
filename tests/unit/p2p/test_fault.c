/* SPDX-License-Identifier: Apache-2.0 */
/* Fault plans: what is refused, and that each strikes where it says. */
#include "../../suite.h"
#include "rig.h"

#include <sys/wait.h>

#include "fault.h"

static struct rig rig;
static size_t line0 = offsetof(struct cvy_page, first[0]);

static void connect_with(const char *plan)
{
	struct cvy_config a, b;

	memset(&rig, 0, sizeof(rig));
	ck_assert_int_eq(cvy_loop_new(&rig.loop), 0);
	rig_config(&a, 0, "one");
	rig_config(&b, 0, "two");
	unsetenv("COVEY_FAULT");
	rig_open(&rig, 0, &a);
	setenv("COVEY_FAULT", plan, 1);
	rig_open(&rig, 1, &b);
	rig_connect(&rig);
	rig_run(&rig, rig_both_up);
}

/* One put and signal of rank 1 with this tag. */
static void publish(uint32_t tick)
{
	struct cvy_link *link = cvy_mesh_link(rig.rank[1].mesh, 0);
	struct cvy_page *own = (struct cvy_page *)cvy_mesh_own(rig.rank[1].mesh);

	own->first[0].tag = cvy_tag(1, tick);
	ck_assert_int_eq(link->ops->put(link, cvy_mesh_layout(rig.rank[1].mesh).slots, 4096), 0);
	ck_assert_int_eq(link->ops->signal(link, line0), 0);
}

/* Polls both sides until rank 0 sees this tag. */
static int seen(uint32_t tick)
{
	struct cvy_link *out = cvy_mesh_link(rig.rank[1].mesh, 0), *in = cvy_mesh_link(rig.rank[0].mesh, 1);
	struct cvy_page *page = (struct cvy_page *)cvy_mesh_view(rig.rank[0].mesh, 1);
	uint64_t deadline = cvy_now_ns() + RIG_BOUND_NS;

	while (page->first[0].tag != cvy_tag(1, tick) && cvy_now_ns() < deadline) {
		out->ops->poll(out);
		in->ops->poll(in);
	}
	return page->first[0].tag == cvy_tag(1, tick);
}

static const char *const bad[] = { "kill",
				   "kill@put:0",
				   "kill@put:x",
				   "boom@put:1",
				   "cut@put:1",
				   "cut:1@put:1x",
				   "delay@put:1",
				   "delay@put:1:20",
				   "late@put:1:20ms",
				   "reorder:0",
				   "kill@agent:lunch",
				   "kill@agent:report:0",
				   "delay@agent:report:1ms",
				   "kill@op:.put:1",
				   "kill@put:1;;",
				   "kill@op:0.put:1",
				   "delay@put:1:11s" };

TEST_LOOP(a_bad_plan_is_refused, 0, (int)(sizeof(bad) / sizeof(*bad)))
{
	struct cvy_fault *fault = NULL;

	ck_assert_int_eq(cvy_fault_open(bad[_i], NULL, &fault), COVEY_ERR_INVAL);
}

TEST(a_good_plan_is_read)
{
	struct cvy_fault *fault = NULL;

	ck_assert_int_eq(cvy_fault_open("kill@put:37;kill@op:12.put:2;stop@put:5;delay@put:3:20ms;cut:1@put:9;"
					"late@op:dispatch:3.signal:2:1s;kill@op:barrier.signal:1;reorder:4;kill@agent:"
					"report;stop@agent:COMMIT:2;scribble@op:3.signal:1;stop@op:gather:2.read:1",
					NULL, &fault),
			 0);
	cvy_fault_close(fault);
}

TEST(it_kills_at_the_put_it_names)
{
	int status, p[2];
	char sent = 0, c;
	pid_t child;

	ck_assert_int_eq(pipe(p), 0);
	child = fork();
	if (!child) {
		connect_with("kill@op:gather:2.put:2");
		for (uint64_t seq = 1; seq < 5; seq++) {
			cvy_fault_op(cvy_mesh_fault(rig.rank[1].mesh), seq, seq % 2 ? "gather" : "barrier");
			for (int i = 0; i < 3; i++) {
				publish((uint32_t)seq);
				if (write(p[1], "x", 1) != 1)
					_exit(1);
			}
		}
		_exit(0);
	}
	close(p[1]);
	while (read(p[0], &c, 1) == 1)
		sent++;
	waitpid(child, &status, 0);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_int_eq(sent, 7); /* seq 1 and 2 whole, of seq 3 (the second gather) one */
	close(p[0]);
}

TEST(it_kills_where_the_agent_comes_by)
{
	struct cvy_fault *fault = NULL;
	int status;
	pid_t child = fork();

	if (!child) {
		if (cvy_fault_open("kill@agent:COMMIT:2", NULL, &fault))
			_exit(1);
		cvy_fault_point(fault, "COMMIT");
		cvy_fault_point(fault, "report");
		cvy_fault_point(fault, "COMMIT");
		_exit(0);
	}
	waitpid(child, &status, 0);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(a_late_signal_brings_its_old_line)
{
	connect_with("late@signal:1:1ms");
	publish(5);
	((struct cvy_page *)cvy_mesh_own(rig.rank[1].mesh))->first[0].tag = cvy_tag(1, 6);
	ck_assert(seen(5));
	rig_close(&rig);
}

TEST(reordered_puts_all_arrive_in_the_order_of_their_link)
{
	connect_with("reorder:3");
	for (uint32_t t = 1; t < 20; t++)
		publish(t);
	ck_assert(seen(19));
	ck_assert(!cvy_mesh_link(rig.rank[1].mesh, 0)->ops->unsent(cvy_mesh_link(rig.rank[1].mesh, 0)));
	rig_close(&rig);
}

static int both_down(struct rig *r)
{
	return r->rank[0].downs == 1 && r->rank[1].downs == 1;
}

TEST(a_cut_link_goes_down_on_both_sides)
{
	connect_with("cut:0@put:2");
	publish(1);
	publish(2);
	rig_run(&rig, both_down);
	ck_assert_str_eq(rig.rank[1].cause, "cut by the fault plan");
	rig_close(&rig);
}

SUITE_MAIN(.name = "p2p/fault", .timeout_s = 60)
