/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of rank 0 of two, and what rank 1 may send it: ADMIT, PULL and GIVE, at any moment. The
 * input is a program: calls of the application, the steps of a view change, what rank 1 publishes, and
 * messages, made as an honest peer makes them and then changed. Guards behind every buffer of the
 * application say whether an outcome that was given fits it.
 */
#include "clock.h"
#include "engine_state.h"
#include "repair.h"
#include "window.h"
#include "algo.h"
#include "fuzz.h"

#define STEPS 64
#define CALLS 16
#define FLOATS 3000 /* of the largest call: several ticks */
#define GUARD 64

struct buffer {
	float in[FLOATS], out[2 * FLOATS];
	uint8_t guard[GUARD];
};

static struct {
	struct fuzz_in in;
	struct cvy_engine *engine;
	struct cvy_view *view;
	struct cvy_op *op[CALLS];
	struct buffer *buffer[CALLS];
	int ops;
	uint64_t pulled;
} f;

static struct cvy_mesh *mesh;

static void post(void *ctx, const struct cvy_event *event)
{
	(void)ctx;
	(void)event;
}

static int on_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	(void)ctx;
	(void)epoch;
	fuzz_check(rank == 1 && inc && bytes <= CVY_MSG_MAX);
	if (type == CVY_MSG_PULL)
		memcpy(&f.pulled, body, sizeof(f.pulled));
	return 0;
}

static void mesh_once(void)
{
	static char interface[] = "127.0.0.1", none[] = "";
	struct cvy_config config = {
		.host = none, .interface = interface, .max_ranks = 4, .slot_bytes = 4096, .window_bytes = 65536
	};
	struct cvy_mesh_args args = { .config = &config, .sink = { .post = post } };
	struct cvy_identity id = { .rank = 0, .max_ranks = 4, .inc = 1, .nonce = 1 };

	if (mesh)
		return;
	fuzz_check(!cvy_loop_new(&args.loop) && !cvy_mesh_open(&args, &mesh));
	cvy_mesh_identity(mesh, &id);
}

static void plan(struct cvy_op *op, uint8_t kind, size_t count)
{
	static const struct cvy_op_kind *const kinds[] = { &cvy_op_allreduce, &cvy_op_allgather, &cvy_op_broadcast,
							   &cvy_op_barrier, &cvy_op_admit };

	op->kind = kinds[kind % 5];
	op->count = kind % 5 < 3 ? count : 0;
	op->elem = sizeof(float);
	op->bytes = op->count * sizeof(float);
	op->dtype = COVEY_FLOAT32;
	op->redop = COVEY_SUM;
	op->root = kind & 64 ? 1 : 0;
	op->ticks = 1;
	if (op->kind->plan)
		op->kind->plan(f.engine, op, 2);
}

static void application_calls(void)
{
	uint8_t kind = fuzz_byte(&f.in);
	size_t count = fuzz_byte(&f.in) * (size_t)12 % FLOATS;
	struct buffer *b = calloc(1, sizeof(*b));
	struct cvy_op *op = cvy_op_new(f.engine, &cvy_op_barrier);

	fuzz_check(b && op);
	if (f.ops == CALLS) {
		cvy_op_put(op);
		free(b);
		return;
	}
	op->send = b->in;
	op->recv = b->out;
	plan(op, kind, count);
	cvy_op_sign(op, 0);
	f.buffer[f.ops] = b;
	f.op[f.ops++] = op;
	cvy_engine_post(f.engine, op);
}

/* Rank 1 publishes just what rank 0 did: every call completes that both have entered. */
static void peer_publishes(void)
{
	struct cvy_layout l = cvy_mesh_layout(mesh);
	struct cvy_page *mine = (struct cvy_page *)cvy_mesh_own(mesh),
			*theirs = (struct cvy_page *)cvy_mesh_view(mesh, 1);

	memcpy(cvy_mesh_view(mesh, 1) + l.slots, cvy_mesh_own(mesh) + l.slots, l.heap - l.slots);
	memcpy(theirs->first, mine->first, sizeof(mine->first));
	memcpy(theirs->second, mine->second, sizeof(mine->second));
	theirs->done = mine->done;
	pthread_mutex_lock(&f.engine->lock);
	for (int i = 0; i < 8 && !f.engine->gate && cvy_engine_step(f.engine); i++)
		;
	pthread_mutex_unlock(&f.engine->lock);
}

static void learn(void)
{
	struct covey_mask none, holders;
	uint8_t what = fuzz_byte(&f.in);

	memset(&none, 0, sizeof(none));
	memset(&holders, 0, sizeof(holders));
	cvy_mask_add(&holders, 1);
	if (!f.engine->gate)
		cvy_engine_freeze(f.engine, f.view->epoch);
	f.view->epoch++;
	f.view->base = f.engine->done + 1 + what % 3;
	f.view->fail_seq = what & 32 ? f.view->base - 1 : 0;
	f.view->fail_err = COVEY_ERR_LOST;
	cvy_engine_learn(f.engine, f.view, &none, what & 64 ? &holders : &none);
	cvy_engine_repair(f.engine, &holders);
}

