/* SPDX-License-Identifier: Apache-2.0 */
/* Text, router and experts of the job: see model.h. Random numbers are hashes of their place. */
#include "model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number in [-1, 1) for a place. */
static float noise(uint64_t seed, uint64_t a, uint64_t b)
{
	uint64_t h = seed ^ a * 0x9e3779b97f4a7c15ull ^ b * 0xd6e8feb86659fd93ull;

	h = (h ^ h >> 32) * 0xbf58476d1ce4e5b9ull;
	h = (h ^ h >> 29) * 0x94d049bb133111ebull;
	return (float)(int32_t)(h >> 32) * 0x1p-31f;
}

static int read_text(struct moe_model *m, const char *path)
{
	FILE *file = fopen(path, "rbe");
	uint8_t *text = NULL;
	long bytes = -1;

	if (!file)
		return -1;
	if (!fseek(file, 0, SEEK_END))
		bytes = ftell(file);
	rewind(file);
	if (bytes > 0)
		text = malloc((size_t)bytes);
	if (!text || fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
		free(text);
		fclose(file);
		errno = bytes == 0 ? ENODATA : errno ? errno : EIO;
		return -1;
	}
	fclose(file);
	m->text = text;
	m->text_bytes = (size_t)bytes;
	return 0;
}

int moe_model_open(struct moe_model *m, const struct moe_shape *shape, int ffn, uint64_t seed, const char *text)
{
	size_t hidden = (size_t)shape->hidden, experts = (size_t)shape->experts;

	memset(m, 0, sizeof(*m));
	m->shape = *shape;
	m->ffn = ffn;
	m->places = 1;
	m->seed = seed;
	if (read_text(m, text))
		return -1;
	m->router = malloc(experts * hidden * sizeof(*m->router));
	m->weights = calloc(experts, sizeof(*m->weights));
	m->inner = malloc(((size_t)ffn + hidden) * sizeof(*m->inner));
	if (!m->router || !m->weights || !m->inner) {
		moe_model_close(m);
		errno = ENOMEM;
		return -1;
	}
	for (size_t i = 0; i < experts * hidden; i++)
		m->router[i] = noise(seed, 1, i);
	return 0;
}

void moe_model_close(struct moe_model *m)
{
	for (int e = 0; m->weights && e < m->shape.experts; e++)
		free(m->weights[e]);
	free(m->weights);
	free(m->router);
	free(m->inner);
	free((void *)m->text);
	memset(m, 0, sizeof(*m));
}

size_t moe_expert_floats(const struct moe_model *m)
{
	return 2 * (size_t)m->ffn * (size_t)m->shape.hidden;
}

float *moe_expert_make(struct moe_model *m, int expert)
{
	size_t n = moe_expert_floats(m);
	float *w = m->weights[expert], scale = 1.7f / sqrtf((float)m->shape.hidden);

	if (w)
		return w;
	w = malloc(n * sizeof(*w));
	if (!w)
		return NULL;
	for (size_t i = 0; i < n; i++)
		w[i] = scale * noise(m->seed, 2 + (uint64_t)expert, i);
	return m->weights[expert] = w;
}

void moe_expert_drop(struct moe_model *m, int expert)
{
	free(m->weights[expert]);
	m->weights[expert] = NULL;
}

/* Eight sums side by side, for the compiler's vectors. */
static float dot(const float *a, const float *b, int n)
{
	float lane[8] = { 0 }, sum = 0;
	int i = 0;

	for (; i + 8 <= n; i += 8)
		for (int l = 0; l < 8; l++)
			lane[l] += a[i + l] * b[i + l];
	for (; i < n; i++)
		sum += a[i] * b[i];
	for (int l = 0; l < 8; l++)
		sum += lane[l];
	return sum;
}

void moe_expert_run(void *model, int expert, const uint16_t *x, uint16_t *y)
{
	struct moe_model *m = model;
	int hidden = m->shape.hidden, ffn = m->ffn;
	const float *first = m->weights[expert], *second = first + (size_t)ffn * (size_t)hidden;
	float *token = m->inner + ffn;

	for (int h = 0; h < hidden; h++)
		token[h] = moe_from_bf16(x[h]);
	for (int f = 0; f < ffn; f++, first += hidden) {
		float sum = dot(first, token, hidden);

		m->inner[f] = sum > 0 ? sum : 0;
	}
	for (int h = 0; h < hidden; h++, second += ffn)
		y[h] = moe_to_bf16(dot(second, m->inner, ffn));
}

/* The best top_k experts by score, the lower id first among equals; weights are their softmax. */
static void route(const struct moe_model *m, const uint16_t *x, int32_t *experts, float *weights)
{
	const struct moe_shape *s = &m->shape;
	float all = 0;

	for (int k = 0; k < s->top_k; k++)
		weights[k] = -INFINITY, experts[k] = -1;
	for (int e = 0; e < s->experts; e++) {
		const float *row = m->router + (size_t)e * (size_t)s->hidden;
		float score = 0;
		int k = s->top_k;

		for (int h = 0; h < s->hidden; h++)
			score += row[h] * moe_from_bf16(x[h]);
		for (; k > 0 && score > weights[k - 1]; k--)
			if (k < s->top_k)
				weights[k] = weights[k - 1], experts[k] = experts[k - 1];
		if (k < s->top_k)
			weights[k] = score, experts[k] = e;
	}
	for (int k = s->top_k - 1; k >= 0; k--)
		weights[k] = experts[k] < 0 ? 0 : expf((weights[k] - weights[0]) * 0.5f);
	for (int k = 0; k < s->top_k; k++)
		all += weights[k];
	for (int k = 0; k < s->top_k; k++)
		weights[k] /= all;
}

void moe_model_batch(const struct moe_model *m, uint64_t step, int rank, uint16_t *x, int32_t *experts, float *weights)
{
	const struct moe_shape *s = &m->shape;
	size_t hidden = (size_t)s->hidden, top_k = (size_t)s->top_k;

	for (size_t t = 0; t < (size_t)s->tokens; t++) {
		uint64_t at = (step * MOE_MAX_RANKS + (uint64_t)rank) * (uint64_t)s->tokens + t;
		uint64_t byte = m->text[at % m->text_bytes];

		for (size_t h = 0; h < hidden; h++)
			x[t * hidden + h] = moe_to_bf16(noise(m->seed, 1000003 + byte, h) +
							0.5f * noise(m->seed, ~(at % m->text_bytes), h));
		route(m, x + t * hidden, experts + t * top_k, weights + t * top_k);
	}
}

void moe_owners(const struct moe_model *m, int size, int *owner)
{
	int block = (m->shape.experts + size - 1) / size;

	int apart = size < m->places ? 1 : size / m->places;

	for (int e = 0; e < m->shape.experts; e++)
		for (int p = 0; p < m->places; p++)
			owner[e * m->places + p] = p < size ? (e / block + p * apart) % size : -1;
}

bool moe_owns(const struct moe_model *m, const int *owner, int expert, int rank)
{
	for (int p = 0; p < m->places; p++)
		if (owner[expert * m->places + p] == rank)
			return true;
	return false;
}

int moe_serves(const struct moe_model *m, const int *owner, int expert, int source, uint64_t living)
{
	int list[MOE_MAX_RANKS], n = 0;

	for (int v = expert * m->places; v < (expert + 1) * m->places; v++)
		if (owner[v] >= 0 && living >> owner[v] & 1)
			list[n++] = v;
	return n ? list[source % n] : -1;
}
