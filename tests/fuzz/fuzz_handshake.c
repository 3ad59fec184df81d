/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mesh and the strangers that call it, or answer it. The input is a program of steps, one a round of
 * the loop: call by unix or tcp, send the right next message with some bytes changed, pass descriptors,
 * raw bytes, read, hang up, and what an agent may ask of the mesh meanwhile. The stranger has the
 * secret, so that an input can reach everything behind the proof; descriptors are counted.
 */
#include <sodium.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "clock.h"
#include "fuzz.h"
#include "mesh.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

#define CALLERS 4
#define STEPS 64
#define QUIET 6 /* rounds after the last step */
#define INC 100 /* of rank 0; rank r has INC + r */
#define GID "00112233445566778899aabbccddeeff"

struct caller {
	int fd, rank;
	struct cvy_hello mine, theirs;
};

static struct {
	struct fuzz_in in;
	struct cvy_loop *loop;
	struct cvy_mesh *mesh;
	struct caller caller[CALLERS];
	int now, rounds, steps, listener;
	char addr[64];
} f;

static struct cvy_window *window; /* of a rank of this process */
static int odd_fd[4];		  /* not sealed, no memory, too large, the rank's window */

static void post(void *ctx, const struct cvy_event *event)
{
	fuzz_check(event->rank >= 0 && event->rank < 4 && event->rank != 0);
	if (event->kind == CVY_EV_MSG)
		fuzz_check(event->msg.bytes <= CVY_MSG_MAX && (event->msg.body || !event->msg.bytes));
}

/* Some bytes of @to are changed: how many, where, to what. */
static void mutate(void *to, size_t bytes)
{
	for (int n = fuzz_byte(&f.in) % 4; n > 0; n--) {
		size_t at = (fuzz_byte(&f.in) | (size_t)fuzz_byte(&f.in) << 8) % bytes;

		((uint8_t *)to)[at] ^= fuzz_byte(&f.in);
	}
}

