/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_oracle.h"

static uint32_t state;

uint32_t oracle_draw(uint32_t below)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % below;
}

void oracle_seed(int seed)
{
	state = (uint32_t)seed * 2654435761u + 1;
}

static void *bytes_at_random(size_t bytes)
{
	uint8_t *to = malloc(bytes + 1);

	ck_assert_ptr_nonnull(to);
	for (size_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)oracle_draw(256);
	return to;
}

static void draw_ids(const struct oracle *o, int32_t *ids, int all)
{
	int top_k = o->routing.top_k, experts = o->routing.experts;

	for (int k = 0; k < top_k; k++) {
		int again;

		do {
			ids[k] = !all && oracle_draw(5) == 0 ? -1 : (int32_t)oracle_draw((uint32_t)experts);
			again = 0;
			for (int j = 0; j < k; j++)
				again |= ids[k] >= 0 && ids[j] == ids[k];
		} while (again);
	}
}

void oracle_open(struct oracle *o, int seed, const struct cvy_wire_routing *shape, const struct cvy_wire_slot *slot)
{
	oracle_seed(seed);
	memset(o, 0, sizeof(*o));
	o->routing = *shape;
	o->routing.source = o->source;
	o->slot = *slot;
	ck_assert_int_le(shape->ranks, ORACLE_RANKS);
	for (int r = 0; r < shape->ranks; r++) {
		int n = (int)oracle_draw((uint32_t)shape->tokens + 1);
		size_t entries = (size_t)n * (size_t)shape->top_k;
		int32_t *ids = calloc(entries + 1, sizeof(*ids));

		ck_assert_ptr_nonnull(ids);
		for (int t = 0; t < n; t++)
			draw_ids(o, ids + t * shape->top_k, seed % 3 == 0);
		o->source[r] = (struct cvy_wire_source){
			.tokens = n,
			.experts = ids,
			.weights = bytes_at_random(entries * sizeof(float)),
			.payload = bytes_at_random((size_t)n * slot->part[CVY_WIRE_PAYLOAD].bytes),
			.scales = bytes_at_random((size_t)n * slot->part[CVY_WIRE_SCALE].bytes),
		};
	}
}

void oracle_close(struct oracle *o)
{
	for (int r = 0; r < o->routing.ranks; r++) {
		free((void *)o->source[r].experts);
		free((void *)o->source[r].weights);
		free((void *)o->source[r].payload);
		free((void *)o->source[r].scales);
	}
}

const uint8_t *oracle_payload(const struct oracle *o, int src, int token)
{
	return o->source[src].payload + (size_t)token * o->slot.part[CVY_WIRE_PAYLOAD].bytes;
}

const uint8_t *oracle_scales(const struct oracle *o, int src, int token)
{
	return o->source[src].scales + (size_t)token * o->slot.part[CVY_WIRE_SCALE].bytes;
}

int32_t oracle_id(const struct oracle *o, int src, int token, int k)
{
	return o->source[src].experts[token * o->routing.top_k + k];
}

struct cvy_wire_image image_open(size_t bytes)
{
	struct cvy_wire_image image = { calloc(1, bytes), bytes };

	ck_assert_ptr_nonnull(image.at);
	return image;
}

/* Most words are small or 0, as those are that readers look at twice. */
static uint32_t word_at_random(void)
{
	if (oracle_draw(4) == 0)
		return oracle_draw(2) ? CVY_WIRE_ONE : 0;
	return oracle_draw(8) ? oracle_draw(16) - 8 : oracle_draw(1 << 24) << 8 | oracle_draw(256);
}

void image_spoil(struct cvy_wire_image *image, int percent)
{
	for (size_t i = 0; i + 4 <= image->bytes; i += 4)
		if ((int)oracle_draw(100) < percent)
			cvy_wire_put32(image->at + i, word_at_random());
}

void image_close(struct cvy_wire_image *image)
{
	free(image->at);
}
