/* SPDX-License-Identifier: Apache-2.0 */
/* Links between two meshes: shared memory, tcp, refusals, fences. */
#include <arpa/inet.h>
#include "../../suite.h"
#include "rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

static struct rig rig;

static void setup(void)
{
	memset(&rig, 0, sizeof(rig));
	unsetenv("COVEY_FAULT");
	ck_assert_int_eq(cvy_loop_new(&rig.loop), 0);
}

static void teardown(void)
{
	rig_close(&rig);
}

static void pair(int transport_a, int transport_b, const char *host_a, const char *host_b)
{
	struct cvy_config a, b;

	rig_config(&a, transport_a, host_a);
	rig_config(&b, transport_b, host_b);
	rig_open(&rig, 0, &a);
	rig_open(&rig, 1, &b);
}

static void linked(int transport_a, int transport_b, const char *host_a, const char *host_b)
{
	pair(transport_a, transport_b, host_a, host_b);
	rig_connect(&rig);
	rig_run(&rig, rig_both_up);
}

static int a_down(struct rig *r)
{
	return r->rank[0].downs > 0;
}

static int b_down(struct rig *r)
{
	return r->rank[1].downs > 0;
}

static int both_down(struct rig *r)
{
	return a_down(r) && b_down(r);
}

static int a_msg(struct rig *r)
{
	return r->rank[0].msgs > 0;
}

static int both_twice_up(struct rig *r)
{
	return r->rank[0].ups == 2 && r->rank[1].ups == 2;
}

/* 1 when a byte at @at can be read: the kernel looks, not we. */
static int readable(const uint8_t *at)
{
	int p[2], ok;

	ck_assert_int_eq(pipe(p), 0);
	ok = write(p[1], at, 1) == 1;
	close(p[0]);
	close(p[1]);
	return ok;
}

TEST(shm_view_is_the_owner_in_one_process)
{
	linked(0, 0, "", "");
	ck_assert_ptr_eq(cvy_mesh_view(rig.rank[0].mesh, 1), cvy_mesh_own(rig.rank[1].mesh));
	ck_assert_ptr_eq(cvy_mesh_view(rig.rank[0].mesh, 0), cvy_mesh_own(rig.rank[0].mesh));
	ck_assert_str_eq(cvy_mesh_link(rig.rank[0].mesh, 1)->ops->name, "shm");
	ck_assert_uint_eq(cvy_mesh_page(rig.rank[0].mesh, 1)->inc, 101);
	cvy_mesh_fence(rig.rank[0].mesh, 1);
	ck_assert(!readable(cvy_mesh_view(rig.rank[0].mesh, 1)));
	ck_assert_ptr_null(cvy_mesh_link(rig.rank[0].mesh, 1));
}

TEST(four_mebibytes_arrive_whole)
{
	uint8_t *big = malloc(CVY_MSG_MAX);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < CVY_MSG_MAX; i++) {
		big[i] = (uint8_t)(i * 2654435761u >> 24);
		sum = sum * 31 + big[i];
	}
	linked(0, 0, "", "");
	ck_assert_int_eq(cvy_mesh_send(rig.rank[1].mesh, 0, 100, CVY_MSG_GIVE, 3, big, CVY_MSG_MAX), 0);
	rig_run(&rig, a_msg);
	ck_assert_uint_eq(rig.rank[0].bytes, CVY_MSG_MAX);
	ck_assert_uint_eq(rig.rank[0].sum, sum);
	ck_assert_int_eq(cvy_mesh_send(rig.rank[1].mesh, 0, 99, CVY_MSG_GIVE, 3, big, 1), COVEY_ERR_PEER);
	free(big);
}

TEST(a_link_whose_peer_does_not_read_goes_down)
{
	uint8_t *big = calloc(1, CVY_MSG_MAX);
	int err = 0;

	linked(0, 0, "", "");
	for (int i = 0; i < 4 && !err; i++)
		err = cvy_mesh_send(rig.rank[1].mesh, 0, 100, CVY_MSG_GIVE, 3, big, CVY_MSG_MAX);
	ck_assert_int_eq(err, COVEY_ERR_PEER);
	ck_assert_int_eq(rig.rank[1].downs, 0); /* told from the loop only */
	rig_run(&rig, both_down);
	ck_assert_ptr_nonnull(strstr(rig.rank[1].cause, "does not read"));
	ck_assert_int_eq(rig.rank[1].downs, 1);
	free(big);
}

