/* SPDX-License-Identifier: Apache-2.0 */
/* Small things that all tools need. */
#ifndef LOCAL_SMALL_H
#define LOCAL_SMALL_H

#include <errno.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* CLOCK_MONOTONIC */
static inline uint64_t tool_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Is @text a number from @min to @max? @rest: NULL, or where what follows it begins. */
static inline bool tool_number(const char *text, long min, long max, long *value, char **rest)
{
	char *end;

	errno = 0;
	*value = strtol(text, &end, 10);
	if (rest)
		*rest = end;
	return !errno && end != text && (!*end || rest) && *value >= min && *value <= max;
}

/* A size from the environment, read as the library does, which reports wrong values. */
static inline uint64_t tool_setting(const char *name, uint64_t fallback)
{
	static const char units[] = { 'K', 'M', 'G' };
	const char *text = getenv(name), *unit;
	char *end = NULL;
	uint64_t value = text ? strtoull(text, &end, 10) : 0;

	unit = end ? memchr(units, *end & ~0x20, sizeof(units)) : NULL;
	if (unit)
		value <<= 10 * (unit - units + 1);
	return value ? value : fallback;
}

/* What /proc/@pid/stat says behind the name, which may hold blanks and brackets: in @line; NULL: there is no such process. */
static inline const char *tool_stat(const char *pid, char *line, size_t bytes)
{
	char path[64];
	size_t n;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return NULL;
	n = fread(line, 1, bytes - 1, file);
	fclose(file);
	line[n] = '\0';
	return strrchr(line, ')');
}

/* An option whose value is a number; a list of them ends with a NULL name. */
struct tool_option {
	int key;
	const char *name;
	int *to;
	long min, max;
};

/* NULL: it is no such option */
static inline const struct tool_option *tool_option(const struct tool_option *list, int key)
{
	while (list->name && list->key != key)
		list++;
	return list->name ? list : NULL;
}

/* An option that only sets something; a list of them ends with key 0. */
struct tool_set {
	int key;
	bool *flag;	   /* NULL, or becomes true */
	const char **text; /* NULL, or becomes the argument */
};

static inline bool tool_set(const struct tool_set *list, int key, const char *arg)
{
	while (list->key && list->key != key)
		list++;
	if (list->flag)
		*list->flag = true;
	if (list->text)
		*list->text = arg;
	return list->key;
}

/* double, for qsort */
static inline int tool_ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Integers up to 256 have one bf16, the upper half of their float. */
static inline uint16_t tool_bf16(unsigned n)
{
	float f = (float)n;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

#define TOOL_TMP_MAX 76 /* a directory there, and in it the socket of a store, fit the path of a socket */

/*
 * Where tools make directories: TMPDIR, or /tmp. Its path becomes part of a URL and of a store's settings, so it is plain.
 * @why: NULL, or what keeps TMPDIR from being used.
 */
static inline const char *tool_tmp(const char **why)
{
	const char *tmp = getenv("TMPDIR");

	*why = NULL;
	if (!tmp || !*tmp)
		return "/tmp";
	if (strlen(tmp) > TOOL_TMP_MAX)
		*why = "is longer than 76 bytes";
	else if (*tmp != '/')
		*why = "is not an absolute path";
	else if (strspn(tmp, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._+-") != strlen(tmp))
		*why = "has a character other than letters, digits, / . _ + and -";
	return *why ? "/tmp" : tmp;
}

static inline int tool_remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)type, (void)at;
	remove(path);
	return 0;
}

/* With all that is in it. */
static inline void tool_remove_dir(const char *dir)
{
	if (*dir)
		nftw(dir, tool_remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

#endif
