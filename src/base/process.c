/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "log.h"

#define STACK_BYTES ((size_t)8 << 20) /* the usual default; a program's static TLS is part of it */

void cvy_process_standard(void)
{
	int fd;

	for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++) {
		if (fcntl(i, F_GETFD) >= 0 || errno != EBADF)
			continue;
		fd = open("/dev/null", O_RDWR | O_CLOEXEC); /* gets the lowest free number: this one */
		if (fd > STDERR_FILENO) {
			close(fd); /* another thread was faster */
		} else if (fd >= 0) {
			fcntl(fd, F_SETFD, 0); /* programs that this one starts need it, too */
			cvy_info("base", "descriptor %d was closed and is /dev/null now", fd);
		}
	}
}

/* RLIM_INFINITY: there is no bound, or it cannot be read. */
static rlim_t limit_of(int resource)
{
	struct rlimit limit;

	return getrlimit((__rlimit_resource_t)resource, &limit) ? RLIM_INFINITY : limit.rlim_cur;
}

static rlim_t open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	rlim_t n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n > 3 ? n - 3 : 0; /* less ., .. and the directory's own descriptor */
}

static int check_descriptors(const struct cvy_config *config, struct cvy_errbox *box)
{
	const rlim_t limit = limit_of(RLIMIT_NOFILE), used = open_descriptors();
	const rlim_t others = config->world > 0 ? (rlim_t)config->world - 1 : 0;
	const rlim_t each = CVY_PEER_DESCRIPTORS + (config->transport == COVEY_TRANSPORT_TCP);

	if (limit == RLIM_INFINITY)
		return 0;
	if (used + CVY_OWN_DESCRIPTORS + others > limit)
		return cvy_fail(
			box, COVEY_ERR_NOMEM, -1, 0,
			"%llu descriptors may be open in this process and %llu are; a group of %d takes %llu more at "
			"least: raise ulimit -n (LimitNOFILE of a service)",
			(unsigned long long)limit, (unsigned long long)used, config->world,
			(unsigned long long)(CVY_OWN_DESCRIPTORS + others));
	if (used + CVY_OWN_DESCRIPTORS + each * others > limit)
		cvy_warn("base",
			 "%llu descriptors may be open in this process and %llu are; a group of %d takes %llu more "
			 "where all ranks share this host: raise ulimit -n",
			 (unsigned long long)limit, (unsigned long long)used, config->world,
			 (unsigned long long)(CVY_OWN_DESCRIPTORS + each * others));
	return 0;
}

/* Windows are files without a name; addresses are reserved for all max_ranks of them. */
static int check_windows(const struct cvy_config *config, struct cvy_errbox *box)
{
	const rlim_t file = limit_of(RLIMIT_FSIZE), addresses = limit_of(RLIMIT_AS);
	const unsigned long long bytes = config->window_bytes, windows = (unsigned long long)config->max_ranks + 1;

	if (file != RLIM_INFINITY && bytes > file)
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0,
				"a window is a file of %llu bytes in memory and files may have %llu here: ulimit -f "
				"unlimited, or a smaller window_bytes (COVEY_WINDOW_BYTES)",
				bytes, (unsigned long long)file);
	if (addresses != RLIM_INFINITY && windows > addresses / (bytes ? bytes : 1))
		return cvy_fail(
			box, COVEY_ERR_NOMEM, -1, 0,
			"%llu windows of %llu bytes need as many addresses and this process may have %llu: ulimit -v "
			"unlimited, or a smaller window_bytes (COVEY_WINDOW_BYTES) or max_ranks (COVEY_MAX_RANKS)",
			windows, bytes, (unsigned long long)addresses);
	return 0;
}

int cvy_process_check(const struct cvy_config *config, struct cvy_errbox *box)
{
	int err = check_descriptors(config, box);

	return err ? err : check_windows(config, box);
}

static const char *hint(char *text, size_t bytes, const char *what, int resource, unsigned unit)
{
	const rlim_t limit = limit_of(resource);

	if (limit == RLIM_INFINITY)
		text[0] = '\0';
	else
		snprintf(text, bytes, " (%s is %llu)", what, (unsigned long long)limit / unit);
	return text;
}

const char *cvy_process_hint(int err, char *text, size_t bytes)
{
	switch (err) {
	case EMFILE:
		return hint(text, bytes, "ulimit -n, descriptors of this process,", RLIMIT_NOFILE, 1);
	case EAGAIN: /* of a thread or process */
		hint(text, bytes, "pids.max of the cgroup may be too small; ulimit -u, threads of this user,",
		     RLIMIT_NPROC, 1);
		if (!text[0])
			snprintf(text, bytes, " (pids.max of the cgroup may be too small)");
		return text;
	case ENOMEM:
		hint(text, bytes, "ulimit -v, KiB of addresses,", RLIMIT_AS, 1024);
		return text[0] ? text : hint(text, bytes, "ulimit -d, KiB of private memory,", RLIMIT_DATA, 1024);
	case EFBIG:
		return hint(text, bytes, "ulimit -f, bytes of a file,", RLIMIT_FSIZE, 1);
	}
	text[0] = '\0';
	return text;
}

int cvy_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int err = pthread_attr_init(&attr);

	if (err)
		return err;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(thread, &attr, fn, arg);
	if (err == EINVAL) /* static TLS is larger still: use the program's own limit */
		err = pthread_create(thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

int cvy_file_reserve(int fd, size_t bytes)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	do
		err = posix_fallocate(fd, 0, (off_t)bytes);
	while (err == EINTR); /* what comes in spite of the mask, such as SIGSTOP */
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}