TEST(tcp_puts_come_before_their_signal_and_a_fence_gives_fresh_memory)
{
	struct cvy_layout l;
	struct cvy_link *out, *in;
	struct cvy_page *page, *mirror;
	uint8_t *own;
	uint64_t deadline = cvy_now_ns() + RIG_BOUND_NS;

	linked(0, 0, "one", "two");
	l = cvy_mesh_layout(rig.rank[1].mesh);
	own = cvy_mesh_own(rig.rank[1].mesh);
	page = (struct cvy_page *)own;
	out = cvy_mesh_link(rig.rank[1].mesh, 0);
	in = cvy_mesh_link(rig.rank[0].mesh, 1);
	mirror = (struct cvy_page *)cvy_mesh_view(rig.rank[0].mesh, 1);
	ck_assert_str_eq(in->ops->name, "tcp");
	ck_assert_ptr_null(cvy_mesh_page(rig.rank[0].mesh, 1));
	memset(own + l.heap, 0x5a, 8 << 20);
	page->first[1].tag = cvy_tag(3, 9);
	ck_assert_int_eq(out->ops->put(out, l.heap, 8 << 20), 0);
	ck_assert_int_eq(out->ops->signal(out, offsetof(struct cvy_page, first[1])), 0);
	page->first[1].tag = cvy_tag(3, 10); /* the signal went by value */
	while (__atomic_load_n(&mirror->first[1].tag, __ATOMIC_ACQUIRE) == 0 && cvy_now_ns() < deadline) {
		ck_assert_int_ge(out->ops->poll(out), 0);
		ck_assert_int_ge(in->ops->poll(in), 0);
	}
	ck_assert_uint_eq(mirror->first[1].tag, cvy_tag(3, 9));
	ck_assert_int_eq(memcmp((uint8_t *)mirror + l.heap, own + l.heap, 8 << 20), 0);
	ck_assert_int_eq(out->ops->unsent(out), 0);
	cvy_mesh_fence(rig.rank[0].mesh, 1);
	out->ops->put(out, l.heap, 4096);
	out->ops->signal(out, offsetof(struct cvy_page, first[1]));
	ck_assert_uint_eq(mirror->first[1].tag, 0);
	ck_assert_uint_eq(((uint8_t *)mirror)[l.heap], 0);
	rig_run(&rig, b_down);
}

static void pair_of_streams(int a, int b)
{
	struct cvy_config config;

	rig_config(&config, 0, "one");
	config.tcp_connections = a;
	rig_open(&rig, 0, &config);
	rig_config(&config, 0, "two");
	config.tcp_connections = b;
	rig_open(&rig, 1, &config);
	rig_connect(&rig);
	rig_run(&rig, rig_both_up);
}

static int streams(struct cvy_link *link)
{
	short events;
	int n = 0;

	while (link->ops->fd(link, n, &events) >= 0)
		n++;
	return n;
}

/* One put of rank @from and its line; whoever sees the line must see all of the put. */
static void put_and_see(int from, uint32_t round, size_t bytes)
{
	struct cvy_link *out = cvy_mesh_link(rig.rank[from].mesh, !from);
	struct cvy_link *in = cvy_mesh_link(rig.rank[!from].mesh, from);
	size_t heap = cvy_mesh_layout(rig.rank[from].mesh).heap;
	uint8_t *own = cvy_mesh_own(rig.rank[from].mesh);
	struct cvy_page *page = (struct cvy_page *)own;
	const struct cvy_page *mirror = (const struct cvy_page *)cvy_mesh_view(rig.rank[!from].mesh, from);
	uint64_t tag = cvy_tag(3, round), deadline = cvy_now_ns() + RIG_BOUND_NS;

	memset(own + heap, (int)(round * 37 + 1), bytes);
	ck_assert_int_eq(out->ops->put(out, heap, bytes), 0);
	page->first[1].tag = tag;
	ck_assert_int_eq(out->ops->signal(out, offsetof(struct cvy_page, first[1])), 0);
	while (__atomic_load_n(&mirror->first[1].tag, __ATOMIC_ACQUIRE) != tag && cvy_now_ns() < deadline) {
		ck_assert_int_ge(out->ops->poll(out), 0);
		ck_assert_int_ge(in->ops->poll(in), 0);
	}
	ck_assert_uint_eq(mirror->first[1].tag, tag);
	ck_assert_msg(!memcmp((const uint8_t *)mirror + heap, own + heap, bytes),
		      "round %u: the line of %zu bytes came before them", round, bytes);
}

static const int wanted[][3] = { { 1, 8, 1 }, { 2, 2, 2 }, { 4, 3, 3 }, { 8, 8, 8 } };

