/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run is shown by a file in memory that its keeper holds open: four lines, and a name that is found in /proc. No
 * trace of it is left once the keeper has ended in any way. Only this user (and root) can read descriptors of the
 * keeper, so the file may hold secrets from its processes' environment. Readers take what this user's processes show and
 * nothing else, root as well: a tool connects, with its password, where such a file says.
 */
#include "local.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clean.h"

#define NAME "covey-run"
#define MAX_RUNS 64

int local_show(const struct local_run *run)
{
	int fd = memfd_create(NAME, MFD_CLOEXEC);

	if (fd < 0)
		return -1;
	if (dprintf(fd, "%d\n%s\n%s\n%s\n", (int)run->pid, run->url, run->group, run->program) > 0)
		return fd;
	close(fd);
	return -1;
}

static int read_run(int in, const char *name, struct local_run *run)
{
	char text[1024], *line[4], *rest = NULL;
	int fd = openat(in, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), n = 0;
	ssize_t bytes = -1;
	struct stat st;

	if (fd < 0)
		return -1;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid())
		bytes = pread(fd, text, sizeof(text) - 1, 0);
	close(fd);
	text[bytes > 0 ? bytes : 0] = '\0';
	for (char *at = strtok_r(text, "\n", &rest); at && n < 4; at = strtok_r(NULL, "\n", &rest))
		line[n++] = at;
	if (n < 3)
		return -1;
	run->pid = (pid_t)strtol(line[0], NULL, 10);
	snprintf(run->url, sizeof(run->url), "%s", line[1]);
	snprintf(run->group, sizeof(run->group), "%s", line[2]);
	snprintf(run->program, sizeof(run->program), "%s", n > 3 ? line[3] : "");
	cvy_clean(run->url);
	cvy_clean(run->group);
	cvy_clean(run->program);
	return 0;
}

/* The run that process @pid, of this user, shows. */
static int run_of(const char *pid, struct local_run *run)
{
	char path[64], link[64];
	struct dirent *entry;
	int found = -1;
	struct stat st;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%.20s", pid);
	if (stat(path, &st) ||
	    st.st_uid != geteuid()) /* of this folder alone: others are root's if it may not be dumped */
		return -1;
	snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
	d = opendir(path);
	while (d && found && (entry = readdir(d))) {
		ssize_t n;

		n = readlinkat(dirfd(d), entry->d_name, link, sizeof(link) - 1);
		link[n > 0 ? n : 0] = '\0';
		if (!strncmp(link, "/memfd:" NAME " ", strlen("/memfd:" NAME " ")))
			found = read_run(dirfd(d), entry->d_name, run);
	}
	if (d)
		closedir(d);
	return found;
}

/* Is the process an ep-run? Descriptors of other programs are not looked at. */
static int is_run(const char *pid)
{
	char path[64], name[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (!fgets(name, sizeof(name), file))
		name[0] = '\0';
	fclose(file);
	return !strcmp(name, "ep-run\n");
}

static int by_pid(const void *a, const void *b)
{
	return ((const struct local_run *)a)->pid - ((const struct local_run *)b)->pid;
}

int local_find(const char *group, struct local_run *list, int max)
{
	struct dirent *entry;
	struct local_run run;
	int count = 0;
	DIR *d = opendir("/proc");

	while (d && count < max && (entry = readdir(d))) {
		int known = 0;

		if (!isdigit((unsigned char)entry->d_name[0]) || !is_run(entry->d_name) ||
		    run_of(entry->d_name, &run) || (group && strcmp(group, run.group)))
			continue;
		for (int i = 0; i < count; i++) /* a child of the keeper on its way to exec has it too */
			known |= list[i].pid == run.pid;
		if (!known)
			list[count++] = run;
	}
	if (d)
		closedir(d);
	qsort(list, (size_t)count, sizeof(*list), by_pid);
	return count;
}

bool local_lives(pid_t pid)
{
	static struct local_run list[MAX_RUNS];
	int count = local_find(NULL, list, MAX_RUNS);

	while (count && list[count - 1].pid != pid)
		count--;
	return count;
}

void local_printable(const char *url, char *text, size_t bytes)
{
	const char *scheme = strstr(url, "://"), *at = strrchr(url, '@');

	if (scheme && at && at > scheme)
		snprintf(text, bytes, "%.*s***%s", (int)(scheme + 3 - url), url, at);
	else
		snprintf(text, bytes, "%s", url);
}

int local_choose(const char *tool, const char *how, const char *group, pid_t pid, struct local_run *run)
{
	static struct local_run list[MAX_RUNS];
	int count = local_find(pid ? NULL : group, list, MAX_RUNS);
	char url[512];

	for (int i = 0; i < count; i++) {
		if (pid ? list[i].pid == pid : count == 1) {
			*run = list[i];
			return 0;
		}
	}
	if (pid) {
		fprintf(stderr, "%s: process %d is no ep-run of this user with a private store\n", tool, (int)pid);
		return -1;
	}
	if (!count) {
		fprintf(stderr,
			"%s: no store is named, and no ep-run of this user on this host has a private one%s%s: set "
			"COVEY_STORE, or give --store URL\n",
			tool, group ? " for group " : "", group ? group : "");
		return -1;
	}
	fprintf(stderr, "%s: %d runs of ep-run are on this host: name one with %s\n", tool, count, how);
	for (int i = 0; i < count; i++) {
		local_printable(list[i].url, url, sizeof(url));
		fprintf(stderr, "  process %d  group %s  %s  %s\n", (int)list[i].pid, list[i].group, list[i].program,
			url);
	}
	return -1;
}
