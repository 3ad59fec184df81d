/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CVY_LIST_H
#define CVY_LIST_H

/* Takes @item off the list that begins at @first, by its pointer @next; if it is not there, nothing. */
#define CVY_UNLINK(first, item, next) \
	do { \
		__typeof__(first) *at_ = &(first); \
		while (*at_ && *at_ != (item)) \
			at_ = &(*at_)->next; \
		if (*at_) \
			*at_ = (item)->next; \
	} while (0)

#endif
