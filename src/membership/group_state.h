/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the group state machine, shared by group*.c alone. An event only notes facts: the store's word, links that
 * are up, suspicions, the engine's progress. Then advance() looks at all facts and does what is due. A lost reply, a
 * repeated event or an event in an unexpected order therefore needs no case of its own.
 */
#ifndef CVY_GROUP_STATE_H
#define CVY_GROUP_STATE_H

#include "clock.h"
#include "group.h"
#include "record.h"

#define CVY_CALL_RETRY_MS 20 /* back-off of a store call: first and longest wait */
#define CVY_CALL_RETRY_MAX_MS 1000
#define CVY_RELAY_MS 600     /* after this a relayed call has failed */
#define CVY_RELAYS_MAX 64    /* calls of others under way here */
#define CVY_ASKS_MAX 64	     /* requests of the application under way */
#define CVY_DIAL_RETRY_MS 20 /* back-off of a dial: first and longest wait */
#define CVY_DIAL_RETRY_MAX_MS 320
#define CVY_LINK_WHY 160 /* bytes */
#define CVY_CAUSE sizeof(((struct covey_error_info *)0)->cause)
#define CVY_GIDS 4 /* groups in which this process was registered, remembered by gid */
#define CVY_BEAT_MS 1000
#define CVY_HELLO_AGAIN_MS 100
#define CVY_STAGGER_MS 50 /* all but the lowest ranks call decide this much later (group_change.c) */

enum script { /* one call of each is under way at a time */
	      CALL_REGISTER,
	      CALL_READY,
	      CALL_HELLO,
	      CALL_OPEN,
	      CALL_REPORT,
	      CALL_DECIDE,
	      CALL_ACK,
	      CALL_PEEK,
	      CALL_BEAT,
	      CALL_ASK,
	      CALL_LOOK, /* peek from outside, for the beats of others */
	      CALL_PROVE,
	      CALLS
};

enum ph { PH_NONE, PH_FORM, PH_RUN, PH_OPEN, PH_INST, PH_CLOSED };

enum stage { STAGE_FENCE, STAGE_CONNECT, STAGE_REPAIR, STAGE_ACK }; /* of LEARNED, in this order */

struct call {
	uint64_t id;	   /* under way, 0: none */
	uint64_t due_ns;   /* not before */
	uint64_t until_ns; /* relayed: fails then */
	int helper;	   /* relayed: the rank that makes it */
	int tries;	   /* failures in a row */
	int again;	   /* peek: needed again while one is under way */
	uint64_t mark;	   /* subject of the call: version of a report, request of an ask */
};

struct peer {
	uint64_t inc;		/* connected, dialled or expected; 0: none */
	uint64_t want;		/* should be connected to; 0: none */
	struct cvy_field place; /* of `want`: its m: or j: field */
	struct cvy_field voter; /* m: field of a member of the last active view that the learned one lacks */
	int up, was_up, downs;	/* downs: in this epoch */
	int dials;		/* in a row */
	uint64_t due_ns;	/* dial again; CVY_NEVER: under way */
	uint64_t since_ns;	/* the link is up, or down, since then */
	uint64_t proven, accused, telling,
		told;	    /* incs: surely dead, suspected, suspicion on its way to the store, known to the store */
	uint64_t blamed;    /* inc: the last that was suspected; a commit does not clear it */
	int source;	    /* of the suspicion */
	uint64_t acked_vid; /* of the last view for which it sent ACKED */
	uint64_t seen_join; /* inc of the joiner that the application has seen */
};

struct relay {
	uint64_t id; /* of my call, 0: free */
	uint64_t theirs;
	int rank;
	uint64_t inc;
};

struct ask {
	uint64_t id; /* of the application */
	int used, api, rank, told;
	uint64_t inc, number;
	int size; /* when it was asked */
	struct covey_mask ranks;
};

struct taken {			      /* others hold the name of the group, or the rank */
	char kind[8], why[CVY_CAUSE]; /* of the store: run, job, value or rank */
	char gid[40];		      /* whose processes they are */
	uint64_t since_ns;	      /* of the first TAKEN; 0: none */
	uint64_t since_ms;	      /* the same in server time */
	int count;		      /* processes that may be alive */
	uint64_t young_ms;	      /* their youngest beat, server time */
	uint64_t young_age_ms, old_age_ms;
	int young_rank, moved; /* moved: a beat came since since_ns */
	int alive_rank, alive_pid;
	uint64_t alive_ns; /* a process was found alive, since; 0: none */
	char gone[1024];   /* `gid,rank:inc,...` for the next call */
	int tell;	   /* all founders shall get the error */
};

struct cvy_group_state {
	struct cvy_group_args args;
	char *addr, *host, *name, *job, *alike;
	char *place; /* word of this process and addr, for the store */
	char gids[CVY_GIDS * 40];
	struct taken taken;
	char given_up[512]; /* `gid,rank:inc,...` that stores lost while this process joined: nobody has them */
	uint64_t born_ns;   /* when this process was started */
	uint64_t rng, now;
	uint64_t timer;
	struct cvy_actions *out; /* of this step */
	struct cvy_action spare; /* used if there is no memory */

