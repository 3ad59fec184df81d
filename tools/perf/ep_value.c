/* SPDX-License-Identifier: Apache-2.0 */
/* Values of dispatch and combine as they arrive: as elements or as codes with scales, exact or as near as codes are. */
#include <math.h>
#include <string.h>

#include "ep_code.h"
#include "perf.h"

const struct cvy_ep_code *perf_ep_code(const struct perf_options *opt)
{
	return cvy_ep_code_of(opt->rows);
}

/* The value of a byte of e4m3: all that are sent here are normal numbers above 0. */
static float of_e4m3(uint8_t code)
{
	return ldexpf((float)(8 + (code & 7)), (code >> 3) - 10);
}

bool perf_ep_is(const struct perf_options *opt, const uint8_t *row, const float *scale, size_t apart, int h,
		unsigned want)
{
	const int nibble = row[h / 2] >> (h % 2 * 4) & 15;
	const float value = (float)want;
	uint16_t half;

	switch (opt->rows) {
	case COVEY_EP_ROWS_E4M3:
	case COVEY_EP_ROWS_E4M3_POW2:
		return fabsf(of_e4m3(row[h]) * scale[(size_t)(h / CVY_EP_GROUP) * apart] - value) < 1e-3f;
	case COVEY_EP_ROWS_INT8:
		return fabsf((float)(int8_t)row[h] * *scale - value) <= *scale * 0.501f;
	case COVEY_EP_ROWS_INT4: /* all values are above 0 */
		return fabsf((float)nibble * *scale - value) <= *scale * 0.501f;
	default:
		memcpy(&half, row + (size_t)h * 2, sizeof(half));
		return half == tool_bf16(want);
	}
}

/* The largest of eight is 4 or less, so each of the rows is off by half of 4 / 127; the sum is rounded to bf16. */
bool perf_ep_came(const struct perf_options *opt, uint16_t out, unsigned want)
{
	const uint32_t bits = (uint32_t)out << 16;
	float value;

	memcpy(&value, &bits, sizeof(value));
	if (opt->back == COVEY_EP_BACK_PLAIN)
		return out == tool_bf16((unsigned)opt->topk * want);
	return fabsf(value - (float)((unsigned)opt->topk * want)) <= (float)opt->topk * 4 * (0.51f / 127 + 1 / 256.0f);
}
