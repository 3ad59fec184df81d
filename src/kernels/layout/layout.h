/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by host and device: the words of the control page, the places in a chunk, the arguments of a launch.
 * Plain C that nvcc takes too: no atomics of the language, no bit fields.
 *
 * A *lane* is one CTA's share of an operation, and its own flow of packets: lane l of a rank talks to lane l of the
 * others alone. An operation of n lanes adds CVY_GPU_QUANTA / n per CTA to `entered` (n is a power of two; of dispatch
 * and combine it may be another number: cvy_ep_quanta), so that every
 * operation adds CVY_GPU_QUANTA in all, and the number that the add returns says which operation this is. Nothing of
 * it is in a kernel's arguments: a captured graph counts on.
 */
#ifndef CVY_GPU_LAYOUT_H
#define CVY_GPU_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "ranks.h"

/*
 * Lanes of an operation, at most: CTAs that find room at a time, one a processor; a power of two. A rank keeps slots of all lanes
 * for each other rank, so where there may be more ranks there are fewer lanes.
 */
#if CVY_GPU_IS_WIDE
#define CVY_GPU_LANES (4096 / CVY_GPU_RANKS)
#else
#define CVY_GPU_LANES 128
#endif
#define CVY_GPU_QUANTA 256    /* what one operation adds to entered and finished: as many as lanes, or a multiple */
#define CVY_GPU_GENERATIONS 4 /* mappings of a chunk that may exist at a time; 2 bits each in a lane's words */
#define CVY_GPU_ROWS 4	      /* packets that one thread has under way in a step */
#define CVY_GPU_THREADS 512   /* of a CTA, at most */
#define CVY_GPU_PACKET 16
#define CVY_GPU_RECEIPTS 256 /* works of a device at a time (gpu_receipt.cu) */
#define CVY_GPU_RECEIPT_LINE 128
#define CVY_GPU_MAPPINGS (CVY_GPU_RANKS * CVY_GPU_GENERATIONS)
#define CVY_GPU_SLOT ((size_t)CVY_GPU_ROWS * CVY_GPU_THREADS * CVY_GPU_PACKET)
#define CVY_GPU_PARITIES 2 /* slots of a lane and round: step k uses k % 2 */
#define CVY_GPU_ROUNDS 2   /* inputs, and what is made of them or passed on: two shots, two hops */

/*
 * A chunk: what one source pushes to one rank. [round][lane][parity] slots, then [lane][parity] signals, one sector each,
 * with a word for each round of the step.
 * Offsets are alike everywhere; where a chunk is mapped follows from rank and generation.
 */
#define CVY_GPU_SIGNAL_BYTES 32
#define CVY_GPU_ROUND_BYTES (CVY_GPU_LANES * CVY_GPU_PARITIES * CVY_GPU_SLOT)
#define CVY_GPU_SIGNALS (CVY_GPU_ROUNDS * CVY_GPU_ROUND_BYTES)
#define CVY_GPU_PAGE ((size_t)2 << 20)
/* Signals, the welcome, and messages, in whole pages. */
#define CVY_GPU_BESIDE_BYTES (CVY_GPU_RING_AT - CVY_GPU_SIGNALS + CVY_GPU_RING * CVY_GPU_PIECE + 4096)
#define CVY_GPU_BESIDE ((CVY_GPU_BESIDE_BYTES + CVY_GPU_PAGE - 1) / CVY_GPU_PAGE * CVY_GPU_PAGE)
#define CVY_GPU_CHUNK (CVY_GPU_SIGNALS + CVY_GPU_BESIDE)
#define CVY_GPU_STRIDE ((size_t)(CVY_GPU_IS_WIDE ? 16 : 64) << 20) /* of addresses, from one to the next: a shift */

CVY_GPU_BOTH static inline size_t cvy_gpu_slot_at(int round, int lane, uint32_t count)
{
	return ((size_t)(round * CVY_GPU_LANES + lane) * CVY_GPU_PARITIES + count % CVY_GPU_PARITIES) * CVY_GPU_SLOT;
}

CVY_GPU_BOTH static inline size_t cvy_gpu_signal_at(int round, int lane, uint32_t count)
{
	return CVY_GPU_SIGNALS + ((size_t)lane * CVY_GPU_PARITIES + count % CVY_GPU_PARITIES) * CVY_GPU_SIGNAL_BYTES +
	       (size_t)round * sizeof(uint64_t);
}

