/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data stream of a link: the input is what the peer sends after both have proven themselves, in
 * pieces whose lengths are the first bytes; the first length says too whether there is a second connection, which
 * takes every other piece. Slots and lines of the mirror may change, nothing else may.
 */
#include <sys/socket.h>

#include "fuzz.h"
#include "mesh.h"

#define PIECES 8

static void post(void *ctx, const struct cvy_event *event)
{
	(void)ctx;
	(void)event;
}

static struct cvy_mesh *mesh_once(void)
{
	static char interface[] = "127.0.0.1", none[] = "";
	static struct cvy_mesh *mesh;
	struct cvy_config config = {
		.host = none, .interface = interface, .max_ranks = 2, .slot_bytes = 4096, .window_bytes = 65536
	};
	struct cvy_mesh_args args = { .config = &config, .sink = { .post = post } };
	struct cvy_identity id = { .rank = 0, .max_ranks = 2, .inc = 1, .nonce = 1 };

	if (mesh)
		return mesh;
	fuzz_check(!cvy_loop_new(&args.loop) && !cvy_mesh_open(&args, &mesh));
	cvy_mesh_identity(mesh, &id);
	fuzz_check(cvy_peer_get(mesh, 1));
	return mesh;
}

/* The words of the page that a peer says once, and that nobody may write over by its data stream. */
static void check_page(const uint8_t *view)
{
	const struct cvy_page *page = (const struct cvy_page *)view;
	const uint8_t *bytes = view;

	for (size_t i = 0; i < offsetof(struct cvy_page, first); i++)
		fuzz_check(!bytes[i]);
	for (size_t i = sizeof(*page); i < 4096 && sizeof(*page) < 4096; i++)
		fuzz_check(!bytes[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cvy_mesh *mesh = mesh_once();
	struct fuzz_in in = { data, size };
	struct cvy_loop *loop = mesh->loop;
	struct cvy_link link = { .mesh = mesh, .rank = 1, .inc = 2, .own = cvy_mesh_own(mesh), .window_bytes = 65536 };
	uint8_t length[PIECES];
	int near[2], far[2], lost = 0, streams;

	fuzz_check(!cvy_loop_new(&mesh->loop)); /* takes what is posted when the link breaks */
	fuzz_check(!cvy_window_fresh(cvy_mesh_place(mesh, 1), 65536));
	link.view = cvy_mesh_place(mesh, 1);
	fuzz_take(&in, length, sizeof(length));
	streams = 1 + length[0] % 2;
	for (int i = 0; i < streams; i++) {
		int ends[2];

		fuzz_check(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
		near[i] = ends[0];
		far[i] = ends[1];
	}
	fuzz_check(!cvy_tcp_open(&link, near, streams));
	for (int i = 0; i <= PIECES && in.left && !lost; i++) {
		size_t n = i < PIECES && length[i] < in.left ? length[i] : in.left;

		if (n && write(far[i % streams], in.at, n) != (ssize_t)n)
			break;
		in.at += n;
		in.left -= n;
		lost = link.ops->poll(&link) < 0;
	}
	check_page(link.view);
	link.ops->close(&link);
	while (streams--)
		close(far[streams]);
	cvy_loop_free(mesh->loop);
	mesh->loop = loop;
	return 0;
}
