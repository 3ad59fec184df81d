/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory by CUDA IPC where descriptors run out. The owner takes memory for closed when the descriptor that stands for it is, so
 * who cannot keep one must not have opened the memory, and can be told so and try again.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "covey.h"
#include "gpu.h"

extern "C" const struct cvy_gpu_ops cvy_gpu_ops;
static const struct cvy_gpu_ops *ops = &cvy_gpu_ops;

static struct cvy_gpu *open_gpu(void)
{
	const struct cvy_gpu_args args = { 0, 1000, COVEY_DEVICE_MEMORY_IPC, 1 };
	struct cvy_gpu *gpu;
	char why[240];

	if (!ops->open(&args, &gpu, why, sizeof(why)))
		return gpu;
	fprintf(stderr, "%s\n", why);
	exit(1);
}

/* The owner: exports a chunk, and is there until the other has closed its end. */
static int own(int link)
{
	struct cvy_gpu *gpu = open_gpu();
	struct iovec one = { (void *)"", 1 };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = {};
	char end;
	int fd;

	if (ops->mapped(gpu)->chunk(gpu, 1, 0) || ops->mapped(gpu)->chunk_fd(gpu, 1, 0, &fd))
		return 1;
	memset(&control, 0, sizeof(control));
	msg.msg_iov = &one;
	msg.msg_iovlen = 1;
	msg.msg_control = &control;
	msg.msg_controllen = sizeof(control);
	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.head), &fd, sizeof(int));
	if (sendmsg(link, &msg, 0) != 1)
		return 1;
	close(fd);
	while (read(link, &end, 1) > 0)
		;
	ops->close(gpu);
	return 0;
}

static int received(int link)
{
	struct iovec one;
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct msghdr msg = {};
	int fd = -1;

	one.iov_base = &byte;
	one.iov_len = 1;
	msg.msg_iov = &one;
	msg.msg_iovlen = 1;
	msg.msg_control = room;
	msg.msg_controllen = sizeof(room);
	if (recvmsg(link, &msg, 0) == 1 && CMSG_FIRSTHDR(&msg))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
	return fd;
}

static int descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int n = 0;

	while (all && readdir(all))
		n++;
	closedir(all);
	return n;
}

static int maps(void)
{
	FILE *all = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (fgets(line, sizeof(line), all))
		n += strstr(line, "memfd:") != NULL;
	fclose(all);
	return n;
}

/* The peer's memory is to be attached while @left descriptors may be opened. What it says; all is as before, then. */
static int attach_with(struct cvy_gpu *gpu, int fd, int left, const char *says)
{
	const int held = descriptors(), mapped = maps();
	struct rlimit was, few;
	int err, next[8];

	getrlimit(RLIMIT_NOFILE, &was);
	few = was;
	for (int i = 0; i <= left; i++)
		next[i] = dup(fd);
	few.rlim_cur = (rlim_t)next[left];
	for (int i = 0; i <= left; i++)
		close(next[i]);
	setrlimit(RLIMIT_NOFILE, &few);
	err = ops->mapped(gpu)->attach(gpu, 1, 0, fd);
	setrlimit(RLIMIT_NOFILE, &was);
	if (err && strstr(ops->why(gpu), says) && descriptors() == held && maps() == mapped)
		return 0;
	fprintf(stderr, "with %d descriptors left: %d, \"%s\"; %d descriptors, %d maps, before %d and %d\n", left, err,
		ops->why(gpu), descriptors(), maps(), held, mapped);
	return 1;
}

int main(void)
{
	struct cvy_gpu *gpu;
	int link[2], fd, status, failed = 0, mapped;
	pid_t owner;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, link))
		return 1;
	owner = fork();
	if (!owner) {
		close(link[0]);
		_exit(own(link[1]));
	}
	close(link[1]);
	gpu = open_gpu();
	fd = received(link[0]);
	if (fd < 0)
		return 1;
	failed += attach_with(gpu, fd, 0, "no descriptor is left for memory of a peer");
	failed += attach_with(gpu, fd, 1, "memory of a peer"); /* this runtime takes one to open it */
	mapped = maps();
	if (ops->mapped(gpu)->attach(gpu, 1, 0, fd) || maps() != mapped + 1) {
		fprintf(stderr, "where descriptors are left: %s\n", ops->why(gpu));
		failed++;
	}
	ops->close(gpu);
	close(fd);
	close(link[0]);
	waitpid(owner, &status, 0);
	failed += status != 0;
	printf("%d failed\n", failed);
	return failed != 0;
}
