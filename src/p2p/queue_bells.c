/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that copies doorbells from words that posters can write to registers that they cannot. Words only grow, so
 * copying the newest is enough: the record, written before, says how far the adapter may read. The comparison with the
 * last copied value needs no swap across PCIe. A word cannot return to an old value between two looks, since the depth
 * of a queue is half its 16 bits.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "process.h"
#include "queues.h"
#include "size.h"

#define IDLE_LOOKS 2000 /* at all words, before a nap */
#define NAP_NS 20000

struct bell {
	uint64_t *reg; /* NULL: free */
	uint64_t last;
};

struct cvy_bells {
	const struct cvy_queue_memory *memory;
	pthread_mutex_t lock; /* bell[] */
	pthread_t thread;
	int stop, started, mapped;
	unsigned max, top;
	struct bell *bell;
	uint64_t *word, *seen; /* words as this thread sees them, and as posters do */
};

static int copy_all(struct cvy_bells *b)
{
	int any = 0;
	uint64_t v;

	pthread_mutex_lock(&b->lock);
	for (unsigned i = 0; i < b->top; i++) {
		v = cvy_q_load(&b->word[i]);
		if (!b->bell[i].reg || v == b->bell[i].last)
			continue;
		b->bell[i].last = v;
		cvy_q_store(b->bell[i].reg, v);
		cvy_q_fence(); /* leaves the buffer that combines stores */
		any = 1;
	}
	pthread_mutex_unlock(&b->lock);
	return any;
}

static void *bells_main(void *arg)
{
	const struct timespec nap = { 0, NAP_NS };
	struct cvy_bells *b = arg;
	unsigned idle = 0;

	while (!__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE)) {
		idle = copy_all(b) ? 0 : idle + 1;
		if (idle >= IDLE_LOOKS)
			nanosleep(&nap, NULL);
		else if (idle % 64 == 63)
			cvy_q_pause();
	}
	return NULL;
}

int cvy_bells_open(const struct cvy_queue_memory *memory, unsigned max, struct cvy_bells **out)
{
	struct cvy_bells *b = calloc(1, sizeof(*b));
	size_t bytes = cvy_round_up(max * sizeof(uint64_t), CVY_MEMORY_PAGE);
	char why[160];
	void *at;

	if (!b)
		return COVEY_ERR_NOMEM;
	b->memory = memory;
	b->max = max;
	pthread_mutex_init(&b->lock, NULL);
	b->bell = calloc(max, sizeof(*b->bell));
	b->word = aligned_alloc(CVY_MEMORY_PAGE, bytes);
	if (!b->bell || !b->word)
		goto fail;
	memset(b->word, 0, bytes);
	b->seen = b->word;
	if (memory) {
		if (memory->map(memory->ctx, b->word, bytes, 0, &at, why, sizeof(why)))
			goto fail;
		b->mapped = 1;
		b->seen = at;
	}
	if (cvy_thread_start(&b->thread, bells_main, b))
		goto fail;
	b->started = 1;
	*out = b;
	return 0;
fail:
	cvy_bells_close(b);
	return COVEY_ERR_NOMEM;
}

int cvy_bells_add(struct cvy_bells *b, uint64_t *reg, uint64_t **word)
{
	unsigned i = 0;

	pthread_mutex_lock(&b->lock);
	while (i < b->max && b->bell[i].reg)
		i++;
	if (i < b->max) {
		b->bell[i].reg = reg;
		b->bell[i].last = cvy_q_load(&b->word[i]);
		if (i >= b->top)
			b->top = i + 1;
		*word = &b->seen[i];
	}
	pthread_mutex_unlock(&b->lock);
	return i < b->max ? 0 : COVEY_ERR_NOMEM;
}

void cvy_bells_remove(struct cvy_bells *b, uint64_t *word)
{
	pthread_mutex_lock(&b->lock);
	b->bell[word - b->seen].reg = NULL;
	pthread_mutex_unlock(&b->lock);
}

void cvy_bells_close(struct cvy_bells *b)
{
	if (!b)
		return;
	__atomic_store_n(&b->stop, 1, __ATOMIC_RELEASE);
	if (b->started)
		pthread_join(b->thread, NULL);
	if (b->mapped)
		b->memory->unmap(b->memory->ctx, b->word, cvy_round_up(b->max * sizeof(uint64_t), CVY_MEMORY_PAGE));
	pthread_mutex_destroy(&b->lock);
	free(b->word);
	free(b->bell);
	free(b);
}
