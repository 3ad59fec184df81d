/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to verbs*.c: RDMA between hosts. The peer's mirror of my window is registered memory, so a put is one RDMA
 * write at the same offset. A line is two more on the same queue pair: 56 bytes, then the tag, so that a reader of the
 * tag sees the line and all earlier puts. The far processor has no part in it.
 *
 * A window is registered by *regions*: page and slots at once, a piece of heap or pool at the first put to it. Objects
 * of a connection are made and destroyed on the agent's thread; fields under the engine's lock are marked.
 */
#ifndef CVY_VERBS_H
#define CVY_VERBS_H

#include <sys/socket.h>

#include "mesh.h"
#include "verbs_api.h"

#define CVY_RDMA_QUEUE 4096   /* entries that wait for the adapter; more: COVEY_ERR_AGAIN */
#define CVY_RDMA_DEPTH 512    /* work requests under way on one queue pair, or what the device allows */
#define CVY_RDMA_DEPTH_MIN 16 /* a device that allows fewer is no use */
#define CVY_RDMA_BATCH 32     /* rung with one doorbell */
#define CVY_RDMA_RESERVE 4    /* kept for the link's own messages: asleep, wake up */
#define CVY_RDMA_RECVS 8      /* one wake-up per announced sleep: never more than one is under way */
#define CVY_RDMA_DIAL_MS 2500 /* of the handshake's 5 seconds: the rest is for tcp, if it is allowed */
#define CVY_RDMA_TICK_MS 25   /* failed completions are found within it though nobody waits */
#define CVY_RDMA_RETRY 6      /* 7 means "for ever" to some */
#define CVY_RDMA_REGIONS 1024 /* of a window */
#define CVY_RDMA_REGION_MIN ((size_t)1 << 20)
#define CVY_RDMA_WRITE_MAX ((size_t)1 << 30) /* bytes of one work request */

/* ---- regions of a window ---- */

struct cvy_verbs_region {
	size_t at, bytes;
};

size_t cvy_region_bytes(const struct cvy_layout *l); /* of those past the slots */
int cvy_region_count(const struct cvy_layout *l);
int cvy_region_of(const struct cvy_layout *l, size_t offset);
struct cvy_verbs_region cvy_region_get(const struct cvy_layout *l, int i);

/* ---- the device (verbs_device.c) ---- */

struct cvy_rdma_wish {
	char name[64];	       /* empty: any */
	int port;	       /* 0: any */
	int gid;	       /* index, -1: any */
	const char *interface; /* the setting for dialled addresses: its device is preferred */
};

/* "NAME", "NAME:PORT", "NAME:PORT/GID" or "". 0, or INVAL. */
int cvy_rdma_parse(const char *text, struct cvy_rdma_wish *wish);
/* Checks that need only files under @root (/sys/class/infiniband). 0, or UNSUPPORTED and @why. */
int cvy_rdma_look(const char *root, const struct cvy_rdma_wish *wish, char *why, size_t bytes);
/* The GID at an index of a port as 16 bytes. 0: none. */
int cvy_rdma_gid(const char *root, const char *device, int port, int index, uint8_t *gid);
void cvy_rdma_map(const struct sockaddr *addr, uint8_t *ip); /* 16 bytes; IPv4 as ::ffff:a.b.c.d */
void cvy_rdma_unmap(const uint8_t *ip, uint16_t port, struct sockaddr_storage *addr);

/* ---- of a mesh ---- */

struct cvy_rdma {
	const struct cvy_verbs_api *api;
	struct cvy_mesh *mesh;
	struct rdma_event_channel *channel;
	struct cvy_watch *watch;
	struct cvy_timer *tick;
	struct rdma_cm_id *listener;
	struct sockaddr_storage addr; /* of the device, with the listener's port */
	struct ibv_context *context;
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_pd *pd;
	int ready_fd;		 /* always readable: for a caller that must not sleep */
	int depth;		 /* of send queues */
	uint8_t ack_timeout;	 /* 4.096 us << it, CVY_RDMA_RETRY + 1 times */
	struct ibv_mr **own;	 /* regions of the own window; under the engine's lock */
	struct cvy_verbs *first; /* all connections; agent's thread */
	uint64_t number;	 /* of the last connection */
	char what[180];		 /* device, port and address as text */
};

