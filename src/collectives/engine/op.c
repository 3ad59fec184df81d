/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation as an object: its life, and the signature by which ranks see that they make the same call.
 */
#include "engine_state.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "reduce.h"

/* A freed operation is kept for the next. Only the words of max_ranks were ever set in its mask. */
struct cvy_op *cvy_op_new(struct cvy_engine *e, const struct cvy_op_kind *kind)
{
	struct cvy_op *op = NULL;

	for (int i = 0; !op && i < 2; i++)
		if (__atomic_load_n(&e->spare[i], __ATOMIC_RELAXED))
			op = __atomic_exchange_n(&e->spare[i], NULL, __ATOMIC_ACQUIRE);
	if (!op)
		op = calloc(1, sizeof(*op));
	if (!op)
		return NULL;
	memset(op, 0, offsetof(struct cvy_op, result));
	op->result.status = 0;
	op->result.bytes = 0;
	op->result.peer = -1;
	op->result.tag = 0;
	op->engine = e;
	op->kind = kind;
	op->rounds = 1;
	op->refs = 1;
	op->next = NULL;
	return op;
}

void cvy_op_put(struct cvy_op *op)
{
	struct cvy_op **spare = op->engine->spare;

	if (__atomic_load_n(&op->refs, __ATOMIC_ACQUIRE) != 1 && __atomic_sub_fetch(&op->refs, 1, __ATOMIC_ACQ_REL))
		return; /* the holder of the only reference need not count */
	if (op->kind->release)
		op->kind->release(op);
	spare += __atomic_load_n(spare, __ATOMIC_RELAXED) != NULL;
	op = __atomic_exchange_n(spare, op, __ATOMIC_ACQ_REL);
	if (op)
		free(op);
}

static const struct {
	const struct cvy_op_kind *kind;
	unsigned says;
} kinds[] = {
#define KIND(kind, says, ...) { &cvy_op_##kind, says },
	CVY_KIND_LIST(KIND)
#undef KIND
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

const char *cvy_op_name(unsigned kind)
{
	return kind < KINDS ? kinds[kind].kind->name : NULL;
}

/*
 * call: kind 4 bits, type 4, op 4, root 12, count 32 (a larger one reads as the most), lap 8; sig: a hash of all but
 * the lap
 */
void cvy_op_sign(struct cvy_op *op, int on_loss)
{
	uint64_t kind = 0, h;

	while (kinds[kind].kind != op->kind)
		kind++;
	op->on_loss = on_loss;
	op->call = kind << 60 | (uint64_t)(op->dtype & 15) << 56 | (uint64_t)(op->redop & 15) << 52 |
		   (uint64_t)(op->root & 4095) << 40 |
		   (uint64_t)(op->count < UINT32_MAX ? op->count : UINT32_MAX) << CVY_LAP_BITS;
	h = op->call ^ (uint64_t)on_loss << 51 ^ (uint64_t)op->count * CVY_SPREAD ^ op->detail;
	h = (h ^ h >> 32) * CVY_SPREAD_MORE;
	op->sig = (uint32_t)(h >> 32) | 1;
}

char *cvy_call_text(uint64_t call, char *text, size_t bytes)
{
	static const char *const redops[16] = {
		[COVEY_SUM] = "sum", [COVEY_PROD] = "prod", [COVEY_MAX] = "max", [COVEY_MIN] = "min", [COVEY_AVG] = "avg"
	};
	unsigned kind = (unsigned)(call >> 60), says = kind < KINDS ? kinds[kind].says : 0;
	const char *redop = redops[call >> 52 & 15], *name = cvy_op_name(kind);
	char count[32] = "", fold[8] = "", root[16] = "";

	if (!name) {
		snprintf(text, bytes, "an unknown call %#llx", (unsigned long long)call);
		return text;
	}
	if ((says & CVY_SAYS_COUNT) == CVY_SAYS_COUNT)
		snprintf(count, sizeof(count), "%u x ", (unsigned)(call >> CVY_LAP_BITS));
	if (says & CVY_SAYS_REDOP)
		snprintf(fold, sizeof(fold), ", %s", redop ? redop : "?");
	if (says & CVY_SAYS_ROOT)
		snprintf(root, sizeof(root), ", root %u", (unsigned)(call >> 40 & 4095));
	if (says)
		snprintf(text, bytes, "%s(%s%s%s%s)", name, count, cvy_dtype_name((int)(call >> 56 & 15)), fold, root);
	else
		snprintf(text, bytes, "%s", name);
	return text;
}
