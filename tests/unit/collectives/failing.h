/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library asks the system for, wrapped by the linker (tests/CMakeLists.txt): of the calls that are made while it is
 * armed the n-th fails, and what is not given back is counted. A test binary includes this once.
 */
#ifndef TESTS_FAILING_H
#define TESTS_FAILING_H

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define LIVE 16384 /* allocations at one time that are told apart */

static struct {
	int armed; /* 1: calls count */
	long calls, fails_at;
	long *hit; /* shared: the call failed */
	char *what;
	pthread_mutex_t lock;
	void *live[LIVE];
	long count;
	size_t most; /* bytes of the largest allocation that was made while armed */
} failing = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int fails(const char *what)
{
	if (!__atomic_load_n(&failing.armed, __ATOMIC_ACQUIRE) ||
	    __atomic_add_fetch(&failing.calls, 1, __ATOMIC_RELAXED) != failing.fails_at)
		return 0;
	snprintf(failing.what, 32, "%s", what);
	__atomic_store_n(failing.hit, 1, __ATOMIC_RELEASE);
	return 1;
}

static size_t slot_of(const void *p)
{
	return ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 50;
}

static void *born(void *p)
{
	pthread_mutex_lock(&failing.lock);
	if (failing.armed && malloc_usable_size(p) > failing.most)
		failing.most = malloc_usable_size(p);
	for (size_t i = slot_of(p), n = 0; p && n < LIVE; i++, n++)
		if (!failing.live[i % LIVE]) {
			failing.live[i % LIVE] = p;
			failing.count++;
			break;
		}
	pthread_mutex_unlock(&failing.lock);
	return p;
}

/* Only what the library allocated itself counts: other libraries may hand over memory of theirs. */
static void died(const void *p)
{
	pthread_mutex_lock(&failing.lock);
	for (size_t i = 0; p && i < LIVE; i++) /* a hole may stand before it: all are looked at */
		if (failing.live[(slot_of(p) + i) % LIVE] == p) {
			failing.live[(slot_of(p) + i) % LIVE] = NULL;
			failing.count--;
			break;
		}
	pthread_mutex_unlock(&failing.lock);
}

#define WRAP(type, name, params, args, failure, error) \
	type __real_##name params; \
	type __wrap_##name params; \
	type __wrap_##name params \
	{ \
		if (fails(#name)) { \
			errno = error; \
			return failure; \
		} \
		return __real_##name args; \
	}

#define WRAP_MEMORY(name, params, args) \
	void *__real_##name params; \
	void *__wrap_##name params; \
	void *__wrap_##name params \
	{ \
		if (fails(#name)) { \
			errno = ENOMEM; \
			return NULL; \
		} \
		return born(__real_##name args); \
	}

WRAP_MEMORY(malloc, (size_t n), (n))
WRAP_MEMORY(calloc, (size_t n, size_t each), (n, each))
WRAP_MEMORY(aligned_alloc, (size_t align, size_t n), (align, n))
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t from), (at, n, prot, flags, fd, from),
     MAP_FAILED, ENOMEM)
WRAP(int, memfd_create, (const char *name, unsigned int flags), (name, flags), -1, EMFILE)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1, EMFILE)
WRAP(int, epoll_create1, (int flags), (flags), -1, EMFILE)
WRAP(int, eventfd, (unsigned int start, int flags), (start, flags), -1, EMFILE)
WRAP(int, posix_fallocate, (int fd, off_t from, off_t n), (fd, from, n), ENOSPC, ENOSPC)
WRAP(int, pthread_create, (pthread_t * to, const pthread_attr_t *attr, void *(*fn)(void *), void *arg),
     (to, attr, fn, arg), EAGAIN, EAGAIN)

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
	return fails("strdup") ? NULL : born(__real_strdup(text));
}

void *__real_realloc(void *old, size_t n);
void *__wrap_realloc(void *old, size_t n);
void *__wrap_realloc(void *old, size_t n)
{
	void *p;

	if (fails("realloc"))
		return NULL;
	died(old); /* before: its address may be given to another thread at once */
	p = __real_realloc(old, n);
	return born(p);
}

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p)
{
	died(p);
	__real_free(p);
}

#endif