int cvy_rdma_device_open(struct cvy_rdma *rdma, const struct cvy_rdma_wish *wish, char *why, size_t bytes);
/* 4.096 us << result, CVY_RDMA_RETRY + 1 times, is at most @ms. */
uint8_t cvy_rdma_ack_timeout(int ms);
/* Registers memory. On failure @why names the cause, with the limit that may be too low. */
struct ibv_mr *cvy_rdma_register(struct cvy_rdma *rdma, void *at, size_t bytes, int access, char *why, size_t room);

/* ---- one connection ---- */

/* Written by the peer, about itself. */
struct cvy_box {
	uint64_t asleep; /* grows with each sleep that it announces */
	uint64_t spare;	 /* of receives */
};

enum { CVY_KEY_NONE, CVY_KEY_WANTED, CVY_KEY_ASKED, CVY_KEY_HERE };

struct cvy_far {
	uint64_t mirror, box; /* addresses at the peer */
	uint32_t box_key;
	uint32_t key[CVY_RDMA_REGIONS];
	uint8_t state[CVY_RDMA_REGIONS];
};

struct cvy_verbs_entry {
	size_t at, left; /* of a put; left 0: a line */
	uint8_t line[sizeof(struct cvy_line)];
};

struct cvy_verbs_counts {
	uint64_t puts, lines, bytes; /* requested */
	uint64_t writes, bells;	     /* work requests, and calls that posted them */
	uint64_t sleeps, wakes;	     /* announced, sent */
	uint64_t completions;	     /* polled */
};

struct cvy_verbs {
	struct cvy_verbs *next;
	struct cvy_rdma *rdma;
	int rank;
	uint64_t inc, number;
	int dialer, established;
	struct rdma_cm_id *id;
	struct cvy_timer *timer; /* bound of dialling */
	struct ibv_comp_channel *events;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint8_t *mirror;
	struct ibv_mr *mirror_mr[CVY_RDMA_REGIONS];
	struct cvy_box *box; /* a page of its own */
	struct ibv_mr *box_mr;
	struct cvy_line *stage; /* copies of lines for devices without inline data, one for each request under way */
	struct ibv_mr *stage_mr;
	uint8_t cookie[16]; /* the listener's, for the request */
	struct sockaddr_storage to;
	struct cvy_far far;

	/* under the engine's lock */
	struct cvy_link *link; /* NULL while it is being made */
	int dead;
	int wanted;		    /* keys to ask for; the loop knows */
	int depth, is_inline;	    /* of the queue pair */
	uint64_t posted, completed; /* work requests */
	uint64_t lines;		    /* posted since the peer was last woken */
	uint64_t woken;		    /* the last announced sleep of the peer that was answered */
	uint64_t announced;	    /* own sleeps so far */
	int asleep;		    /* one is announced and not answered */
	uint32_t head, count;
	struct cvy_verbs_counts counts;
	struct cvy_verbs_entry ring[CVY_RDMA_QUEUE];
};

/* verbs_link.c. Engine's lock held. */
void cvy_verbs_open(struct cvy_link *link, struct cvy_verbs *v); /* takes v */
int cvy_verbs_recv(struct cvy_verbs *v, int n);			 /* posts receives; errno */
int cvy_verbs_lost(struct cvy_verbs *v, const char *cause);	 /* COVEY_ERR_PEER */
int cvy_verbs_poll(struct cvy_verbs *v);
int cvy_verbs_unfit(struct cvy_verbs *v, const char *cause); /* lost, and not tried again: a resource is short */

/* verbs.c. Agent's thread. */
void cvy_verbs_free(struct cvy_verbs *v);					/* NULL is fine */
struct cvy_verbs *cvy_verbs_find(const struct cvy_rdma *rdma, uint64_t number); /* NULL: it is closed */
void cvy_verbs_events(void *mesh, uint32_t events);				/* of rdma_cm */

/* verbs_mesh.c */

/* Engine's lock held, any thread: the loop asks the peer for each CVY_KEY_WANTED. */
void cvy_verbs_ask(struct cvy_verbs *v);

#endif
