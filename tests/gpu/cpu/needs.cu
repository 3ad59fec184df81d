/* SPDX-License-Identifier: Apache-2.0 */
/* needs.h says what a rank takes on its device: a device is opened and given peers, and as much is gone. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "covey.h"
#include "gpu.h"
#include "needs.h"

extern "C" const struct cvy_gpu_ops cvy_gpu_ops;
static const struct cvy_gpu_ops *ops = &cvy_gpu_ops;

#define RANKS 5
#define WINDOW ((size_t)3 << 20) /* one page and a half */

static uint64_t bytes_left(void)
{
	size_t left = 0, all;

	cudaMemGetInfo(&left, &all);
	return left;
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static int failed;

static void same(const char *what, uint64_t taken, uint64_t said)
{
	if (taken == said)
		return;
	fprintf(stderr, "%s: %llu taken, needs.h says %llu\n", what, (unsigned long long)taken,
		(unsigned long long)said);
	failed++;
}

int main(void)
{
	const struct cvy_gpu_args args = { 0, 1000, COVEY_DEVICE_MEMORY_VMM, RANKS - 1 };
	const struct cvy_gpu_needs needs = cvy_gpu_needs_of(RANKS, WINDOW);
	const uint64_t before = bytes_left();
	struct cvy_gpu *gpu;
	int fd, fds, mappings = 0;
	char why[240];
	void *window;

	if (ops->open(&args, &gpu, why, sizeof(why))) {
		fprintf(stderr, "%s\n", why);
		return 1;
	}
	same("bytes without peers", before - bytes_left(), needs.own);
	fds = descriptors();
	for (int r = 1; r < RANKS; r++)
		failed += ops->mapped(gpu)->chunk(gpu, r, 0) != 0;
	same("bytes of chunks", before - bytes_left(), needs.own + needs.chunks);
	fds += RANKS - 1; /* here memory itself is a descriptor */
	for (int r = 1; r < RANKS; r++)
		failed += ops->mapped(gpu)->chunk_fd(gpu, r, 0, &fd) != 0; /* the group keeps it (device_chunk.c) */
	failed += ops->mapped(gpu)->window(gpu, WINDOW, &window, &fd) != 0;
	same("bytes of a window", before - bytes_left(), needs.own + needs.chunks + needs.window);
	same("descriptors", (uint64_t)(descriptors() - fds), (uint64_t)needs.descriptors);
	for (int r = 1; r < RANKS; r++) { /* any chunk and any window: the own ones */
		int own;

		failed += ops->mapped(gpu)->chunk_fd(gpu, r, 0, &own) != 0;
		mappings += !ops->mapped(gpu)->attach(gpu, r, 0, own);
		mappings += !ops->mapped(gpu)->attach_window(gpu, r, 0, fd);
		close(own);
	}
	same("mappings", (uint64_t)mappings, (uint64_t)needs.mappings);
	same("bytes that are mapped", before - bytes_left(),
	     needs.own + 2 * needs.chunks + (uint64_t)RANKS * needs.window);
	ops->close(gpu);
	printf("%s\n", failed ? "failed" : "a device takes what needs.h says");
	return failed != 0;
}
