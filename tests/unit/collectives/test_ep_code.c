/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as integers: the formula, by means of its own; rows that are odd; where scales stand; and what a row takes. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "ep.h"
#include "ep_fixture.h"
#include "ep_quant.h"

enum { MOST = 7168 };

static const int dtypes[] = { COVEY_BFLOAT16, COVEY_FLOAT16 };
static const int hiddens[] = { 8, 24, 128, 136, 2880, MOST };
static uint32_t state;

static uint32_t draw(uint32_t below)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % below;
}

static int code_at(int code, const uint8_t *codes, int i)
{
	int nibble = i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15;

	if (code == CVY_EP_INT8)
		return (int8_t)codes[i];
	return nibble > 7 ? nibble - 16 : nibble;
}

static float coded(int code, int dtype, const uint16_t *row, int hidden, uint8_t *codes)
{
	const struct cvy_ep_plain x = { row, dtype, (size_t)hidden, NULL, NULL };
	float scale = -1;

	memset(codes, 0xc5, (size_t)hidden + 1);
	cvy_ep_quantise(code, &x, codes, &scale, 1);
	ck_assert_uint_eq(codes[code == CVY_EP_INT8 ? hidden : hidden / 2], 0xc5);
	return scale;
}

TEST_LOOP(a_code_is_the_nearest_to_its_share_of_the_largest, 0, 24)
{
	const int code = _i % 2 ? CVY_EP_INT4 : CVY_EP_INT8, dtype = dtypes[_i / 2 % 2], hidden = hiddens[_i / 4];
	const float most = _i % 2 ? 7 : 127;
	static uint16_t row[MOST];
	static uint8_t codes[MOST + 1];
	float largest = 0, scale;

	state = (uint32_t)_i + 1;
	for (int i = 0; i < hidden; i++) {
		row[i] = ep_narrow(dtype, ((float)draw(2001) - 1000) / (float)(1 << draw(12)));
		largest = fmaxf(largest, fabsf(ep_wide(dtype, row[i])));
	}
	scale = coded(code, dtype, row, hidden, codes);
	ck_assert_float_eq(scale, largest / most);
	for (int i = 0; i < hidden; i++) {
		float v = ep_wide(dtype, row[i]);
		int is = code_at(code, codes, i);

		if (is != (int)rintf(v * (most / largest)) || fabsf((float)is * scale - v) > scale * 0.50001f)
			ck_abort_msg("element %d of %d is %g of %g, its code %d", i, hidden, (double)v, (double)largest,
				     is);
	}
}

/* Half a code is rounded to the even one. */
TEST(a_tie_goes_to_the_even_code)
{
	static const float row[8] = { 127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, -126.5f };
	static const int want[8] = { 127, 0, 2, 2, 0, -2, 126, -126 };
	uint16_t halves[8];
	uint8_t codes[9];

	for (int i = 0; i < 8; i++)
		halves[i] = ep_narrow(COVEY_FLOAT16, row[i]);
	ck_assert_float_eq(coded(CVY_EP_INT8, COVEY_FLOAT16, halves, 8, codes), 1);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq((int8_t)codes[i], want[i]);
}

/* Rows of 8 that have @first, then @second, then zeros. */
static const struct odd {
	const char *name;
	int dtype;
	uint16_t first, second;
	int codes[2]; /* of int8 */
	float scale;  /* NAN: a NaN */
} odds[] = {
	{ "zeros", COVEY_BFLOAT16, 0, 0, { 0, 0 }, 0 },
	{ "-0", COVEY_BFLOAT16, 0x8000, 0x8000, { 0, 0 }, 0 },
	{ "-0 in fp16", COVEY_FLOAT16, 0x8000, 0, { 0, 0 }, 0 },
	{ "-0 beside 1", COVEY_BFLOAT16, 0x8000, 0x3f80, { 0, 127 }, 1 / 127.0f },
	{ "a NaN", COVEY_BFLOAT16, 0x7fc0, 0x3f80, { 0, 0 }, NAN },
	{ "a NaN that signals", COVEY_BFLOAT16, 0x3f80, 0x7f81, { 0, 0 }, NAN },
	{ "-NaN in fp16", COVEY_FLOAT16, 0x3c00, 0xfc01, { 0, 0 }, NAN },
	{ "infinity", COVEY_BFLOAT16, 0x7f80, 0x3f80, { 0, 0 }, NAN },
	{ "-infinity in fp16", COVEY_FLOAT16, 0xfc00, 0x3c00, { 0, 0 }, NAN },
	{ "infinity and a NaN", COVEY_FLOAT16, 0x7c00, 0x7e00, { 0, 0 }, NAN },
	{ "the largest", COVEY_BFLOAT16, 0x7f7f, 0xff7f, { 127, -127 }, 0x1.fep127f / 127 },
	{ "the largest of fp16", COVEY_FLOAT16, 0x7bff, 0xfbff, { 127, -127 }, 65504 / 127.0f },
	{ "the smallest", COVEY_BFLOAT16, 0x0001, 0x0080, { 0, 0 }, 0 },
	{ "the smallest of fp16", COVEY_FLOAT16, 0x8001, 0, { -127, 0 }, 0x1p-24f / 127 },
	{ "subnormal in fp16", COVEY_FLOAT16, 0x03ff, 0x0200, { 127, 64 }, 0x3ff * 0x1p-24f / 127 },
	{ "2^-100", COVEY_BFLOAT16, 0x0d80, 0x8d00, { 127, -64 }, 0x1p-100f / 127 },
	{ "below 2^-100", COVEY_BFLOAT16, 0x0d7f, 0x0d00, { 0, 0 }, 0 },
};