static void put(const void *bytes, size_t n, const int *fd, int fds)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)(uintptr_t)bytes, n };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fds) {
		struct cmsghdr *c;

		msg.msg_control = control.room;
		msg.msg_controllen = CMSG_SPACE((size_t)fds * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)fds * sizeof(int));
		memcpy(CMSG_DATA(c), fd, (size_t)fds * sizeof(int));
	}
	if (f.caller[f.now].fd >= 0 && sendmsg(f.caller[f.now].fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return; /* the mesh hung up, or takes nothing now */
}

static void say(int type, const void *body, size_t bytes, const int *fd, int fds)
{
	uint8_t frame[sizeof(struct cvy_wire) + 1024];
	struct cvy_wire head = { .magic = CVY_WIRE_MAGIC,
				 .version = CVY_WIRE_VERSION,
				 .type = (uint16_t)type,
				 .bytes = (uint32_t)bytes,
				 .epoch = 1,
				 .src = f.caller[f.now].rank,
				 .src_inc = INC + (uint64_t)f.caller[f.now].rank,
				 .dst_inc = INC };

	memcpy(frame, &head, sizeof(head));
	if (bytes)
		memcpy(frame + sizeof(head), body, bytes);
	mutate(frame, sizeof(head) + bytes);
	put(frame, sizeof(head) + bytes, fd, fds);
}

static void call(int by_unix)
{
	const char *why;
	struct caller *c = &f.caller[f.now];

	if (c->fd >= 0)
		return;
	c->fd = cvy_address_connect(cvy_mesh_addr(f.mesh), by_unix ? CVY_BY_UNIX : 0, "", &why);
	c->rank = 1;
}

static void answer(void)
{
	struct caller *c = &f.caller[f.now];

	if (c->fd >= 0)
		return;
	c->fd = accept4(f.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	c->rank = 2;
}

static void hello(void)
{
	struct caller *c = &f.caller[f.now];

	c->mine = (struct cvy_hello){
		.gid = GID, .nonce = 7, .src = c->rank, .src_inc = INC + (uint64_t)c->rank, .dst_inc = INC
	};
	c->mine.data = fuzz_byte(&f.in) % 4 == 1;
	say(CVY_WIRE_HELLO, &c->mine, sizeof(c->mine), NULL, 0);
}

static void proof(void)
{
	static const uint8_t secret[32] = { 7 };
	struct caller *c = &f.caller[f.now];
	uint8_t mac[crypto_auth_BYTES];
	struct {
		char label[12];
		uint32_t by_dialer;
		struct cvy_hello dialer, listener;
	} t;

	memset(&t, 0, sizeof(t));
	memcpy(t.label, "covey-proof", 12);
	t.by_dialer = c->rank == 1;
	t.dialer = c->rank == 1 ? c->mine : c->theirs;
	t.listener = c->rank == 1 ? c->theirs : c->mine;
	crypto_auth(mac, (const uint8_t *)&t, sizeof(t), secret);
	say(CVY_WIRE_PROOF, mac, sizeof(mac), NULL, 0);
}

static void welcome(void)
{
	struct cvy_welcome w;
	uint8_t what = fuzz_byte(&f.in);
	int fds = what % 3;

	cvy_peer_welcome_self(f.mesh, NULL, &w);
	w.has_fd = fds > 0;
	if (what & 64)
		w.transport = COVEY_TRANSPORT_TCP;
	say(CVY_WIRE_WELCOME, &w, sizeof(w), what & 32 ? odd_fd : odd_fd + 2, fds);
}

static void message(void)
{
	uint8_t body[256];
	int type = fuzz_byte(&f.in) % 12;
	size_t n = fuzz_byte(&f.in);

	fuzz_take(&f.in, body, n);
	say(type, body, n, odd_fd, type == 11 ? 2 : 0);
}

static void raw(void)
{
	uint8_t bytes[256];
	size_t n = fuzz_take(&f.in, bytes, fuzz_byte(&f.in));

	if (n)
		put(bytes, n, odd_fd, fuzz_byte(&f.in) % 3);
}

/* What the mesh said: its HELLO is remembered. */
static void hear(void)
{
	struct caller *c = &f.caller[f.now];
	uint8_t bytes[4096];
	ssize_t n = c->fd >= 0 ? recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT) : -1;
	struct cvy_wire head;

	if (n < (ssize_t)(sizeof(head) + sizeof(c->theirs)))
		return;
	memcpy(&head, bytes, sizeof(head));
	if (head.type == CVY_WIRE_HELLO)
		memcpy(&c->theirs, bytes + sizeof(head), sizeof(c->theirs));
}

static void hang_up(void)
{
	if (f.caller[f.now].fd >= 0)
		close(f.caller[f.now].fd);
	f.caller[f.now].fd = -1;
}

static void agent(void)
{
	struct cvy_identity id = { .gid = GID, .secret = { 7 }, .rank = 0, .max_ranks = 4, .inc = INC, .nonce = 5 };
	uint8_t what = fuzz_byte(&f.in);
	int rank = what / 8 % 4;
	uint64_t inc = INC + (uint64_t)rank + (what >> 7);

	switch (what % 8) {
	case 0:
		cvy_mesh_drop(f.mesh, rank, inc);
		break;
	case 1:
		pthread_mutex_lock(f.mesh->lock);
		cvy_mesh_fence(f.mesh, rank);
		pthread_mutex_unlock(f.mesh->lock);
		break;
	case 2:
		cvy_mesh_dial(f.mesh, 2, INC + 2, f.addr, cvy_mesh_host(f.mesh));
		break;
	case 3:
		cvy_mesh_identity(f.mesh, &id);
		break;
	case 4:
		cvy_mesh_send(f.mesh, rank, inc, CVY_MSG_GIVE, 1, odd_fd, sizeof(odd_fd));
		break;
	default:
		cvy_mesh_expect(f.mesh, rank, inc);
	}
}

static void step(void)
{
	static void (*const steps[])(void) = { hello,  proof, welcome, message, raw,  hear,
					       answer, agent, hang_up, hear,	proof };
	uint8_t what = fuzz_byte(&f.in);

	f.now = what >> 6;
	what &= 63;
	if (what < 2)
		call(what);
	else
		steps[what % (sizeof(steps) / sizeof(steps[0]))]();
}

static void tick(void *ctx, uint64_t now_ns)
{
	if (f.in.left && f.steps < STEPS) {
		f.steps++;
		step();
	} else if (++f.rounds > QUIET) {
		cvy_loop_stop(f.loop);
	}
}

static void keep_going(void *ctx, uint32_t events)
{
}

static int memory(size_t bytes, unsigned int seals)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	fuzz_check(fd >= 0 && !ftruncate(fd, (off_t)bytes));
	fuzz_check(!seals || !fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

static void listen_here(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	socklen_t bytes = sizeof(sa_family_t); /* the kernel makes up a name */

	f.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	fuzz_check(f.listener >= 0 && !bind(f.listener, (struct sockaddr *)&name, bytes) && !listen(f.listener, 4));
	bytes = sizeof(name);
	fuzz_check(!getsockname(f.listener, (struct sockaddr *)&name, &bytes));
	snprintf(f.addr, sizeof(f.addr), "unix:@%.*s", (int)(bytes - sizeof(sa_family_t) - 1), name.sun_path + 1);
}

static void once(const struct cvy_config *config)
{
	struct cvy_layout layout = cvy_layout(config->window_bytes, config->slot_bytes);

	fuzz_check(sodium_init() >= 0);
	odd_fd[0] = memory(config->window_bytes, 0);
	odd_fd[1] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	odd_fd[2] = memory(2 * config->window_bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
	fuzz_check(!cvy_window_new(&layout, 4, NULL, &window));
	cvy_window_name(window, INC + 1, 7, 4);
	odd_fd[3] = odd_fd[2];
	odd_fd[2] = window->fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char interface[] = "127.0.0.1", none[] = "";
	static const int ms = 1;
	struct cvy_config config = {
		.host = none, .interface = interface, .max_ranks = 4, .slot_bytes = 4096, .window_bytes = 65536
	};
	struct cvy_mesh_args args = { .config = &config, .sink = { .post = post } };
	int before, ready;

	if (!window)
		once(&config);
	before = fuzz_descriptors();
	memset(&f, 0, sizeof(f));
	f.in = (struct fuzz_in){ data, size };
	for (int i = 0; i < CALLERS; i++)
		f.caller[i].fd = -1;
	fuzz_check(!cvy_loop_new(&f.loop));
	args.loop = f.loop;
	fuzz_check(!cvy_mesh_open(&args, &f.mesh));
	listen_here();
	ready = eventfd(1, EFD_CLOEXEC);
	struct cvy_watch *always;

	fuzz_check(!cvy_loop_watch(f.loop, ready, EPOLLIN, keep_going, NULL, &always));
	cvy_loop_run(f.loop, tick, NULL, &ms);
	cvy_loop_unwatch(always);
	for (f.now = 0; f.now < CALLERS; f.now++)
		hang_up();
	cvy_mesh_close(f.mesh);
	cvy_loop_free(f.loop);
	close(ready);
	close(f.listener);
	fuzz_check(fuzz_descriptors() == before);
	return 0;
}
