/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's side of queue/queue.h: makes queues, connects them, reports their errors. A *NIC* is an opened mlx5
 * adapter. A *pair* is a send queue of this rank to one other, with its completions. *Bells* is a thread that copies
 * doorbells for posters that cannot reach the register. A *proxy* is a thread that takes ring commands and posts them
 * on something else: an adapter, a socket, copies. Nothing here needs CUDA: functions of the caller make memory
 * reachable for a GPU.
 */
#ifndef CVY_QUEUES_H
#define CVY_QUEUES_H

#include <stddef.h>

#include "error.h"
#include "queue.h"
#include "queue_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cvy_nic;
struct cvy_region;
struct cvy_queue_pair;
struct cvy_bells;
struct cvy_proxy;

struct cvy_nic_args {
	const char *device; /* mlx5_0; NULL: the first mlx5 device */
	int port;	    /* 0: 1 */
	int gid_index;
	const struct cvy_queue_memory *memory;
	struct cvy_errbox *box;
};

/* UNSUPPORTED without a library, a device or the right to it: the cause names it, and a remedy. */
int cvy_nic_open(const struct cvy_nic_args *args, struct cvy_nic **out);
void cvy_nic_close(struct cvy_nic *nic); /* after its regions and pairs */
const char *cvy_nic_name(const struct cvy_nic *nic);
/*
 * Reserves memory for @pairs pairs made by commands, of @depth entries, and @registers doorbells for them, and maps it
 * for posters: to map memory later may wait for the posters' kernels. Once; UNSUPPORTED names the missing part.
 */
int cvy_nic_reserve(struct cvy_nic *nic, unsigned pairs, uint32_t depth, int registers);

/* @dmabuf_fd: of GPU memory; -1: plain memory, or GPU memory where the driver has peer memory. */
int cvy_region_open(struct cvy_nic *nic, void *at, size_t bytes, int dmabuf_fd, struct cvy_region **out);
void cvy_region_close(struct cvy_region *region); /* afterwards nobody's key reaches this memory */

enum cvy_pair_mode {
	CVY_PAIR_VERBS, /* made by the kernel's verbs, then taken over */
	CVY_PAIR_DEVX	/* made by commands to the adapter: one completion for all entries, less memory */
};

#define CVY_PAIR_DEPTH 256 /* entries by default: 1,024 pairs are below 64 MiB (tests/softmlx5) */

struct cvy_pair_args {
	enum cvy_pair_mode mode;
	uint32_t depth; /* power of two up to CVY_MLX5_DEPTH_MAX; 0: CVY_PAIR_DEPTH */
	uint32_t timeout,
		retry;	       /* 4.096 us * 2^timeout, retry + 1 times; 0: 14, 3. Never 7 times: some never give up */
	uint64_t wait_ticks;   /* of struct cvy_queue */
	const uint64_t *abort; /* the address that posters use */
	struct cvy_region *local, *window; /* source of puts; memory that the far end may write */
	struct cvy_bells *bells;	   /* NULL: posters ring the register themselves */
	int hosted;			   /* posters are threads of this process, whatever memory the nic serves */
};

/* Names a pair to the far end, in a message. Plain data, host order. */
struct cvy_pair_name {
	uint32_t qpn, psn, rkey, lid;
	uint64_t address, bytes;
	uint8_t gid[16], ethernet, reserved[7];
};

int cvy_pair_open(struct cvy_nic *nic, const struct cvy_pair_args *args, struct cvy_queue_pair **out);
void cvy_pair_name(const struct cvy_queue_pair *pair, struct cvy_pair_name *name);
int cvy_pair_connect(struct cvy_queue_pair *pair, const struct cvy_pair_name *far);
/* The queue for posters, valid until the pair is closed. */
void cvy_pair_queue(const struct cvy_queue_pair *pair, struct cvy_queue *queue);
/* 0, or COVEY_ERR_PEER: an entry failed; the cause is the adapter's, if it still answers. The rank is suspect. */
int cvy_pair_check(struct cvy_queue_pair *pair, int rank);
/*
 * State of a pair made by commands, for an occasional look. Status: of the newest completion, 0: no error. Idle: no
 * poster runs, and all that was rung for is done, or never will be.
 */
uint64_t cvy_pair_status(const struct cvy_queue_pair *pair);
int cvy_pair_idle(const struct cvy_queue_pair *pair);
int cvy_pair_stop(struct cvy_queue_pair *pair); /* every entry under way ends with an error */
/* After posters have left. When it returns, the adapter has released the queue's memory. */
void cvy_pair_close(struct cvy_queue_pair *pair);
size_t cvy_pair_bytes(const struct cvy_queue_pair *pair); /* ring, completions, record */
const char *cvy_syndrome(uint64_t status);		  /* in words; never NULL */