TEST_LOOP(a_large_put_may_take_several_connections_but_its_line_comes_last, 0, 4)
{
	static const size_t sizes[] = { 1, 65535, 65536, 65537, 100000, 262144, 1000001, 6 << 20 };
	struct cvy_link *a, *b;
	short events;

	pair_of_streams(wanted[_i][0], wanted[_i][1]);
	a = cvy_mesh_link(rig.rank[0].mesh, 1);
	b = cvy_mesh_link(rig.rank[1].mesh, 0);
	ck_assert_int_eq(streams(a), wanted[_i][2]);
	ck_assert_int_eq(streams(b), wanted[_i][2]);
	for (uint32_t round = 1; round <= 80; round++)
		put_and_see((int)round % 2, round, sizes[round * 7 / 2 % 8]);
	/* the end of any of them is the end of the link */
	ck_assert_int_eq(shutdown(a->ops->fd(a, streams(a) - 1, &events), SHUT_RDWR), 0);
	while (b->ops->poll(b) >= 0)
		;
	rig_run(&rig, b_down);
}

TEST(a_bad_data_frame_ends_only_its_link)
{
	struct {
		uint32_t kind, bytes;
		uint64_t offset;
	} bad = { 0x50757431, 4096, (16 << 20) - 64 };
	struct cvy_link *out, *in;
	uint64_t deadline = cvy_now_ns() + RIG_BOUND_NS;
	short events;

	linked(0, 0, "one", "two");
	out = cvy_mesh_link(rig.rank[1].mesh, 0);
	in = cvy_mesh_link(rig.rank[0].mesh, 1);
	ck_assert_int_eq(send(out->ops->fd(out, 0, &events), &bad, sizeof(bad), 0), sizeof(bad));
	while (in->ops->poll(in) >= 0 && cvy_now_ns() < deadline)
		;
	ck_assert_int_lt(in->ops->poll(in), 0);
	rig_run(&rig, both_down);
	ck_assert_ptr_nonnull(strstr(rig.rank[0].cause, "bad frame"));
	ck_assert_int_eq(rig.rank[0].downs, 1);
}

TEST(tcp_on_one_host_still_shows_the_page)
{
	linked(COVEY_TRANSPORT_TCP, 0, "", "");
	ck_assert_str_eq(cvy_mesh_link(rig.rank[0].mesh, 1)->ops->name, "tcp");
	ck_assert_ptr_ne(cvy_mesh_view(rig.rank[0].mesh, 1), cvy_mesh_own(rig.rank[1].mesh));
	ck_assert_uint_eq(cvy_mesh_page(rig.rank[0].mesh, 1)->inc, 101);
}

TEST(shm_refuses_another_host)
{
	pair(COVEY_TRANSPORT_SHM, COVEY_TRANSPORT_SHM, "one", "two");
	rig_connect(&rig);
	rig_run(&rig, b_down);
	ck_assert_ptr_nonnull(strstr(rig.rank[1].cause, "another host"));
}

TEST(a_wrong_secret_is_refused)
{
	struct covey_error_info info;

	pair(0, 0, "", "");
	rig.rank[1].id.secret[3] ^= 1;
	rig_connect(&rig);
	rig_run(&rig, b_down);
	cvy_errbox_get(rig.rank[1].box, &info);
	ck_assert_int_eq(info.err, COVEY_ERR_AUTH);
	ck_assert_int_eq(rig.rank[0].ups + rig.rank[1].ups, 0);
}

TEST(differing_sizes_are_refused_by_both)
{
	struct cvy_config a, b;

	rig_config(&a, 0, "");
	rig_config(&b, 0, "");
	b.slot_bytes *= 2;
	rig_open(&rig, 0, &a);
	rig_open(&rig, 1, &b);
	rig_connect(&rig);
	rig_run(&rig, both_down);
	ck_assert_ptr_nonnull(strstr(rig.rank[0].cause, "slot_bytes 131072"));
	ck_assert_ptr_nonnull(strstr(rig.rank[1].cause, "slot_bytes 65536"));
}

static int a_version(struct rig *r)
{
	struct covey_error_info info;

	cvy_errbox_get(r->rank[0].box, &info);
	return info.err == COVEY_ERR_VERSION && strstr(info.cause, "version 9") && strstr(info.cause, "version 6");
}

TEST(another_version_is_named)
{
	struct cvy_wire head = { .magic = CVY_WIRE_MAGIC, .version = 9, .type = CVY_WIRE_HELLO };
	const char *why;
	int fd;

	pair(0, 0, "", "");
	fd = cvy_address_connect(cvy_mesh_addr(rig.rank[0].mesh), CVY_BY_UNIX, "", &why);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(send(fd, &head, sizeof(head), 0), sizeof(head));
	rig_run(&rig, a_version);
	close(fd);
}

TEST(a_dialler_may_come_before_it_is_expected)
{
	struct rig_rank *a = &rig.rank[0], *b = &rig.rank[1];

	pair(0, 0, "", "");
	cvy_mesh_identity(b->mesh, &b->id);
	cvy_mesh_dial(b->mesh, 0, a->id.inc, cvy_mesh_addr(a->mesh), cvy_mesh_host(a->mesh));
	cvy_mesh_identity(a->mesh, &a->id);
	cvy_mesh_expect(a->mesh, 1, b->id.inc);
	rig_run(&rig, rig_both_up);
}

