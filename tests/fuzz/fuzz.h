/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share. A target is one file fuzz_NAME.c with one function that is given bytes
 * and must come back: no crash, no hang, nothing leaked, and what it accepted makes sense. libFuzzer
 * calls it with bytes it made up, replay.c with the files of corpus/NAME.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A claim about what was accepted. The sanitizers say the rest. */
#define fuzz_check(cond) \
	do { \
		if (!(cond)) \
			fuzz_failed(__FILE__, __LINE__, #cond); \
	} while (0)

__attribute__((noreturn)) static inline void fuzz_failed(const char *file, int line, const char *cond)
{
	fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, cond);
	abort();
}

/* The input as a string: a byte 0 ends it, as it would in the place it comes from. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	fuzz_check(text);
	if (size)
		memcpy(text, data, size);
	text[size] = 0;
	return text;
}

/* Splits @line in place at every @by; empty words count. */
static inline int fuzz_split(char *line, const char *by, const char **word, int max)
{
	int n = 0;

	while (line && n < max)
		word[n++] = strsep(&line, by);
	return n;
}

/* Bytes of a binary input, taken from its front; zeroes when it is used up. */
struct fuzz_in {
	const uint8_t *at;
	size_t left;
};

static inline size_t fuzz_take(struct fuzz_in *in, void *to, size_t bytes)
{
	size_t n = bytes < in->left ? bytes : in->left;

	memset(to, 0, bytes);
	if (n)
		memcpy(to, in->at, n);
	in->at += n;
	in->left -= n;
	return n;
}

static inline uint8_t fuzz_byte(struct fuzz_in *in)
{
	uint8_t b;

	fuzz_take(in, &b, 1);
	return b;
}

/* Open descriptors: as many after an input as before it, or some were lost. */
static inline int fuzz_descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

#endif
