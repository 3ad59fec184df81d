/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four ranks on two hosts (namespaces): killed, cut off from each other in both directions and in one, cut off
 * from the store, slowed down; as several users, in PID namespaces, on hosts of one name. Nothing is timed; a watchdog calls a hang.
 *
 * labels: redis real
 */
#include "hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAYS 5

static struct hosts hosts;

/* Some rank goes on without the other host: 0 until one does, then its rank + 1. */
static int alone(void)
{
	for (int r = 0; r < RANKS; r++)
		if (!(hosts.shared->mask[r] & (r < 2 ? 12u : 3u)) && hosts.shared->mask[r])
			return r + 1;
	return 0;
}

/*
 * Both hosts see the store, so it decides at once who stays. Which ranks these are depends on who complained first:
 * what holds is that they are of one host, go on meanwhile, and that the others learn it and come back after heal.
 */
static void apart_and_together(void)
{
	uint64_t end = harness_deadline(WATCHDOG_MS);
	int stays, fenced = 0;

	while (!(stays = alone()))
		must(harness_now_ns() < end, "no side goes on");
	stays--;
	hosts_progress(&hosts, 1u << stays);
	must(!chaos_net_heal(), "no heal");
	hosts_until_mask(&hosts, ALL, ALL);
	hosts_progress(&hosts, ALL);
	for (int r = 0; r < RANKS; r++)
		fenced += hosts.shared->fenced[r] != 0;
	must(fenced >= 2 && !hosts.shared->fenced[stays], "%d ranks were fenced, rank %d %llu times", fenced, stays,
	     (unsigned long long)hosts.shared->fenced[stays]);
}

TEST(hosts_are_hosts_to_the_group)
{
	hosts_open(&hosts, "links");
	hosts_begin(&hosts);
	hosts_links(&hosts);
	hosts_finish(&hosts, ALL);
}

TEST(a_killed_rank_is_replaced_across_hosts)
{
	hosts_open(&hosts, "kill");
	hosts_begin(&hosts);
	for (int victim = 3; victim >= 2; victim--) {
		hosts_kill(&hosts, victim);
		hosts_until_mask(&hosts, ALL & ~(1u << victim), ALL & ~(1u << victim));
		hosts_start(&hosts, victim, 1);
		hosts_until_mask(&hosts, ALL, ALL);
	}
	hosts_links(&hosts);
	hosts_finish(&hosts, ALL);
}

/* One name for all hosts, a user for each rank, a PID namespace for each rank, and all of these. */
TEST_LOOP(ranks_of_namespaces_and_users_are_replaced, 0, WAYS)
{
	static const unsigned ways[WAYS] = { HOSTS_ONE_NAME, HOSTS_USERS, HOSTS_PIDS, HOSTS_PIDS | HOSTS_OUTER_PROC,
					     HOSTS_ONE_NAME | HOSTS_USERS | HOSTS_PIDS };

	hosts_open(&hosts, "apart");
	hosts.ways = ways[_i];
	hosts_begin(&hosts);
	hosts_links(&hosts);
	hosts_kill(&hosts, 2);
	hosts_until_mask(&hosts, ALL & ~4u, ALL & ~4u);
	hosts_start(&hosts, 2, 1);
	hosts_until_mask(&hosts, ALL, ALL);
	hosts_links(&hosts);
	for (int r = 0; r < RANKS; r++)
		must(!hosts.shared->fenced[r], "rank %d was fenced", r);
	hosts_finish(&hosts, ALL);
}

/* Nobody of the host is left to prove it; the store is the witness that lets half go on. */
TEST(a_whole_host_dies)
{
	hosts_open(&hosts, "host");
	hosts_begin(&hosts);
	hosts_kill(&hosts, 2);
	hosts_kill(&hosts, 3);
	hosts_until_mask(&hosts, 3, 3);
	hosts_progress(&hosts, 3);
	hosts_finish(&hosts, 3);
}

TEST(half_and_half_one_side_goes_on_the_other_is_fenced)
{
	hosts_cut_begin(&hosts, "halves");
	hosts_partition(0, 1);
	apart_and_together();
	hosts_finish(&hosts, ALL);
}

