/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake. Dialer and listener exchange HELLO (own identity, wanted identity, a random challenge). Then each
 * proves, with a keyed hash over both HELLOs, that it knows the group's secret. Then they exchange WELCOME: sizes, and
 * on one host the window.
 *
 * Until its proof an incoming connection is a stranger: it can take nothing from anybody, breaks no link, and waits at
 * most 5 seconds. The direction is part of the hash, so that nobody can send a proof back to its maker.
 *
 * A data connection then carries a TRIAL in each direction, as long as the longest packet, and an empty one that says that
 * the dialer's has come. There are paths that carry short packets alone; a link over such a one does not come up.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "mesh.h"

struct refusal {
	int32_t err;
	char text[CVY_CAUSE];
};

struct transcript {
	char label[12];
	uint32_t by_dialer;
	struct cvy_hello dialer, listener;
};

static void stranger_unlink(struct cvy_conn *conn)
{
	for (struct cvy_conn **at = &conn->mesh->strangers; *at; at = &(*at)->next) {
		if (*at != conn)
			continue;
		*at = conn->next;
		conn->mesh->stranger_count--;
		break;
	}
}

static void stranger_close(struct cvy_conn *conn)
{
	stranger_unlink(conn);
	cvy_conn_close(conn);
}

static void stranger_keep(struct cvy_conn *conn)
{
	stranger_unlink(conn);
	cvy_loop_cancel(conn->timer);
	conn->timer = NULL;
}

void cvy_shake_complain(struct cvy_mesh *mesh, const char *format, ...)
{
	uint64_t now = cvy_now_ns();
	char text[CVY_CAUSE];
	va_list args;

	if (!mesh->lines_ns || now - mesh->lines_ns >= CVY_STRANGER_LINES_MS * CVY_MS) {
		if (mesh->unlogged)
			cvy_warn("p2p", "%d more lines about strangers were left out", mesh->unlogged);
		mesh->lines_ns = now;
		mesh->lines = mesh->unlogged = 0;
	}
	if (mesh->lines == CVY_STRANGER_LINES) {
		mesh->unlogged++;
		return;
	}
	mesh->lines++;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	cvy_warn("p2p", "%s", text);
}

void cvy_shake_close_strangers(struct cvy_mesh *mesh)
{
	while (mesh->strangers)
		stranger_close(mesh->strangers);
}

static int shake_send(struct cvy_conn *conn, int type, const void *body, size_t bytes, int pass_fd)
{
	struct cvy_wire head = { .magic = CVY_WIRE_MAGIC,
				 .version = CVY_WIRE_VERSION,
				 .type = (uint16_t)type,
				 .bytes = (uint32_t)bytes,
				 .src = conn->mine.src,
				 .dst = conn->mine.dst,
				 .src_inc = conn->mine.src_inc,
				 .dst_inc = conn->mine.dst_inc };

	return cvy_conn_send(conn, &head, body, pass_fd);
}

/* Sends the reason and hangs up. The reason may be known on this side only, and the other should not have to guess. */
static void refuse(struct cvy_conn *conn, int err, const char *text)
{
	struct refusal r = { .err = err };

	snprintf(r.text, sizeof(r.text), "%s", text);
	shake_send(conn, CVY_WIRE_REFUSE, &r, sizeof(r), -1);
	if (conn->peer)
		cvy_peer_fail(conn->peer, err, text);
	else
		stranger_close(conn);
}

static void shake_broken(struct cvy_conn *conn, int err, const char *cause)
{
	if (conn->peer && conn == conn->peer->control && conn->peer->dialling) {
		if (!cvy_peer_dial_next(conn->peer, cause))
			cvy_peer_fail(conn->peer, err, conn->peer->said);
	} else if (conn->peer) {
		cvy_peer_fail(conn->peer, err, cause);
	} else if (err == COVEY_ERR_VERSION || err == COVEY_ERR_INVAL) {
		if (err == COVEY_ERR_VERSION && conn->head.magic == CVY_WIRE_MAGIC) /* a covey process, not any other */
			cvy_fail(conn->mesh->box, err, -1, 0, "a connection was refused: %s", cause);
		cvy_shake_complain(conn->mesh, "a connection was refused: %s", cause);
		refuse(conn, err, cause);
	} else {
		cvy_debug("p2p", "a stranger left: %s", cause);
		stranger_close(conn);
	}
}

