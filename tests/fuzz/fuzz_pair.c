/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages with a peer that writes what it likes into its own window: records, counts and credit. The input is a
 * program of sends and receives of rank 0, of what rank 1 writes (made as an honest peer makes it, then changed) and of
 * view changes. Guards behind every buffer say whether a message that was taken fits it; in the end all have ended.
 */
#include "fuzz.h"
#include "mesh.h"
#include "pair_state.h"

#define STEPS 64
#define CALLS 24
#define BYTES 3000 /* of the largest message: longer than a ring of 1 KiB holds */
#define GUARD 64
#define WINDOW (128u << 10)

struct buffer {
	uint8_t bytes[BYTES], guard[GUARD];
};

static struct {
	struct fuzz_in in;
	struct cvy_engine *engine;
	struct cvy_view *view;
	struct cvy_op *op[CALLS];
	struct buffer *buffer[CALLS];
	size_t room[CALLS]; /* 0: of a send */
	int ops;
	uint64_t number, wrote; /* of rank 1: its next message, bytes in its ring */
} f;

static struct cvy_mesh *mesh;

static void nothing(struct cvy_link *link)
{
	(void)link;
}

/* Rank 1's window is written here, and nobody needs telling: as within one host. */
static const struct cvy_transport memory = { .name = "memory", .fence = nothing, .close = nothing };
static uint64_t links; /* ids given out */

static void post(void *ctx, const struct cvy_event *event)
{
	(void)ctx;
	(void)event;
}

static void mesh_once(void)
{
	static char interface[] = "127.0.0.1", none[] = "";
	struct cvy_config config = {
		.host = none, .interface = interface, .max_ranks = 2, .slot_bytes = 4096, .window_bytes = WINDOW
	};
	struct cvy_mesh_args args = { .config = &config, .sink = { .post = post } };
	struct cvy_identity id = { .rank = 0, .max_ranks = 2, .inc = 1, .nonce = 1 };

	if (mesh)
		return;
	fuzz_check(!cvy_loop_new(&args.loop) && !cvy_mesh_open(&args, &mesh));
	cvy_mesh_identity(mesh, &id);
	fuzz_check(cvy_peer_get(mesh, 1));
}

static struct cvy_channel *channel(void)
{
	struct cvy_pairs *pairs = f.engine->pairs;

	return pairs && pairs->of[1] ? &pairs->of[1]->ch : NULL;
}

static void call(int sending)
{
	size_t bytes = fuzz_byte(&f.in) * (size_t)12 % BYTES;
	int tag = fuzz_byte(&f.in) % 3, peer = fuzz_byte(&f.in) % 8 != 0;
	struct buffer *b;
	struct cvy_op *op;

	if (f.ops == CALLS)
		return;
	b = calloc(1, sizeof(*b));
	op = cvy_pair_op(f.engine, sending, sending ? tag : tag - 1);
	fuzz_check(b && op);
	memset(b->guard, 0xa5, GUARD);
	op->send = op->recv = b->bytes;
	op->count = op->bytes = bytes;
	op->elem = 1;
	op->dtype = COVEY_UINT8;
	op->root = peer;
	f.buffer[f.ops] = b;
	f.room[f.ops] = sending ? 0 : bytes;
	f.op[f.ops++] = op;
	cvy_pair_post(f.engine, op);
}

static void app_sends(void)
{
	call(1);
}

static void app_receives(void)
{
	call(0);
}

/* A record and what follows it into rank 1's ring, and the count; then some bytes of all this are others. */
static void peer_writes(void)
{
	static const uint32_t kinds[] = { CVY_RECORD_WHOLE, CVY_RECORD_OFFER, CVY_RECORD_WANT, CVY_RECORD_PART };
	struct cvy_channel *ch = channel();
	uint8_t what = fuzz_byte(&f.in), lie = fuzz_byte(&f.in);
	struct cvy_pair_record r = { .kind = kinds[what % 4], .tag = what / 4 % 3, .bytes = fuzz_byte(&f.in) };
	uint8_t *ring, *bytes = (uint8_t *)&r;
	struct cvy_port *port;
	size_t body;

	if (!ch)
		return;
	if (what & 128)
		r.bytes *= 16;
	r.number = what % 4 < 2 ? f.number++ : fuzz_byte(&f.in) % 8u;
	if (lie & 1)
		bytes[lie / 2 % sizeof(r)] ^= fuzz_byte(&f.in);
	body = what % 4 == 0 || what % 4 == 3 ? (size_t)r.bytes % (2 * ch->ring) : 0;
	ring = cvy_mesh_view(mesh, 1) + ch->far_ring;
	for (size_t i = 0; i < sizeof(r) + body; i++)
		ring[(f.wrote + i) & (ch->ring - 1)] = i < sizeof(r) ? bytes[i] : (uint8_t)i;
	f.wrote += sizeof(r) + body;
	port = (struct cvy_port *)(void *)(cvy_mesh_view(mesh, 1) + ch->far_port);
	port->out.aux = port->credit.aux = 1;
	port->out.tag = f.wrote + (lie & 64 ? fuzz_byte(&f.in) : 0);
}

