/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /proc/PID/stat. Process numbers are reused. So the files are opened while the start time proves that it is the right
 * process, and are kept open: an open file stays with its process, and reads fail after that has ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proc.h"

#define PF_EXITING 0x4 /* field 9 */

struct stat_line {
	char state;
	unsigned int flags;
	unsigned long long start;
};

/* 0; -1: not readable; -ESRCH: the task has ended */
static int read_line(int fd, struct stat_line *line)
{
	char text[1024];
	ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
	const char *name_end;

	if (n <= 0)
		return fd >= 0 && (n == 0 || errno == ESRCH) ? -ESRCH : -1;
	text[n] = 0;
	/* The name is in parentheses and may hold any character, also parentheses. */
	name_end = strrchr(text, ')');
	if (!name_end ||
	    sscanf(name_end + 1, " %c %*d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		   &line->state, &line->flags, &line->start) != 3)
		return -1;
	return 0;
}

static int open_stat(pid_t pid, pid_t tid)
{
	char path[64];

	if (tid)
		snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)tid);
	else
		snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	return open(path, O_RDONLY | O_CLOEXEC);
}

uint64_t cvy_proc_start(pid_t pid)
{
	struct stat_line line = { 0 };
	int fd = open_stat(pid, 0);

	if (read_line(fd, &line))
		line.start = 0;
	if (fd >= 0)
		close(fd);
	return line.start;
}

void cvy_proc_open(struct cvy_proc *proc, pid_t pid, pid_t tid, uint64_t start)
{
	struct stat_line line;

	/* The thread first: if the process is the right one afterwards, it was so before. */
	proc->thread = pid > 0 && tid > 0 ? open_stat(pid, tid) : -1;
	proc->leader = pid > 0 ? open_stat(pid, 0) : -1;
	if (!start || read_line(proc->leader, &line) || line.start != start)
		cvy_proc_close(proc);
}

void cvy_proc_close(struct cvy_proc *proc)
{
	if (proc->leader >= 0)
		close(proc->leader);
	if (proc->thread >= 0)
		close(proc->thread);
	proc->leader = proc->thread = -1;
}

static int read_thread(pid_t pid, pid_t tid, struct stat_line *line)
{
	int fd = open_stat(pid, tid), err = read_line(fd, line);

	if (fd >= 0)
		close(fd);
	return err;
}

/* Start times are those of the reader's time namespace; 0: not known. */
static unsigned long time_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/time", &st) ? 0 : (unsigned long)st.st_ino;
}

void cvy_proc_word(char *text, size_t bytes)
{
	pid_t pid = getpid(), tid = (pid_t)syscall(SYS_gettid);
	struct stat_line line;

	snprintf(text, bytes, "proc:%d.%d.%llu.%lu", (int)pid, (int)tid, read_thread(pid, tid, &line) ? 0 : line.start,
		 time_namespace());
}

/*
 * BOOT.NETWORK.PIDS.NAME, see cvy_address_host(). If all parts are the same, and known, a number means one process on
 * both. NAME, too: it is there if the other parts cannot distinguish two machines.
 */
static int same_processes(const char *host, const char *own)
{
	char boot[40], pids[24];
	unsigned long net;

	return !strcmp(host, own) && sscanf(host, "%39[^.].%lu.%23[^.]", boot, &net, pids) == 3 &&
	       strcmp(boot, "unknown") && strcmp(pids, "0");
}

int cvy_proc_find(const char *host, const char *own, const char *addr)
{
	const char *word = strstr(addr, "proc:");
	struct stat_line line;
	unsigned long own_time = time_namespace(), time = own_time;
	unsigned long long start;
	int pid, tid;

	if (!word || sscanf(word, "proc:%d.%d.%llu.%lu", &pid, &tid, &start, &time) < 3 || pid <= 0 || tid <= 0 ||
	    !same_processes(host, own))
		return CVY_PROC_NOT_SEEN;
	/* The system call first, since /proc may hide the processes of other users. */
	if (syscall(SYS_tgkill, pid, tid, 0) && errno == ESRCH)
		return CVY_PROC_GONE;
	if (!start || read_thread(pid, tid, &line) || (line.start == start && line.flags & PF_EXITING))
		return CVY_PROC_NOT_SEEN; /* exiting: it will have ended at the next look */
	if (line.start == start)
		return CVY_PROC_LIVES;
	return time == own_time ? CVY_PROC_GONE : CVY_PROC_NOT_SEEN;
}

int cvy_proc_pid(const char *addr)
{
	const char *word = strstr(addr, "proc:");
	int pid = 0;

	return word && sscanf(word, "proc:%d.", &pid) == 1 ? pid : 0;
}

static int task_state(int fd)
{
	struct stat_line line;
	int err = read_line(fd, &line);

	if (err)
		return err == -ESRCH ? CVY_PROC_EXITING : CVY_PROC_UNKNOWN;
	if (line.flags & PF_EXITING)
		return CVY_PROC_EXITING;
	switch (line.state) {
	case 'T':
	case 't':
		return CVY_PROC_STOPPED;
	case 'Z':
	case 'X':
	case 'x':
		return CVY_PROC_EXITING;
	case 'R':
	case 'D':
		return CVY_PROC_RUNNING;
	default:
		return CVY_PROC_SLEEPING;
	}
}

int cvy_proc_state(const struct cvy_proc *proc)
{
	int thread = task_state(proc->thread);
	int leader;

	/* A sleeping agent whose main thread runs may wait for a lock that a starved thread holds. */
	if (thread == CVY_PROC_SLEEPING || thread == CVY_PROC_UNKNOWN) {
		leader = task_state(proc->leader);
		if (leader != CVY_PROC_SLEEPING && leader != CVY_PROC_UNKNOWN)
			return leader;
	}
	return thread;
}
