/* SPDX-License-Identifier: Apache-2.0 */
/* Checked at exit, since --help and --version end there too. The exit code of another failure stays. */
#include "output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;
static int code_of_loss;
static pid_t process;

static void check(int code, void *unused)
{
	int lost = ferror(stdout), err = 0;

	(void)unused;
	if (getpid() != process)
		return; /* the parent writes the buffered bytes */
	errno = 0;
	if (fflush(stdout)) {
		lost = 1;
		err = errno;
	}
	if (!lost)
		return;
	fprintf(stderr, "%s: the output is lost: standard output: %s\n", name, err ? strerror(err) : "a write failed");
	_exit(code ? code : code_of_loss);
}

void tool_output_checked(const char *tool, int code)
{
	name = tool;
	code_of_loss = code;
	process = getpid();
	on_exit(check, NULL);
}
