/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A target that reads a tool's options includes the tool's source after this: main() gets another name,
 * and where the tool would end with a message, the message is made and the input ends.
 */
#ifndef FUZZ_TOOL_H
#define FUZZ_TOOL_H

#include <argp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

static jmp_buf refused;

__attribute__((noreturn, format(printf, 2, 3))) static void refuse(const struct argp_state *state, const char *format,
								   ...)
{
	char text[4096];
	va_list args;

	(void)state;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	longjmp(refused, 1);
}

#define argp_error refuse
#define main tool_main
int tool_main(int argc, char **argv);

#endif
