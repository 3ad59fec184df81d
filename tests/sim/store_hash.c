/* SPDX-License-Identifier: Apache-2.0 */
/* A table beside the fields finds them by name; what is deleted keeps its place until the table grows. */
#include "store_hash.h"

#include <stdio.h>
#include <string.h>

static void hash_clear(struct hash *h)
{
	for (int i = 0; i < h->used; i++) {
		free(h->field[i].name);
		free(h->field[i].value);
	}
	free(h->field);
	free(h->slot);
	h->field = NULL;
	h->slot = NULL;
	h->count = h->used = h->room = h->slots = 0;
}

void hashes_free(struct hash *h)
{
	while (h) {
		struct hash *next = h->next;

		hash_clear(h);
		free(h);
		h = next;
	}
}

static unsigned hash_of(const char *name)
{
	unsigned n = 2166136261u;

	for (; *name; name++)
		n = (n ^ (unsigned char)*name) * 16777619u;
	return n ^ n >> 15;
}

static void hash_index(struct hash *h, int i)
{
	unsigned at = hash_of(h->field[i].name);

	while (h->slot[at % (unsigned)h->slots])
		at++;
	h->slot[at % (unsigned)h->slots] = i + 1;
}

/* Closes the gaps of deleted fields and makes room for one more. */
static void hash_grow(struct hash *h)
{
	int n = 0;

	for (int i = 0; i < h->used; i++)
		if (h->field[i].name)
			h->field[n++] = h->field[i];
	h->used = n;
	h->room = 2 * n + 32;
	h->field = must(realloc(h->field, (size_t)h->room * sizeof(*h->field)));
	free(h->slot);
	for (h->slots = 64; h->slots < 2 * h->room;)
		h->slots *= 2;
	h->slot = must(calloc((size_t)h->slots, sizeof(*h->slot)));
	for (int i = 0; i < n; i++)
		hash_index(h, i);
}

struct field *hash_field(struct hash *h, const char *name)
{
	if (!h || !h->slots)
		return NULL;
	for (unsigned at = hash_of(name);; at++) {
		int i = h->slot[at % (unsigned)h->slots];

		if (!i)
			return NULL;
		if (h->field[i - 1].name && strcmp(h->field[i - 1].name, name) == 0)
			return &h->field[i - 1];
	}
}

void hash_set(struct hash *h, const char *name, const char *value)
{
	struct field *f = hash_field(h, name);

	if (f) {
		char *copy = must(strdup(value));

		free(f->value);
		f->value = copy;
		return;
	}
	if (h->used == h->room)
		hash_grow(h);
	h->field[h->used].name = must(strdup(name));
	h->field[h->used].value = must(strdup(value));
	hash_index(h, h->used++);
	h->count++;
}

void hash_del(struct hash *h, const char *name)
{
	struct field *f = hash_field(h, name);

	if (!f)
		return;
	free(f->name);
	free(f->value);
	f->name = f->value = NULL; /* its slot stays taken until the next hash_grow() */
	h->count--;
}

struct hash *hash_find(struct hash *hashes, const char *key)
{
	for (struct hash *h = hashes; h; h = h->next)
		if (strcmp(h->key, key) == 0)
			return h;
	return NULL;
}

struct hash *hash_need(struct hash **hashes, const char *key)
{
	struct hash *h = hash_find(*hashes, key);

	if (h)
		return h;
	h = must(calloc(1, sizeof(*h)));
	snprintf(h->key, sizeof(h->key), "%s", key);
	strcpy(h->type, "hash");
	h->next = *hashes;
	*hashes = h;
	return h;
}

void hash_remove(struct hash **hashes, const char *key)
{
	for (struct hash **at = hashes; *at; at = &(*at)->next) {
		struct hash *h = *at;

		if (strcmp(h->key, key) != 0)
			continue;
		*at = h->next;
		h->next = NULL;
		hashes_free(h);
		return;
	}
}

struct hash *hashes_copy(const struct hash *from)
{
	struct hash *first = NULL, **at = &first;

	for (; from; from = from->next, at = &(*at)->next) {
		struct hash *h = must(calloc(1, sizeof(*h)));

		memcpy(h->key, from->key, sizeof(h->key));
		memcpy(h->type, from->type, sizeof(h->type));
		h->expires_ms = from->expires_ms;
		for (int i = 0; i < from->used; i++)
			if (from->field[i].name)
				hash_set(h, from->field[i].name, from->field[i].value);
		*at = h;
	}
	return first;
}
