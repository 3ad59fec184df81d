/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to p2p: shared by mesh.c, peer.c, listen.c, handshake.c, control.c and the transports.
 *
 * Sockets, handshakes and peers belong to the agent's thread. The data path (peer->link, the table of views, and the
 * memory that they point to) is changed by the agent's thread under the engine's lock, and used by any thread under the
 * engine's lock.
 */
#ifndef CVY_MESH_H
#define CVY_MESH_H

#include <pthread.h>

#include "p2p.h"
#include "window.h"

#define CVY_WIRE_MAGIC 0x59564f43u /* "COVY" on a little-endian machine: also tells the byte order */
#define CVY_WIRE_VERSION 6
#define CVY_HANDSHAKE_MS 5000 /* from the first byte to LINK_UP, and how long a stranger may wait to be expected */
#define CVY_STRANGERS 64      /* connections that have not proven their identity */
#define CVY_STRANGER_LINES 4  /* of the log about them in CVY_STRANGER_LINES_MS: the rest is counted */
#define CVY_STRANGER_LINES_MS 10000
#define CVY_QUEUE_BYTES (8u << 20) /* unsent control messages of one link; more: the link is bad */
#define CVY_SHAKE_MAX 1024	   /* bytes of a message of a stranger */
#define CVY_TRIAL_MAX 65535	   /* bytes of a trial: of one packet of the path, whatever it takes */
#define CVY_CAUSE 200
#define CVY_PATH_HINT ", though short ones do: does each part of the path carry packets of the MTU?"
#define CVY_TCP_CONNECTIONS_MAX 8
#define CVY_LISTENERS 4	     /* addresses of one rank that peers on other hosts may dial */
#define CVY_LISTENER_NAME 64 /* tcp:[ADDRESS]:PORT */
#define CVY_ADDR_MAX 207 /* of all of them: readers of the store take 255 bytes, the name of the process comes first */
#define CVY_CONNECT_MS 1000 /* of one address of several, until it is connected */

/* Types past those of enum cvy_msg_type: the handshake; for RDMA, a request for the key of a region, and the key. */
enum {
	CVY_WIRE_HELLO = 100,
	CVY_WIRE_PROOF,
	CVY_WIRE_WELCOME,
	CVY_WIRE_REFUSE,
	CVY_WIRE_ASK,
	CVY_WIRE_KEY,
	CVY_WIRE_TRIAL
};

/* The start of every control message. magic and version keep their place in all versions. */
struct cvy_wire {
	uint32_t magic;
	uint16_t version, type;
	uint32_t bytes; /* of the body */
	uint32_t epoch;
	int32_t src, dst;
	uint64_t src_inc, dst_inc;
};

struct cvy_hello {
	char gid[40];
	uint8_t challenge[32];
	uint64_t nonce;
	uint64_t src_inc, dst_inc;
	int32_t src, dst;
	uint32_t data; /* 1, 2, ...: a further connection of the link, for data; they come in this order */
	uint32_t reserved;
};

struct cvy_welcome {
	char host[256];
	uint64_t slot_bytes, window_bytes;
	int32_t max_ranks;
	int32_t transport;		      /* enum covey_transport that the sender wants */
	uint32_t has_fd;		      /* the descriptor of its window comes with this message */
	uint32_t streams;		      /* data connections that the sender wants; the smaller number counts */
	uint64_t algo;			      /* hash of the sender's algo setting */
	uint8_t rdma_cookie[16], rdma_ip[16]; /* cookie that a request must show, address to send it to */
	uint16_t rdma_port;		      /* 0: there is no RDMA device */
	uint16_t reserved[3];
};

/* ---- control.c: frames over a stream socket ---- */

struct cvy_out;

struct cvy_conn {
	struct cvy_conn *next; /* strangers of the mesh */
	struct cvy_mesh *mesh;
	struct cvy_watch *watch;
	struct cvy_timer *timer;
	int fd;
	int is_unix, connecting, stopped, busy, closed;
	uint32_t events; /* watched */
	void (*frame)(struct cvy_conn *conn, const struct cvy_wire *head, const uint8_t *body);
	void (*opened)(struct cvy_conn *conn);
	void (*broken)(struct cvy_conn *conn, int err, const char *cause);

	struct cvy_wire head; /* incoming message */
	uint32_t got;	      /* bytes of head and body that are here */
	uint32_t bound;	      /* of one body */
	uint8_t *body;
	int in_fd; /* descriptor that came with it, -1: none */
	struct cvy_out *first, **last;
	size_t queued;
	const char *cause; /* why it was cut from this side */

	/* handshake.c */
	int state, dialer;
	struct cvy_peer *peer; /* NULL until a stranger has proven its identity */
	struct cvy_hello mine, theirs;
};