static void thaw(void)
{
	if (f.engine->gate && f.engine->done + 1 >= f.view->base)
		cvy_engine_thaw(f.engine);
}

static void change(uint8_t *bytes, size_t n)
{
	for (int i = fuzz_byte(&f.in) % 4; i > 0; i--) {
		size_t at = fuzz_byte(&f.in) % n;

		bytes[at] ^= fuzz_byte(&f.in);
	}
}

static void message(void)
{
	static uint64_t body[(sizeof(struct cvy_give) + 8 * CVY_MASK_WORDS + 65536) / 8];
	struct cvy_msg msg = { .rank = 1, .inc = 2, .epoch = f.view->epoch, .body = body };
	struct cvy_give give = { .seq = f.pulled, .ticks = 1, .size = 2, .epoch = 1, .words = 1 };
	uint8_t kind = fuzz_byte(&f.in);
	uint64_t words[4] = { f.engine->done + kind % 4, 0 };

	memset(body, 0, sizeof(body));
	if (kind % 3 == 0) {
		struct cvy_op *op = f.engine->head;

		give.sig = op ? op->sig : 0;
		give.ticks = op ? op->ticks : 1;
		give.tick = kind / 4 % 4;
		give.bytes = op ? (uint32_t)(op->bytes > 2048 ? 2048 : op->bytes) : 64;
		memcpy(body, &give, sizeof(give));
		body[sizeof(give) / 8] = 3;
		msg.bytes = (uint32_t)sizeof(give) + 8 + give.bytes;
		msg.type = CVY_MSG_GIVE;
	} else if (kind % 3 == 1) {
		memcpy(body, words, 16);
		msg.bytes = 16;
		msg.type = CVY_MSG_PULL;
	} else {
		uint32_t tail[2] = { 1, kind };

		memcpy(body, words, 8);
		memcpy(body + 1, tail, 8);
		msg.bytes = 16 + kind;
		msg.type = CVY_MSG_ADMIT;
	}
	change((uint8_t *)body, 64);
	if (kind & 128)
		msg.bytes = msg.bytes * fuzz_byte(&f.in) / 64;
	cvy_engine_message(f.engine, &msg);
}

static void freeze(void)
{
	if (!f.engine->gate)
		cvy_engine_freeze(f.engine, f.view->epoch);
}

static void step(void)
{
	static void (*const steps[])(
		void) = { application_calls, peer_publishes, learn, thaw, message, freeze, message };

	steps[fuzz_byte(&f.in) % 7]();
}

static void finish(void)
{
	cvy_engine_stop(f.engine, COVEY_ERR_CLOSED);
	for (int i = 0; i < f.ops; i++) {
		static const uint8_t none[GUARD];
		const struct cvy_op *op = f.op[i];
		size_t out = op->kind == &cvy_op_allgather ? 2 * op->count : op->count;

		fuzz_check(cvy_op_decided(op) && !memcmp(f.buffer[i]->guard, none, GUARD));
		for (size_t k = out; k < 2 * FLOATS; k++)
			fuzz_check(f.buffer[i]->out[k] == 0);
		cvy_op_put(f.op[i]);
	}
	cvy_engine_close(f.engine);
	cvy_view_free(f.view);
	for (int i = 0; i < f.ops; i++)
		free(f.buffer[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct covey_mask none;

	mesh_once();
	memset(&none, 0, sizeof(none));
	memset(&f, 0, sizeof(f));
	f.in = (struct fuzz_in){ data, size };
	fuzz_check(!cvy_window_fresh(cvy_mesh_view(mesh, 1), 65536));
	memset(cvy_mesh_own(mesh) + offsetof(struct cvy_page, first), 0, 4096 - offsetof(struct cvy_page, first));
	fuzz_check(!cvy_engine_open(&f.engine, mesh, NULL, 65536));
	f.engine->sink.post = post;
	f.engine->send = on_send;
	f.view = cvy_view_new(4);
	f.view->epoch = 1;
	f.view->base = 1;
	f.view->stamp = 5;
	f.view->size = 2;
	f.view->member[0].inc = 1;
	f.view->member[1].inc = 2;
	cvy_mask_add(&f.view->members, 0);
	cvy_mask_add(&f.view->members, 1);
	cvy_engine_identity(f.engine, 0, 4);
	cvy_engine_learn(f.engine, f.view, &none, &none);
	cvy_engine_repair(f.engine, &none);
	cvy_engine_thaw(f.engine);
	for (int i = 0; i < STEPS && f.in.left; i++)
		step();
	finish();
	return 0;
}
