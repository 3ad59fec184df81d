/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window of a rank: memory that it alone writes and every process on its host may read. The seals make this safe: a
 * receiver trusts the descriptor, not the sender, because the kernel refuses to shrink it (no SIGBUS for readers) and
 * to map it writable (nobody writes another's memory).
 */
#include "window.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cores.h"
#include "list.h"
#include "log.h"
#include "process.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define HEAP_ALIGN 4096

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cvy_window *table;

/* Field 22 of /proc/self/stat; the name in field 2 may hold spaces and brackets, hence the search from its end. */
static uint64_t own_start(void)
{
	char text[1024];
	const char *at;
	FILE *file = fopen("/proc/self/stat", "re");
	size_t n;

	if (!file)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = '\0';
	at = strrchr(text, ')');
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

static int page_fill(struct cvy_page *page, const struct cvy_layout *layout, int max_ranks)
{
	pthread_mutexattr_t attr;
	struct cvy_cores cores;
	int err;

	if (pthread_mutexattr_init(&attr))
		return COVEY_ERR_NOMEM;
	err = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	if (!err)
		err = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	if (!err)
		err = pthread_mutex_init(&page->alive, &attr);
	pthread_mutexattr_destroy(&attr);
	if (err)
		return COVEY_ERR_UNSUPPORTED;
	page->pid = (int32_t)getpid();
	page->pid_start = own_start();
	page->max_ranks = max_ranks;
	page->window_bytes = layout->window_bytes;
	page->slot_bytes = layout->slot_bytes;
	cvy_cores_get(&cores);
	page->cores_id = cores.mask_id;
	page->cores = cores.cores;
	page->quota_id = cores.quota_id;
	page->quota = cores.quota;
	return 0;
}

static int window_create(struct cvy_window *window, int max_ranks, struct cvy_errbox *box)
{
	const struct cvy_layout *l = &window->layout;
	char why[CVY_HINT];
	struct stat st;
	int err;

	window->fd = memfd_create("covey-window", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (window->fd < 0)
		return cvy_fail(box, COVEY_ERR_IO, -1, 0, "memfd_create: %s%s", strerror(errno),
				cvy_process_hint(errno, why, sizeof(why)));
	if (ftruncate(window->fd, (off_t)l->window_bytes))
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "window of %zu bytes: %s%s", l->window_bytes,
				strerror(errno), cvy_process_hint(errno, why, sizeof(why)));
	/* Page and slots will be used: better no room at once than SIGBUS later. The heap is touched as used. */
	err = cvy_file_reserve(window->fd, l->heap);
	if (err)
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "%zu bytes of shared memory for slots: %s", l->heap,
				strerror(err));
	if (fstat(window->fd, &st))
		return cvy_fail(box, COVEY_ERR_IO, -1, 0, "fstat of the window: %s", strerror(errno));
	window->inode = (uint64_t)st.st_ino;
	window->own = mmap(NULL, l->window_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, window->fd, 0);
	if (window->own == MAP_FAILED) {
		window->own = NULL;
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "mapping a window of %zu bytes: %s%s", l->window_bytes,
				strerror(errno), cvy_process_hint(errno, why, sizeof(why)));
	}
	/* A core dump keeps the page, 4 KiB of signals, and leaves out the rest. */
	cvy_window_hide(window->own + l->slots, l->window_bytes - l->slots);
	/* After the own mapping: FUTURE_WRITE leaves it writable and refuses every later one. */
	if (fcntl(window->fd, F_ADD_SEALS, SEALS))
		return cvy_fail(box, COVEY_ERR_UNSUPPORTED, -1, 0, "sealing the window: %s", strerror(errno));
	return page_fill((struct cvy_page *)window->own, l, max_ranks);
}

int cvy_window_new(const struct cvy_layout *layout, int max_ranks, struct cvy_errbox *box, struct cvy_window **out)
{
	struct cvy_window *window = calloc(1, sizeof(*window));
	int err;

	if (!window)
		return COVEY_ERR_NOMEM;
	window->refs = 1;
	window->fd = -1;
	window->layout = *layout;
	err = window_create(window, max_ranks, box);
	if (err) {
		cvy_window_put(window);
		return err;
	}
	pthread_mutex_lock(&table_lock);
	window->next = table;
	table = window;
	pthread_mutex_unlock(&table_lock);
	*out = window;
	return 0;
}

void cvy_window_name(struct cvy_window *window, uint64_t inc, uint64_t nonce, int max_ranks)
{
	struct cvy_page *page = (struct cvy_page *)window->own;

	page->max_ranks = max_ranks;
	__atomic_store_n(&page->inc, inc, __ATOMIC_RELAXED);
	__atomic_store_n(&page->nonce, nonce, __ATOMIC_RELAXED);
	/* pairs with the check of magic before a peer's page is used */
	__atomic_store_n(&page->magic, CVY_PAGE_MAGIC, __ATOMIC_RELEASE);
}

void cvy_window_put(struct cvy_window *window)
{
	int left;

	if (!window)
		return;
	pthread_mutex_lock(&table_lock);
	left = --window->refs;
	if (!left)
		CVY_UNLINK(table, window, next);
	pthread_mutex_unlock(&table_lock);
	if (left)
		return;
	if (window->own)
		munmap(window->own, window->layout.window_bytes);
	if (window->fd >= 0)
		close(window->fd);
	free(window);
}

struct cvy_window *cvy_window_local(int fd, uint64_t nonce)
{
	struct cvy_window *window;
	struct stat st;

