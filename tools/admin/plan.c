/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resources of N ranks. Descriptors and addresses follow from how a member is built: tests/unit/tools/plan.sh
 * compares them with a real group. Memory is the most that slots take; a window's pages are touched as they are used.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "interface.h"

#define FD_SELF 10	/* loop, store, window, recorder, watcher, listener of this host */
#define LISTENERS 4	/* addresses in the store for peers on other hosts, at most */
#define FD_LOCAL 4	/* a peer of this host: control link, pidfd, two files of /proc */
#define FD_LOCAL_TCP 5	/* the same with COVEY_TRANSPORT=tcp */
#define FD_FAR 2	/* a peer of another host: control link and data */
#define PAGE_BYTES 4096 /* signals, in front of the slots */
#define SLOTS 8		/* two halves of 4 */

/* A size from the environment, read as the library does; doctor and join report wrong values. */
static uint64_t setting(const char *name, uint64_t fallback)
{
	const char *text = getenv(name);
	uint64_t value;
	char *end;

	if (!text || !*text)
		return fallback;
	value = strtoull(text, &end, 10);
	if (*end == 'K' || *end == 'k')
		value <<= 10;
	else if (*end == 'M' || *end == 'm')
		value <<= 20;
	else if (*end == 'G' || *end == 'g')
		value <<= 30;
	return value ? value : fallback;
}

struct need {
	int ranks, max_ranks;
	uint64_t addresses, shm, mirrors_per_far, undo;
	int fd_one_host, fd_one_host_tcp, fd_far;
};

/* One for each address in the store; one also if there is none. */
static int listeners(void)
{
	static struct cvy_interface list[CVY_INTERFACES];
	const char *text = getenv("COVEY_INTERFACE");
	int taken;

	cvy_interface_list(text ? text : "", list, CVY_INTERFACES, &taken);
	return taken < 1 ? 1 : taken < LISTENERS ? taken : LISTENERS;
}

static struct need work_out(int ranks)
{
	int fd_self = FD_SELF + listeners();
	uint64_t slots = PAGE_BYTES + SLOTS * setting("COVEY_SLOT_BYTES", 131072);
	uint64_t most = setting("COVEY_MAX_RANKS", 64);
	struct need n = { .ranks = ranks };

	n.max_ranks = most < (uint64_t)ranks ? ranks : (int)most;
	n.addresses = setting("COVEY_WINDOW_BYTES", 4294967296) * (uint64_t)n.max_ranks;
	n.shm = slots;
	n.mirrors_per_far = slots;
	n.undo = setting("COVEY_UNDO_BYTES", 67108864);
	n.fd_one_host = fd_self + FD_LOCAL * (ranks - 1);
	n.fd_one_host_tcp = fd_self + FD_LOCAL_TCP * (ranks - 1);
	n.fd_far = fd_self + FD_FAR * (ranks - 1);
	return n;
}

static void print_json(const struct need *n)
{
	json_t *json =
		json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i}", "ranks", n->ranks, "max_ranks",
			  n->max_ranks, "address_bytes_per_rank", (json_int_t)n->addresses, "shared_bytes_per_rank",
			  (json_int_t)n->shm, "shared_bytes_per_host", (json_int_t)(n->shm * (uint64_t)n->ranks),
			  "mirror_bytes_per_far_peer", (json_int_t)n->mirrors_per_far, "undo_bytes",
			  (json_int_t)n->undo, "descriptors_per_rank", n->fd_one_host, "descriptors_per_rank_tcp",
			  n->fd_one_host_tcp, "descriptors_per_rank_far", n->fd_far);

	if (json && !json_dumpf(json, stdout, JSON_INDENT(2)))
		putchar('\n');
	json_decref(json);
}

int admin_plan(const struct admin *a)
{
	struct need n = work_out(a->ranks[0]);

	if (a->json) {
		print_json(&n);
		return EXIT_DONE;
	}
	printf("%d ranks, at most %d\n\n", n.ranks, n.max_ranks);
	printf("each rank\n");
	printf("  addresses        %10.1f GiB  reserved, no memory behind them (COVEY_WINDOW_BYTES x "
	       "COVEY_MAX_RANKS)\n",
	       (double)n.addresses / (1 << 30));
	printf("  shared memory    %10.1f MiB  at most, without buffers of experts (8 x COVEY_SLOT_BYTES and a page)\n",
	       (double)n.shm / (1 << 20));
	printf("  private memory   %10.1f MiB  at most for each peer on another host, a mirror of its slots\n",
	       (double)n.mirrors_per_far / (1 << 20));
	printf("                   %10.1f MiB  at most while a large operation is in place (COVEY_UNDO_BYTES)\n",
	       (double)n.undo / (1 << 20));
	printf("  descriptors      %10d      all ranks on one host\n", n.fd_one_host);
	printf("                   %10d      all ranks on one host, COVEY_TRANSPORT=tcp\n", n.fd_one_host_tcp);
	printf("                   %10d      every rank on a host of its own\n", n.fd_far);
	printf("a host with all of them\n");
	printf("  shared memory    %10.1f MiB  counted against memory, and /dev/shm's limits do not apply to it\n",
	       (double)n.shm * n.ranks / (1 << 20));
	return EXIT_DONE;
}