/* The step (CVY_GPU_STEP) with which the source begins to write over data that it pushed to a rank without an answer. */
CVY_GPU_BOTH static inline size_t cvy_gpu_ahead_at(int lane)
{
	return cvy_gpu_signal_at(CVY_GPU_ROUNDS, lane, 0);
}

/* The last operation, plus 1, that the source has ended without this rank, by a deadline: it had ended all before. */
CVY_GPU_BOTH static inline size_t cvy_gpu_passed_at(void)
{
	return cvy_gpu_signal_at(CVY_GPU_ROUNDS + 1, 0, 0);
}

/* Of which lane and parity is what stands at @at of a chunk? One number for both rounds and the signals. */
#define CVY_GPU_TICKETS (CVY_GPU_LANES * CVY_GPU_PARITIES)

CVY_GPU_BOTH static inline size_t cvy_gpu_ticket_of(uint64_t at)
{
	return (size_t)(at < CVY_GPU_SIGNALS ? at / CVY_GPU_SLOT : (at - CVY_GPU_SIGNALS) / CVY_GPU_SIGNAL_BYTES) %
	       CVY_GPU_TICKETS;
}

/* Sent to a rank that comes in, at the end of a chunk: packets of two lanes' counts, then its first operation, then the
 * contributors from there on. */
#define CVY_GPU_WELCOME (CVY_GPU_CHUNK - 4096)
#define CVY_GPU_WELCOME_OP (CVY_GPU_LANES / 2)
#define CVY_GPU_WELCOME_MASK (CVY_GPU_LANES / 2 + 1)
#define CVY_GPU_WELCOMES (CVY_GPU_WELCOME_MASK + CVY_RANKS_LONGS)

/*
 * Messages (message.cuh), in the same chunk: what the pusher has taken here, as seen by the other way; then the *cells* of its
 * own messages, one each, with bytes and tag and those few bytes that find room there; then the ring of *pieces* that all others
 * are cut into. A piece is what one warp moves at a time, in lines.
 */
#define CVY_GPU_CELLS 256
/* The first is bytes and tag. As many as need no more pages of a chunk: 2 KiB of data must find room. */
#define CVY_GPU_CELL_PACKETS (CVY_GPU_RANKS > 128 ? 256 : 376)
#define CVY_GPU_CELL_MOST ((uint64_t)(CVY_GPU_CELL_PACKETS - 1) * 8) /* bytes of a message that has no pieces */
#define CVY_GPU_CELL ((size_t)CVY_GPU_CELL_PACKETS * CVY_GPU_PACKET)
#ifndef CVY_GPU_RING
#define CVY_GPU_RING (65536 / CVY_GPU_RANKS) /* pieces */
#endif
#define CVY_GPU_PIECE_PACKETS (CVY_GPU_ROWS * 32)
#define CVY_GPU_PIECE_WORDS ((uint64_t)(CVY_GPU_PIECE_PACKETS / 8 * 15))
#define CVY_GPU_PIECE ((size_t)CVY_GPU_PIECE_PACKETS * CVY_GPU_PACKET)
#define CVY_GPU_CREDIT (CVY_GPU_SIGNALS + ((size_t)(CVY_GPU_IS_WIDE ? 64 : 256) << 10)) /* cells taken */
#define CVY_GPU_GIVEN (CVY_GPU_CREDIT + 4096) /* for each place of the ring, the last piece taken there */
#define CVY_GPU_CELLS_AT (CVY_GPU_SIGNALS + ((size_t)(CVY_GPU_IS_WIDE ? 128 : 512) << 10))
#define CVY_GPU_RING_AT (CVY_GPU_CELLS_AT + CVY_GPU_CELLS * CVY_GPU_CELL)

/* Cells and pieces are counted in the life of a pair; a count plus 1 is the tag. */
CVY_GPU_BOTH static inline size_t cvy_gpu_cell_at(uint64_t count)
{
	return CVY_GPU_CELLS_AT + (size_t)(count % CVY_GPU_CELLS) * CVY_GPU_CELL;
}

CVY_GPU_BOTH static inline size_t cvy_gpu_piece_at(uint64_t count)
{
	return CVY_GPU_RING_AT + (size_t)(count % CVY_GPU_RING) * CVY_GPU_PIECE;
}

CVY_GPU_BOTH static inline size_t cvy_gpu_given_at(uint64_t count)
{
	return CVY_GPU_GIVEN + (size_t)(count % CVY_GPU_RING) * sizeof(uint64_t);
}