TEST_LOOP(rows_that_are_odd, 0, sizeof(odds) / sizeof(odds[0]))
{
	const struct odd *o = &odds[_i];
	const uint16_t row[8] = { o->first, o->second };
	const int is_nan = o->scale != o->scale;
	uint8_t codes[9];
	float scale;

	scale = coded(CVY_EP_INT8, o->dtype, row, 8, codes);
	ck_assert_msg(is_nan ? scale != scale : scale == o->scale, "%s: scale %g", o->name, (double)scale);
	for (int i = 0; i < 8; i++)
		ck_assert_msg((int8_t)codes[i] == (i < 2 ? o->codes[i] : 0), "%s: code %d", o->name, i);
	scale = coded(CVY_EP_INT4, o->dtype, row, 8, codes);
	ck_assert_msg(is_nan ? scale != scale : fabsf(scale - o->scale * 127 / 7) <= scale * 1e-6f, "%s: scale %g of 4",
		      o->name, (double)scale);
	for (int i = 0; i < 2; i++)
		ck_assert_msg(abs(code_at(CVY_EP_INT4, codes, i) - (int)rintf((float)o->codes[i] * 7 / 127)) <= 1,
			      "%s: code %d of 4", o->name, i);
}

/* ---- eight by eight ---- */

/* Each number comes back as itself, and what lies between two becomes the upper one. */
TEST_LOOP(scales_are_rounded_up, 0, 2)
{
	const int fp16 = _i, dtype = dtypes[_i];
	const uint32_t endless = fp16 ? 0x7c00 : 0x7f80;

	for (uint32_t h = 1; h < endless; h++) {
		float v = ep_wide(dtype, (uint16_t)h), below = nextafterf(v, 0), above = nextafterf(v, INFINITY);
		uint32_t after = h + 1 < endless ? h + 1 : 0x7fff;

		if (cvy_ep_scale_up(v, fp16) != h || cvy_ep_scale_up(above, fp16) != after ||
		    cvy_ep_scale_up(below, fp16) != h || cvy_ep_scale_wide((uint16_t)h, fp16) != v)
			ck_abort_msg("%x", h);
	}
	ck_assert_uint_eq(cvy_ep_scale_up(0x1p-140f, fp16), 1);
	ck_assert_float_nan(cvy_ep_scale_wide(0x7fff, fp16));
}

static void check_eight(int dtype, const float v[8])
{
	const struct cvy_ep_by_eight e = cvy_ep_eight_of(v, dtype == COVEY_FLOAT16);
	const float scale = cvy_ep_scale_wide(e.scale, dtype == COVEY_FLOAT16);
	float most = 0;

	for (int i = 0; i < 8; i++)
		most = fabsf(v[i]) > most || v[i] != v[i] ? fabsf(v[i]) : most;
	for (int i = 0; i < 8; i++) {
		float is = cvy_ep_eighth(e.codes, i, scale);
		int code = (int8_t)(e.codes >> (8 * i)), right = (float)code == rintf(v[i] / scale);

		if (!isfinite(most))
			right = !code && is != is;
		else if (most < 0x1p-100f)
			right = !e.codes && !e.scale;
		if (!right)
			ck_abort_msg("%g of %g: code %d, scale %g", (double)v[i], (double)most, code, (double)scale);
	}
}

TEST_LOOP(eights_are_quotients_by_their_scale, 0, 4)
{
	state = (uint32_t)_i + 1;
	for (int i = 0; i < 20000; i++) {
		int dtype = dtypes[draw(2)], rare = draw(3) == 0;
		float v[8];

		for (int k = 0; k < 8; k++)
			v[k] = rare ? ep_wide(dtype, (uint16_t)draw(65536))
				    : ((float)draw(20001) - 10000) / (float)(1 << draw(24));
		check_eight(dtype, v);
	}
}