static void proof_make(const struct cvy_conn *conn, int by_dialer, uint8_t *mac)
{
	struct transcript t;

	memset(&t, 0, sizeof(t));
	memcpy(t.label, "covey-proof", 12);
	t.by_dialer = (uint32_t)by_dialer;
	t.dialer = conn->dialer ? conn->mine : conn->theirs;
	t.listener = conn->dialer ? conn->theirs : conn->mine;
	crypto_auth(mac, (const uint8_t *)&t, sizeof(t), conn->mesh->id.secret);
}

static int proof_send(struct cvy_conn *conn)
{
	uint8_t mac[crypto_auth_BYTES];

	proof_make(conn, conn->dialer, mac);
	return shake_send(conn, CVY_WIRE_PROOF, mac, sizeof(mac), -1);
}

static int welcome_send(struct cvy_conn *conn)
{
	struct cvy_welcome welcome;

	cvy_peer_welcome_self(conn->mesh, conn->peer, &welcome);
	welcome.has_fd = (uint32_t)conn->is_unix;
	return shake_send(conn, CVY_WIRE_WELCOME, &welcome, sizeof(welcome),
			  conn->is_unix ? conn->mesh->window->fd : -1);
}

static void hello_fill(struct cvy_conn *conn, int rank, uint64_t inc, uint32_t data)
{
	const struct cvy_identity *id = &conn->mesh->id;
	struct cvy_hello *h = &conn->mine;

	memset(h, 0, sizeof(*h));
	memcpy(h->gid, id->gid, sizeof(id->gid));
	randombytes_buf(h->challenge, sizeof(h->challenge));
	h->nonce = id->nonce;
	h->src = id->rank;
	h->src_inc = id->inc;
	h->dst = rank;
	h->dst_inc = inc;
	h->data = data;
}

/* What becomes of a stranger; < 0: the error with which it is refused. */
enum judged {
	PARKED, /* it may be expected soon */
	ANSWERED
};

static int stranger_judge(const struct cvy_conn *conn, const char **why)
{
	const struct cvy_mesh *mesh = conn->mesh;
	const struct cvy_hello *h = &conn->theirs;
	const struct cvy_peer *peer;

	*why = "not expected";
	if (!mesh->known)
		return PARKED;
	if (memcmp(h->gid, mesh->id.gid, sizeof(mesh->id.gid))) {
		*why = "another group of this name";
		return COVEY_ERR_FENCED;
	}
	if (h->dst != mesh->id.rank || h->dst_inc != mesh->id.inc || h->src == h->dst || h->src < 0 ||
	    h->src >= mesh->max_ranks) {
		*why = "the rank or incarnation that was dialled is not here";
		return COVEY_ERR_PEER;
	}
	peer = mesh->peer[h->src];
	if (!peer || peer->want != CVY_WANT_EXPECT || peer->inc != h->src_inc)
		return h->data ? COVEY_ERR_PEER : PARKED;
	if (!h->data)
		return peer->control ? PARKED : ANSWERED;
	if (peer->control && peer->control->state == CVY_SHAKE_UP && peer->nonce == h->nonce &&
	    h->data > (uint32_t)peer->fds && h->data <= (uint32_t)peer->streams)
		return h->data == (uint32_t)peer->fds + 1 && !peer->data
			       ? ANSWERED
			       : PARKED; /* it may come before the one before it */
	*why = "a data connection out of turn";
	return COVEY_ERR_PEER;
}