	int phase, ended;
	int started, joined, ready_wanted, leaving;
	uint64_t leave_id;
	int leave_asked; /* by the application: wants an answer */
	uint64_t join_deadline;
	int join_err;
	int join_said; /* what the join waits for was logged */
	char join_why[CVY_CAUSE];
	char link_why[CVY_LINK_WHY]; /* while joining: which link failed last, and why */
	int displaced;		     /* times that it lost its place before a view listed it: lengthens waits */
	char gid[40], life[80], stat[CVY_STAT_TEXT];
	uint8_t secret[32];
	int have_secret, rank, max_ranks;
	uint64_t inc;
	int world; /* of the store: processes that form the group */

	int store_up, lost;	   /* lost: the application knows */
	char store_why[CVY_CAUSE]; /* why it went down last */
	int need_hello, failures;  /* calls in a row that got no answer */
	uint64_t next_id;
	struct call call[CALLS];
	struct relay relay[CVY_RELAYS_MAX];
	int helper;					/* last rank that relayed calls; -1 - rank: it did not answer */
	int links_dirty;				/* `want` is to be computed again */
	int ups;					/* links that are up */
	uint64_t link_changes;				/* up or down */
	int formed;					/* founders that are linked */
	uint64_t formed_rev, formed_links, formed_mark; /* at that count */
	uint64_t link_due;				/* before then there is nothing to dial ... */
	int link_one;					/* ... but this rank, plus one */
	/* Result of a look at all peers, valid until `look_again` or bad_due. An event looks at its own peer only. */
	int look_again, untold, untold_proven,
		dead; /* accused members that the store does not know of; a member proven dead */
	uint64_t bad_due;
	uint64_t untold_ns; /* since when there are such; 0: there are none */
	int retire_marked;  /* in the news */

	/* The store's last word, in this life. */
	uint64_t seen_epoch, seen_id, seen_rev;
	int seen_ph, have_rev;
	uint64_t seen_vid;
	struct cvy_record heard; /* newest record; may be ahead of the learned one */
	struct cvy_view *heard_view;
	uint64_t shown_vid;	/* of the view that a joiner's application has seen last */
	int whole_wanted;	/* changes did not fit to `heard`: a peek asks for the whole record */
	struct cvy_record news; /* j: e: w: x: d: */

	/* The promise of this member. */
	struct cvy_record learned;
	struct cvy_view *view; /* NULL before the first */
	struct cvy_view *was;  /* last active view here, for the VIEW event */
	int stage;
	int acked;  /* the store has answered an ack of this view */
	int direct; /* the view needs no word of the store to become active */
	struct covey_mask lag;
	uint64_t ack_due; /* the next ack to the store is not before */

	struct cvy_report report;
	uint64_t version;      /* of the content of a report */
	uint64_t told_version; /* in the store; 0: none in this life and epoch */
	uint64_t told_ns, decide_due, freeze_ns;
	int noquorum_told;
	struct covey_mask bad_told;
	int open_wanted; /* for no rank in particular */
	char open_reason[24];
	uint64_t ready_mark; /* mark of the readiness that the store knows */
	uint64_t peek_due, beat_due;
	uint64_t beat_ns; /* when the last beat was sent */
	int quiet;	  /* nothing of a view change is under way: a peek is as rare as a beat */
	struct ask ask[CVY_ASKS_MAX];
	struct peer *peer; /* [max_ranks] */
};

/* actions.c, group.c */
struct cvy_action *cvy_do(struct cvy_group_state *g, int kind, int rank);
int cvy_do_call(struct cvy_group_state *g, uint64_t id, int argc,
		const char *const *argv);     /* 0 or NOMEM: nothing done */
void cvy_do_spare(struct cvy_group_state *g); /* frees what the spare action owns */
uint64_t cvy_group_random(struct cvy_group_state *g);
void cvy_group_wake(struct cvy_group_state *g, uint64_t at_ns);
void cvy_group_enter(struct cvy_group_state *g, enum cvy_phase next);
void cvy_group_stop(struct cvy_group_state *g, int err, const char *why);
void cvy_group_no_memory(struct cvy_group_state *g); /* no memory for data that it needs: it stops */
void cvy_group_tell_view(struct cvy_group_state *g, int active);
void cvy_group_show_view(struct cvy_group_state *g);
void cvy_group_event(struct cvy_group_state *g, int kind, int rank, const char *cause);
uint64_t cvy_group_pace_ms(const struct cvy_group_state *g); /* of calls that every member makes in a change */
int cvy_group_grow(struct cvy_group_state *g, int max_ranks);
int cvy_group_member(const struct cvy_group_state *g, int rank, uint64_t inc); /* in the learned view */
int cvy_group_pending(const struct cvy_group_state *g); /* this rank is pending in the learned view */