TEST(eights_that_are_odd)
{
	const float smallest[8] = { 0x1p-24f }, beyond[8] = { 1e7f, 1 }, most[8] = { 65504, -65504 };
	const float ties[8] = { 381, -19.5f, 1.5f, 4.5f, -1.5f, -4.5f, 7.5f, 379.5f }; /* 127 and halves of scale 3 */

	check_eight(COVEY_FLOAT16, smallest);
	ck_assert_float_eq(cvy_ep_eighth(cvy_ep_eight_of(smallest, 1).codes, 0, 0x1p-24f), 0x1p-24f);
	ck_assert_uint_eq(cvy_ep_eight_of(beyond, 1).scale, 0x7fff); /* a sum of fp16 whose scale does not fit */
	ck_assert_uint_eq(cvy_ep_eight_of(beyond, 1).codes, 0);
	check_eight(COVEY_BFLOAT16, beyond);
	check_eight(COVEY_FLOAT16, most);
	ck_assert_uint_eq(cvy_ep_eight_of(ties, 0).codes, 0x7e02fe000200fa7f);
	ck_assert_uint_eq(cvy_ep_eight_of(ties, 1).codes, 0x7e02fe000200fa7f);
}

TEST(a_row_of_eights_has_its_scales_behind_its_codes)
{
	enum { N = 136 };
	uint16_t row[N];
	uint8_t to[N + N / 8 * 2 + 1];
	float sum[N];

	for (int i = 0; i < N; i++) {
		row[i] = ep_narrow(COVEY_BFLOAT16, (float)(i / 8 + 1) * (float)(i % 8 + 1));
		sum[i] = 1;
	}
	to[sizeof(to) - 1] = 0xc5;
	cvy_ep_quantise_eights(&(struct cvy_ep_plain){ row, COVEY_BFLOAT16, N, NULL, NULL }, to);
	ck_assert_uint_eq(to[sizeof(to) - 1], 0xc5);
	for (int g = 0; g < N / 8; g++) {
		uint16_t half;

		memcpy(&half, to + N + g * 2, 2);
		ck_assert_float_ge(ep_wide(COVEY_BFLOAT16, half) * 127, (float)(g + 1) * 8 * 0.9999f);
		ck_assert_float_le(ep_wide(COVEY_BFLOAT16, half) * 127, (float)(g + 1) * 8 * 1.01f);
		ck_assert_int_ge(to[g * 8 + 7], 126);
	}
	cvy_ep_weigh_eights(sum, to, COVEY_BFLOAT16, 2, N);
	for (int i = 0; i < N; i++)
		ck_assert_float_le(fabsf(sum[i] - 1 - 2 * cvy_bf16_f32(row[i])), (float)(i / 8 + 1) * 8 / 127 * 1.02f);
}

/* ---- where they stand ---- */

/* LL: rows of two experts, of a token each and one that both have. Scales of an expert are side by side. */
TEST(scales_of_an_expert_are_side_by_side)
{
	enum { H = 8, T = 3, K = 2 };
	int owner[2] = { 0, 0 }, local[2] = { 0, 1 };
	struct covey_ep ep = { .shape = { T, H, K, 2, 1, COVEY_EP_LL, 0 },
			       .size = 1,
			       .el = 2,
			       .owner = owner,
			       .local = local,
			       .dtype = COVEY_BFLOAT16,
			       .rows_as = COVEY_EP_ROWS_INT4 };
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	uint8_t *slot = calloc(1, cvy_ep_dispatch_bytes(&ep.shape)), packed[2 * T * H / 2];
	const int32_t ids[T * K] = { 0, -1, 0, 1, 1, -1 };
	float scales[2 * T];
	int32_t count[2] = { 0 }, src[2 * T];
	uint16_t x[T * H];
	int64_t range[2];

	ck_assert_ptr_nonnull(slot);
	for (int i = 0; i < T * H; i++)
		x[i] = ep_narrow(COVEY_BFLOAT16, (float)((i % H) * (i / H + 1)));
	for (int i = 0; i < 2 * T; i++)
		scales[i] = -1;
	memset(packed, 0xc5, sizeof(packed));
	a.num_tokens = T;
	a.x = x;
	a.experts = ids;
	a.packed_x = packed;
	a.packed_scales = scales;
	a.count = count;
	a.src_info = src;
	a.range = range;
	cvy_ep_dispatch_read(&ep, &a, 0, slot, cvy_ep_dispatch_write(&ep, &a, slot));
	for (int row = 0; row < 2 * T; row++) {
		const int token = row % T + row / T;

		ck_assert_float_eq(scales[row], row % T < 2 ? (float)(token + 1) : -1);
		for (int i = 0; i < H / 2; i++)
			ck_assert_uint_eq(packed[row * H / 2 + i],
					  row % T < 2 ? (unsigned)(2 * i | (2 * i + 1) << 4) : 0xc5);
	}
	free(slot);
}

