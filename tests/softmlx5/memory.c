/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions by key, and bytes between processes. Memory of this process is stored plainly; a heap in the segment is
 * reached from every process; other memory of another one by process_vm_writev, where a call stores piece by piece, or by
 * the other's thread where the system refuses. Words
 * of 8 bytes are stored whole and in ascending order, as adapters do that are not told to relax: who sees the last
 * word of a write sees all of it. A key has random bits, so that nobody lives on guessing one.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "state.h"

#define MAGIC 0x5af7a1e5u
#define KEY_RANDOM_BITS 16
#define PIECES 1024 /* of one call of the system */

static void take_process(struct segment *s)
{
	uint32_t i = __atomic_fetch_add(&s->processes, 1, __ATOMIC_SEQ_CST);

	if (i >= PROCESSES)
		abort();
	adapter.process = i;
	s->process[i].heap = (uint64_t)(uintptr_t)s->heap;
	__atomic_store_n(&s->process[i].pid, getpid(), __ATOMIC_RELEASE);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* the others write into our memory */
}

/* 0, or errno. Whoever comes first makes the file as long as it must be; its zeros are the beginning. */
int segment_open(void)
{
	const char *path = getenv("SOFTMLX5_SEGMENT");
	size_t bytes = sizeof(struct segment) + HEAP_BYTES;
	struct segment *s;
	int fd;

	fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : memfd_create("softmlx5", MFD_CLOEXEC);
	if (fd < 0)
		return errno;
	if (ftruncate(fd, (off_t)bytes)) {
		close(fd);
		return errno;
	}
	s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (s == MAP_FAILED)
		return errno;
	s->magic = MAGIC;
	adapter.segment = s;
	take_process(s);
	return 0;
}

void *softmlx5_heap(size_t bytes)
{
	struct segment *s;
	uint64_t at;

	adapter_start();
	s = adapter.segment;
	bytes = (bytes + 63) / 64 * 64;
	at = __atomic_fetch_add(&s->heap_used, bytes, __ATOMIC_SEQ_CST);
	return at + bytes <= HEAP_BYTES ? s->heap + at : NULL;
}

uint32_t region_add(uint64_t start, uint64_t iova, uint64_t bytes, uint32_t access, uint32_t pd)
{
	struct segment *s = adapter.segment;
	uint32_t i, free_key = 0, key;
	uint16_t noise = 0;

	if (getentropy(&noise, sizeof(noise)))
		noise = (uint16_t)now_ns();
	for (i = 1; i < REGIONS; i++) {
		key = i << KEY_RANDOM_BITS | noise;
		free_key = 0;
		if (__atomic_compare_exchange_n(&s->region[i].key, &free_key, key, 0, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST))
			break;
	}
	if (i == REGIONS)
		return 0;
	s->region[i] = (struct region){ .key = key,
					.access = access,
					.process = adapter.process,
					.pd = pd,
					.start = start,
					.iova = iova,
					.bytes = bytes };
	return i;
}

void region_remove(uint32_t index)
{
	if (index < REGIONS)
		__atomic_store_n(&adapter.segment->region[index].key, 0, __ATOMIC_SEQ_CST);
}

struct region *region_find(uint32_t key, uint64_t at, uint64_t bytes, uint32_t access, uint32_t pd)
{
	struct region *r = &adapter.segment->region[(key >> KEY_RANDOM_BITS) & (REGIONS - 1)];

	if (!key || r->key != key || r->pd != pd || (r->access & access) != access)
		return NULL;
	if (at < r->iova || bytes > r->bytes || at - r->iova > r->bytes - bytes)
		return NULL;
	return r;
}

/* Its memory as this process sees it; NULL: it does not. */
void *region_local(const struct region *r, uint64_t at)
{
	const struct segment *s = adapter.segment;
	uint64_t there = r->start + (at - r->iova), heap = s->process[r->process].heap;

	if (r->process == adapter.process)
		return (void *)(uintptr_t)there;
	if (there >= heap && there < heap + HEAP_BYTES)
		return (void *)(s->heap + (there - heap));
	return NULL;
}

/* Also of one that nobody has waited for. Looked at once a millisecond: packets are lost for longer than that. */
int process_gone(uint32_t process)
{
	static struct {
		int gone;
		uint64_t looked;
	} seen[PROCESSES];
	struct pollfd p = { .events = POLLIN };
	uint64_t now;

	if (process == adapter.process || seen[process].gone)
		return process != adapter.process;
	now = now_ns();
	if (now - seen[process].looked < 1000000)
		return 0;
	seen[process].looked = now;
	p.fd = (int)syscall(SYS_pidfd_open, adapter.segment->process[process].pid, 0);
	seen[process].gone = p.fd < 0 || poll(&p, 1, 0) > 0;
	if (p.fd >= 0)
		close(p.fd); /* who counts descriptors of its process finds none of ours */
	return seen[process].gone;
}

/* Up to the next word, or a word. */
static size_t piece(uint64_t at, size_t bytes)
{
	size_t n = 8 - (at & 7);

	return n < bytes ? n : bytes;
}

static void copy(void *to, const void *from, size_t bytes);

void answer_asks(void)
{
	struct ask *a = &adapter.segment->ask[adapter.process];

	if (__atomic_load_n(&a->state, __ATOMIC_ACQUIRE) != ASK_ASKED)
		return;
	if (a->out)
		copy((void *)(uintptr_t)a->at, a->data, a->bytes);
	else
		copy(a->data, (const void *)(uintptr_t)a->at, a->bytes);
	__atomic_store_n(&a->state, ASK_DONE, __ATOMIC_RELEASE);
}