/* Has the cell of a message of @bytes a packet @i, beside its head? */
CVY_GPU_BOTH static inline int cvy_gpu_cell_has(uint64_t bytes, unsigned i)
{
	return i && bytes <= CVY_GPU_CELL_MOST && (uint64_t)(i - 1) * 8 < bytes;
}

/* Of a message of @bytes. */
CVY_GPU_BOTH static inline uint64_t cvy_gpu_pieces(uint64_t bytes)
{
	return bytes <= CVY_GPU_CELL_MOST ? 0 : (bytes - 1) / (CVY_GPU_PIECE_WORDS * 8) + 1;
}

/*
 * Of what a lane sends in step `count`, in every packet. Never 0, as epochs are small numbers. Where a pair has its tag a line has
 * had data, which stay there: with the bits of CVY_GPU_MARK a tag looks like none that people send (as floats a NaN, as halves of
 * a word two large negative numbers), where epoch and count alone are two small integers.
 */
#define CVY_GPU_STEP(epoch, count) ((uint64_t)(epoch) << 32 | (uint32_t)(count))
#define CVY_GPU_MARK ((uint64_t)0xffc5a1e79b3d6f21)
#define CVY_GPU_TAG(epoch, count) (CVY_GPU_STEP(epoch, count) ^ CVY_GPU_MARK)

/*
 * The first word of registered memory: the epoch of the owner's words, stored before any kernel that has these may write
 * there. A reader that finds a later epoch is out of that view. Memory of the application begins behind.
 */
#define CVY_GPU_WINDOW_EPOCH 0
#define CVY_GPU_WINDOW_FIRST ((size_t)4096)

/*
 * The gate is the top byte of `entered`: one add tells a CTA its operation, and whether it may complete it with the
 * words that it read. The lowest bit of the byte closes; the others are the low bits of the epoch, so that words of
 * another view are noticed however long a CTA stood still between the two.
 */
#define CVY_GPU_GATE_SHIFT 56
#define CVY_GPU_COUNT_MASK (((uint64_t)1 << CVY_GPU_GATE_SHIFT) - 1)
#define CVY_GPU_GATE_OPEN(epoch) ((uint8_t)(((epoch)&0x7f) << 1))
#define CVY_GPU_GATE_CLOSED(epoch) ((uint8_t)(CVY_GPU_GATE_OPEN(epoch) | 1))

/*
 * The bits of a lane's `failed`. The host writes all of them in a view change, LATE as it was; in between CTAs write two.
 *
 *	bit    set                                        says
 *	FAILS  in a view change                           the operation at the verdict's base fails for all
 *	WIDTH  in a view change                           six bits: ranks r and s are of one host if r / width == s / width, and all
 *	                                                  members go in two levels by that (levels.cuh); 0: some do not, or
 *	                                                  hosts are otherwise
 *	LAGS   in a view change, until a CTA of an        others have completed an operation below the base that this rank has
 *	       operation that is to be done reads it      not, or the one at the base is done in part (verdict.partly). A CTA
 *	                                                  that enters such an operation by these words had no part in it, or it
 *	                                                  would not be complete
 *	LATE   by a CTA, until a later one has looked     the last operation did without some contributor, by a deadline or since
 *	       after those ranks                          its buffers have no place for it. Data pushed to it may not have
 *	                                                  been read, nor, if it is far, have left
 *	FAR    in a view change                           a member's memory is not mapped here: in place of its chunk stands
 *	                                                  memory of this host, and what is pushed there goes by a queue (step.cuh)
 */
#define CVY_GPU_FAILS ((uint32_t)1)
#define CVY_GPU_WIDTH_SHIFT 1
#define CVY_GPU_WIDTH(failed) ((int)((failed) >> CVY_GPU_WIDTH_SHIFT & 63))
#define CVY_GPU_LAGS ((uint32_t)1 << 29)
#define CVY_GPU_LATE ((uint32_t)1 << 30)
#define CVY_GPU_FAR ((uint32_t)1 << 31)

#if CVY_GPU_IS_WIDE
#define CVY_GPU_PACKETS __attribute__((aligned(CVY_GPU_PACKET))) /* it is read in packets */
#else
#define CVY_GPU_PACKETS
#endif

