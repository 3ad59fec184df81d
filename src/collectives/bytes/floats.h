/* SPDX-License-Identifier: Apache-2.0 */
/* The word of the CPU that says how a thread rounds. On x86-64 alone; elsewhere it is always the plain one. */
#ifndef CVY_FLOATS_H
#define CVY_FLOATS_H

#define CVY_PLAIN_FLOATS 0x1f80u /* nearest even, denormals kept, no exception raised */
#define CVY_FLOATS_SEEN 0x3fu	 /* what has been raised */

#if defined(__x86_64__)
#define CVY_GET_FLOATS() __builtin_ia32_stmxcsr()
#define CVY_SET_FLOATS(word) __builtin_ia32_ldmxcsr(word)
#else
#define CVY_GET_FLOATS() CVY_PLAIN_FLOATS
#define CVY_SET_FLOATS(word) ((void)(word))
#endif

#endif
