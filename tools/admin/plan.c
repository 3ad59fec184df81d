/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resources of N ranks. Descriptors and addresses follow from how a member is built: tests/unit/tools/admin_views.sh
 * compares them with a real group. Memory is the most that slots take; a window's pages are touched as they are used.
 * Memory of a device is as the library allocates it (needs.h).
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "interface.h"
#include "needs.h"

#define FD_SELF 10	/* loop, store, window, recorder, watcher, listener of this host */
#define LISTENERS 4	/* addresses in the store for peers on other hosts, at most */
#define FD_LOCAL 4	/* a peer of this host: control link, pidfd, two files of /proc */
#define FD_LOCAL_TCP 5	/* the same with COVEY_TRANSPORT=tcp */
#define FD_FAR 2	/* a peer of another host: control link and data */
#define PAGE_BYTES 4096 /* signals, in front of the slots */
#define SLOTS 8		/* two halves of 4 */

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
	uint64_t slots = PAGE_BYTES + SLOTS * tool_setting("COVEY_SLOT_BYTES", 131072);
	uint64_t most = tool_setting("COVEY_MAX_RANKS", 64);
	struct need n = { .ranks = ranks };

	n.max_ranks = most < (uint64_t)ranks ? ranks : (int)most;
	n.addresses = tool_setting("COVEY_WINDOW_BYTES", 4294967296) * (uint64_t)n.max_ranks;
	n.shm = slots;
	n.mirrors_per_far = slots;
	n.undo = tool_setting("COVEY_UNDO_BYTES", 67108864);
	n.fd_one_host = fd_self + FD_LOCAL * (ranks - 1);
	n.fd_one_host_tcp = fd_self + FD_LOCAL_TCP * (ranks - 1);
	n.fd_far = fd_self + FD_FAR * (ranks - 1);
	return n;
}

static struct cvy_gpu_needs on_device(const struct need *n)
{
	return cvy_gpu_needs_of(n->ranks, tool_setting("COVEY_DEVICE_WINDOW_BYTES", 0));
}

static json_t *device_json(const struct cvy_gpu_needs *d)
{
	return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:i}", "ranks_most", CVY_GPU_RANKS, "chunk_bytes",
			 (json_int_t)d->chunks, "own_bytes", (json_int_t)d->own, "window_bytes", (json_int_t)d->window,
			 "pinned_bytes", (json_int_t)d->pinned, "address_bytes", (json_int_t)d->addresses, "mappings",
			 d->mappings, "descriptors", d->descriptors);
}

static void print_device(const struct cvy_gpu_needs *d)
{
	printf("the device of each rank, all ranks on one host (this build: at most %d ranks)\n", CVY_GPU_RANKS);
	printf("  device memory    %10.1f MiB  that the other ranks write into, %d MiB each\n",
	       (double)d->chunks / (1 << 20), (int)(CVY_GPU_CHUNK >> 20));
	printf("                   %10.1f MiB  words, tables, and inputs of operations in place\n",
	       (double)d->own / (1 << 20));
	printf("                   %10.1f MiB  registered memory (COVEY_DEVICE_WINDOW_BYTES)\n",
	       (double)d->window / (1 << 20));
	printf("  host memory      %10.1f MiB  pinned\n", (double)d->pinned / (1 << 20));
	printf("  addresses        %10.1f GiB  reserved, no memory behind them\n", (double)d->addresses / (1 << 30));
	printf("  mappings         %10d      of memory of the other ranks\n", d->mappings);
	printf("  descriptors      %10d      besides those above\n", d->descriptors);
}

static void print_json(const struct need *n, const struct cvy_gpu_needs *d)
{
	json_t *json =
		json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i}", "ranks", n->ranks, "max_ranks",
			  n->max_ranks, "address_bytes_per_rank", (json_int_t)n->addresses, "shared_bytes_per_rank",
			  (json_int_t)n->shm, "shared_bytes_per_host", (json_int_t)(n->shm * (uint64_t)n->ranks),
			  "mirror_bytes_per_far_peer", (json_int_t)n->mirrors_per_far, "undo_bytes",
			  (json_int_t)n->undo, "descriptors_per_rank", n->fd_one_host, "descriptors_per_rank_tcp",
			  n->fd_one_host_tcp, "descriptors_per_rank_far", n->fd_far);

	if (json && d)
		json_object_set_new(json, "device", device_json(d));
	if (json && !json_dumpf(json, stdout, JSON_INDENT(2)))
		putchar('\n');
	json_decref(json);
}

int admin_plan(const struct admin *a)
{
	struct need n = work_out(a->ranks[0]);
	struct cvy_gpu_needs d = on_device(&n);

	if (a->device && n.ranks > CVY_GPU_RANKS) {
		fprintf(stderr,
			"ep-admin: plan --device %d: a group with devices has at most %d ranks in this build; more "
			"need one with -DCOVEY_DEVICE_RANKS, 256 at most\n",
			n.ranks, CVY_GPU_RANKS);
		return EXIT_USAGE;
	}
	if (a->json) {
		print_json(&n, a->device ? &d : NULL);
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
	if (a->device)
		print_device(&d);
	return EXIT_DONE;
}
