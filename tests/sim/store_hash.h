/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of strings in the order of insertion, and a list of them by key: the data of the store in memory. */
#ifndef STORE_HASH_H
#define STORE_HASH_H

#include <stdint.h>
#include <stdlib.h>

#define KEY_MAX 128

struct field {
	char *name, *value;
};

/* Fields in the order of insertion, and a table to find them: positions by hash of the name. */
struct hash {
	char key[KEY_MAX];
	char type[16];
	uint64_t expires_ms; /* 0: never */
	struct field *field; /* name NULL: deleted */
	int count, used, room;
	int *slot, slots; /* position + 1, 0: free; slots: a power of two */
	struct hash *next;
};

static inline void *must(void *p)
{
	if (!p)
		abort(); /* a test program has no way on */
	return p;
}

void hashes_free(struct hash *h);
struct field *hash_field(struct hash *h, const char *name);
void hash_set(struct hash *h, const char *name, const char *value);
void hash_del(struct hash *h, const char *name);
struct hash *hash_find(struct hash *hashes, const char *key);
struct hash *hash_need(struct hash **hashes, const char *key);
void hash_remove(struct hash **hashes, const char *key);
struct hash *hashes_copy(const struct hash *from);

#endif
