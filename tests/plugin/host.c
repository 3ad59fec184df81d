/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host of plugins, as Python and MPI programs are: it opens the library late, uses it, closes it, and opens it again.
 *
 *	host LIBRARY CYCLES HOG...	the hogs are loaded first, as many as there is room for
 *
 * 0 cycles: the library is only opened. A cycle is a group that the environment names, with a work that the library's own
 * thread completes; then dlclose(), and memory of the program comes to stand wherever there is room. The program knows the
 * library by its header alone.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "covey.h"

#define ELEMENTS 4000
#define WORKS 20
#define LOOKS 60000 /* of a millisecond each: a watchdog */
#define PIECES 40
#define PIECE 300000

struct calls {
	__typeof__(covey_join) *join;
	__typeof__(covey_leave) *leave;
	__typeof__(covey_close) *close;
	__typeof__(covey_allreduce_start) *start;
	__typeof__(covey_work_test) *test;
	__typeof__(covey_work_free) *release;
};

static void find(void *library, const char *name, void *to)
{
	void *at = dlsym(library, name);

	if (!at) {
		printf("dlsym: %s\n", dlerror());
		exit(1);
	}
	memcpy(to, &at, sizeof(at));
}

static void find_all(void *library, struct calls *c)
{
	find(library, "covey_join", &c->join);
	find(library, "covey_leave", &c->leave);
	find(library, "covey_close", &c->close);
	find(library, "covey_allreduce_start", &c->start);
	find(library, "covey_work_test", &c->test);
	find(library, "covey_work_free", &c->release);
}

static int work(const struct calls *c, struct covey_group *group)
{
	static float in[ELEMENTS], out[ELEMENTS];
	struct covey_work *one;
	int err;

	for (int i = 0; i < ELEMENTS; i++)
		in[i] = 1;
	err = c->start(in, out, ELEMENTS, COVEY_FLOAT32, COVEY_SUM, group, NULL, &one);
	if (err)
		return err;
	for (int i = 0; c->test(one, NULL) && i < LOOKS; i++)
		poll(NULL, 0, 1);
	c->release(one);
	return out[ELEMENTS - 1] == 2 ? 0 : 1;
}

static int cycle(const char *name, int i)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	struct covey_config config = COVEY_CONFIG_INIT;
	struct covey_group *group;
	struct calls calls;
	char text[40];
	int err;

	if (!library) {
		printf("dlopen: %s\n", dlerror());
		return 1;
	}
	find_all(library, &calls);
	snprintf(text, sizeof(text), "plugin-%d", i);
	config.group = text;
	err = calls.join(&config, &group);
	if (err) {
		printf("cycle %d: covey_join: %d\n", i, err);
		return 1;
	}
	for (int k = 0; k < WORKS && !err; k++)
		err = work(&calls, group);
	calls.leave(group, 0);
	calls.close(group);
	dlclose(library);
	if (err)
		printf("cycle %d: a work ended with %d\n", i, err);
	return err;
}

/* What a program does next: its own memory comes to stand where an unloaded library stood. */
static void use_memory(void)
{
	for (int k = 0; k < PIECES; k++) {
		char *at = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at != MAP_FAILED)
			memset(at, 0xcc, PIECE);
	}
	poll(NULL, 0, 20); /* a thread of the library that slept meanwhile wakes */
}

int main(int argc, char **argv)
{
	int cycles = argc > 2 ? atoi(argv[2]) : 0, loaded = 0;
	void *library;

	for (int i = 3; i < argc; i++)
		loaded += dlopen(argv[i], RTLD_NOW) != NULL;
	library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!library) {
		printf("behind %d others: %s\n", loaded, dlerror());
		return 1;
	}
	dlclose(library);
	for (int i = 0; i < cycles; i++) {
		if (cycle(argv[1], i))
			return 1;
		use_memory();
	}
	printf("%d cycles behind %d others\n", cycles, loaded);
	return 0;
}