static void stranger_try(struct cvy_conn *conn)
{
	const char *why;
	int verdict = stranger_judge(conn, &why);

	if (verdict < 0) {
		if (verdict == COVEY_ERR_FENCED)
			cvy_shake_complain(conn->mesh, "a connection was refused: it is of %s", why);
		cvy_debug("p2p", "refused rank %d: %s", conn->theirs.src, why);
		refuse(conn, verdict, why);
		return;
	}
	conn->state = CVY_SHAKE_PARKED;
	if (verdict == PARKED)
		return;
	conn->state = CVY_SHAKE_PROOF;
	hello_fill(conn, conn->theirs.src, conn->theirs.src_inc, conn->theirs.data);
	if (shake_send(conn, CVY_WIRE_HELLO, &conn->mine, sizeof(conn->mine), -1) || proof_send(conn))
		stranger_close(conn);
}

void cvy_shake_retry(struct cvy_mesh *mesh)
{
	struct cvy_conn *next;

	for (struct cvy_conn *conn = mesh->strangers; conn; conn = next) {
		next = conn->next;
		if (conn->state == CVY_SHAKE_PARKED)
			stranger_try(conn);
	}
}

static void got_hello(struct cvy_conn *conn, const struct cvy_hello *hello)
{
	conn->theirs = *hello;
	if (!conn->dialer) {
		stranger_try(conn);
		return;
	}
	if (memcmp(hello->gid, conn->mine.gid, sizeof(hello->gid)) || hello->src != conn->mine.dst ||
	    hello->src_inc != conn->mine.dst_inc || hello->dst != conn->mine.src ||
	    hello->dst_inc != conn->mine.src_inc || hello->data != conn->mine.data) {
		refuse(conn, COVEY_ERR_PEER, "another process answered at its address");
		return;
	}
	conn->state = CVY_SHAKE_PROOF;
}

/* As long as the longest packet that the system would send, or @empty. */
static int trial_send(struct cvy_conn *conn, int empty)
{
	static const uint8_t blank[CVY_TRIAL_MAX];
	int bytes = 0;
	socklen_t len = sizeof(bytes);

	if (!empty &&
	    (getsockopt(conn->fd, IPPROTO_TCP, TCP_MAXSEG, &bytes, &len) || bytes < 1 || bytes > CVY_TRIAL_MAX))
		bytes = CVY_TRIAL_MAX;
	return shake_send(conn, CVY_WIRE_TRIAL, blank, (size_t)bytes, -1);
}

/* A proven data connection, which both sides try. The listener begins. */
static void try_out(struct cvy_conn *conn, struct cvy_peer *peer)
{
	conn->peer = peer;
	peer->data = conn;
	conn->bound = CVY_TRIAL_MAX;
	conn->state = CVY_SHAKE_TRIAL;
	if (!conn->dialer && trial_send(conn, 0))
		cvy_peer_fail(peer, COVEY_ERR_IO, "the connection closed during the handshake");
}

/* Passes the socket of a tried data connection from frames to the tcp transport. */
static void hand_over(struct cvy_conn *conn, struct cvy_peer *peer)
{
	int fd = conn->first ? -1 : fcntl(conn->fd, F_DUPFD_CLOEXEC, 0);

	peer->data = NULL;
	cvy_conn_close(conn);
	if (fd < 0)
		cvy_peer_fail(peer, COVEY_ERR_IO, "the data connection cannot be taken over");
	else
		cvy_peer_data(peer, fd);
}

static void got_trial(struct cvy_conn *conn)
{
	struct cvy_peer *peer = conn->peer;

	if (conn->state == CVY_SHAKE_TRIAL && trial_send(conn, !conn->dialer))
		cvy_peer_fail(peer, COVEY_ERR_IO, "the connection closed during the handshake");
	else if (conn->state == CVY_SHAKE_TRIAL && conn->dialer)
		conn->state = CVY_SHAKE_TRIED;
	else
		hand_over(conn, peer);
}

