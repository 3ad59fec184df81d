/* SPDX-License-Identifier: Apache-2.0 */
/* Output of a tool that could not be written is an error: nobody may take half a table for a whole one. */
#ifndef OUTPUT_H
#define OUTPUT_H

/* From here on the process reports that at its exit(), and ends with @code instead of 0. Its forked children do not. */
void tool_output_checked(const char *tool, int code);

#endif
