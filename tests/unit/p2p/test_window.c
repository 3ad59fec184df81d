/* SPDX-License-Identifier: Apache-2.0 */
/* Own window: seals, what a receiver checks, page, heap. */
#include "../../suite.h"
#include "rig.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static const struct cvy_layout *layout(void)
{
	static struct cvy_layout l;

	l = cvy_layout(8 << 20, 65536);
	return &l;
}

static int interrupts; /* of the next calls, so many are */

int __real_posix_fallocate(int fd, off_t from, off_t n);
int __wrap_posix_fallocate(int fd, off_t from, off_t n);
/* That of a kernel which is interrupted by each signal, in a program with a fast timer, and sometimes by itself. */
int __wrap_posix_fallocate(int fd, off_t from, off_t n)
{
	sigset_t blocked;

	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	if (!sigismember(&blocked, SIGALRM) || interrupts-- > 0)
		return EINTR;
	return __real_posix_fallocate(fd, from, n);
}

TEST(signals_do_not_keep_a_window_from_its_room)
{
	struct cvy_window *w;
	sigset_t blocked;

	interrupts = 2;
	ck_assert_int_eq(cvy_window_new(layout(), 4, NULL, &w), 0);
	ck_assert_int_eq(interrupts, -1);
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	ck_assert_int_eq(sigismember(&blocked, SIGALRM), 0);
	cvy_window_put(w);
}

TEST(nobody_but_the_owner_maps_it_writable)
{
	struct cvy_window *w;
	void *at;

	ck_assert_int_eq(cvy_window_new(layout(), 4, NULL, &w), 0);
	ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0), MAP_FAILED);
	ck_assert_int_eq(ftruncate(w->fd, 4096), -1);
	ck_assert_int_eq(ftruncate(w->fd, 16 << 20), -1);
	ck_assert_int_eq(write(w->fd, "x", 1), -1);
	ck_assert_int_eq(fcntl(w->fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, w->fd, 0);
	ck_assert_ptr_ne(at, MAP_FAILED);
	ck_assert_int_eq(mprotect(at, 4096, PROT_READ | PROT_WRITE), -1);
	ck_assert_int_eq(((struct cvy_page *)at)->pid, getpid());
	ck_assert_uint_gt(((struct cvy_page *)at)->pid_start, 0);
	munmap(at, 4096);
	cvy_window_put(w);
}

TEST(a_receiver_takes_sealed_memory_of_the_right_size_only)
{
	struct cvy_layout other = cvy_layout(16 << 20, 65536);
	struct cvy_window *w;
	const char *why;
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), file = open("/dev/null", O_RDONLY);

	ck_assert_int_eq(cvy_window_new(layout(), 4, NULL, &w), 0);
	ck_assert_int_eq(cvy_window_check(w->fd, layout(), &why), 0);
	ck_assert_int_ne(cvy_window_check(w->fd, &other, &why), 0);
	ck_assert_int_eq(ftruncate(fd, 8 << 20), 0);
	ck_assert_int_ne(cvy_window_check(fd, layout(), &why), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
	ck_assert_int_ne(cvy_window_check(fd, layout(), &why), 0);
	ck_assert_str_eq(why, "a seal is missing");
	ck_assert_int_ne(cvy_window_check(file, layout(), &why), 0);
	close(fd);
	close(file);
	cvy_window_put(w);
}

TEST(the_same_calls_give_the_same_offsets)
{
	struct cvy_heap h[2];
	size_t a[2], b[2], c[2], d[2];

	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(cvy_heap_init(&h[i], 4096, 40960), 0);
		a[i] = cvy_heap_alloc(&h[i], 5000);
		b[i] = cvy_heap_alloc(&h[i], 1);
		c[i] = cvy_heap_alloc(&h[i], 8192);
		cvy_heap_free(&h[i], a[i], 5000);
		cvy_heap_free(&h[i], b[i], 1);
		d[i] = cvy_heap_alloc(&h[i], 12288); /* only where two freed neighbours became one */
	}
	ck_assert_uint_eq(a[0], 4096);
	ck_assert_uint_eq(b[0], 12288);
	ck_assert_uint_eq(d[0], 4096);
	ck_assert(a[0] == a[1] && b[0] == b[1] && c[0] == c[1] && d[0] == d[1]);
	ck_assert_uint_eq(cvy_heap_alloc(&h[0], 40960), 0);
	ck_assert_uint_eq(cvy_heap_alloc(&h[0], SIZE_MAX), 0);
	cvy_heap_clear(&h[0]);
	cvy_heap_clear(&h[1]);
}

/* Does a core dump leave out the mapping that holds @at? -1: nothing is mapped there. */
static int is_hidden(const void *at)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	int here = 0, hidden = -1;
	uintptr_t begin, end;
	char line[4096];

	ck_assert_ptr_nonnull(file);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2)
			here = (uintptr_t)at >= begin && (uintptr_t)at < end;
		else if (here && !strncmp(line, "VmFlags:", 8))
			hidden = strstr(line, " dd") != NULL;
	}
	fclose(file);
	return hidden;
}

TEST(a_core_dump_leaves_windows_out)
{
	const size_t bytes = layout()->window_bytes;
	struct cvy_window *w;
	uint8_t *all;

	ck_assert_int_eq(cvy_window_new(layout(), 4, NULL, &w), 0);
	ck_assert_int_eq(is_hidden(w->own), 0);
	ck_assert_int_eq(is_hidden(w->own + layout()->slots), 1);
	ck_assert_int_eq(is_hidden(w->own + bytes - 1), 1);
	all = cvy_window_reserve(bytes, 4);
	ck_assert_ptr_nonnull(all);
	ck_assert_int_eq(is_hidden(all + bytes), 1);
	ck_assert_int_eq(cvy_window_map(all + bytes, w->fd, bytes), 0);
	ck_assert_int_eq(is_hidden(all + bytes), 1);
	ck_assert_int_eq(is_hidden(all + 2 * bytes - 1), 1);
	ck_assert_int_eq(cvy_window_fresh(all + bytes, bytes), 0);
	ck_assert_int_eq(is_hidden(all + bytes), 1);
	ck_assert_int_eq(cvy_window_void(all + bytes, bytes), 0);
	ck_assert_int_eq(is_hidden(all + bytes), 1);
	munmap(all, 4 * bytes);
	cvy_window_put(w);
}

SUITE_MAIN(.name = "p2p/window", .timeout_s = 60)
