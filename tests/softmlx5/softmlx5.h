/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ConnectX in software: the distribution's own libibverbs and libmlx5 open it, without a kernel module and without
 * root, and a thread is the adapter. It is strict: what an adapter would take in silence, or punish at random, is
 * counted here and named. This is what tests ask of it; a program that knows nothing of it runs under LD_PRELOAD.
 */
#ifndef SOFTMLX5_H
#define SOFTMLX5_H

#include <stddef.h>
#include <stdint.h>

#define SOFTMLX5_OPEN __attribute__((visibility("default")))

/* Each is a switch; all are on until a test, or SOFTMLX5_LAX=index,qpn,..., takes one out. */
#define SOFTMLX5_CHECKS(X) \
	X(INDEX, "index", "the index in an entry is that of its slot") \
	X(QPN, "qpn", "an entry names its own queue") \
	X(SIZE, "size", "as many segments as the operation has") \
	X(RESERVED, "reserved", "reserved bits and words are 0") \
	X(OPMOD, "opmod", "the operation's modifier") \
	X(ZERO, "zero", "no data segment of length 0, which means 2 GiB") \
	X(INLINE, "inline", "inline data end within the entry") \
	X(AHEAD, "ahead", "the record is written before the doorbell") \
	X(OVERRUN, "overrun", "no more entries under way than the ring holds") \
	X(UNSIGNALLED, "unsignalled", "a completion at least once around the ring") \
	X(REWRITTEN, "rewritten", "a slot is not used again before it is done") \
	X(CHANGED, "changed", "an entry is whole when its doorbell rings") \
	X(LOST, "lost", "a record that moved is followed by a doorbell") \
	X(CQ_OVERRUN, "cq_overrun", "completions are taken before the ring of completions is full") \
	X(CQ_INIT, "cq_init", "memory of completions begins as ff")

enum softmlx5_check {
#define X(name, word, text) SOFTMLX5_##name,
	SOFTMLX5_CHECKS(X)
#undef X
		SOFTMLX5_NCHECKS
};

struct softmlx5_stats {
	uint64_t doorbells, entries, completions, errors;
	uint64_t found[SOFTMLX5_NCHECKS];
	uint64_t umem_bytes, uar_pages, queues; /* now */
	char last[160];				/* what was found last, in words */
};

/* What goes wrong, from a seed; 0: nothing. Times in ns. */
struct softmlx5_plan {
	uint64_t seed;
	uint32_t delay_ns;   /* of each entry, and of each completion, at random up to this; queues drift apart */
	uint32_t stall_ns;   /* of the whole adapter, now and then */
	uint32_t silent_qpn; /* this queue's peer is gone from its entry silent_at on */
	uint64_t silent_at;  /* counted in entries of that queue since it began */
	uint32_t kill_qpn;   /* this process dies in the middle of the copy of entry kill_at of that queue */
	uint64_t kill_at;
	uint32_t ack_unit_ns; /* instead of 4096: retry timers by this */
	uint32_t lost_ms;     /* instead of 15000: a record without a doorbell */
	uint32_t refuse;      /* the n-th call to the kernel from now on fails with ENOMEM */
};

SOFTMLX5_OPEN void softmlx5_stats(struct softmlx5_stats *to);
SOFTMLX5_OPEN uint64_t softmlx5_found(void); /* of all kinds */
SOFTMLX5_OPEN void softmlx5_forget(void);    /* what was found */
SOFTMLX5_OPEN void softmlx5_strict(int check, int on);
SOFTMLX5_OPEN const char *softmlx5_check_name(int check);
SOFTMLX5_OPEN void softmlx5_plan(const struct softmlx5_plan *plan);
SOFTMLX5_OPEN void softmlx5_silence(uint32_t qpn); /* its peer answers nothing from now on */
SOFTMLX5_OPEN uint64_t softmlx5_calls(void);	   /* to the kernel so far */
SOFTMLX5_OPEN void *softmlx5_heap(size_t bytes);   /* memory that all processes of one segment see */
/* How payload is copied, where plain memcpy does not reach: memory of a GPU. */
SOFTMLX5_OPEN void softmlx5_copy(void (*copy)(void *to, const void *from, size_t bytes));

#endif