static void proven_dialer(struct cvy_conn *conn)
{
	struct cvy_peer *peer = conn->peer;

	if (proof_send(conn) || (!conn->mine.data && welcome_send(conn))) {
		cvy_peer_fail(peer, COVEY_ERR_IO, "the connection closed during the handshake");
		return;
	}
	conn->state = CVY_SHAKE_WELCOME;
	if (conn->mine.data)
		try_out(conn, peer);
	else
		peer->nonce = conn->theirs.nonce;
}

static void proven_stranger(struct cvy_conn *conn)
{
	struct cvy_peer *peer = conn->mesh->peer[conn->theirs.src];
	const char *why;

	if (stranger_judge(conn, &why) <= 0) { /* the expected incarnation may have changed meanwhile */
		refuse(conn, COVEY_ERR_PEER, why);
		return;
	}
	stranger_keep(conn);
	if (conn->theirs.data) {
		try_out(conn, peer);
		return;
	}
	conn->peer = peer;
	peer->control = conn;
	peer->nonce = conn->theirs.nonce;
	conn->state = CVY_SHAKE_WELCOME;
}

static void got_proof(struct cvy_conn *conn, const uint8_t *mac)
{
	uint8_t want[crypto_auth_BYTES];
	char text[CVY_CAUSE];

	proof_make(conn, !conn->dialer, want);
	if (sodium_memcmp(want, mac, sizeof(want))) {
		snprintf(text, sizeof(text), "rank %d gave a wrong proof: it does not have the secret of this group",
			 conn->theirs.src);
		cvy_shake_complain(conn->mesh, "%s", text);
		cvy_fail(conn->mesh->box, COVEY_ERR_AUTH, conn->theirs.src, 0, "%s", text);
		refuse(conn, COVEY_ERR_AUTH, text);
	} else if (conn->dialer) {
		proven_dialer(conn);
	} else {
		proven_stranger(conn);
	}
}

static void got_welcome(struct cvy_conn *conn, const struct cvy_welcome *from)
{
	struct cvy_welcome welcome = *from;
	struct cvy_peer *peer = conn->peer;
	int fd = conn->in_fd;

	welcome.host[sizeof(welcome.host) - 1] = '\0';
	/* Before the link is usable here: everything sent on it comes after this. */
	if (!conn->dialer && welcome_send(conn)) {
		cvy_peer_fail(peer, COVEY_ERR_IO, "the connection closed during the handshake");
		return;
	}
	conn->in_fd = -1;
	conn->state = CVY_SHAKE_UP;
	conn->bound = CVY_MSG_MAX;
	conn->frame = cvy_peer_frame;
	cvy_peer_welcome(peer, &welcome, welcome.has_fd ? fd : -1);
	if (fd >= 0)
		close(fd);
}