/*
 * The words of a lane, with 32 ranks in one sector: read once at its start. The host writes all, while frozen; CTAs add to count, write
 * CVY_GPU_LATE, and clear CVY_GPU_LAGS.
 */
struct cvy_gpu_lane {
	uint32_t count; /* steps that this lane has done in its life */
	uint32_t epoch;
	cvy_ranks mask;		 /* contributors: admitted ranks of the view */
	uint32_t failed;	 /* bits: CVY_GPU_FAILS and its siblings */
	cvy_generations in, out; /* generation of each rank's chunk here, of this rank's chunk there: 2 bits each */
} CVY_GPU_PACKETS;

/*
 * By what a lane was last begun anew or done: compared and swapped when it is done again, maybe by another CTA. The
 * operation plus 1, all of it (entered has room for no more), and the low bits of the epoch.
 */
#define CVY_GPU_DONE_BITS (CVY_GPU_GATE_SHIFT - 8)
#define CVY_GPU_DONE(op, epoch) ((uint64_t)(epoch) << CVY_GPU_DONE_BITS | ((uint64_t)(op) + 1))
#define CVY_GPU_DONE_OP(done) ((done) & (((uint64_t)1 << CVY_GPU_DONE_BITS) - 1))
#define CVY_GPU_COUNTED(count) ((uint64_t)1 << 32 | (uint32_t)(count))

/* The last work of a lane. */
struct cvy_gpu_past {
	uint64_t done; /* CVY_GPU_DONE */
	uint64_t counted; /* CVY_GPU_COUNTED: that operation's steps are in lane.count, and this it was before; 0: they are not */
} __attribute__((aligned(16)));

/* Are the steps of operation @op in the lane's count? */
CVY_GPU_BOTH static inline int cvy_gpu_counted(uint64_t done, uint64_t counted, uint64_t op)
{
	return CVY_GPU_DONE_OP(done) == op + 1 && counted >> 32;
}

struct cvy_gpu_verdict {
	uint32_t epoch; /* changes with every verdict */
	int32_t ended;	/* COVEY_ERR_*: every operation ends with it */
	uint64_t base;	/* operations below are completed under the old stamps, the others done (again) under the new */
	cvy_ranks gone; /* removed: private operations below base do without them */
	uint32_t partly; /* lanes of operation `base` were done by words of a view before, and no CTA of it waits to do them again */
};

/* Operations from `op` on, up to those of the next era, name this epoch and these contributors in their outcomes. */
struct cvy_gpu_era {
	uint64_t op;
	uint32_t epoch; /* 0: no era */
	cvy_ranks mask;
	uint32_t fails, zero; /* operation `op` fails for all */
};
#define CVY_GPU_ERAS 8 /* that are kept; a rank that lacks operations of more gives up */

/* The last ADMIT that let somebody in: the era that begins with it, and what lanes had counted when it ended. */
struct cvy_gpu_admitted {
	struct cvy_gpu_era era;
	uint32_t count[CVY_GPU_LANES]; /* that newcomers go on from */
};

/*
 * The members of the view, which an ADMIT in the stream may still take in; and how operations ended that others have
 * completed. The host writes it while frozen.
 */
struct cvy_gpu_roll {
	cvy_ranks members; /* admitted or not */
	uint32_t eras;	   /* the last is that of the verdict's base */
	uint64_t begin;	   /* where the lanes have this rank and no kernel of it knows: its first operation */
	uint32_t since[CVY_GPU_RANKS]; /* epoch of the view that first listed the process which has the rank */
	struct cvy_gpu_era era[CVY_GPU_ERAS];
	uint8_t host[CVY_GPU_RANKS]; /* of each member: equal numbers, one host; alike on all ranks */
};

/* The era of operation @op; its epoch is 0: it is not known. */
CVY_GPU_BOTH static inline struct cvy_gpu_era cvy_gpu_era_of(const volatile struct cvy_gpu_roll *roll, uint64_t op)
{
	struct cvy_gpu_era era = { 0, 0, cvy_ranks_none(), 0, 0 };

	for (uint32_t i = roll->eras; i-- && !era.epoch;) {
		if (roll->era[i].op > op)
			continue;
		era.op = roll->era[i].op;
		era.epoch = roll->era[i].epoch;
		era.mask = cvy_ranks_read(&roll->era[i].mask);
		era.fails = roll->era[i].fails;
	}
	return era;
}

