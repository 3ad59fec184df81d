/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may befall a process of a group: it dies; it stands still and is woken when others have gone on; its device fails;
 * its stream stalls. At once, or at a random moment from now on, by a thread.
 */
#ifndef STROKE_H
#define STROKE_H

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STALL_MS 300
#define STOP_MS 1000
#define STRUCK 3 /* exit code of who was */

enum how { KILL, STOP, FAIL, STALL };
static const char *const hows[] = { "kill", "stop", "error", "stall" };

struct CUstream_st;
/* tests/gpu/hand.cu, or the device that is none */
int cvy_test_devices(void);
void cvy_test_poison(struct CUstream_st *stream);
int cvy_test_stall(struct CUstream_st *stream, int ms);

static struct {
	enum how how;
	struct CUstream_st *stream;
	int wake[2];
	int here;    /* it has befallen this process: its calls may fail from now on */
	int running; /* thread */
	unsigned within_us;
	pthread_t thread;
} stroke;

/* The device of this process, named before it joins: ranks for which there is none share the first. */
static inline int stroke_device(void)
{
	const char *local = getenv("LOCAL_RANK"), *name;

	if (!getenv("COVEY_DEVICE"))
		setenv("COVEY_DEVICE", local && atoi(local) >= cvy_test_devices() ? "0" : "local", 1);
	name = getenv("COVEY_DEVICE");
	if (name && strcmp(name, "local") != 0)
		return atoi(name);
	return local ? atoi(local) : 0;
}

/* Many cycles: that they go on. */
static inline void stroke_progress(int rank, long cycle, long cycles)
{
	if (rank || !cycle || cycle % 10)
		return;
	printf("cycle %ld of %ld\n", cycle, cycles);
	fflush(stdout);
}

/* A child wakes the process that it stands beside: who is stopped cannot. Before there is a device or a group. */
static inline void stroke_stand_by(void)
{
	char c;
	pid_t parent = getpid();

	if (pipe(stroke.wake) || fork())
		return;
	close(stroke.wake[1]);
	if (read(stroke.wake[0], &c, 1) == 1) {
		usleep(STOP_MS * 1000);
		kill(parent, SIGCONT);
	}
	_exit(0);
}

/* Of a stall, what is launched next waits. */
static inline void stroke_now(void)
{
	stroke.here = stroke.how != STALL;
	if (stroke.how == KILL)
		raise(SIGKILL);
	if (stroke.how == STOP) {
		if (write(stroke.wake[1], "", 1) != 1)
			exit(1);
		raise(SIGSTOP);
	}
	if (stroke.how == FAIL)
		cvy_test_poison(stroke.stream);
	if (stroke.how == STALL && cvy_test_stall(stroke.stream, STALL_MS))
		exit(1);
}

static inline void *stroke_thread(void *arg)
{
	unsigned seed = (unsigned)getpid() * 31 + stroke.within_us;

	(void)arg;
	usleep((unsigned)rand_r(&seed) % stroke.within_us);
	stroke_now();
	return NULL;
}

/* Device and stream are the caller's to touch: what befalls those does so at once. */
static inline void stroke_soon(unsigned within_us)
{
	stroke.within_us = within_us;
	if (stroke.how == KILL || stroke.how == STOP)
		stroke.running = !pthread_create(&stroke.thread, NULL, stroke_thread, NULL);
	else
		stroke_now();
}

/* Who survived what was under way is struck now, and others wait for it: it enters nothing more before. */
static inline void stroke_wait(void)
{
	if (stroke.running)
		pthread_join(stroke.thread, NULL);
	stroke.running = 0;
}

/* The number of @text among @names. */
static inline int stroke_named(const char *text, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(text, names[i]))
			return i;
	fprintf(stderr, "%s: no such thing\n", text);
	exit(2);
}

/* `--how`, and `--where`, which is one of @n names: the place; @where if it is not given. */
static inline int stroke_options(int argc, char **argv, const char *const *wheres, int n, int where)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--how"))
			stroke.how = (enum how)stroke_named(argv[i + 1], hows, 4);
		else if (!strcmp(argv[i], "--where"))
			where = stroke_named(argv[i + 1], wheres, n);
	}
	return where;
}

#endif
