/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that others wrote: a store, a peer, another process. A terminal obeys control characters, and JSON takes valid
 * UTF-8 alone, so such text passes here before it is printed: where it comes in (tools), or where a line is made (logs,
 * causes of errors).
 */
#ifndef CVY_CLEAN_H
#define CVY_CLEAN_H

#include <stdint.h>

/* Bytes of the printable character that @text begins with, in UTF-8; 0: it begins with none. */
static inline int cvy_clean_one(const unsigned char *text)
{
	static const uint32_t least[] = { 0, 0x20, 0xa0, 0x800,
					  0x10000 }; /* from 0x80 to 0x9f are control characters */
	int bytes = *text < 0x80 ? 1 : *text < 0xc0 ? 0 : *text < 0xe0 ? 2 : *text < 0xf0 ? 3 : *text < 0xf8 ? 4 : 0;
	uint32_t c = bytes > 1 ? *text & (0x7f >> bytes) : *text;

	for (int i = 1; i < bytes; i++) {
		if ((text[i] & 0xc0) != 0x80) /* the end of the text, too */
			return 0;
		c = c << 6 | (text[i] & 0x3f);
	}
	if (!bytes || c < least[bytes] || c == 0x7f || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return 0;
	return bytes;
}

/* Replaces each byte that is not part of a printable character by ?. Returns @text. */
static inline char *cvy_clean(char *text)
{
	for (unsigned char *at = (unsigned char *)text; *at;) {
		int bytes = cvy_clean_one(at);

		if (!bytes)
			*at = '?';
		at += bytes ? bytes : 1;
	}
	return text;
}

#endif
