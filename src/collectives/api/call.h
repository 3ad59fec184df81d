/* SPDX-License-Identifier: Apache-2.0 */
/* Private to api*.c: a call of a collective, before it becomes an operation. */
#ifndef CVY_CALL_H
#define CVY_CALL_H

#include "handle.h"

struct cvy_call {
	const struct cvy_op_kind *kind;
	const void *send;
	void *recv;
	size_t count;
	int dtype, redop, root;
	struct CUstream_st *stream;
};

int cvy_call_refuse(struct covey_group *group, const char *what, const char *why); /* INVAL */
int cvy_call_unsupported(struct covey_group *group, const char *what, const char *why);
/*
 * The stream says where a call runs; NULL: on host memory. 0, or an error: the group has no device, or @send or @recv
 * (NULL: not used) is in the other kind of memory.
 */
int cvy_call_memory(struct covey_group *group, const char *what, const struct CUstream_st *stream, const void *send,
		    const void *recv);
int cvy_call_check(struct covey_group *group, const struct cvy_call *c, size_t *bytes);
/* Makes an operation of it: planned, signed, not posted. */
int cvy_call_make(struct covey_group *group, const struct cvy_call *c, struct cvy_op **out);

/* What differs among the collectives. @call: the struct cvy_call that is the first member of the collective's own. */
struct cvy_call_form {
	int (*make)(struct covey_group *group, const struct cvy_call *call, struct cvy_op **out);
	int (*launch)(struct covey_group *group, const void *call, struct covey_result *known); /* on a device */
};

int cvy_call_run(struct covey_group *group, const struct cvy_call_form *form, const struct cvy_call *c,
		 struct covey_result *result);
int cvy_call_start(struct covey_group *group, const struct cvy_call_form *form, const struct cvy_call *c,
		   struct covey_work **work);

#endif