/* Each expert has factors of its own: the same token becomes other codes there. Infinite products are seen by the scale. */
TEST(rows_are_multiplied_by_the_factors_of_their_expert)
{
	enum { H = 8, E = 3 };
	int owner[E] = { 0, 0, 0 }, local[E] = { 0, 1, 2 };
	struct covey_ep ep = { .shape = { 1, H, E, E, 1, COVEY_EP_LL, 0 },
			       .size = 1,
			       .el = E,
			       .owner = owner,
			       .local = local,
			       .dtype = COVEY_BFLOAT16,
			       .rows_as = COVEY_EP_ROWS_INT8 };
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	uint8_t *slot = calloc(1, cvy_ep_dispatch_bytes(&ep.shape));
	const int32_t ids[E] = { 2, 0, 1 };
	float smooth[E * H], scales[E];
	int32_t count[E] = { 0 }, src[E];
	int8_t packed[E * H];
	int64_t range[E];
	uint16_t x[H];

	ck_assert_ptr_nonnull(slot);
	for (int i = 0; i < H; i++) {
		x[i] = ep_narrow(COVEY_BFLOAT16, (float)(i + 1));
		smooth[i] = 1;
		smooth[H + i] = 1.0f / (float)(i + 1);
		smooth[2 * H + i] = i == 3 ? 1e38f : 1; /* times 4 it is infinite */
	}
	a.num_tokens = 1;
	a.x = x;
	a.experts = ids;
	a.packed_x = packed;
	a.packed_scales = scales;
	a.count = count;
	a.src_info = src;
	a.range = range;
	a.smooth = smooth;
	cvy_ep_dispatch_read(&ep, &a, 0, slot, cvy_ep_dispatch_write(&ep, &a, slot));
	for (int i = 0; i < H; i++) {
		ck_assert_int_eq(packed[i], (int)rintf((float)(i + 1) * (127.0f / 8)));
		ck_assert_int_eq(packed[H + i], 127);
		ck_assert_int_eq(packed[2 * H + i], 0);
	}
	ck_assert_float_eq(scales[0], 8 / 127.0f);
	ck_assert_float_eq(scales[1], 1 / 127.0f);
	ck_assert_float_nan(scales[2]);
	free(slot);
}

static const struct {
	int code, hidden;
	size_t bytes, groups, row;
} sizes[] = {
	{ CVY_EP_AS_IS, 7168, 14336, 0, 14336 },     { CVY_EP_E4M3, 7168, 7168, 56, 7392 },
	{ CVY_EP_E4M3, 136, 136, 2, 144 },	     { CVY_EP_INT8, 7168, 7168, 1, 7172 },
	{ CVY_EP_INT4, 7168, 3584, 1, 3588 },	     { CVY_EP_INT4, 8, 4, 1, 8 },
	{ CVY_EP_INT8_BY_8, 7168, 7168, 896, 8960 }, { CVY_EP_INT8_BY_8, 8, 8, 1, 10 },
};

TEST_LOOP(what_a_row_takes, 0, sizeof(sizes) / sizeof(sizes[0]))
{
	const struct cvy_ep_code *code = cvy_ep_code_of(sizes[_i].code);
	const size_t hidden = (size_t)sizes[_i].hidden;

	ck_assert_uint_eq(cvy_ep_code_bytes(code, hidden), sizes[_i].bytes);
	ck_assert_uint_eq(cvy_ep_code_groups(code, hidden), sizes[_i].groups);
	ck_assert_uint_eq(cvy_ep_code_row(code, hidden), sizes[_i].row);
	ck_assert_ptr_null(cvy_ep_code_of(-1));
	ck_assert_ptr_null(cvy_ep_code_of(CVY_EP_CODES));
	ck_assert_int_eq(CVY_EP_AS_IS, COVEY_EP_ROWS_BF16);
	ck_assert_int_eq(CVY_EP_E4M3, COVEY_EP_ROWS_E4M3);
	ck_assert_int_eq(CVY_EP_INT8, COVEY_EP_ROWS_INT8);
	ck_assert_int_eq(CVY_EP_INT4, COVEY_EP_ROWS_INT4);
	ck_assert_int_eq(CVY_EP_E4M3_POW2, COVEY_EP_ROWS_E4M3_POW2);
}

SUITE_MAIN(.name = "collectives/ep_code")
