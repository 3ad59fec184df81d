/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats: the parts of a token on the wire, and their places in its slot. One loop lays out all of them; they differ
 * only in the table.
 */
#include "wire.h"

#include <limits.h>

struct form {
	const char *name;
	const char *order; /* of its parts, a letter each */
	int bits;	   /* of an element of the payload */
	int multiple;	   /* of hidden */
	int group;	   /* elements of one scale; 0: a scale for the row */
	int scale;	   /* bytes of a scale */
	int meta;	   /* bytes */
	int unit;	   /* a part starts at a multiple of it, and a sender's own copy ends there */
	int round;	   /* a slot is a multiple of it */
	int blocks;	   /* the slot is cut into blocks */
	int room;	   /* bits of an element that the slot has room for; 0: as many as it takes */
};

static const struct form forms[CVY_WIRE_FORMATS] = {
	[CVY_WIRE_LL_FP8] = { "LL fp8", "mps", 8, 512, 128, 4, 16, 1, 1, 0, 0 },
	[CVY_WIRE_LL_BF16] = { "LL bf16", "mp", 16, 8, 0, 0, 16, 1, 1, 0, 0 },
	[CVY_WIRE_LL_COMBINE] = { "LL combine", "p", 16, 8, 0, 0, 0, 1, 1, 0, 0 },
	[CVY_WIRE_HT_FP8] = { "HT fp8", "pmsiw", 8, 128, 128, 4, 8, 1, 16, 0, 0 },
	[CVY_WIRE_HT_BF16] = { "HT bf16", "pmiw", 16, 8, 0, 0, 8, 1, 16, 0, 0 },
	[CVY_WIRE_HT_DEEPEP_FP8] = { "HT fp8 in DeepEP's order", "psmiw", 8, 128, 128, 4, 8, 1, 16, 0, 0 },
	[CVY_WIRE_HT_DEEPEP_BF16] = { "HT bf16 in DeepEP's order", "pmiw", 16, 8, 0, 0, 8, 1, 16, 0, 0 },
	[CVY_WIRE_HT_COMBINE] = { "HT combine", "pmw", 16, 8, 0, 0, 8, 1, 16, 0, 0 },
	[CVY_WIRE_FLAT] = { "FLAT", "p", 16, 1, 0, 0, 0, 1, 1, 0, 0 },
	[CVY_WIRE_WIN_16] = { "WIN 16 bits", "psm", 16, 1, 0, 4, 12, 32, 512, 0, 0 },
	[CVY_WIRE_WIN_INT8] = { "WIN int8", "psm", 8, 1, 0, 4, 12, 32, 512, 0, 0 },
	[CVY_WIRE_WIN_INT4] = { "WIN int4", "psm", 4, 2, 0, 4, 12, 32, 512, 0, 0 },
	[CVY_WIRE_WIN_COMBINE] = { "WIN combine", "p", 16, 1, 0, 0, 0, 1, 512, 0, 16 },
	[CVY_WIRE_WIN_COMBINE_INT8] = { "WIN combine int8", "ps", 8, 8, 8, 2, 0, 1, 512, 0, 16 },
	[CVY_WIRE_MESH_16] = { "MESH 16 bits", "psm", 16, 1, 0, 4, 12, 32, 512, 1, 0 },
	[CVY_WIRE_MESH_INT8] = { "MESH int8", "psm", 8, 1, 0, 4, 12, 32, 512, 1, 0 },
	[CVY_WIRE_MESH_INT4] = { "MESH int4", "psm", 4, 2, 0, 4, 12, 32, 512, 1, 0 },
};

static const char letters[CVY_WIRE_PARTS] = {
	[CVY_WIRE_META] = 'm', [CVY_WIRE_PAYLOAD] = 'p', [CVY_WIRE_SCALE] = 's', [CVY_WIRE_IDS] = 'i', [CVY_WIRE_WEIGHTS] = 'w'
};

const char *cvy_wire_format_name(int format)
{
	return format < 0 || format >= CVY_WIRE_FORMATS ? NULL : forms[format].name;
}

int cvy_wire_between(struct cvy_errbox *box, const char *name, long long value, long long least, long long most)
{
	if (value >= least && value <= most)
		return 0;
	return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "%s is %lld: it must be from %lld to %lld", name, value, least,
			most);
}

int cvy_wire_fits(struct cvy_errbox *box, const char *what, const struct cvy_wire_image *image, size_t bytes)
{
	if (image->bytes >= bytes)
		return 0;
	return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "the image of %s has %zu bytes: it must have %zu", what,
			image->bytes, bytes);
}