/* Of the operation that parks: written by each CTA that does, alike. */
struct cvy_gpu_parked {
	uint64_t op;
	uint32_t lanes, steps, rounds;
	uint32_t slot_bytes; /* used of each slot */
	uint32_t private_parts, zero;
	uint64_t spoiled; /* plus 1: the last operation that done again would read results as inputs */
};

/* = struct covey_device_outcome; the first two halves of 16 bytes are stored whole */
struct cvy_gpu_status {
	int32_t status;
	uint32_t epoch;
	uint64_t op;
	uint64_t mask;			    /* contributors below 64 */
	uint64_t missing;		    /* of these, ranks whose part is not here */
	uint64_t mask_64[3], missing_64[3]; /* ranks from 64 on; 0 in builds for fewer */
};

/* Messages that went to a rank, or came from it. Written by the last CTA of a launch that leaves, but for `begun` and `left`. */
struct cvy_gpu_flow {
	uint64_t since; /* of which process (roll.since); of another one nothing is counted yet */
	uint64_t cells, pieces;
	uint64_t credit; /* cells that the peer has given back, as far as was seen */
	uint64_t begun; /* of which process the messages of this launch are, once a CTA has left; CVY_GPU_NOBODY: of none */
	uint64_t left; /* CTAs of this launch that have */
	uint64_t zero[2];
};
#define CVY_GPU_NOBODY UINT64_MAX

enum cvy_gpu_way { CVY_GPU_SENDS, CVY_GPU_TAKES, CVY_GPU_WAYS };

/* The first message that failed since the host has looked: never 0. */
#define CVY_GPU_FAILURE(err, peer, sends, tag) \
	((uint64_t)(uint32_t)(tag) << 32 | (uint64_t)(peer) << 16 | (uint64_t)(sends) << 8 | (uint64_t)(-(err)&0xff))

#define CVY_GPU_OWN_LINE __attribute__((aligned(128)))

struct cvy_gpu_control {
	uint64_t entered CVY_GPU_OWN_LINE;  /* low bits; top byte: gate. Host writes the top byte alone */
	uint64_t finished CVY_GPU_OWN_LINE; /* quanta */
	uint64_t stopped;		    /* quanta of CTAs that wait for a verdict */
	uint64_t guests;		    /* CTAs of kernels of the application that are inside (covey_device.h) */
	struct cvy_gpu_flow flow[CVY_GPU_RANKS][CVY_GPU_WAYS] CVY_GPU_OWN_LINE;
	uint64_t failure; /* CVY_GPU_FAILURE, 0: none. The host takes it away again */
	struct cvy_gpu_verdict verdict CVY_GPU_OWN_LINE;
	struct cvy_gpu_parked parked CVY_GPU_OWN_LINE;
	struct cvy_gpu_status status CVY_GPU_OWN_LINE;
	struct cvy_gpu_roll roll CVY_GPU_OWN_LINE;
	struct cvy_gpu_lane lane[CVY_GPU_LANES] CVY_GPU_OWN_LINE;
	struct cvy_gpu_past past[CVY_GPU_LANES];
	struct cvy_gpu_admitted admitted;
	uint64_t *trace; /* rings of all lanes (trace.h); NULL: nothing is recorded */
};

/* Host-mapped: what a kernel tells the host. One word per rank where nothing else is said: {operation, 1 + looks}. */
struct cvy_gpu_mailbox {
	uint64_t late[CVY_GPU_RANKS];	/* operation + 1 that waited longer than late_cycles for this rank */
	uint64_t passed[CVY_GPU_RANKS]; /* operation + 1 that a deadline of its caller ended without this rank */
	uint64_t outrun[CVY_GPU_RANKS]; /* operation + 1 that waits for what this rank had sent, and has written over */
	/* By mapping of a chunk there: what its queue answered to a put, as a positive number (enum cvy_queue_error). */
	uint64_t unsent[CVY_GPU_RANKS * CVY_GPU_GENERATIONS];
};

enum cvy_gpu_kind {
	CVY_GPU_ALLREDUCE,
	CVY_GPU_ALLREDUCE_TWO_SHOT,
	CVY_GPU_ALLGATHER,
	CVY_GPU_REDUCE_SCATTER,
	CVY_GPU_ALLTOALL,
	CVY_GPU_BROADCAST,
	CVY_GPU_BROADCAST_TWO_HOP,
	CVY_GPU_REDUCE,
	CVY_GPU_REDUCE_TWO_SHOT,
	CVY_GPU_GATHER,
	CVY_GPU_SCATTER,
	CVY_GPU_BARRIER,
	CVY_GPU_ADMIT,	  /* a barrier after which more ranks contribute */
	CVY_GPU_DISPATCH, /* ep_call.h */
	CVY_GPU_COMBINE,
	CVY_GPU_ALLTOALLV, /* these two: struct cvy_gpu_uneven */
	CVY_GPU_ALLGATHERV,
	CVY_GPU_MESSAGE /* struct cvy_gpu_messages; no operation, and has no number */
};