/* The side without the store can decide nothing: it waits, and learns after heal that it is out. */
TEST(half_without_the_store_waits_and_is_fenced_on_heal)
{
	uint64_t at;

	hosts_cut_begin(&hosts, "blind");
	hosts_partition(0, 1);
	hosts_partition(0, CHAOS_NET_STORE);
	hosts_until_mask(&hosts, 12, 12);
	at = hosts.shared->at[0];
	hosts_progress(&hosts, 12);
	must(hosts.shared->at[0] == at && hosts.shared->mask[0] == ALL && !hosts.shared->fenced[0],
	     "the side without a store went on");
	must(!chaos_net_heal(), "no heal");
	hosts_until_mask(&hosts, ALL, ALL);
	for (int r = 0; r < RANKS; r++)
		must(hosts.shared->fenced[r] == (r < 2), "rank %d was fenced %llu times", r,
		     (unsigned long long)hosts.shared->fenced[r]);
	hosts_progress(&hosts, ALL);
	hosts_finish(&hosts, ALL);
}

/* A path that one direction of is lost carries no connection: it ends like a partition. */
TEST_LOOP(a_one_way_cut_ends_like_a_partition, 0, 2)
{
	hosts_cut_begin(&hosts, "oneway");
	must(!chaos_net_cut(_i, 1 - _i), "no cut");
	apart_and_together();
	hosts_finish(&hosts, ALL);
}

/* Short packets pass, so connections are made and PINGs are heard; data never come. It ends like a partition, too. */
TEST_LOOP(a_path_that_carries_no_long_packets_ends_like_a_partition, 0, 2)
{
	hosts_cut_begin(&hosts, "narrow");
	must(!chaos_net_narrow(0, 1) && (_i || !chaos_net_narrow(1, 0)), "not narrowed");
	apart_and_together();
	hosts_finish(&hosts, ALL);
}

/* Host 1 sees its peers but no store, in one direction or both; somebody dies, and it has its calls relayed. */
TEST_LOOP(a_host_without_the_store_is_relayed, 0, 2)
{
	hosts_open(&hosts, "relay");
	hosts_begin(&hosts);
	must(!chaos_net_cut(1, CHAOS_NET_STORE), "no cut");
	if (_i)
		must(!chaos_net_cut(CHAOS_NET_STORE, 1), "no cut");
	hosts_kill(&hosts, 3);
	hosts_until_mask(&hosts, 7, 7);
	hosts_progress(&hosts, 7);
	must(!chaos_net_heal(), "no heal");
	hosts_start(&hosts, 3, 1);
	hosts_until_mask(&hosts, ALL, ALL);
	must(!hosts.shared->fenced[2], "rank 2 was fenced");
	hosts_finish(&hosts, ALL);
}

/* Late is not dead: 20 Mbit/s for a host, and nobody is left out. */
TEST(a_slow_link_costs_nobody_the_membership)
{
	hosts_open(&hosts, "slow");
	hosts_begin(&hosts);
	must(!chaos_net_slow(1, 20000), "not slowed");
	hosts_progress(&hosts, ALL);
	hosts_kill(&hosts, 1);
	hosts_until_mask(&hosts, 13, 13);
	hosts_progress(&hosts, 13);
	must(!chaos_net_slow(1, 0), "not undone");
	hosts_start(&hosts, 1, 1);
	hosts_until_mask(&hosts, ALL, ALL);
	for (int r = 0; r < RANKS; r++)
		must(!hosts.shared->fenced[r], "rank %d was fenced", r);
	hosts_finish(&hosts, ALL);
}

/* In a child, since it moves into another network. */
static int no_hosts(void)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(chaos_net_open(1) != 0);
	return waitpid(pid, &status, 0) != pid || status;
}

int main(void)
{
	if (no_hosts()) {
		fprintf(stderr, "skipped: hosts need root and network namespaces\n");
		return 77;
	}
	return harness_main(SUITE(.name = "hosts/hosts"));
}