static size_t part_bytes(const struct form *f, int part, size_t hidden, size_t top_k)
{
	switch (part) {
	case CVY_WIRE_META:
		return (size_t)f->meta;
	case CVY_WIRE_PAYLOAD:
		return hidden * (size_t)f->bits / CHAR_BIT;
	case CVY_WIRE_SCALE:
		return (size_t)f->scale * (f->group ? hidden / (size_t)f->group : 1);
	default:
		return 4 * top_k;
	}
}

int cvy_wire_slot_of(struct cvy_errbox *box, int format, int hidden, int top_k, struct cvy_wire_slot *out)
{
	struct cvy_wire_slot s = { .used = 0 };
	const struct form *f;
	size_t at = 0;
	int err = cvy_wire_between(box, "format", format, 0, CVY_WIRE_FORMATS - 1);

	err = err ? err : cvy_wire_between(box, "hidden", hidden, 1, CVY_WIRE_MAX_HIDDEN);
	err = err ? err : cvy_wire_between(box, "top_k", top_k, 1, CVY_WIRE_MAX_TOP_K);
	if (err)
		return err;
	f = &forms[format];
	if (hidden % f->multiple)
		return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "hidden is %d: format %s takes multiples of %d", hidden,
				f->name, f->multiple);
	for (const char *p = f->order; *p; p++) {
		int part = (int)((const char *)memchr(letters, *p, sizeof(letters)) - letters);

		s.part[part] = (struct cvy_wire_place){ at, part_bytes(f, part, (size_t)hidden, (size_t)top_k) };
		s.used = at + s.part[part].bytes;
		at = cvy_round_up(s.used, (size_t)f->unit);
	}
	s.staged = at;
	s.blocks = f->blocks ? cvy_wire_block_count(s.staged) : 0;
	s.bytes = f->blocks ? s.blocks * CVY_WIRE_BLOCK : s.used;
	if (f->room)
		s.bytes = (size_t)hidden * (size_t)f->room / CHAR_BIT;
	s.bytes = cvy_round_up(s.bytes, (size_t)f->round);
	*out = s;
	return 0;
}

size_t cvy_wire_block_count(size_t bytes)
{
	return bytes / CVY_WIRE_BLOCK_DATA + (bytes % CVY_WIRE_BLOCK_DATA != 0);
}

/* Where byte @at of the data is, and how many bytes of @left follow it without a gap. */
static size_t piece(const struct cvy_wire_slot *slot, size_t at, size_t left, size_t *bytes)
{
	size_t in = at % CVY_WIRE_BLOCK_DATA, room = CVY_WIRE_BLOCK_DATA - in;

	*bytes = !slot->blocks || left < room ? left : room;
	return slot->blocks ? at / CVY_WIRE_BLOCK_DATA * CVY_WIRE_BLOCK + in : at;
}

void cvy_wire_part_write(const struct cvy_wire_slot *slot, uint8_t *to, int part, const void *from)
{
	const struct cvy_wire_place *p = &slot->part[part];

	for (size_t i = 0, n; i < p->bytes; i += n) {
		size_t at = piece(slot, p->at + i, p->bytes - i, &n);

		memcpy(to + at, (const uint8_t *)from + i, n);
	}
}

void cvy_wire_part_read(const struct cvy_wire_slot *slot, const uint8_t *from, int part, void *to)
{
	const struct cvy_wire_place *p = &slot->part[part];

	for (size_t i = 0, n; i < p->bytes; i += n) {
		size_t at = piece(slot, p->at + i, p->bytes - i, &n);

		memcpy((uint8_t *)to + i, from + at, n);
	}
}

void cvy_wire_blocks_mark(const struct cvy_wire_slot *slot, uint8_t *to)
{
	for (size_t b = 0; b < slot->blocks; b++)
		cvy_wire_put32(to + b * CVY_WIRE_BLOCK + CVY_WIRE_BLOCK_DATA, CVY_WIRE_ONE);
}

size_t cvy_wire_blocks_arrived(const struct cvy_wire_slot *slot, const uint8_t *from)
{
	size_t b = 0;

	while (b < slot->blocks && cvy_wire_get32(from + b * CVY_WIRE_BLOCK + CVY_WIRE_BLOCK_DATA) == CVY_WIRE_ONE)
		b++;
	return b;
}