/* Packets: 8 bytes of data and the tag; or lines of 128 bytes with one tag, which a warp stores whole. */
enum cvy_gpu_packet { CVY_GPU_PAIR, CVY_GPU_LINE };

/* Small operations take the short way (quick.cuh) where folds are sums and no places are looked up. */
enum cvy_gpu_plain {
	CVY_GPU_LONG_WAY,
	CVY_GPU_WHOLE, /* whole words at addresses that are multiples of 8 */
	CVY_GPU_PARTS  /* others */
};

struct cvy_queue; /* queue/queue.h */

/* Mappings: chunks that peers push into here, chunks at the peers, windows of the peers. */
enum cvy_gpu_place { CVY_GPU_IN, CVY_GPU_OUT, CVY_GPU_WINDOW, CVY_GPU_PLACES };

/* Arguments of a launch. Only what the caller gave and what follows from it: nothing that a view changes. */
struct cvy_gpu_call {
	struct cvy_gpu_control *control;
	struct cvy_gpu_mailbox *mailbox;
	uint8_t *in, *out;	  /* base of the inbound and outbound chunks */
	const uint64_t *places;	  /* addresses of all mappings, where these are not (IPC); NULL: VMM */
	uint8_t *saved;		  /* chunk of the own inputs of operations in place */
	struct cvy_queue *queues; /* by mapping of a chunk there; kind 0: it is mapped, and pushed to */
	uint64_t *tickets;	  /* [mapping][CVY_GPU_TICKETS] of what was put last from there */
	const uint8_t *send;
	uint8_t *recv;
	uint8_t *windows; /* registered memory of the others; NULL: there is none, and nobody asks */
	uint64_t window_stride;
	uint64_t lent_send, lent_recv; /* where the buffers stand in the own window, plus 1; 0: not there */
	uint64_t bytes;		       /* of one block: count * elem */
	uint64_t send_stride;	       /* from one rank's block to the next's; 0: the same block is for all */
	uint64_t late_cycles;
	int32_t kind, packet, dtype, redop, root, rank, size;
	int32_t lanes, threads, rows;
	int32_t steps; /* of each lane; forms of two rounds count their own, which depend on the contributors */
	int32_t in_place;
	int32_t pulls;	  /* asks whether all buffers are registered */
	uint32_t quanta;  /* of a CTA */
	int32_t plain;	  /* enum cvy_gpu_plain */
	int32_t fold;	  /* redop, CVY_GPU_SIGNED, and of types that share a kernel dtype << CVY_GPU_OTHER_SHIFT */
	cvy_ranks admits; /* ADMIT: ranks that come in, if their process was listed by admit_epoch */
	uint32_t admit_epoch;
	int32_t joins;	/* ADMIT: this rank is one of them */
	int32_t levels; /* the kernel is one that goes in two levels where the lane's words say so (CVY_GPU_WIDTH) */
};

/*
 * Beside a redop: of integers with a sign. Those of a size have one kernel, for sums and products are the same bits of both; it is told
 * what to take them for where it matters.
 */
#define CVY_GPU_SIGNED 16
#define CVY_GPU_OTHER_SHIFT 8

/* Blocks of different sizes: bytes, and where they begin; zero past the call's size. */
struct cvy_gpu_uneven {
	struct cvy_gpu_call call; /* bytes: of the largest block, of alltoallv the largest that is sent */
	uint64_t send[CVY_GPU_RANKS], send_at[CVY_GPU_RANKS], recv[CVY_GPU_RANKS], recv_at[CVY_GPU_RANKS];
};

/* One send or receive of a launch. */
struct cvy_gpu_message {
	uint8_t *at; /* of a send it is only read */
	uint64_t bytes;
	int32_t tag;	 /* of a receive: -1: any */
	int16_t next;	 /* of the same pair and direction; -1: it is the last */
	int16_t receipt; /* number of the receipt that takes its outcome, from 1 on; 0: none has been asked for */
};

