/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How libibverbs comes to see the device: a directory in place of sysfs (SYSFS_PATH), and the calls of libc that touch
 * /dev/infiniband/uverbs0, which come here because this library is in front of libc. A memfd stands in for the device,
 * so its pages of doorbells are mapped as from a driver.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <linux/netlink.h>
#include <rdma/rdma_user_ioctl.h>

#include "state.h"

#define DEVICE "/dev/infiniband/uverbs0"
#define DEVICE_ID makedev(231, 192)

SOFTMLX5_OPEN int open(const char *path, int flags, ...);
SOFTMLX5_OPEN int open64(const char *path, int flags, ...);
SOFTMLX5_OPEN int __open_2(const char *path, int flags);
SOFTMLX5_OPEN int __open64_2(const char *path, int flags);
SOFTMLX5_OPEN int stat(const char *path, struct stat *to);
SOFTMLX5_OPEN int stat64(const char *path, struct stat64 *to);
SOFTMLX5_OPEN int fstat(int fd, struct stat *to);
SOFTMLX5_OPEN int fstat64(int fd, struct stat64 *to);
SOFTMLX5_OPEN int ioctl(int fd, unsigned long request, ...);
SOFTMLX5_OPEN int socket(int domain, int type, int protocol);

static char root[192];
static pid_t owner;

static void *libc(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

static int real_fstat(int fd, struct stat *to)
{
	int (*f)(int, struct stat *);

	*(void **)&f = libc("fstat");
	return f(fd, to);
}

static int is_device(int fd)
{
	struct stat a, b;

	return adapter.uar_fd >= 0 && !real_fstat(fd, &a) && !real_fstat(adapter.uar_fd, &b) && a.st_ino == b.st_ino &&
	       a.st_dev == b.st_dev;
}

static void look_like_device(struct stat *to)
{
	to->st_mode = S_IFCHR | 0666;
	to->st_rdev = DEVICE_ID;
}

static int open_device(void)
{
	size_t bytes = (size_t)UARS * PAGE_BYTES;

	adapter_start();
	pthread_mutex_lock(&adapter.lock);
	if (adapter.uar_fd < 0) {
		int fd = memfd_create("softmlx5-uar", MFD_CLOEXEC);

		adapter.uars = fd < 0 || ftruncate(fd, (off_t)bytes)
				       ? MAP_FAILED
				       : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (adapter.uars == MAP_FAILED)
			abort();
		adapter.uar_fd = fd;
	}
	pthread_mutex_unlock(&adapter.lock);
	return dup(adapter.uar_fd);
}

static int open_any(const char *call, const char *path, int flags, mode_t mode)
{
	int (*f)(const char *, int, ...);

	if (!strcmp(path, DEVICE))
		return open_device();
	*(void **)&f = libc(call);
	return f(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return open_any("open", path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return open_any("open64", path, flags, mode);
}

int __open_2(const char *path, int flags)
{
	return open_any("open", path, flags, 0);
}

int __open64_2(const char *path, int flags)
{
	return open_any("open64", path, flags, 0);
}

int stat(const char *path, struct stat *to)
{
	int (*f)(const char *, struct stat *);

	if (!strcmp(path, DEVICE)) {
		memset(to, 0, sizeof(*to));
		look_like_device(to);
		return 0;
	}
	*(void **)&f = libc("stat");
	return f(path, to);
}

/* The same struct where a file's size has 64 bits anyway. */
int stat64(const char *path, struct stat64 *to)
{
	return stat(path, (struct stat *)to);
}

int fstat(int fd, struct stat *to)
{
	int err = real_fstat(fd, to);

	if (!err && is_device(fd))
		look_like_device(to);
	return err;
}

int fstat64(int fd, struct stat64 *to)
{
	return fstat(fd, (struct stat *)to);
}

int ioctl(int fd, unsigned long request, ...)
{
	int (*f)(int, unsigned long, ...);
	int err, saved;
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (request == RDMA_VERBS_IOCTL && is_device(fd)) {
		__atomic_fetch_add(&adapter.callers, 1, __ATOMIC_SEQ_CST);
		pthread_mutex_lock(&adapter.lock);
		__atomic_fetch_sub(&adapter.callers, 1, __ATOMIC_SEQ_CST);
		err = uverbs_ioctl(arg);
		saved = errno;
		pthread_mutex_unlock(&adapter.lock);
		errno = saved;
		return err;
	}
	*(void **)&f = libc("ioctl");
	return f(fd, request, arg);
}

/* A kernel with RDMA would be asked by netlink which devices there are, and know none of ours. */
int socket(int domain, int type, int protocol)
{
	int (*f)(int, int, int);

	if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	*(void **)&f = libc("socket");
	return f(domain, type, protocol);
}

static void file(const char *path, const char *text)
{
	char name[256];
	FILE *f;

	snprintf(name, sizeof(name), "%s/%s", root, path);
	for (char *slash = name + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		mkdir(name, 0755);
		*slash = '/';
	}
	f = fopen(name, "w");
	if (!f)
		return;
	fputs(text, f);
	fclose(f);
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at)
{
	(void)s;
	(void)type;
	(void)at;
	return remove(path);
}

__attribute__((constructor)) static void begin(void)
{
	const char *segment = getenv("SOFTMLX5_SEGMENT"); /* beside it: who made it removes what the killed leave */
	char id[32];

	snprintf(root, sizeof(root), "%.160s.XXXXXX", segment ? segment : "/tmp/softmlx5");
	if (!mkdtemp(root))
		return;
	owner = getpid();
	snprintf(id, sizeof(id), "%u:%u\n", major(DEVICE_ID), minor(DEVICE_ID));
	file("class/infiniband_verbs/abi_version", "6\n");
	file("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
	file("class/infiniband_verbs/uverbs0/dev", id);
	file("class/infiniband_verbs/uverbs0/abi_version", "1\n");
	file("class/infiniband/mlx5_0/node_type", "1: CA\n");
	file("class/infiniband/mlx5_0/node_guid", "0000:0000:0000:0001\n");
	file("class/infiniband/mlx5_0/fw_ver", "28.40.0\n");
	file("class/infiniband/mlx5_0/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
	file("class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2\n");
	file("class/infiniband/mlx5_0/device/modalias", "pci:v000015B3d00001021sv000015B3sd00000001bc02sc00i00\n");
	setenv("SYSFS_PATH", root, 1);
}

__attribute__((destructor)) static void end(void)
{
	if (owner == getpid())
		nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