int cvy_bells_open(const struct cvy_queue_memory *memory, unsigned max, struct cvy_bells **out);
int cvy_bells_add(struct cvy_bells *bells, uint64_t *reg, uint64_t **word); /* the word that posters write instead */
void cvy_bells_remove(struct cvy_bells *bells, uint64_t *word);
void cvy_bells_close(struct cvy_bells *bells);

/* The link that a proxy posts on: one per far end. Called from the proxy's thread alone. */
struct cvy_proxy_link {
	void *ctx;
	uint64_t local_bytes, remote_bytes;
	/* 0: posted; COVEY_ERR_AGAIN: no room now; else broken. In order: a signal arrives after the puts before it. */
	int (*post)(void *ctx, const struct cvy_ring_command *command);
	void (*flush)(void *ctx);		       /* sends all posted commands */
	uint64_t (*done)(void *ctx, uint64_t *status); /* posts completed since the link began; *status: it broke */
};

/* Commands of one queue; more delay the ring until one is done. Two steps of 256 lanes need no more. */
#define CVY_PROXY_UNDER_WAY 4096

struct cvy_proxy_args {
	uint32_t depth;	 /* commands of the ring, a power of two */
	uint32_t queues; /* far ends, up to CVY_RING_QUEUES */
	uint64_t wait_ticks;
	const uint64_t *abort;
	const struct cvy_queue_memory *memory;
};

int cvy_proxy_open(const struct cvy_proxy_args *args, struct cvy_proxy **out);
/* Queue @number posts on @link from here on; only while no poster uses it. */
int cvy_proxy_attach(struct cvy_proxy *proxy, uint32_t number, const struct cvy_proxy_link *link);
/* Later commands for it fail. Returns once the thread has released the link. */
void cvy_proxy_detach(struct cvy_proxy *proxy, uint32_t number);
void cvy_proxy_queue(const struct cvy_proxy *proxy, uint32_t number, struct cvy_queue *queue); /* for posters */
uint64_t cvy_proxy_status(const struct cvy_proxy *proxy, uint32_t number);		       /* 0: healthy */
/* No poster runs: is every command done, except those of failed queues? Then the source of puts may be overwritten. */
int cvy_proxy_idle(struct cvy_proxy *proxy);
uint64_t cvy_proxy_bytes(const struct cvy_proxy *proxy); /* that were put since it was opened; any thread */
void cvy_proxy_close(struct cvy_proxy *proxy);		 /* after posters have left */

/* A link that posts on @queue, the proxy's own copy of a pair's. */
void cvy_proxy_pair_link(struct cvy_queue *queue, struct cvy_proxy_link *link);

/*
 * A link over a connected socket between host memories. The caller has authenticated the far end, and closes the socket
 * last. The proxy has the sender; a thread of the receiver stores what arrives and acknowledges it.
 */
struct cvy_tcp_sender;
struct cvy_tcp_receiver;
/* A path that carries no data of it for @link_ms (-1: however long) breaks it. */
int cvy_tcp_sender_open(int fd, const void *local, size_t local_bytes, size_t remote_bytes, int link_ms,
			struct cvy_tcp_sender **out);
void cvy_tcp_sender_link(struct cvy_tcp_sender *sender, struct cvy_proxy_link *link);
void cvy_tcp_sender_close(struct cvy_tcp_sender *sender); /* after the proxy has released the link */
int cvy_tcp_receiver_open(int fd, void *window, size_t bytes, struct cvy_tcp_receiver **out);
int cvy_tcp_receiver_check(
	const struct cvy_tcp_receiver *receiver);		/* 0, or PEER: it ended, or sent an impossible frame */
void cvy_tcp_receiver_close(struct cvy_tcp_receiver *receiver); /* nothing is stored after it returned */

/*
 * A link that copies: this host reaches the far end's memory, but posters do not. Puts between two signals that do not
 * overlap may arrive in any order; a signal arrives after the puts before it. No adds.
 */
struct cvy_copy_sender;
int cvy_copy_sender_open(const struct cvy_copies *copies, size_t bytes, struct cvy_copy_sender **out);
void cvy_copy_sender_link(struct cvy_copy_sender *sender, struct cvy_proxy_link *link);
void cvy_copy_sender_close(struct cvy_copy_sender *sender); /* after the proxy has released the link; NULL is fine */

#ifdef __cplusplus
}
#endif

#endif