/* In a receipt: what became of a message. The host clears it before the launch. */
struct cvy_gpu_answer {
	int32_t status, zero;
	uint64_t nothing;
	uint64_t bytes; /* of a receive that has been matched: those of the message, and its tag */
	int32_t tag, came;
};

/* Those with one rank. */
struct cvy_gpu_with {
	int32_t peer;
	uint32_t since; /* of which process of it, by roll.since; 0: the process that has the rank when the kernel begins */
	int16_t first[CVY_GPU_WAYS];  /* message, -1: none */
	uint16_t lanes[CVY_GPU_WAYS]; /* CTAs, a power of two; 0: none */
};

#define CVY_GPU_MESSAGES 128 /* of one launch: its arguments have room for no more */

/* A group of sends and receives: each CTA does some of those that go one way with one rank, in the order of the calls. */
struct cvy_gpu_messages {
	struct cvy_gpu_call call; /* lanes: as many CTAs are launched for each way; buffers and form are nothing to it */
	int32_t pairs;
	uint8_t *receipts; /* one each CVY_GPU_RECEIPT_LINE bytes */
	struct cvy_gpu_with with[CVY_GPU_RANKS];
	struct cvy_gpu_message message[CVY_GPU_MESSAGES];
};

/* The same, of few. */
#define CVY_GPU_FEW_MESSAGES 8
#define CVY_GPU_FEW_PAIRS 4

struct cvy_gpu_few_messages {
	struct cvy_gpu_call call;
	int32_t pairs;
	uint8_t *receipts;
	struct cvy_gpu_with with[CVY_GPU_FEW_PAIRS];
	struct cvy_gpu_message message[CVY_GPU_FEW_MESSAGES];
};

CVY_GPU_BOTH static inline int cvy_gpu_is_uneven(int kind)
{
	return kind == CVY_GPU_ALLGATHERV || kind == CVY_GPU_ALLTOALLV;
}

CVY_GPU_BOTH static inline int cvy_gpu_is_broadcast(int kind)
{
	return kind == CVY_GPU_BROADCAST || kind == CVY_GPU_BROADCAST_TWO_HOP;
}

/* The second round carries parts that others have made, or had before; with two contributors there is none. */
CVY_GPU_BOTH static inline int cvy_gpu_has_rounds(int kind)
{
	return kind == CVY_GPU_ALLREDUCE_TWO_SHOT || kind == CVY_GPU_BROADCAST_TWO_HOP ||
	       kind == CVY_GPU_REDUCE_TWO_SHOT;
}

CVY_GPU_BOTH static inline int cvy_gpu_is_reduce(int kind)
{
	return kind == CVY_GPU_REDUCE || kind == CVY_GPU_REDUCE_TWO_SHOT;
}

CVY_GPU_BOTH static inline int cvy_gpu_folds(int kind)
{
	return kind == CVY_GPU_ALLREDUCE || kind == CVY_GPU_ALLREDUCE_TWO_SHOT || kind == CVY_GPU_REDUCE_SCATTER ||
	       cvy_gpu_is_reduce(kind);
}

CVY_GPU_BOTH static inline int cvy_gpu_is_private(int kind)
{
	return kind == CVY_GPU_ALLTOALL || kind == CVY_GPU_REDUCE_SCATTER || kind == CVY_GPU_GATHER ||
	       kind == CVY_GPU_SCATTER || kind == CVY_GPU_DISPATCH || kind == CVY_GPU_COMBINE ||
	       kind == CVY_GPU_ALLTOALLV;
}

CVY_GPU_BOTH static inline int cvy_gpu_has_blocks(int kind)
{
	return kind == CVY_GPU_ALLTOALL || kind == CVY_GPU_REDUCE_SCATTER || kind == CVY_GPU_SCATTER;
}

/* Words that a tile of @packets packets moves. */
CVY_GPU_BOTH static inline uint64_t cvy_gpu_tile_words(int packet, int packets)
{
	return (uint64_t)(packet == CVY_GPU_PAIR ? packets : packets / 8 * 15);
}

CVY_GPU_BOTH static inline int32_t cvy_gpu_steps(const struct cvy_gpu_call *c, uint64_t words)
{
	uint64_t all = cvy_gpu_tile_words(c->packet, c->rows * c->threads) * (uint64_t)c->lanes;

	return words ? (int32_t)((words + all - 1) / all) : 1;
}

#endif
