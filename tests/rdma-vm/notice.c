/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long until a dead host is noticed by RDMA alone. Three ranks of one process, each with a device of its own, on
 * one loop: rank 0 writes a line to ranks 1 and 2 every millisecond. There is no heartbeat and no bound on the control
 * links. Again and again the port of host 1 goes down, in silence; what counts is the time until rank 0 hears that the
 * link is lost, why, and the longest gap that rank 2 sees meanwhile, whose link has nothing to do with it.
 */
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "mesh.h"

#define RANKS 3
#define CALM_MS 100    /* of traffic before each cut */
#define BOUND_MS 20000 /* more is a hang */
#define TRIALS_MAX 1000

enum state { CONNECTING, CALM, CUT, OVER };

static struct {
	struct cvy_loop *loop;
	struct cvy_mesh *mesh[RANKS];
	struct cvy_identity id[RANKS];
	int up[RANKS][RANKS]; /* as the first sees its link to the second */
	char cause[256];
	enum state state;
	int trials, trial, connected;
	uint32_t tick;
	uint64_t since_ns, sent_ns, came_ns, gap_ns, worst_ns, took_ns[TRIALS_MAX];
	uint64_t seen; /* by rank 2 */
} n;

struct who {
	int rank;
} who[RANKS] = { { 0 }, { 1 }, { 2 } };

static void fail(const char *what)
{
	printf("verbs-notice: %s, trial %d: %s\n", what, n.trial, n.cause);
	exit(1);
}

static void heard(void *ctx, const struct cvy_event *e)
{
	const struct who *me = ctx;

	if (e->kind == CVY_EV_LINK_UP)
		n.up[me->rank][e->rank] = 1;
	if (e->kind != CVY_EV_LINK_DOWN)
		return;
	n.up[me->rank][e->rank] = 0;
	if (me->rank == 0 && e->rank == 1 && n.state == CUT && !n.took_ns[n.trial]) {
		n.took_ns[n.trial] = cvy_now_ns() - n.since_ns;
		snprintf(n.cause, sizeof(n.cause), "%s", e->text);
	} else if (me->rank == 0 && e->rank == 2) {
		snprintf(n.cause, sizeof(n.cause), "%s", e->text);
		fail("a link that nobody touched was lost");
	}
}

static void port(int host, int up)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct ifreq request;

	memset(&request, 0, sizeof(request));
	snprintf(request.ifr_name, sizeof(request.ifr_name), "port%d", host);
	if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request))
		fail("no such port");
	request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
	if (ioctl(fd, SIOCSIFFLAGS, &request))
		fail("the port does not obey");
	close(fd);
}

/* Rank 0 dials. */
static void connect_to(int rank)
{
	cvy_mesh_expect(n.mesh[rank], 0, n.id[0].inc);
	cvy_mesh_dial(n.mesh[0], rank, n.id[rank].inc, cvy_mesh_addr(n.mesh[rank]), cvy_mesh_host(n.mesh[rank]));
}

static void say(int rank)
{
	struct cvy_page *page = (struct cvy_page *)cvy_mesh_own(n.mesh[0]);
	struct cvy_link *link = cvy_mesh_link(n.mesh[0], rank);

	page->first[0].tag = n.tick;
	if (link && link->ops->signal) {
		link->ops->signal(link, offsetof(struct cvy_page, first[0]));
		link->ops->poll(link);
	}
}

static void look(uint64_t now)
{
	const struct cvy_page *page = (const struct cvy_page *)cvy_mesh_view(n.mesh[2], 0);
	uint64_t tag = __atomic_load_n(&page->first[0].tag, __ATOMIC_ACQUIRE);

	if (tag == n.seen)
		return;
	n.seen = tag;
	if (n.came_ns && n.state == CUT && now - n.came_ns > n.worst_ns)
		n.worst_ns = now - n.came_ns;
	n.came_ns = now;
}

static void begin(enum state state, uint64_t now)
{
	n.state = state;
	n.since_ns = now;
	n.came_ns = now;
}

static void after_the_cut(uint64_t now)
{
	if (!strstr(n.cause, "RDMA"))
		fail("it was noticed, but not by RDMA");
	port(1, 1);
	cvy_mesh_drop(n.mesh[1], 0, n.id[0].inc);
	begin(++n.trial == n.trials ? OVER : CONNECTING, now);
	if (n.state == OVER)
		cvy_loop_stop(n.loop);
	else
		connect_to(1);
}