struct cvy_conn *cvy_conn_new(struct cvy_loop *loop, int fd, int connecting); /* takes fd, also when it fails */
void cvy_conn_close(struct cvy_conn *conn); /* safe inside its callbacks; they are not called again. NULL is fine */
/* Queues, and sends as much as the socket takes. @pass_fd: -1 or a descriptor to send. Failures appear as broken(). */
int cvy_conn_send(struct cvy_conn *conn, const struct cvy_wire *head, const void *body, int pass_fd);
void cvy_conn_pause(struct cvy_conn *conn, int stopped); /* 1: reads nothing for a while */

/* ---- handshake.c ---- */

enum {
	CVY_SHAKE_HELLO = 1,
	CVY_SHAKE_PARKED,
	CVY_SHAKE_PROOF,
	CVY_SHAKE_WELCOME,
	CVY_SHAKE_UP,
	CVY_SHAKE_TRIAL,
	CVY_SHAKE_TRIED
};

void cvy_shake_dial(struct cvy_conn *conn, struct cvy_peer *peer, int data); /* on a connection that is being opened */
void cvy_shake_accept(struct cvy_conn *conn);
void cvy_shake_retry(struct cvy_mesh *mesh); /* is one of the waiting strangers expected by this time? */
/* One log line about a stranger, unless there were many: anybody can cause them. */
void cvy_shake_complain(struct cvy_mesh *mesh, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cvy_shake_close_strangers(struct cvy_mesh *mesh);

/* ---- peer.c ---- */

enum cvy_want { CVY_WANT_NOTHING, CVY_WANT_EXPECT, CVY_WANT_DIAL };
enum cvy_path { CVY_PATH_SHM, CVY_PATH_TCP, CVY_PATH_VERBS };
enum cvy_memory { CVY_MEMORY_NONE, CVY_MEMORY_MAPPED, CVY_MEMORY_LOCAL, CVY_MEMORY_MIRROR };

struct cvy_peer {
	struct cvy_mesh *mesh;
	int rank;
	uint64_t inc, nonce;
	enum cvy_want want;	   /* a LINK_UP or LINK_DOWN is owed */
	int up;			   /* LINK_UP was posted, LINK_DOWN was not */
	char *addr;		   /* dialled */
	int at;			   /* index of the address for other hosts that is tried, or was taken; CVY_BY_UNIX */
	int left;		   /* addresses after this one in this cycle */
	int dialling;		   /* control is being opened */
	struct cvy_timer *connect; /* bound of this one, if others are left */
	char said[CVY_CAUSE];	   /* why the addresses before it were of no use */
	char warned[CVY_CAUSE];	   /* the last warning about this incarnation: it is not repeated */
	struct cvy_conn *control, *data;
	enum cvy_path path;
	int may_tcp;	   /* instead of verbs */
	uint64_t rdma_off; /* an incarnation for which this machine lacks a resource for RDMA */
	uint8_t rdma_cookie[16];
	struct cvy_verbs *verbs;		       /* RDMA connection, NULL: none */
	int fd[CVY_TCP_CONNECTIONS_MAX], fds, streams; /* proven data connections; how many there will be */
	struct cvy_timer *timer;		       /* bound of the handshake */
	const char *early;			       /* why dialling failed at once: reported from the loop */

	/* under the engine's lock */
	struct cvy_link *link;
	uint64_t link_id; /* of the link's life: seq << 12 | rank */
	char lost[CVY_CAUSE];
	enum cvy_memory memory;
	uint64_t memory_inc;
	struct cvy_window *local; /* LOCAL, and the page of a MIRROR in this process */
	struct cvy_page *page;	  /* on this host, NULL: none */
	int page_mapped;	  /* a mapping of its own: data travel by tcp */
};

struct cvy_mesh {
	struct cvy_loop *loop;
	struct cvy_sink sink;
	struct cvy_errbox *box;
	pthread_mutex_t own_lock;
	pthread_mutex_t *lock;
	int transport;
	int streams; /* of a tcp link, as this side wants */
	int max_ranks;
	int reserved; /* windows at base: max_ranks, or more when the creator wants fewer */
	int forgotten;
	int link_ms;   /* -1: no bound */
	uint64_t algo; /* hash of the setting */
	struct cvy_layout layout;
	struct cvy_window *window;
	uint8_t *base; /* max_ranks * window_bytes of addresses */
	struct cvy_heap heap;
	struct cvy_identity id;
	int known; /* id is set */
	char host[256];
	char addr[CVY_ADDR_MAX + 1];
	char from[CVY_ADDR_MAX + 1]; /* if an interface is named: its addresses, also as sources of calls; else empty */
	int listen_unix, listen_tcp[CVY_LISTENERS], spare_fd;
	struct cvy_watch *watch_unix, *watch_tcp[CVY_LISTENERS];
	struct cvy_conn *strangers;
	int stranger_count;
	char other_user[CVY_CAUSE]; /* why a caller of this host was refused; empty: none was */
	uint64_t lines_ns;	    /* since when `lines` were logged about strangers and `unlogged` were not */
	int lines, unlogged;
	uint64_t link_seq;
	struct cvy_fault *fault;
	struct cvy_rdma *rdma; /* NULL: no device */
	char rdma_why[160];    /* why there is none */
	struct cvy_peer *peer[COVEY_MAX_RANKS];
	uint8_t *view[COVEY_MAX_RANKS];
};

static inline void cvy_mesh_lock(struct cvy_mesh *mesh)
{
	pthread_mutex_lock(mesh->lock);
}

static inline void cvy_mesh_unlock(struct cvy_mesh *mesh)
{
	pthread_mutex_unlock(mesh->lock);
}

/* The address at which the window of a rank is mapped. */
static inline uint8_t *cvy_mesh_place(const struct cvy_mesh *mesh, int rank)
{
	return mesh->base + (size_t)rank * mesh->layout.window_bytes;
}

struct cvy_peer *cvy_peer_get(struct cvy_mesh *mesh, int rank); /* made on first use; NULL: no memory or no such rank */
/* Begins a new cycle with @inc. 0: there is one already. */
int cvy_peer_begin(struct cvy_peer *peer, uint64_t inc, enum cvy_want want);
/* dial.c. Dials in the cycle that has begun: the addresses of @addr in order, until a connection is made. */
void cvy_peer_dial(struct cvy_peer *peer, const char *addr, int by_unix);
/* A dialled connection could not be made. 1: the next address is dialled instead. */
int cvy_peer_dial_next(struct cvy_peer *peer, const char *why);
void cvy_peer_dialled(struct cvy_peer *peer); /* it is connected */
/* Closes the parts of the link without an event. keep_shm: a view of shared memory outlives a broken connection. */
void cvy_peer_hang_up(struct cvy_peer *peer, int keep_shm);
void cvy_peer_fail(struct cvy_peer *peer, int err, const char *cause);
/* Posts the event from the loop, never from inside a call of the agent. */
void cvy_peer_fail_soon(struct cvy_peer *peer, const char *why);
/* The far end of peer->control has proven itself and sent its sizes. @fd: its window, or -1; stays the caller's. */
int cvy_peer_welcome(struct cvy_peer *peer, const struct cvy_welcome *welcome, int fd);
void cvy_peer_welcome_self(const struct cvy_mesh *mesh, struct cvy_peer *peer, struct cvy_welcome *welcome);
/* A proven data connection: @fd is taken; the last one completes the link. */
void cvy_peer_data(struct cvy_peer *peer, int fd);
/* The RDMA connection is made, or will not be. */
void cvy_peer_rdma_up(struct cvy_peer *peer);
void cvy_peer_rdma_failed(struct cvy_peer *peer, const char *cause);
void cvy_peer_frame(struct cvy_conn *conn, const struct cvy_wire *head, const uint8_t *body);

/* Any thread, engine's lock held: the path of this link is lost. The loop ends the link and posts LINK_DOWN. */
void cvy_mesh_lost(struct cvy_link *link, const char *cause);
/* Engine's lock held: removes everything visible of a rank from its view. */
void cvy_mesh_unview(struct cvy_mesh *mesh, int rank);

/* ---- listen.c ---- */

int cvy_mesh_listen(struct cvy_mesh *mesh, const char *interface);

/* ---- address.c ---- */

void cvy_address_host(const char *override, char *text, size_t bytes);
int cvy_address_listen_unix(char *name, size_t bytes, struct cvy_errbox *box); /* descriptor or error */
struct cvy_listener {
	int fd;
	char name[CVY_LISTENER_NAME];
};

/* Listens at the addresses of @interface (base/interface.h), best first, at most @max. Their number or an error. */
int cvy_address_listen(const char *interface, struct cvy_listener *to, int max, struct cvy_errbox *box);
int cvy_address_count(const char *addr); /* of its `tcp:` parts */
void cvy_address_name(const char *addr, int at, char *text, size_t bytes);
/*
 * Begins to connect to the `tcp:` part number @at of an address, or to its `unix:` part: descriptor, or an error with
 * @why. @from: the own `tcp:` addresses to call from, empty: any.
 */
#define CVY_BY_UNIX (-1)
int cvy_address_connect(const char *addr, int at, const char *from, const char **why);

/* ---- transports ---- */

/* Fills link->ops and link->state; tcp takes the descriptors on success. */
void cvy_shm_open(struct cvy_link *link);
int cvy_tcp_open(struct cvy_link *link, const int *fds, int n);
/* Like signal, but with a line kept from earlier (fault plans: a late write). */
int cvy_tcp_signal_line(struct cvy_link *link, size_t offset, const struct cvy_line *line);
int cvy_verbs_signal_line(struct cvy_link *link, size_t offset, const struct cvy_line *line);

#endif