static void got_refusal(struct cvy_conn *conn, const struct refusal *from)
{
	struct refusal r = *from;
	char text[CVY_CAUSE + 20];

	r.text[sizeof(r.text) - 1] = '\0';
	for (char *c = r.text; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	snprintf(text, sizeof(text), "it refused: %s", r.text);
	shake_broken(conn, r.err == COVEY_ERR_AUTH || r.err == COVEY_ERR_VERSION ? r.err : COVEY_ERR_PEER, text);
}

static void shake_frame(struct cvy_conn *conn, const struct cvy_wire *head, const uint8_t *body)
{
	if (head->type == CVY_WIRE_HELLO && conn->state == CVY_SHAKE_HELLO && head->bytes == sizeof(struct cvy_hello))
		got_hello(conn, (const struct cvy_hello *)body);
	else if (head->type == CVY_WIRE_PROOF && conn->state == CVY_SHAKE_PROOF && head->bytes == crypto_auth_BYTES)
		got_proof(conn, body);
	else if (head->type == CVY_WIRE_WELCOME && conn->state == CVY_SHAKE_WELCOME &&
		 head->bytes == sizeof(struct cvy_welcome))
		got_welcome(conn, (const struct cvy_welcome *)body);
	else if (head->type == CVY_WIRE_TRIAL &&
		 (conn->state == CVY_SHAKE_TRIAL ? head->bytes > 0 : conn->state == CVY_SHAKE_TRIED && !head->bytes))
		got_trial(conn);
	else if (head->type == CVY_WIRE_REFUSE && conn->dialer && head->bytes == sizeof(struct refusal))
		got_refusal(conn, (const struct refusal *)body);
	else
		shake_broken(conn, COVEY_ERR_INVAL, "a message out of place in the handshake");
}

/*
 * SO_PEERCRED: the user that held the socket when it connected. Another user has no business in our memory: 0, and the
 * reason in @text. It names both users, since the two processes see nothing else of each other.
 */
static int same_user(const struct cvy_conn *conn, char *text, size_t bytes)
{
	struct ucred cred = { .uid = (uid_t)-1 };
	socklen_t len = sizeof(cred);

	if (!conn->is_unix || (!getsockopt(conn->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) && cred.uid == geteuid()))
		return 1;
	snprintf(text, bytes,
		 "it runs as uid %d, this process as uid %d: members of one host run as one user, or have each a "
		 "COVEY_HOST "
		 "of their own",
		 (int)cred.uid, (int)geteuid());
	return 0;
}

static void shake_opened(struct cvy_conn *conn)
{
	char why[CVY_CAUSE];

	if (conn == conn->peer->control)
		cvy_peer_dialled(conn->peer);
	if (!same_user(conn, why, sizeof(why)))
		cvy_peer_fail(conn->peer, COVEY_ERR_AUTH, why);
}

void cvy_shake_dial(struct cvy_conn *conn, struct cvy_peer *peer, int data)
{
	conn->mesh = peer->mesh;
	conn->peer = peer;
	conn->dialer = 1;
	conn->frame = shake_frame;
	conn->opened = shake_opened;
	conn->broken = shake_broken;
	conn->state = CVY_SHAKE_HELLO;
	hello_fill(conn, peer->rank, peer->inc, (uint32_t)data);
	if (shake_send(conn, CVY_WIRE_HELLO, &conn->mine, sizeof(conn->mine), -1))
		peer->early = "no memory for a message"; /* the timer of the handshake reports it */
}

static void stranger_late(void *ctx)
{
	struct cvy_conn *conn = ctx;

	conn->timer = NULL; /* it fired */
	refuse(conn, COVEY_ERR_TIMEOUT, "not expected here");
}

/* A silent stranger gives way to a newcomer: a port scanner that holds all places keeps nobody out. */
static int stranger_make_room(struct cvy_mesh *mesh)
{
	struct cvy_conn *oldest = NULL;

	if (mesh->stranger_count < CVY_STRANGERS)
		return 1;
	for (struct cvy_conn *conn = mesh->strangers; conn; conn = conn->next) /* the newest comes first */
		if (conn->state == CVY_SHAKE_HELLO)
			oldest = conn;
	if (oldest)
		stranger_close(oldest);
	return oldest != NULL;
}

void cvy_shake_accept(struct cvy_conn *conn)
{
	struct cvy_mesh *mesh = conn->mesh;
	char why[CVY_CAUSE];

	conn->frame = shake_frame;
	conn->broken = shake_broken;
	conn->state = CVY_SHAKE_HELLO;
	if (!same_user(conn, why, sizeof(why))) {
		if (strcmp(mesh->other_user, why) != 0) /* once: it will call again */
			cvy_shake_complain(mesh, "a connection was closed: %s", why);
		snprintf(mesh->other_user, sizeof(mesh->other_user), "%s", why);
		cvy_conn_close(conn);
		return;
	}
	if (!stranger_make_room(mesh)) {
		cvy_shake_complain(mesh, "a connection was closed: 64 others have not proven themselves yet");
		cvy_conn_close(conn);
		return;
	}
	conn->next = mesh->strangers;
	mesh->strangers = conn;
	mesh->stranger_count++;
	conn->timer = cvy_loop_timer(mesh->loop, cvy_now_ns() + CVY_HANDSHAKE_MS * CVY_MS, stranger_late, conn);
	if (!conn->timer)
		stranger_close(conn);
}
