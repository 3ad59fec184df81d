/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks on other hosts, started by ssh or its replacement.
 *
 * The remote shell gets a fixed command: read so many bytes of a script from standard input, and run them. So neither
 * environment nor password shows in a list of processes, here or there. The pipe behind standard input is then the
 * rank's lifeline: a line is a signal for its process group, the end of file kills it. The pipe ends with the
 * connection too, so a rank dies with ep-run, with the ssh client or (once its server sees it) with the connection.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

#define SCRIPT_MAX 60000 /* fits the buffer of a pipe, so that writing it never waits */

/* @text as one word of a shell. */
static void quote(FILE *to, const char *text)
{
	fputc('\'', to);
	for (; *text; text++) {
		if (*text == '\'')
			fputs("'\\''", to);
		else
			fputc(*text, to);
	}
	fputc('\'', to);
}

static void export(FILE *to, const char *name, const char *value)
{
	fprintf(to, "export %s=", name);
	quote(to, value);
	fputc('\n', to);
}

/* Our settings, and variables by which programs are found and linked; the rest of a host's environment is its own. */
static void pass_environment(FILE *to)
{
	for (char **at = environ; *at; at++) {
		const char *equals = strchr(*at, '=');
		char name[128];

		if (!equals || (strncmp(*at, "COVEY_", 6) && strncmp(*at, "LD_LIBRARY_PATH=", 16)))
			continue;
		if (snprintf(name, sizeof(name), "%.*s", (int)(equals - *at), *at) < (int)sizeof(name) &&
		    strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == strlen(name))
			export(to, name, equals + 1);
	}
}

static void rank_environment(FILE *to, const struct run_options *opt, const char *url, int rank, bool replacement)
{
	struct run_variable list[RUN_VARIABLES];
	int n = run_variables(opt, url, rank, replacement, list);

	for (int i = 0; i < n; i++)
		export(to, list[i].name, list[i].value);
}

static void write_script(FILE *to, const struct run_options *opt, const char *url, int rank, bool replacement)
{
	char here[4096];

	if (getcwd(here, sizeof(here))) {
		fputs("cd ", to);
		quote(to, here);
		fputs(" || exit 125\n", to);
	} else if (!rank) {
		run_say("the working directory has no name (%s): ranks on other hosts start in the home directory",
			strerror(errno));
	}
	pass_environment(to);
	rank_environment(to, opt, url, rank, replacement);
	/* A group of its own, so that the rank's children die with it; its input is empty. */
	fputs("exec 3<&0 </dev/null\ngroup=\n! command -v setsid >/dev/null || group=-\n${group:+setsid}", to);
	for (int i = 0; opt->argv[i]; i++) {
		fputc(' ', to);
		quote(to, opt->argv[i]);
	}
	fputs(" 3<&- &\nrank=$!\n"
	      "{ while read -r word <&3; do kill -\"$word\" $group$rank; done; kill -9 $group$rank; } 2>/dev/null &\n"
	      "line=$!\nexec 3<&-\nwait $rank 2>/dev/null\ncode=$?\n"
	      "kill -9 $line ${group:+-$rank} 2>/dev/null\nexit $code\n",
	      to);
}

/* The script of a rank, in memory; NULL: no memory, or it is too long. */
static char *make_script(const struct run_options *opt, const char *url, int rank, bool replacement, size_t *bytes)
{
	char *text = NULL;
	FILE *to = open_memstream(&text, bytes);
	int bad;

	if (!to)
		return NULL;
	write_script(to, opt, url, rank, replacement);
	bad = ferror(to);
	if (fclose(to) || bad || *bytes > SCRIPT_MAX) {
		free(text);
		errno = E2BIG;
		return NULL;
	}
	return text;
}

int run_lifeline(const struct run_options *opt, const char *url, int rank, bool replacement, size_t *bytes,
		 int *lifeline)
{
	char *script = make_script(opt, url, rank, replacement, bytes);
	int ends[2], sent;

	if (!script)
		return -1;
	if (pipe2(ends, O_CLOEXEC)) {
		free(script);
		return -1;
	}
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	sent = write(ends[1], script, *bytes) == (ssize_t)*bytes;
	explicit_bzero(script, *bytes);
	free(script);
	if (!sent) {
		close(ends[0]);
		close(ends[1]);
		return -1;
	}
	*lifeline = ends[1];
	return ends[0];
}

/* In the child. */
void run_exec_remote(const struct run_options *opt, int rank, size_t bytes)
{
	const char *argv[RUN_MAX_WORDS + 4];
	char command[96];
	int host, local, n = 0;

	run_place(opt, rank, &host, &local);
	snprintf(command, sizeof(command), "exec sh -c 'eval \"$(head -c %zu)\"'", bytes);
	for (; n < opt->ssh_count; n++)
		argv[n] = opt->ssh[n];
	argv[n++] = opt->hosts[host];
	argv[n++] = command;
	argv[n] = NULL;
	execvp(argv[0], (char *const *)argv);
	dprintf(STDERR_FILENO, "ep-run: %s: %s\n", argv[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

/* The far shell returns 128 + N for a rank that signal N killed: treated as a death by that signal here. */
int run_remote_status(int status)
{
	int code = (status >> 8) & 0xff;

	return (status & 0x7f) == 0 && code > 128 && code <= 128 + 64 ? code - 128 : status;
}
