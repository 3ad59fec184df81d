/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes between two ranks. A *mesh* owns this rank's window, the windows of its peers as this rank sees them, and one
 * link per peer: a control connection (messages, agent's thread) and a data path (a transport, under the engine's
 * lock).
 *
 * Every rank writes its contribution into its OWN window, and reads a peer's from `base + peer * window_bytes`. On one
 * host that is the peer's memory, mapped read-only (shm has no put and no signal: a store reaches every peer). Between
 * hosts it is a private mirror that the peer's puts fill at the same offsets (tcp, verbs). Readers see no difference.
 *
 * Fencing: a removed peer's mapping is replaced by inaccessible addresses, a mirror by fresh memory, and its
 * connections are closed. Its later writes reach nobody.
 */
#ifndef CVY_P2P_H
#define CVY_P2P_H

#include "config.h"
#include "loop.h"
#include "seam.h"

struct cvy_mesh;
struct cvy_link;

/* A data path. Functions that a transport does not need are NULL. Callers hold the engine's lock. */
struct cvy_transport {
	const char *name;
	/* bytes of my window that the peer sees at the same offset of its view of me; in order with signal */
	int (*put)(struct cvy_link *link, size_t offset, size_t bytes);
	/* the cvy_line at offset of my window: all earlier puts first, tag last */
	int (*signal)(struct cvy_link *link, size_t offset);
	int (*poll)(struct cvy_link *link); /* moves bytes in and out; 1: something moved, 0: nothing, < 0: path lost */
	int (*unsent)(struct cvy_link *link);			/* puts and lines not yet handed to the system */
	int (*fd)(struct cvy_link *link, int i, short *events); /* descriptor to poll() while asleep; -1: no i-th */
	void (*fence)(struct cvy_link *link);
	void (*close)(struct cvy_link *link);
};

/* Messages may fill this much of the shared queue; the rest is for operations, which cannot wait. */
#define CVY_LINK_SHARE 1024

extern const struct cvy_transport cvy_transport_shm, cvy_transport_tcp, cvy_transport_verbs, cvy_transport_fault;

/* The common part of a link; a transport's private state follows in its own struct. */
struct cvy_link {
	const struct cvy_transport *ops;
	struct cvy_mesh *mesh;
	int rank;
	uint64_t inc;
	uint64_t id;   /* of this link's life: an earlier link may have lost bytes on their way */
	int choked;    /* a put or line of an operation did not fit: no later line may leave */
	uint8_t *own;  /* my window */
	uint8_t *view; /* the peer's, as seen here */
	size_t window_bytes;
	void *state;
};

/* Engine's lock held: a put or line of an operation was answered with AGAIN. The path is given up, not the bytes. */
void cvy_link_choke(struct cvy_link *link);

struct cvy_mesh_args {
	const struct cvy_config *config;
	struct cvy_loop *loop;
	struct cvy_sink sink; /* LINK_UP, LINK_DOWN, MSG; posted on the loop's thread */
	struct cvy_errbox *box;
};

/* Opens window (sealed memfd, page filled, robust word NOT yet taken) and listeners. Before the loop runs. */
int cvy_mesh_open(const struct cvy_mesh_args *args, struct cvy_mesh **out);
void cvy_mesh_close(struct cvy_mesh *mesh);  /* after the loop ended; never waits */
void cvy_mesh_forget(struct cvy_mesh *mesh); /* in a forked child: closes descriptors, touches nothing shared */

/* Sets the engine's lock. The mesh takes it to install or remove a data path or a view (cvy_mesh_fence: the caller
 * holds it). Call it before the loop runs; without it the mesh uses a lock of its own. */
void cvy_mesh_set_lock(struct cvy_mesh *mesh, pthread_mutex_t *engine_lock);

const char *cvy_mesh_addr(const struct cvy_mesh *mesh); /* for the store: the address that peers dial, no spaces */
const char *cvy_mesh_host(const struct cvy_mesh *mesh); /* identity of this host, no spaces */
struct cvy_layout cvy_mesh_layout(const struct cvy_mesh *mesh);
uint8_t *cvy_mesh_own(const struct cvy_mesh *mesh);	       /* own window, writable */
uint8_t *cvy_mesh_view(const struct cvy_mesh *mesh, int rank); /* base + rank * window_bytes; own rank: own window */
struct cvy_link *cvy_mesh_link(const struct cvy_mesh *mesh, int rank); /* data path, NULL while there is none */

/* The functions of struct cvy_seam about links; ctx is the mesh. Agent's thread. */
void cvy_mesh_identity(void *mesh, const struct cvy_identity *id);
void cvy_mesh_expect(void *mesh, int rank, uint64_t inc);
void cvy_mesh_dial(void *mesh, int rank, uint64_t inc, const char *addr, const char *host);
void cvy_mesh_drop(void *mesh, int rank, uint64_t inc);
int cvy_mesh_send(void *mesh, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes);
/* Sends a message with a descriptor. UNSUPPORTED: the peer is on another host. */
int cvy_mesh_send_fd(struct cvy_mesh *mesh, int rank, uint64_t inc, int type, const void *body, uint32_t bytes, int fd);
struct cvy_page *cvy_mesh_page(void *mesh, int rank);
void cvy_mesh_describe(void *mesh, char *text, size_t bytes);
/* Called by the engine in learn, engine's lock held: ends all writes of (rank, its inc), and our reads of it. */
void cvy_mesh_fence(struct cvy_mesh *mesh, int rank);

/* Heap of the own window: the same calls in the same order give the same offsets on every rank. 0: no room. */
size_t cvy_mesh_heap_alloc(struct cvy_mesh *mesh, size_t bytes);
/* The same from the other end, for this rank alone: the allocation moves nothing on other ranks. */
size_t cvy_mesh_heap_alloc_top(struct cvy_mesh *mesh, size_t bytes);
void cvy_mesh_heap_free(struct cvy_mesh *mesh, size_t offset, size_t bytes);

/* Fault plan of this process (COVEY_FAULT), NULL: none. op names the current operation for the plan and for reports. */
struct cvy_fault;
struct cvy_fault *cvy_mesh_fault(struct cvy_mesh *mesh);
void cvy_fault_op(struct cvy_fault *fault, uint64_t seq, const char *name); /* engine: entered an operation */
void cvy_fault_read(struct cvy_fault *fault);				    /* engine: a tick is about to be read */
void cvy_fault_point(struct cvy_fault *fault, const char *name); /* agent's thread: passes a point of the plan */

#endif