/* group_call.c: calls of the store */
int cvy_call_free(struct cvy_group_state *g, int script);
void cvy_call(struct cvy_group_state *g, int script, uint64_t mark, int argc, const char *const *argv);
void cvy_call_prove(struct cvy_group_state *g, int rank, uint64_t inc, const char *kind); /* if nothing is in the way */
int cvy_call_path(struct cvy_group_state *g); /* there is a way to a store */
void cvy_call_timers(struct cvy_group_state *g);
void cvy_call_reset(struct cvy_group_state *g, int script);

/* group_relay.c */
int cvy_relay_helper(struct cvy_group_state *g); /* rank, -1: none */
int cvy_relay_can(const struct cvy_group_state *g, int rank);
void cvy_relay_send(struct cvy_group_state *g, int rank, uint64_t id, int argc, const char *const *argv);
void cvy_relay_msg(struct cvy_group_state *g, const struct cvy_msg *msg);
int cvy_relay_reply(struct cvy_group_state *g,
		    const struct cvy_event *event); /* 1: it was for a relayed call of another member */

/* group_store.c: replies, life, hello, peek */
void cvy_store_reply(struct cvy_group_state *g, const struct cvy_event *event);
void cvy_store_state(struct cvy_group_state *g, const struct cvy_event *event);
void cvy_store_advance(struct cvy_group_state *g);
void cvy_store_told(struct cvy_group_state *g, int argc, const char *const *argv);
int cvy_store_told_news(struct cvy_group_state *g, int argc, const char *const *argv); /* 1: it knows them */
int cvy_store_ph(const char *text);

/* group_notice.c */
void cvy_notice(struct cvy_group_state *g, const struct cvy_event *event);

/* group_join.c */
void cvy_join_registered(struct cvy_group_state *g, const struct cvy_event *reply);
void cvy_join_anew(struct cvy_group_state *g);
void cvy_join_advance(struct cvy_group_state *g);
void cvy_join_done(struct cvy_group_state *g, int err, const char *why);
void cvy_join_refused(struct cvy_group_state *g, const struct cvy_event *reply);
void cvy_join_begin(struct cvy_group_state *g, const struct cvy_event *event);

/* group_taken.c: the name of the group, or the rank, is in use */
void cvy_taken_told(struct cvy_group_state *g, const struct cvy_event *reply);
void cvy_taken_look(struct cvy_group_state *g, int rank, const char *value, int member); /* asks for a process */
void cvy_taken_looked(struct cvy_group_state *g, const struct cvy_event *event);
int cvy_taken_lapse(const struct cvy_group_state *g);

/* group_link.c */
void cvy_link_event(struct cvy_group_state *g, const struct cvy_event *event);
void cvy_link_joiner(struct cvy_group_state *g, const char *field, const char *value); /* j:R is new */
void cvy_link_advance(struct cvy_group_state *g);
int cvy_link_all(const struct cvy_group_state *g, const struct cvy_view *view); /* links to all its members are up */
int cvy_link_bad(struct cvy_group_state *g, int rank, uint64_t *due);		/* cannot be reached */
void cvy_link_epoch(struct cvy_group_state *g, const struct cvy_view *next);	/* before `next` is taken */
void cvy_link_active(struct cvy_group_state *g); /* the learned view is: nobody else votes */

/* group_change.c */
void cvy_change_suspect(struct cvy_group_state *g, int rank, uint64_t inc, int source, const char *text);
void cvy_change_want(struct cvy_group_state *g, const char *reason);
void cvy_change_frozen(struct cvy_group_state *g, const struct cvy_event *event);
void cvy_change_look_at(struct cvy_group_state *g, int rank); /* a link went down or came back */
void cvy_change_decided(struct cvy_group_state *g, int script, uint64_t mark, const struct cvy_event *reply);
void cvy_change_advance(struct cvy_group_state *g);
void cvy_change_clear(struct cvy_group_state *g, int life); /* a new epoch, or a new life of the store */

/* group_learn.c */
void cvy_learn_advance(struct cvy_group_state *g);
void cvy_learn_event(struct cvy_group_state *g, const struct cvy_event *event);
void cvy_learn_msg(struct cvy_group_state *g, const struct cvy_msg *msg);
void cvy_learn_acked(struct cvy_group_state *g, uint64_t epoch, const struct cvy_event *reply);

/* group_ask.c */
void cvy_ask_api(struct cvy_group_state *g, const struct cvy_event *event);
void cvy_ask_late(struct cvy_group_state *g, const struct cvy_event *event);
void cvy_ask_replied(struct cvy_group_state *g, uint64_t mark, const struct cvy_event *reply);
void cvy_ask_advance(struct cvy_group_state *g);
void cvy_ask_end(struct cvy_group_state *g, int err, const char *why);

static inline void cvy_text_set(char *to, size_t bytes, const char *from)
{
	size_t n = from ? strlen(from) : 0;

	if (n >= bytes)
		n = bytes - 1;
	if (n)
		memcpy(to, from, n);
	to[n] = 0;
}

#endif
