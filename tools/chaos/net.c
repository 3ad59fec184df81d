/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts as network namespaces. None has a name: a descriptor and its processes hold each one, and the bridge has a
 * namespace of our own too. So simultaneous runs cannot meet, addresses can be fixed, and the kernel removes everything
 * with the last process, also after a SIGKILL. `ip`, `nft` and `tc` do the work, started in the namespace that they
 * change.
 */
#include "net.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 24      /* of one command */
#define BURST "32kb"  /* sent by tbf at once: some frames, and a tick of the kernel at 100 Mbit/s */
#define QUEUE "200ms" /* tbf drops packets that wait longer */

static struct {
	int hosts, home, side[1 + CHAOS_NET_HOSTS]; /* descriptors; side[0]: the store's */
	const char *cables;
} net = { 0, -1, { -1, -1, -1, -1, -1 }, NULL };

static int say(const char *what, const char *why)
{
	fprintf(stderr, "chaos_net: %s: %s\n", what, why);
	return -1;
}

static int known(int host)
{
	return net.home >= 0 && host >= CHAOS_NET_STORE && host < net.hosts;
}

/* Words separated by single blanks; no word contains one. */
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

/* Makes a namespace and enters it with the calling thread; returns its descriptor. */
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

/* The far end of the cable is put into the bridge's namespace, named by a descriptor of ours. */
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

/* ---- hosts that are there already ---- */

static int __attribute__((format(printf, 1, 2))) run_here(const char *format, ...)
{
	char command[256];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	return run(command);
}

/* One device for all hosts: there is no cable. */
static const char *one_device(void)
{
	return net.cables && net.cables[0] == '=' ? net.cables + 1 : NULL;
}

static int cables_open(int hosts)
{
	char path[64];

	for (int h = 0; h < hosts && !one_device(); h++) {
		snprintf(path, sizeof(path), "/sys/class/net/port%d", h);
		if (access(path, F_OK))
			return say(path, "there is no such cable");
	}
	net.hosts = hosts;
	return chaos_net_heal();
}

static int cables_enter(int host)
{
	char text[64];

	snprintf(text, sizeof(text), "h%d", host);
	setenv("COVEY_HOST", text, 1);
	if (one_device())
		return setenv("COVEY_RDMA_DEVICE", one_device(), 1);
	snprintf(text, sizeof(text), "%s%d", net.cables, host);
	setenv("COVEY_RDMA_DEVICE", text, 1);
	return setenv("COVEY_INTERFACE", chaos_net_address(host), 1);
}

/* Dropped where it enters the bridge: other traffic continues. */
static int cables_cut(int from, int to)
{
	if (one_device())
		return say("cut", "one device has no cable to itself");
	return run_here("tc filter add dev port%d parent ffff: protocol ip u32 match ip dst %s/32 action drop", from,
			chaos_net_address(to));
}

static int cables_heal(void)
{
	int err = 0;

	for (int h = 0; h < net.hosts && !one_device(); h++)
		err |= run_here("tc qdisc replace dev port%d handle ffff: ingress", h) ||
		       run_here("tc filter del dev port%d parent ffff:", h);
	return err;
}

int chaos_net_open(int hosts)
{
	int err = -1;

	if (net.home >= 0 || hosts < 1 || hosts > CHAOS_NET_HOSTS)
		return say("open", net.home >= 0 ? "it is open already" : "1 to 4 hosts");
	net.home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (net.home < 0)
		return say("/proc/thread-self/ns/net", strerror(errno));
	net.cables = getenv("CHAOS_CABLES");
	if (net.cables) {
		err = cables_open(hosts);
		if (err)
			chaos_net_close();
		return err;
	}
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
	if (net.cables)
		return host == CHAOS_NET_STORE ? 0 : cables_enter(host);
	return setns(net.side[1 + host], CLONE_NEWNET) ? say("setns", strerror(errno)) : 0;
}

const char *chaos_net_address(int host)
{
	static const char *const address[] = { "10.77.0.1", "10.77.0.10", "10.77.0.11", "10.77.0.12", "10.77.0.13" };

	if (one_device())
		return "127.0.0.1";
	return host >= CHAOS_NET_STORE && host < CHAOS_NET_HOSTS ? address[1 + host] : NULL;
}

/* Dropped at the receiver: a drop at the sender would be reported to it. */
int chaos_net_cut(int from, int to)
{
	if (!known(from) || !known(to) || from == to)
		return say("cut", "there is no such pair of hosts");
	if (net.cables)
		return from < 0 || to < 0 ? say("cut", "the store has no cable") : cables_cut(from, to);
	return run_at(to, "nft add rule inet chaos cuts ip saddr %s drop", chaos_net_address(from));
}

int chaos_net_narrow(int from, int to)
{
	if (!known(from) || !known(to) || from == to || net.cables)
		return say("narrow", "there is no such pair of hosts, or they have cables");
	return run_at(to, "nft add rule inet chaos cuts ip saddr %s ip length > %d drop", chaos_net_address(from),
		      CHAOS_NET_NARROW);
}

int chaos_net_heal(void)
{
	int err = net.home < 0 ? say("heal", "it is not open") : 0;

	if (!err && net.cables)
		return cables_heal();
	for (int h = CHAOS_NET_STORE; net.home >= 0 && h < net.hosts; h++)
		err |= run_at(h, "nft flush chain inet chaos cuts");
	return err;
}

/* The sending end of a cable. `replace` needs no memory of what was there: noqueue is a veth's own state. */
static int shape(int side, const char *device, int kbit)
{
	if (net.cables)
		return kbit ? run_here("tc qdisc replace dev %s root tbf rate %dkbit burst " BURST " latency " QUEUE,
				       device, kbit)
			    : run_here("tc qdisc replace dev %s root noqueue", device);
	if (!kbit)
		return run_at(side, "tc qdisc replace dev %s root noqueue", device);
	return run_at(side, "tc qdisc replace dev %s root tbf rate %dkbit burst " BURST " latency " QUEUE, device,
		      kbit);
}

int chaos_net_slow(int host, int kbit)
{
	char port[16], eth[16];

	if (!known(host) || host == CHAOS_NET_STORE || kbit < 0)
		return say("slow", "there is no such host, or no such rate");
	snprintf(port, sizeof(port), "host%d", host);
	snprintf(eth, sizeof(eth), "eth%d", net.cables ? host : 0);
	if (net.cables)
		snprintf(port, sizeof(port), "port%d", host);
	return shape(host, eth, kbit) || shape(CHAOS_NET_STORE, port, kbit);
}

void chaos_net_close(void)
{
	if (net.home < 0)
		return;
	if (!net.cables && net.side[0] >= 0 && setns(net.home, CLONE_NEWNET)) /* else the thread never left it */
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