	if (fstat(fd, &st))
		return NULL;
	pthread_mutex_lock(&table_lock);
	for (window = table; window; window = window->next) {
		const struct cvy_page *page = (const struct cvy_page *)window->own;

		/* fd: a forked child inherits the table, but its windows are marked -1 by cvy_mesh_forget */
		if (window->fd >= 0 && window->inode == (uint64_t)st.st_ino &&
		    __atomic_load_n(&page->nonce, __ATOMIC_RELAXED) == nonce) {
			window->refs++;
			break;
		}
	}
	pthread_mutex_unlock(&table_lock);
	return window;
}

int cvy_window_check(int fd, const struct cvy_layout *layout, const char **why)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	*why = NULL;
	if (seals < 0)
		*why = "it is not sealed memory";
	else if ((seals & SEALS) != SEALS)
		*why = "a seal is missing";
	else if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		*why = "it is not a file";
	else if (st.st_size < 0 || (uint64_t)st.st_size != layout->window_bytes)
		*why = "its size is not window_bytes";
	return *why ? COVEY_ERR_INVAL : 0;
}

void cvy_window_hide(void *at, size_t bytes)
{
	if (madvise(at, bytes, MADV_DONTDUMP))
		cvy_debug("p2p", "a core dump would hold %zu bytes of windows: %s", bytes, strerror(errno));
}

static int map_fixed(uint8_t *at, size_t bytes, int prot, int flags, int fd)
{
	char why[CVY_HINT];

	if (mmap(at, bytes, prot, flags | MAP_FIXED | MAP_NORESERVE, fd, 0) != MAP_FAILED) {
		cvy_window_hide(at, bytes); /* a new mapping does not inherit the advice */
		return 0;
	}
	cvy_error("p2p", "mapping %zu bytes: %s%s", bytes, strerror(errno), cvy_process_hint(errno, why, sizeof(why)));
	return COVEY_ERR_NOMEM;
}

uint8_t *cvy_window_reserve(size_t window_bytes, int max_ranks)
{
	void *at;

	if (window_bytes > SIZE_MAX / (size_t)max_ranks)
		return NULL;
	at = mmap(NULL, window_bytes * (size_t)max_ranks, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		  0);
	if (at == MAP_FAILED)
		return NULL;
	cvy_window_hide(at, window_bytes * (size_t)max_ranks);
	return at;
}

int cvy_window_map(uint8_t *at, int fd, size_t bytes)
{
	return map_fixed(at, bytes, PROT_READ, MAP_SHARED, fd);
}

int cvy_window_void(uint8_t *at, size_t bytes)
{
	return map_fixed(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

int cvy_window_fresh(uint8_t *at, size_t bytes)
{
	return map_fixed(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static int heap_insert(struct cvy_heap *heap, int at, size_t offset, size_t bytes)
{
	if (heap->count == heap->room) {
		int room = heap->room ? 2 * heap->room : 16;
		struct cvy_extent *more = realloc(heap->free, (size_t)room * sizeof(*more));

		if (!more)
			return COVEY_ERR_NOMEM;
		heap->free = more;
		heap->room = room;
	}
	memmove(heap->free + at + 1, heap->free + at, (size_t)(heap->count - at) * sizeof(*heap->free));
	heap->free[at] = (struct cvy_extent){ offset, bytes };
	heap->count++;
	return 0;
}

static void heap_remove(struct cvy_heap *heap, int at)
{
	heap->count--;
	memmove(heap->free + at, heap->free + at + 1, (size_t)(heap->count - at) * sizeof(*heap->free));
}

static size_t heap_round(size_t bytes)
{
	return bytes ? (bytes + HEAP_ALIGN - 1) & ~(size_t)(HEAP_ALIGN - 1) : HEAP_ALIGN;
}

int cvy_heap_init(struct cvy_heap *heap, size_t offset, size_t bytes)
{
	*heap = (struct cvy_heap){ 0 };
	return bytes ? heap_insert(heap, 0, offset, bytes) : 0;
}

size_t cvy_heap_alloc(struct cvy_heap *heap, size_t bytes)
{
	size_t need = heap_round(bytes);

	if (need < bytes)
		return 0;
	for (int i = 0; i < heap->count; i++) {
		size_t offset = heap->free[i].offset;

		if (heap->free[i].bytes < need)
			continue;
		heap->free[i].offset += need;
		heap->free[i].bytes -= need;
		if (!heap->free[i].bytes)
			heap_remove(heap, i);
		return offset;
	}
	return 0;
}

size_t cvy_heap_alloc_top(struct cvy_heap *heap, size_t bytes)
{
	size_t need = heap_round(bytes);

	if (need < bytes)
		return 0;
	for (int i = heap->count - 1; i >= 0; i--) {
		size_t end = heap->free[i].offset + heap->free[i].bytes;

		if (heap->free[i].bytes < need)
			continue;
		heap->free[i].bytes -= need;
		if (!heap->free[i].bytes)
			heap_remove(heap, i);
		return end - need;
	}
	return 0;
}

void cvy_heap_free(struct cvy_heap *heap, size_t offset, size_t bytes)
{
	struct cvy_extent *f = heap->free;
	int at = 0;

	bytes = heap_round(bytes);
	while (at < heap->count && f[at].offset < offset)
		at++;
	if (at > 0 && f[at - 1].offset + f[at - 1].bytes == offset) {
		f[at - 1].bytes += bytes;
		if (at < heap->count && offset + bytes == f[at].offset) {
			f[at - 1].bytes += f[at].bytes;
			heap_remove(heap, at);
		}
	} else if (at < heap->count && offset + bytes == f[at].offset) {
		f[at].offset = offset;
		f[at].bytes += bytes;
	} else if (heap_insert(heap, at, offset, bytes)) {
		cvy_warn("p2p", "no memory to note %zu free bytes of the window: they stay unused", bytes);
	}
}

void cvy_heap_clear(struct cvy_heap *heap)
{
	free(heap->free);
	*heap = (struct cvy_heap){ 0 };
}
