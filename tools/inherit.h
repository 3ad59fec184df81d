/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Undoes inherited state that breaks a tool; called first in main(). If standard descriptors are closed, the tool's
 * sockets and files would take their places. If SIGCHLD is ignored, no child can be waited for.
 */
#ifndef TOOLS_INHERIT_H
#define TOOLS_INHERIT_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static inline void tool_settle(void)
{
	sigset_t needed;

	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
			(void)!open("/dev/null", O_RDWR); /* the lowest that is free: this one, to be inherited */
	signal(SIGCHLD, SIG_DFL);
	sigemptyset(&needed);
	sigaddset(&needed, SIGCHLD);
	sigaddset(&needed, SIGALRM);
	sigprocmask(SIG_UNBLOCK, &needed, NULL);
}

#endif