/* Waits for the other's thread, and answers those who wait for this one. Not for one that is stopped. -1: it is gone. */
static int ask_part(const struct region *r, struct ask *a, uint64_t there, uint8_t *near, size_t bytes, int out)
{
	uint32_t nobody = 0;

	while (!__atomic_compare_exchange_n(&a->asker, &nobody, adapter.process + 1, 0, __ATOMIC_ACQUIRE,
					    __ATOMIC_RELAXED)) {
		if (process_gone(nobody - 1)) /* it asked, and died */
			__atomic_compare_exchange_n(&a->asker, &nobody, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
		nobody = 0;
		if (process_gone(r->process))
			return -1;
		answer_asks();
		sched_yield();
	}
	while (__atomic_load_n(&a->state, __ATOMIC_ACQUIRE) == ASK_ASKED) { /* by who died */
		if (process_gone(r->process))
			return -1;
		sched_yield();
	}
	a->at = there;
	a->bytes = bytes;
	a->out = (uint32_t)out;
	if (out)
		memcpy(a->data, near, bytes);
	__atomic_store_n(&a->state, ASK_ASKED, __ATOMIC_RELEASE);
	while (__atomic_load_n(&a->state, __ATOMIC_ACQUIRE) != ASK_DONE) {
		if (process_gone(r->process))
			return -1;
		answer_asks();
		sched_yield();
	}
	if (!out)
		memcpy(near, a->data, bytes);
	__atomic_store_n(&a->state, ASK_NONE, __ATOMIC_RELAXED);
	__atomic_store_n(&a->asker, 0, __ATOMIC_RELEASE);
	return 0;
}

static int ask_owner(const struct region *r, uint64_t at, uint8_t *near, size_t bytes, int out)
{
	struct ask *a = &adapter.segment->ask[r->process];
	size_t n;

	for (size_t done = 0; done < bytes; done += n) {
		n = bytes - done < ASK_BYTES ? bytes - done : ASK_BYTES;
		if (ask_part(r, a, r->start + (at - r->iova) + done, near + done, n, out))
			return -1;
	}
	return 0;
}

/* Each piece is an element of its own, so the system copies them one after the other. */
static int move_far(const struct region *r, uint64_t at, void *near, size_t bytes, int out)
{
	struct iovec here[PIECES], there = { (void *)(uintptr_t)(r->start + (at - r->iova)), 0 };
	pid_t pid = adapter.segment->process[r->process].pid;
	const char *lacks = getenv("SOFTMLX5_LACKS"); /* reach: as where the memory is a GPU's */
	ssize_t n = 0;
	int k;

	if (lacks && strstr(lacks, "reach"))
		return ask_owner(r, at, near, bytes, out);
	for (size_t done = 0; done < bytes; done += (size_t)n) {
		there.iov_base = (void *)(uintptr_t)(r->start + (at - r->iova) + done);
		there.iov_len = 0;
		for (k = 0; k < PIECES && done + there.iov_len < bytes; k++) {
			here[k].iov_base = (uint8_t *)near + done + there.iov_len;
			here[k].iov_len =
				piece((uintptr_t)there.iov_base + there.iov_len, bytes - done - there.iov_len);
			there.iov_len += here[k].iov_len;
		}
		n = out ? process_vm_writev(pid, here, (unsigned long)k, &there, 1, 0)
			: process_vm_readv(pid, here, (unsigned long)k, &there, 1, 0);
		if (n < 0 && errno == EFAULT)
			return ask_owner(r, at + done, (uint8_t *)near + done, bytes - done, out);
		if (n != (ssize_t)there.iov_len) {
			if (getenv("SOFTMLX5_TRACE") && !process_gone(r->process))
				perror("softmlx5: memory of another process");
			return -1;
		}
	}
	return 0;
}

static void copy(void *to, const void *from, size_t bytes)
{
	uint64_t v;

	if (adapter.copy) {
		adapter.copy(to, from, bytes);
		return;
	}
	for (size_t done = 0, n; done < bytes; done += n) {
		n = piece((uintptr_t)to + done, bytes - done);
		memcpy(&v, (const uint8_t *)from + done, n);
		if (n == 8)
			__atomic_store_n((uint64_t *)(void *)((uint8_t *)to + done), v, __ATOMIC_RELEASE);
		else
			memcpy((uint8_t *)to + done, &v, n);
	}
}

int move_out(const struct region *to, uint64_t at, const void *from, size_t bytes)
{
	void *there = region_local(to, at);

	if (!there)
		return move_far(to, at, (void *)(uintptr_t)from, bytes, 1);
	copy(there, from, bytes);
	return 0;
}

int move_in(const struct region *from, uint64_t at, void *to, size_t bytes)
{
	const void *there = region_local(from, at);

	if (!there)
		return move_far(from, at, to, bytes, 0);
	copy(to, there, bytes);
	return 0;
}

/* Atomic among adapters alone, where the memory is not seen here: that is all that verbs promise. */
static int fetch_add_far(const struct region *to, uint64_t at, uint64_t add, uint64_t *old)
{
	uint32_t *lock = &adapter.segment->lock, unlocked = 0;
	uint64_t v = 0;
	int err;

	while (!__atomic_compare_exchange_n(lock, &unlocked, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
		unlocked = 0;
		answer_asks(); /* who has it may wait for us */
	}
	err = move_far(to, at, &v, 8, 0);
	*old = v;
	v += add;
	if (!err)
		err = move_far(to, at, &v, 8, 1);
	__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
	return err;
}

int fetch_add(const struct region *to, uint64_t at, uint64_t add, uint64_t *old)
{
	void *there = region_local(to, at);

	if (!there)
		return fetch_add_far(to, at, add, old);
	*old = __atomic_fetch_add((uint64_t *)there, add, __ATOMIC_SEQ_CST);
	return 0;
}