/* All that was written to it is consumed, or what it says so. */
static void peer_consumes(void)
{
	struct cvy_channel *ch = channel();
	uint8_t lie = fuzz_byte(&f.in);
	struct cvy_port *port;

	if (!ch)
		return;
	port = (struct cvy_port *)(void *)(cvy_mesh_view(mesh, 1) + ch->far_port);
	port->credit.aux = 1;
	port->credit.tag = ch->written + (lie & 32 ? lie : 0);
	memset(port->credit.data, lie & 64 ? lie : 0, 8);
}

static void engine_steps(void)
{
	pthread_mutex_lock(&f.engine->lock);
	for (int i = 0; i < 8 && cvy_engine_step(f.engine); i++)
		;
	pthread_mutex_unlock(&f.engine->lock);
	cvy_pairs_look(f.engine);
}

/* The mesh frees it when rank 1 is fenced. */
static void link_up(uint64_t inc)
{
	struct cvy_link *link = calloc(1, sizeof(*link));

	fuzz_check(link);
	*link = (struct cvy_link){ .ops = &memory,
				   .mesh = mesh,
				   .rank = 1,
				   .inc = inc,
				   .id = ++links,
				   .own = cvy_mesh_own(mesh),
				   .view = cvy_mesh_view(mesh, 1),
				   .window_bytes = WINDOW };
	free(mesh->peer[1]->link);
	mesh->peer[1]->link = link;
}

/* Rank 1 is removed, or another incarnation comes in its place; the link is a new one. */
static void change(void)
{
	struct covey_mask none = { { 0 } }, removed = { { 2 } };
	uint8_t what = fuzz_byte(&f.in);

	if (what & 3) { /* only the link */
		link_up(f.view->member[1].inc);
		return;
	}
	f.view->epoch++;
	f.view->member[1].inc++;
	f.number = f.wrote = 0;
	cvy_engine_freeze(f.engine, f.view->epoch - 1);
	cvy_engine_learn(f.engine, f.view, &removed, &none);
	fuzz_check(!cvy_window_fresh(cvy_mesh_view(mesh, 1), WINDOW));
	link_up(f.view->member[1].inc);
	cvy_engine_repair(f.engine, &none);
	cvy_engine_thaw(f.engine);
}

static void finish(void)
{
	static uint8_t guard[GUARD];

	memset(guard, 0xa5, GUARD);
	cvy_engine_stop(f.engine, COVEY_ERR_CLOSED);
	for (int i = 0; i < f.ops; i++) {
		const struct covey_result *res = &f.op[i]->result;

		fuzz_check(cvy_op_decided(f.op[i]) && !memcmp(f.buffer[i]->guard, guard, GUARD));
		for (size_t k = f.room[i]; k < BYTES; k++) /* of a send, nothing may change */
			fuzz_check(f.buffer[i]->bytes[k] == 0);
		fuzz_check(!f.room[i] || res->status || res->bytes <= f.room[i]);
		cvy_op_put(f.op[i]);
	}
	cvy_engine_close(f.engine);
	cvy_view_free(f.view);
	for (int i = 0; i < f.ops; i++)
		free(f.buffer[i]);
	free(mesh->peer[1]->link);
	mesh->peer[1]->link = NULL;
}

static void engine_open(void)
{
	struct covey_mask none = { { 0 } };

	fuzz_check(!cvy_engine_open(&f.engine, mesh, NULL, 65536));
	f.engine->sink.post = post;
	f.view = cvy_view_new(2);
	f.view->epoch = f.view->base = 1;
	f.view->size = 2;
	for (int r = 0; r < 2; r++) {
		f.view->member[r].inc = (uint64_t)r + 1;
		cvy_mask_add(&f.view->members, r);
	}
	cvy_engine_identity(f.engine, 0, 2);
	cvy_engine_learn(f.engine, f.view, &none, &none);
	cvy_engine_repair(f.engine, &none);
	cvy_engine_thaw(f.engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const steps[])(void) = { app_sends,     app_receives, peer_writes, engine_steps,
					       peer_consumes, change,	    peer_writes };

	mesh_once();
	memset(&f, 0, sizeof(f));
	f.in = (struct fuzz_in){ data, size };
	fuzz_check(!cvy_window_fresh(cvy_mesh_view(mesh, 1), WINDOW));
	link_up(2);
	engine_open();
	for (int i = 0; i < STEPS && f.in.left; i++)
		steps[fuzz_byte(&f.in) % 7]();
	finish();
	return 0;
}
