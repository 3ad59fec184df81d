/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire book: the memory of a receiver in other systems for expert parallelism. Pure functions, no state.
 *
 * A *format* is a row of a table in wire.c. It says which parts a token has on the wire, and gives their places in the
 * token's slot. The headers wire_NOUN.h say where slots are and which words announce them, one system each. Writers
 * make the image that a system would leave, from the routing of all ranks. Readers give tokens back. A reader trusts
 * no byte of an image: it returns AGAIN for data that has not arrived, and INVAL for a word that is out of bounds. No
 * code that moves data calls these functions.
 *
 * Words are little-endian, as all described systems have them.
 */
#ifndef CVY_WIRE_H
#define CVY_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "covey.h"
#include "error.h"
#include "size.h"

#define CVY_WIRE_MAX_HIDDEN (1 << 20)
#define CVY_WIRE_MAX_TOKENS (1 << 20)
#define CVY_WIRE_MAX_EXPERTS 65536
#define CVY_WIRE_MAX_RANKS 4096
#define CVY_WIRE_MAX_TOP_K 32
#define CVY_WIRE_TOO_LARGE SIZE_MAX /* a size that does not fit a size_t */

enum cvy_wire_format {
	CVY_WIRE_LL_FP8,
	CVY_WIRE_LL_BF16,
	CVY_WIRE_LL_COMBINE,
	CVY_WIRE_HT_FP8, /* fields in the described order */
	CVY_WIRE_HT_BF16,
	CVY_WIRE_HT_DEEPEP_FP8, /* fields in DeepEP's order */
	CVY_WIRE_HT_DEEPEP_BF16,
	CVY_WIRE_HT_COMBINE, /* in both orders the same */
	CVY_WIRE_FLAT,
	CVY_WIRE_WIN_16,
	CVY_WIRE_WIN_INT8,
	CVY_WIRE_WIN_INT4,
	CVY_WIRE_WIN_COMBINE,
	CVY_WIRE_WIN_COMBINE_INT8,
	CVY_WIRE_MESH_16,
	CVY_WIRE_MESH_INT8,
	CVY_WIRE_MESH_INT4,
	CVY_WIRE_FORMATS
};

enum cvy_wire_part {
	CVY_WIRE_META, /* where the token comes from; each system has words of its own */
	CVY_WIRE_PAYLOAD,
	CVY_WIRE_SCALE,
	CVY_WIRE_IDS,	  /* [top_k] int32 */
	CVY_WIRE_WEIGHTS, /* [top_k] float */
	CVY_WIRE_PARTS
};

struct cvy_wire_place {
	size_t at, bytes;
};

/* A token on the wire. */
struct cvy_wire_slot {
	struct cvy_wire_place part[CVY_WIRE_PARTS]; /* bytes 0: the format has no such part */
	size_t used;				    /* end of the last part */
	size_t staged;				    /* used, as the sender rounds it in its own memory */
	size_t bytes;				    /* from one slot to the next */
	size_t blocks;				    /* 0, or how many blocks the bytes are cut into */
};

/* A block of a slot: data, then 32 bytes of which the first word is 1.0f once the block has arrived. */
#define CVY_WIRE_BLOCK 512
#define CVY_WIRE_BLOCK_DATA 480
#define CVY_WIRE_ONE 0x3f800000u /* 1.0f */

/* @box of this and all other functions: where an error goes; NULL: this thread's record. */
int cvy_wire_slot_of(struct cvy_errbox *box, int format, int hidden, int top_k, struct cvy_wire_slot *out);
const char *cvy_wire_format_name(int format); /* NULL: none */

/* One part of the slot at @to or @from. A part that the format lacks is skipped. */
void cvy_wire_part_write(const struct cvy_wire_slot *slot, uint8_t *to, int part, const void *from);
void cvy_wire_part_read(const struct cvy_wire_slot *slot, const uint8_t *from, int part, void *to);
void cvy_wire_blocks_mark(const struct cvy_wire_slot *slot, uint8_t *to);
size_t cvy_wire_blocks_arrived(const struct cvy_wire_slot *slot, const uint8_t *from); /* before the first gap */
size_t cvy_wire_block_count(size_t bytes);					       /* for so many bytes of data */

/* The tokens of one rank. */
struct cvy_wire_source {
	int tokens;
	const int32_t *experts; /* [tokens][top_k]; below 0: unused */
	const float *weights;	/* [tokens][top_k]; NULL: zeroes */
	const uint8_t *payload; /* [tokens], each as long as the part of the slot */
	const uint8_t *scales;	/* the same; NULL: zeroes */
};

/* The tokens of all ranks: the input from which an image is written. */
struct cvy_wire_routing {
	int ranks, experts, top_k;
	int tokens; /* the most of a rank */
	const struct cvy_wire_source *source;
};

/* Memory of one rank that its peers write, or a part of it that begins where the function says. */
struct cvy_wire_image {
	uint8_t *at;
	size_t bytes;
};

/* A token that was read. The caller provides the arrays; NULL: not wanted. */
struct cvy_wire_token {
	int token;  /* its number at the source */
	int choice; /* which of the token's experts; -1: the format does not say */
	void *payload, *scales;
	int32_t *experts;
	float *weights;
};

/* ---- For the files of this room ---- */

int cvy_wire_between(struct cvy_errbox *box, const char *name, long long value, long long least, long long most);
int cvy_wire_fits(struct cvy_errbox *box, const char *what, const struct cvy_wire_image *image, size_t bytes);
/* Ranks, experts and top_k are those of @like, tokens at most; ids are in range, and distinct within a token. */
int cvy_wire_routing_check(struct cvy_errbox *box, const struct cvy_wire_routing *routing,
			   const struct cvy_wire_routing *like);
/* Experts in blocks: how many a rank has. */
int cvy_wire_local_experts(struct cvy_errbox *box, int experts, int ranks, int *local);
/* All parts of token @t except for its meta. An array that is NULL gives zeroes. */
void cvy_wire_token_write(const struct cvy_wire_slot *slot, const struct cvy_wire_source *source, int t, uint8_t *to);
void cvy_wire_token_read(const struct cvy_wire_slot *slot, const uint8_t *from, struct cvy_wire_token *token);

/* Sums and products that stay at CVY_WIRE_TOO_LARGE once they are. */
static inline size_t cvy_wire_times(size_t a, size_t b)
{
	size_t product;

	return __builtin_mul_overflow(a, b, &product) ? CVY_WIRE_TOO_LARGE : product;
}

static inline size_t cvy_wire_plus(size_t a, size_t b)
{
	size_t sum;

	return __builtin_add_overflow(a, b, &sum) ? CVY_WIRE_TOO_LARGE : sum;
}

static inline uint32_t cvy_wire_get32(const uint8_t *at)
{
	uint32_t word;

	memcpy(&word, at, sizeof(word));
	return word;
}

static inline void cvy_wire_put32(uint8_t *at, uint32_t word)
{
	memcpy(at, &word, sizeof(word));
}

static inline uint64_t cvy_wire_get64(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return word;
}

static inline void cvy_wire_put64(uint8_t *at, uint64_t word)
{
	memcpy(at, &word, sizeof(word));
}

/* -count - 1: never 0, so that 0 means that it has not arrived. */
static inline int32_t cvy_wire_count_encode(int32_t count)
{
	return ~count;
}

static inline int32_t cvy_wire_count_decode(int32_t word)
{
	return ~word;
}

#endif
