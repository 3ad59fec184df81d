/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts out of network namespaces. None of them has a name: each is held by a descriptor and by the
 * processes in it, and the bridge stands in a namespace of our own too. So runs beside each other cannot meet,
 * the addresses can be fixed, and the kernel removes everything with the last process, also
 * after a SIGKILL. `ip`, `nft` and `tc` do the work, started from within the namespace that they are to change.
 */
#include "net.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 24      /* of one command */
#define BURST "32kb"  /* what tbf lets through at once: some frames, and a tick of the kernel at 100 Mbit/s */
#define QUEUE "200ms" /* what waits longer in tbf is dropped */

static struct {
	int hosts, home, side[1 + CHAOS_NET_HOSTS]; /* descriptors; side[0]: the store's */
} net = { 0, -1, { -1, -1, -1, -1, -1 } };

static int say(const char *what, const char *why)
{
	fprintf(stderr, "chaos_net: %s: %s\n", what, why);
	return -1;
}

static int known(int host)
{
	return net.home >= 0 && host >= CHAOS_NET_STORE && host < net.hosts;
}

/* Words parted by single blanks; no word of ours holds one. */
static int run(const char *command)
{
	char text[256], *argv[WORDS + 1], *save = NULL;
	int count = 0, status, err;
	pid_t pid;

	snprintf(text, sizeof(text), "%s", command);
	for (char *word = strtok_r(text, " ", &save); word && count < WORDS; word = strtok_r(NULL, " ", &save))
		argv[count++] = word;
	argv[count] = NULL;
	if (!count)
		return say("nothing", "no command");
	err = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
	if (err)
		return say(argv[0], strerror(err));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return say(command, strerror(errno));
	return status ? say(command, "failed") : 0;
}

static int __attribute__((format(printf, 2, 3))) run_at(int host, const char *format, ...)
{
	char command[256];
	va_list args;
	int err;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	if (setns(net.side[1 + host], CLONE_NEWNET))
		return say("setns", strerror(errno));
	err = run(command);
	if (setns(net.side[0], CLONE_NEWNET))
		return say("setns back", strerror(errno));
	return err;
}

/* A new namespace, which the calling thread is in then; its descriptor. */
static int make_side(void)
{
	int fd;

	if (unshare(CLONE_NEWNET))
		return say("a network namespace cannot be made", geteuid() ? "only root may" : strerror(errno));
	fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	return fd < 0 ? say("/proc/thread-self/ns/net", strerror(errno)) : fd;
}

/* Loopback and a table in which a cut is one rule. */
static int fill_side(int host)
{
	return run_at(host, "ip link set lo up") || run_at(host, "nft add table inet chaos") ||
	       run_at(host, "nft add chain inet chaos cuts { type filter hook input priority 0 ; }");
}

static int add_bridge(void)
{
	net.side[0] = make_side();
	if (net.side[0] < 0 || fill_side(CHAOS_NET_STORE))
		return -1;
	return run_at(CHAOS_NET_STORE, "ip link add hosts type bridge") ||
	       run_at(CHAOS_NET_STORE, "ip address add %s/24 dev hosts", chaos_net_address(CHAOS_NET_STORE)) ||
	       run_at(CHAOS_NET_STORE, "ip link set hosts up");
}

/* The far end of the cable goes into the bridge's namespace, which needs no name: a descriptor of ours names it. */
static int add_host(int host)
{
	net.side[1 + host] = make_side();
	if (net.side[1 + host] < 0)
		return -1;
	net.hosts = host + 1;
	return fill_side(host) ||
	       run_at(host, "ip link add eth0 type veth peer name host%d netns /proc/%d/fd/%d", host, (int)getpid(),
		      net.side[0]) ||
	       run_at(host, "ip address add %s/24 dev eth0", chaos_net_address(host)) ||
	       run_at(host, "ip link set eth0 up") ||
	       run_at(CHAOS_NET_STORE, "ip link set host%d master hosts up", host);
}

int chaos_net_open(int hosts)
{
	int err = -1;

	if (net.home >= 0 || hosts < 1 || hosts > CHAOS_NET_HOSTS)
		return say("open", net.home >= 0 ? "it is open already" : "1 to 4 hosts");
	net.home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (net.home < 0)
		return say("/proc/thread-self/ns/net", strerror(errno));
	err = add_bridge();
	for (int h = 0; !err && h < hosts; h++)
		err = add_host(h);
	if (err)
		chaos_net_close();
	return err;
}

int chaos_net_enter(int host)
{
	if (!known(host))
		return say("enter", "there is no such host");
	return setns(net.side[1 + host], CLONE_NEWNET) ? say("setns", strerror(errno)) : 0;
}

const char *chaos_net_address(int host)
{
	static const char *const address[] = { "10.77.0.1", "10.77.0.10", "10.77.0.11", "10.77.0.12", "10.77.0.13" };

	return host >= CHAOS_NET_STORE && host < CHAOS_NET_HOSTS ? address[1 + host] : NULL;
}

/* Dropped where it arrives: where it leaves the sender would be told. */
int chaos_net_cut(int from, int to)
{
	if (!known(from) || !known(to) || from == to)
		return say("cut", "there is no such pair of hosts");
	return run_at(to, "nft add rule inet chaos cuts ip saddr %s drop", chaos_net_address(from));
}

int chaos_net_heal(void)
{
	int err = net.home < 0 ? say("heal", "it is not open") : 0;

	for (int h = CHAOS_NET_STORE; net.home >= 0 && h < net.hosts; h++)
		err |= run_at(h, "nft flush chain inet chaos cuts");
	return err;
}

/* The sending end of a cable. `replace` needs no memory of what was there: noqueue is a veth's own state. */
static int shape(int side, const char *device, int kbit)
{
	if (!kbit)
		return run_at(side, "tc qdisc replace dev %s root noqueue", device);
	return run_at(side, "tc qdisc replace dev %s root tbf rate %dkbit burst " BURST " latency " QUEUE, device,
		      kbit);
}

int chaos_net_slow(int host, int kbit)
{
	char port[16];

	if (!known(host) || host == CHAOS_NET_STORE || kbit < 0)
		return say("slow", "there is no such host, or no such rate");
	snprintf(port, sizeof(port), "host%d", host);
	return shape(host, "eth0", kbit) || shape(CHAOS_NET_STORE, port, kbit);
}

void chaos_net_close(void)
{
	if (net.home < 0)
		return;
	if (net.side[0] >= 0 && setns(net.home, CLONE_NEWNET)) /* else we never left it */
		say("setns home", strerror(errno));
	close(net.home);
	net.home = -1;
	net.hosts = 0;
	for (int i = 0; i <= CHAOS_NET_HOSTS; i++) {
		if (net.side[i] >= 0)
			close(net.side[i]);
		net.side[i] = -1;
	}
}