static void step(void *ctx, uint64_t now)
{
	(void)ctx;
	if (now - n.since_ns > BOUND_MS * CVY_MS)
		fail(n.state == CUT ? "the cut was not noticed" : "no connection");
	if (now - n.sent_ns >= CVY_MS && n.state != OVER) {
		n.sent_ns = now;
		n.tick++;
		for (int r = 1; r < RANKS; r++)
			if (n.up[0][r])
				say(r);
	}
	if (n.up[2][0]) /* before, there is nothing to look at */
		look(now);
	if (n.state == CONNECTING && n.up[0][1] && n.up[1][0] && n.up[0][2] && n.up[2][0]) {
		begin(CALM, now);
	} else if (n.state == CONNECTING) {
		connect_to(1); /* again, if the last try failed; else nothing happens */
		connect_to(2);
	} else if (n.state == CALM && now - n.since_ns > CALM_MS * CVY_MS) {
		port(1, 0);
		begin(CUT, cvy_now_ns());
	} else if (n.state == CUT && n.took_ns[n.trial]) {
		after_the_cut(now);
	}
}

static void open_rank(int r, const char *type, char (*names)[3][32])
{
	struct cvy_config c;
	struct cvy_mesh_args args = { &c, n.loop, { heard, &who[r] }, cvy_errbox_new() };
	struct covey_error_info info;

	memset(&c, 0, sizeof(c));
	snprintf((*names)[0], 32, "h%d", r);
	snprintf((*names)[1], 32, "10.77.0.1%d", r);
	snprintf((*names)[2], 32, "%s%d", type, r);
	c.host = (*names)[0];
	c.interface = (*names)[1];
	c.rdma_device = (*names)[2];
	c.max_ranks = RANKS;
	c.transport = COVEY_TRANSPORT_VERBS;
	c.slot_bytes = 4096;
	c.window_bytes = 1 << 20;
	c.link_ms = -1;
	c.rdma_ms = 500;
	c.tcp_connections = 1;
	if (cvy_mesh_open(&args, &n.mesh[r])) {
		cvy_errbox_get(args.box, &info);
		printf("verbs-notice: rank %d: %s\n", r, info.cause);
		exit(77);
	}
	strcpy(n.id[r].gid, "00112233445566778899aabbccddeeff");
	memset(n.id[r].secret, 7, sizeof(n.id[r].secret));
	n.id[r].rank = r;
	n.id[r].max_ranks = RANKS;
	n.id[r].inc = 100 + (uint64_t)r;
	n.id[r].nonce = 4711 + (uint64_t)r;
	cvy_mesh_identity(n.mesh[r], &n.id[r]);
}

static int ascending(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
	static const int ms = 1;
	char names[RANKS][3][32];
	double p50, p99;

	n.trials = argc > 2 ? atoi(argv[2]) : 10;
	if (argc < 2 || n.trials < 1 || n.trials > TRIALS_MAX) {
		printf("usage: verbs-notice rxe|siw [TRIALS]\n");
		return 64;
	}
	if (cvy_loop_new(&n.loop))
		return 1;
	for (int r = 0; r < RANKS; r++)
		open_rank(r, argv[1], &names[r]);
	begin(CONNECTING, cvy_now_ns());
	connect_to(1);
	connect_to(2);
	cvy_loop_run(n.loop, step, NULL, &ms);
	qsort(n.took_ns, (size_t)n.trials, sizeof(n.took_ns[0]), ascending);
	p50 = (double)n.took_ns[n.trials / 2] / 1e6;
	p99 = (double)n.took_ns[n.trials * 99 / 100] / 1e6;
	printf("a cut port, noticed by RDMA alone: %d times, p50 %.0f ms, p99 %.0f ms, most %.0f ms; longest gap of "
	       "the other pair meanwhile %.0f ms (%s)\n",
	       n.trials, p50, p99, (double)n.took_ns[n.trials - 1] / 1e6, (double)n.worst_ns / 1e6, n.cause);
	for (int r = 0; r < RANKS; r++)
		cvy_mesh_close(n.mesh[r]);
	cvy_loop_free(n.loop);
	return 0;
}