static void end_of(int rank, char *text)
{
	struct sockaddr_in addr = { 0 };
	socklen_t len = sizeof(addr);

	ck_assert_int_eq(getpeername(rig.rank[rank].mesh->peer[1 - rank]->control->fd, (struct sockaddr *)&addr, &len),
			 0);
	ck_assert_ptr_nonnull(inet_ntop(AF_INET, &addr.sin_addr, text, INET_ADDRSTRLEN));
}

TEST(who_names_an_interface_calls_from_it)
{
	struct cvy_config a, b;
	char end[2][INET_ADDRSTRLEN];

	rig_config(&a, 0, "one");
	rig_config(&b, 0, "two");
	a.interface = (char *)(uintptr_t) "127.0.0.2";
	b.interface = (char *)(uintptr_t) "127.0.0.3";
	rig_open(&rig, 0, &a);
	rig_open(&rig, 1, &b);
	rig_connect(&rig);
	rig_run(&rig, rig_both_up);
	end_of(0, end[0]);
	end_of(1, end[1]);
	ck_assert_str_eq(end[0], "127.0.0.3");
	ck_assert_str_eq(end[1], "127.0.0.2");
}

static void relink(const char *host_b, const char *kind)
{
	linked(0, 0, "", host_b);
	shutdown(rig.rank[1].mesh->peer[0]->control->fd, SHUT_RDWR);
	rig_run(&rig, both_down);
	rig_connect(&rig);
	rig_run(&rig, both_twice_up);
	ck_assert_str_eq(cvy_mesh_link(rig.rank[0].mesh, 1)->ops->name, kind);
	ck_assert_int_eq(rig.rank[0].downs, 1);
}

TEST_LOOP(a_broken_link_can_be_dialled_again, 0, 2)
{
	relink(_i ? "two" : "", _i ? "tcp" : "shm");
}

static int a_up(struct rig *r)
{
	return r->rank[0].ups == 1;
}

static void child_runs(const struct cvy_config *c, int to)
{
	rig_open(&rig, 1, c);
	cvy_mesh_own(rig.rank[1].mesh)[cvy_mesh_layout(rig.rank[1].mesh).slots] = 77;
	cvy_mesh_identity(rig.rank[1].mesh, &rig.rank[1].id);
	cvy_mesh_expect(rig.rank[1].mesh, 0, 100);
	if (write(to, cvy_mesh_addr(rig.rank[1].mesh), sizeof(rig.rank[1].mesh->addr)) > 0)
		rig_run(&rig, b_down); /* it is killed before */
	_exit(1);
}

TEST_LOOP(a_window_of_another_process_is_read_only_and_outlives_it, 0, 2)
{
	struct cvy_config c;
	char addr[CVY_ADDR_MAX + 1] = "";
	struct cvy_layout l;
	uint8_t *view;
	pid_t child;
	int p[2];

	rig_config(&c, _i ? COVEY_TRANSPORT_TCP : 0, "");
	ck_assert_int_eq(pipe(p), 0);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (!child) {
		cvy_loop_free(rig.loop); /* the parent's */
		ck_assert_int_eq(cvy_loop_new(&rig.loop), 0);
		child_runs(&c, p[1]);
	}
	rig_open(&rig, 0, &c);
	ck_assert_int_eq(read(p[0], addr, sizeof(addr)), sizeof(addr));
	cvy_mesh_identity(rig.rank[0].mesh, &rig.rank[0].id);
	cvy_mesh_dial(rig.rank[0].mesh, 1, 101, addr, cvy_mesh_host(rig.rank[0].mesh));
	rig_run(&rig, a_up);
	l = cvy_mesh_layout(rig.rank[0].mesh);
	view = cvy_mesh_view(rig.rank[0].mesh, 1);
	ck_assert_ptr_eq(view, rig.rank[0].mesh->base + l.window_bytes);
	ck_assert_int_eq(cvy_mesh_page(rig.rank[0].mesh, 1)->pid, child);
	if (!_i)
		ck_assert_int_eq(mprotect(view, 4096, PROT_READ | PROT_WRITE), -1);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	rig_run(&rig, a_down);
	ck_assert_int_eq(view[l.slots], _i ? 0 : 77);
	ck_assert_int_eq(cvy_mesh_page(rig.rank[0].mesh, 1)->pid, child);
	cvy_mesh_fence(rig.rank[0].mesh, 1);
	ck_assert_int_eq(readable(view), _i);
	ck_assert_ptr_null(cvy_mesh_page(rig.rank[0].mesh, 1));
	close(p[0]);
	close(p[1]);
}

SUITE_MAIN(.name = "p2p/link", .setup = setup, .teardown = teardown, .timeout_s = 60)
