/* SPDX-License-Identifier: Apache-2.0 */
/* What a tool printed and could not write is an error, as it is of any tool: nobody may take half a table for a whole. */
#ifndef OUTPUT_H
#define OUTPUT_H

/* From here on the process says so at its exit(), and ends with @code instead of 0. Children that fork off do not. */
void tool_output_checked(const char *tool, int code);

#endif
