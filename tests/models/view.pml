/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A change of the view from its cause to traffic: open, freeze and report, decide, learn and fence, repair,
 * acknowledge, active; and a joiner that is let in by an ADMIT. The idea: one store decides, and members
 * only promise. Who reported stands still, so what the store concludes from reports stays true until
 * everybody learned it; who acknowledged lacks nothing, so nothing old is needed when traffic goes on.
 *
 * Here: three founders run OPS operations, one tick each, in 2 * D = 2 slots; number ADMIT is the safe point,
 * all others need everybody's contribution. Up to DEATHS die at any step, each survivor notices when it
 * likes. Up to SUSPECTS times a member is accused though it lives: it may be left out (then it is the
 * zombie: it goes on in its old view until it asks the store, and when all have fenced it, it writes over
 * its window), or report in time. A joiner takes a free rank. A report may come twice, the second late (REPEATS).
 *
 * In a view whose members all had a vote on it they tell each other that they have acknowledged, and go on when all have: the
 * store hears of it later, or never.
 *
 * A process is an incarnation: 0 to 2 the founders, 3 the joiner. Sets are masks of processes.
 */
#ifndef OPS
#define OPS 3
#endif
#ifndef ADMIT
#define ADMIT 2
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef SUSPECTS
#define SUSPECTS 1
#endif
#ifndef SUSPECT
#define SUSPECT 0 /* who is accused */
#endif
#ifndef JOINS
#define JOINS 1
#endif
#ifndef REPEATS
#define REPEATS 0
#endif

#define FOUNDERS 3
#define JOINER 3
#define PROCS 4
#define BIT(p) (1 << (p))
#define HAS(set, p) (((set) >> (p)) & 1)
#define COUNT(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2) + HAS(set, 3))

/* Phases of a member: FREEZING is part of FROZEN, which is entered with the report; of the store. */
#define OUTSIDE 0
#define RUN 1
#define FROZEN 2
#define LEARNED 3
#define ACKED 4
#define FENCED 5
#define OPEN 2
#define INST 3
#define CLOSED 4

#define TAG(e, t) ((e) * 4 + (t))
#define JUNK 255
#define SLOT(p, t) tag[(p) * 2 + (t) % 2]
#define COPY(p, q, t) aside[((p) * PROCS + (q)) * 2 + (t) % 2]
#define OUT(p, s) out[(p) * (OPS + 1) + (s)]	   /* contributors */
#define MADE(p, s) made[(p) * (OPS + 1) + (s)] /* tag of the slots they used */

byte alive = 7, excluded; /* excluded: lives, and a view was committed without it */
byte deaths, suspects; /* so far */

/* The store. */
byte s_ph = RUN, s_epoch = 1, s_base = 1, s_members = 7, s_pending, s_voters = 7, s_lag;
byte s_reported, s_acked, s_dead, s_accused, s_adm, s_ready;
byte s_done[PROCS];
bit s_heir; /* the joiner sits on the rank of an excluded process */

/* Each process. */
byte phase[PROCS], epoch[PROCS], members[PROCS], pending[PROCS], base[PROCS], lag[PROCS];
byte done[PROCS], given[PROCS]; /* given: operations held in private memory, not in slots */
bit entered[PROCS], adm[PROCS];
byte admit_epoch;		  /* epoch of the ADMIT message that the joiner has, 0: none */
byte tag[PROCS * 2];		  /* windows */
byte aside[PROCS * PROCS * 2];	  /* copies taken at the fence */
byte out[PROCS * (OPS + 1)], made[PROCS * (OPS + 1)];
byte go;			  /* who has heard, or will hear, from all that they acknowledged its view; kept while it runs by that */
#ifdef NO_VID
byte ever; /* acknowledged some view */
#endif
byte dirty, unfenced;		  /* readers whose bytes of the joiner a late put spoiled; that have not fenced yet */
byte again_epoch, again_done, agains; /* a report of process 1 that is still under way a second time */
hidden byte i, h, T, a, t;

#define UP(p) HAS(alive, p)
#define MEMBER(p) (UP(p) && phase[p] != FENCED && phase[p] != OUTSIDE)
#define CURRENT(p) (epoch[p] == s_epoch)
#define ADMITTED(p) (members[p] & ~pending[p])
#define NEXT(p) (done[p] + 1)
#define TICK(p, s) ((s) + 1 - base[p])

/* ---- operations ---- */

#ifdef NO_EPOCH_IN_TAG
#define FRESH(p, q) (SLOT(q, TICK(p, NEXT(p))) % 4 == TICK(p, NEXT(p)))
#else
#define FRESH(p, q) (SLOT(q, TICK(p, NEXT(p))) == TAG(epoch[p], TICK(p, NEXT(p))))
#endif
#define SOURCES(p, s) ((s) == ADMIT -> members[p] : ADMITTED(p))
#define HEARD(p, q) (!HAS(SOURCES(p, NEXT(p)), q) || FRESH(p, q))
#ifdef NO_ADMIT_WAIT
#define ALONE(p, s) ((s) == ADMIT)
#else
#define ALONE(p, s) ((s) == ADMIT && !pending[p])
#endif
#define ARRIVED(p) (ALONE(p, NEXT(p)) || (HEARD(p, 0) && HEARD(p, 1) && HEARD(p, 2) && HEARD(p, 3)))

/* floor >= tick - 2D: an operation of all shows it; after an ADMIT with nobody pending, done words do */
#define TOLD(p, q) (!HAS(ADMITTED(p), q) || (done[q] >= done[p] && epoch[q] == epoch[p]))
#ifdef NO_CREDIT
#define CREDIT(p) 1
#else
#define CREDIT(p) (TICK(p, NEXT(p)) <= 2 || done[p] != ADMIT || adm[p] || \
		   (TOLD(p, 0) && TOLD(p, 1) && TOLD(p, 2) && TOLD(p, 3)))
#endif
#define LOWEST(p) ((ADMITTED(p) & (BIT(p) - 1)) == 0)
#define MAY_BEGIN(p) (!HAS(pending[p], p) || admit_epoch == epoch[p])

inline enter(p)
{
	if
	:: HAS(pending[p], p) -> done[p] = ADMIT - 1
	:: NEXT(p) == ADMIT && pending[p] && LOWEST(p) && !HAS(pending[p], p) ->
		if
		:: epoch[JOINER] <= epoch[p] -> admit_epoch = epoch[p] /* one of an older view is dropped */
		:: else
		fi
	:: else
	fi;
	entered[p] = 1;
	SLOT(p, TICK(p, NEXT(p))) = TAG(epoch[p], TICK(p, NEXT(p)));
	if
	:: p == JOINER -> dirty = 0
	:: else
	fi
}

/* No two survivors have another outcome. */
inline uniform(p)
{
	for (i : 0 .. PROCS - 1) {
		assert(HAS(excluded, p) || HAS(excluded, i) || !UP(i) || !OUT(i, done[p]) ||
		       (OUT(i, done[p]) == OUT(p, done[p]) && MADE(i, done[p]) == MADE(p, done[p])))
	}
	i = 0
}

inline complete(p)
{
	for (i : 0 .. PROCS - 1) { /* the bytes behind the tags are those of this attempt */
		assert(HAS(excluded, p) || !HAS(SOURCES(p, NEXT(p)), i) || ALONE(p, NEXT(p)) ||
		       (SLOT(i, TICK(p, NEXT(p))) == TAG(epoch[p], TICK(p, NEXT(p))) &&
			!(i == JOINER && HAS(dirty, p) && p != JOINER)))
	}
	OUT(p, NEXT(p)) = SOURCES(p, NEXT(p));
	MADE(p, NEXT(p)) = TAG(epoch[p], TICK(p, NEXT(p)));
	if
	:: NEXT(p) == ADMIT && pending[p] ->
		pending[p] = 0;
		adm[p] = 1
	:: else
	fi;
	done[p]++;
	entered[p] = 0;
	uniform(p)
}

/* ---- the store decides ---- */

#define WAITS(force) (s_members & ~s_reported & ~s_dead & ~((force) -> s_accused : 0))
#define KEPT (s_voters & s_reported & ~s_dead)
#define QUORUM (2 * COUNT(KEPT) >= COUNT(s_voters) || (KEPT | (s_voters & s_dead)) == s_voters)

inline start_change()
{
	s_ph = OPEN;
	s_reported = 0;
	s_adm = 0
}

inline commit()
{
	T = s_reported & ~s_dead;
	if
	:: s_adm & T ->
		if
		:: HAS(s_pending, JOINER) && !HAS(s_adm, JOINER) -> s_done[JOINER] = ADMIT - 1
		:: else
		fi;
		s_pending = 0
	:: else -> T = T & ~(s_accused & s_pending)
	fi;
	excluded = excluded | (s_members & alive & ~T);
	a = 0;
	for (i : 0 .. PROCS - 1) {
		if
		:: HAS(T & ~s_pending, i) && s_done[i] > a -> a = s_done[i]
		:: else
		fi
	}
	if
	:: (T & ~s_pending) == 0 -> s_ph = CLOSED
	:: else ->
		s_base = a + 1;
		if
		:: HAS(T & ~s_pending, JOINER) && ADMIT >= s_base -> s_pending = BIT(JOINER)
		:: else
		fi;
		s_lag = 0;
		for (i : 0 .. PROCS - 1) {
			if
			:: HAS(T & ~s_pending, i) && s_done[i] < a -> s_lag = s_lag | BIT(i)
			:: else
			fi;
			assert(!(HAS(T, i) && UP(i) && HAS(OUT(i, ADMIT) & s_pending & T, JOINER)))
		}
		s_pending = s_pending & T;
		if
		:: s_ready == s_epoch && !HAS(T, JOINER) && COUNT(T) < FOUNDERS ->
			T = T | BIT(JOINER);
			s_pending = BIT(JOINER);
			s_heir = excluded != 0
		:: else
		fi;
		s_members = T;
		s_epoch++;
		s_ph = INST
	fi;
	for (i : 0 .. PROCS - 1) {
		s_done[i] = 0
	}
	s_reported = 0;
	s_acked = 0;
	s_accused = 0;
	s_adm = 0;
	s_ready = 0;
	i = 0;
	a = 0;
	T = 0
}

inline decide(force)
{
	if
	:: s_ph == OPEN && !WAITS(force) && QUORUM -> commit()
	:: else
	fi
}

/* What nobody looks at any more is cleared, so that states which differ in nothing else are one. */
inline forget(p)
{
	members[p] = 0;
	pending[p] = 0;
	base[p] = 0;
	lag[p] = 0;
	given[p] = 0;
	entered[p] = 0;
	adm[p] = 0;
	for (i : 0 .. OPS) {
		OUT(p, i) = 0;
		MADE(p, i) = 0
	}
	drop_aside(p)
}

inline drop_aside(p)
{
	for (i : 0 .. PROCS - 1) {
		COPY(p, i, 0) = 0;
		COPY(p, i, 1) = 0
	}
	i = 0
}

/* When all have acknowledged, nothing of an old view is needed and nothing of a removed process gets in. */
inline settle()
{
	for (i : 0 .. PROCS - 1) {
		assert(!HAS(s_members & ~s_pending, i) || done[i] + 1 >= s_base);
		assert(!HAS(s_members & alive, i) || members[i] == s_members);
#ifndef NO_EPOCH_IN_TAG
		SLOT(i, 0) = (HAS(s_members, i) -> 0 : JUNK);
		SLOT(i, 1) = (HAS(s_members, i) -> 0 : JUNK)
#endif
	}
	for (i : 0 .. PROCS * (OPS + 1) - 1) { /* decided for all: who it was matters no more */
		if
		:: i % (OPS + 1) < s_base ->
			out[i] = 0;
			made[i] = 0
		:: else
		fi
	}
	i = 0
}

inline members_vote()
{
	s_voters = s_members & ~s_pending;
	s_dead = s_dead & s_members
}

inline activate()
{
	s_ph = RUN;
	s_acked = 0;
	members_vote();
	s_lag = 0;
	if
	:: s_ready == s_epoch -> start_change() /* a joiner became ready while acknowledgements were missing */
	:: else
	fi
}

/* ---- a member in a change ---- */

inline report(p)
{
	if
	:: phase[p] == ACKED -> go = go & ~BIT(p)
#ifndef NO_TELL_STORE
	:: phase[p] == RUN && HAS(go, p) -> members_vote()
#endif
	:: else
	fi;
#ifndef NO_FREEZE
	phase[p] = FROZEN;
#endif
	s_reported = s_reported | BIT(p);
#ifdef NO_DONE_BASE
	s_done[p] = done[p] + entered[p];
#else
	s_done[p] = done[p];
#endif
#ifndef NO_ADM_WORD
	s_adm = s_adm | (adm[p] << p);
#endif
	decide(0)
}

/* A call whose reply was lost, or that was relayed twice, is stored again; later it changes nothing. */
inline report_again()
{
	if
#ifdef NO_EPOCH_COMPARE
	:: s_ph == OPEN && HAS(s_members, 1) ->
#else
	:: s_ph == OPEN && HAS(s_members, 1) && again_epoch == s_epoch ->
#endif
		s_reported = s_reported | BIT(1);
		s_done[1] = again_done;
		decide(0)
	:: else
	fi;
	again_epoch = 0;
	again_done = 0
}

/* Learning is a promise; it sets aside what the removed had published, and fences them. */
inline learn(p)
{
	for (i : 0 .. PROCS - 1) {
		if
		:: HAS(members[p] & ~s_members, i) && s_lag && !HAS(s_lag, p) ->
			COPY(p, i, 0) = SLOT(i, 0);
			COPY(p, i, 1) = SLOT(i, 1)
		:: else
		fi
	}
#ifdef NO_FENCE_FIRST
	if
	:: members[p] & ~s_members -> unfenced = unfenced | BIT(p)
	:: else
	fi;
#endif
	if
	:: HAS(s_pending, p) -> /* what it had of an attempt to let it in is void */
		done[p] = 0;
		admit_epoch = (admit_epoch == s_epoch -> admit_epoch : 0)
	:: HAS(pending[p] & ~s_pending, p) -> done[p] = ADMIT - 1
	:: else
	fi;
	assert(done[p] < s_base);
	entered[p] = 0;
	adm[p] = 0;
	go = go & ~BIT(p);
	epoch[p] = s_epoch;
	members[p] = s_members;
	pending[p] = s_pending;
	base[p] = s_base;
	lag[p] = s_lag;
	phase[p] = LEARNED;
	i = 0
}

#define LACKS(p) (!HAS(pending[p], p) && NEXT(p) < base[p])
#define HOLDERS(p) (ADMITTED(p) & ~lag[p] & ~BIT(p))
#define HOLDER(p) (HAS(HOLDERS(p), 0) -> 0 : (HAS(HOLDERS(p), 1) -> 1 : (HAS(HOLDERS(p), 2) -> 2 : 3)))
#ifdef NO_GIVEN
#define HOLDS(q, s) (OUT(q, s) && !HAS(given[q], s))
#else
#define HOLDS(q, s) (OUT(q, s) != 0)
#endif
#define GIVES(q, p) (UP(q) && phase[q] >= FROZEN && phase[q] != FENCED && epoch[q] <= epoch[p] && HOLDS(q, NEXT(p)))

/* PULL and GIVE: the bytes stand in the slots of the contributors, in the copies, or were given to the holder. */
inline repair(p)
{
	h = HOLDER(p);
	t = MADE(h, NEXT(p)) % 4;
	for (i : 0 .. PROCS - 1) {
		if
		:: HAS(OUT(h, NEXT(p)), i) && NEXT(p) != ADMIT && !HAS(given[h], NEXT(p)) ->
#ifdef NO_ASIDE
			assert(SLOT(i, t) == MADE(h, NEXT(p)))
#else
			assert((HAS(members[h], i) -> SLOT(i, t) : COPY(h, i, t)) == MADE(h, NEXT(p)))
#endif
		:: else
		fi
	}
	OUT(p, NEXT(p)) = OUT(h, NEXT(p));
	MADE(p, NEXT(p)) = MADE(h, NEXT(p));
	given[p] = given[p] | BIT(NEXT(p));
	done[p]++;
	h = 0;
	t = 0;
	uniform(p)
}

#define BY_THEMSELVES (!s_pending && !(s_members & ~s_voters))
#define ALL_ACKED ((s_members & ~s_acked) == 0)

inline ack(p)
{
	phase[p] = ACKED;
	s_acked = s_acked | BIT(p);
#ifdef NO_VID
	ever = ever | BIT(p);
#endif
	if
#if defined(NO_ALL_ACKS)
	:: s_acked != 0 -> s_ph = RUN; s_voters = s_members & ~s_pending
#elif defined(NO_ALL_TELL)
	:: BY_THEMSELVES -> go = go | s_members
#elif defined(NO_VID)
	:: BY_THEMSELVES -> go = go | ((members[p] & ~ever) == 0 -> BIT(p) : 0) | (ALL_ACKED -> s_members : 0)
#else
	:: ALL_ACKED && BY_THEMSELVES ->
		settle();
		go = go | s_members
#endif
	:: ALL_ACKED && !BY_THEMSELVES ->
		settle();
		activate()
	:: else
	fi
}

inline thaw(p)
{
	phase[p] = RUN;
	given[p] = 0;
	lag[p] = 0;
	drop_aside(p)
}

#ifdef NO_REPAIR_FIRST
#define MAY_ACK(p) 1
#else
#define MAY_ACK(p) (!LACKS(p))
#endif
#ifdef NO_FREEZE
#define STEPS(p) (UP(p) && (phase[p] == RUN || phase[p] == FROZEN))
#define REPORTED(p) HAS(s_reported, p)
#else
#define STEPS(p) (UP(p) && phase[p] == RUN)
#define REPORTED(p) (phase[p] == FROZEN)
#endif
#if defined(NO_INC_CHECK)
#define LINKED(q, p) 1
#elif defined(NO_FENCE_FIRST)
#define LINKED(q, p) HAS(unfenced, q)
#else
#define LINKED(q, p) HAS(members[q], p)
#endif
#define FENCES(q) (!HAS(s_members & alive, q) || CURRENT(q))

#define REACHES(p, q) (s_heir && HAS(members[q], JOINER) && LINKED(q, p) && !HAS(dirty, q))

/* A fenced process writes over its window, and through every link that still takes its frames. */
inline late_write(p)
{
	SLOT(p, 0) = JUNK;
	SLOT(p, 1) = JUNK;
	for (i : 0 .. PROCS - 1) {
		if
		:: REACHES(p, i) -> dirty = dirty | BIT(i)
		:: else
		fi
	}
	i = 0
}

#ifdef NO_VOTER_PROOF
#define PROVABLE s_members
#else
#define PROVABLE (s_members | s_voters)
#endif
#define SEES_DEAD(p) (members[p] & ~alive)

proctype process(byte p)
{
end:
	do
	:: d_step { STEPS(p) && !entered[p] && done[p] < OPS && MAY_BEGIN(p) && CREDIT(p) -> enter(p) }
	:: d_step { STEPS(p) && entered[p] && ARRIVED(p) -> complete(p) }

	/* causes: a death, a suspicion, a pending process that was let in */
	:: d_step { MEMBER(p) && CURRENT(p) && (s_ph == RUN || s_ph == INST) && SEES_DEAD(p) ->
		start_change();
		s_accused = s_accused | (s_members & ~alive) }
	:: d_step { MEMBER(p) && CURRENT(p) && suspects < SUSPECTS && s_ph != CLOSED && HAS(s_members, SUSPECT) && p != SUSPECT ->
		suspects++;
		s_accused = s_accused | BIT(SUSPECT);
		if
		:: s_ph != OPEN -> start_change()
		:: else
		fi }
	:: d_step { STEPS(p) && CURRENT(p) && (s_ph == RUN || s_ph == INST) && adm[p] && LOWEST(p) -> start_change() }

	:: d_step { MEMBER(p) && CURRENT(p) && s_ph == OPEN && !REPORTED(p) -> report(p) }
#if REPEATS
	:: d_step { p == 1 && MEMBER(p) && CURRENT(p) && s_ph == OPEN && !REPORTED(p) && agains < REPEATS && !again_epoch ->
		agains++;
		again_epoch = epoch[p];
		again_done = done[p];
		report(p) }
	:: d_step { p == 1 && again_epoch -> report_again() }
#endif
	:: d_step { MEMBER(p) && CURRENT(p) && s_ph == OPEN && (PROVABLE & ~alive & ~s_dead) ->
		s_dead = s_dead | (PROVABLE & ~alive);
		decide(0) }
	:: d_step { MEMBER(p) && CURRENT(p) && s_ph == OPEN && REPORTED(p) && WAITS(0) && !WAITS(1) && QUORUM -> commit() }

	:: d_step { UP(p) && epoch[p] < s_epoch && HAS(s_members, p) -> learn(p) }
	:: d_step { MEMBER(p) && !CURRENT(p) && !HAS(s_members, p) ->
		phase[p] = FENCED;
		forget(p) }
	:: d_step { UP(p) && phase[p] == LEARNED && LACKS(p) && HOLDERS(p) && GIVES(HOLDER(p), p) -> repair(p) }
	:: d_step { UP(p) && phase[p] == LEARNED && CURRENT(p) && (s_ph == INST || (s_ph == OPEN && BY_THEMSELVES)) && MAY_ACK(p) -> ack(p) }
	:: d_step { UP(p) && phase[p] == ACKED && ((CURRENT(p) && s_ph == RUN) || HAS(go, p)) -> thaw(p) }
	:: d_step { p == 0 && s_ph == INST && ALL_ACKED -> activate() } /* the store has heard from all, too */
#ifdef NO_FENCE_FIRST
	:: d_step { HAS(unfenced, p) -> unfenced = unfenced & ~BIT(p) }
#endif

	/* the joiner is connected to all and its application has called covey_admit */
	:: d_step { p == JOINER && UP(p) && phase[p] == OUTSIDE && COUNT(s_members) < FOUNDERS && s_ph != CLOSED && s_ready != s_epoch ->
		s_ready = s_epoch;
		if
		:: s_ph == RUN -> start_change()
		:: else
		fi }

	/* faults */
	:: d_step { MEMBER(p) && !HAS(excluded, p) && deaths < DEATHS ->
		deaths++;
		alive = alive & ~BIT(p);
		phase[p] = OUTSIDE;
		forget(p) }
	:: d_step { HAS(excluded, p) && UP(p) && FENCES(0) && FENCES(1) && FENCES(2) && FENCES(3) &&
		(SLOT(p, 0) != JUNK || REACHES(p, 0) || REACHES(p, 1) || REACHES(p, 2)) -> late_write(p) }
	od
}

/* PROTOCOL section 13: half or more of the voters are gone and one of them lives outside, so nobody can prove it dead. Not when
 * a member has run in this view: then those outside have no vote any more. */
#define NOQUORUM (s_ph == OPEN && !WAITS(1) && !QUORUM && (s_voters & excluded & alive) && !(go & s_members & alive))

/* When all faults are over: one active view of those that live, all operations done. */
init
{
	atomic { /* how many faults there will be: what waits for the last of them must end without it too */
		do
		:: deaths < DEATHS -> deaths++
		:: suspects < SUSPECTS -> suspects++
		:: break
		od;
		if
		:: JOINS -> alive = alive | BIT(JOINER)
		:: skip
		fi;
		for (i : 0 .. FOUNDERS - 1) {
			phase[i] = RUN;
			epoch[i] = 1;
			members[i] = 7;
			base[i] = 1
		}
		run process(0);
		run process(1);
		run process(2);
		run process(3)
	}
	atomic {
		timeout;
		for (i : 0 .. PROCS - 1) {
			assert(!HAS(s_members & alive, i) || s_ph == CLOSED || NOQUORUM ||
			       (s_ph == RUN && phase[i] == RUN && epoch[i] == s_epoch && members[i] == s_members &&
				(done[i] == OPS || HAS(s_pending, i))));
			assert(!HAS(excluded & alive, i) || phase[i] == FENCED)
		}
		assert(!(s_members & alive) || s_ph == CLOSED || NOQUORUM || !(s_members & ~alive));
		assert(s_ph != CLOSED || !(s_members & alive & ~s_pending));
		assert(!(s_members & alive) || s_ph == CLOSED || NOQUORUM || COUNT(s_members) == FOUNDERS || phase[JOINER] != OUTSIDE ||
		       !UP(JOINER))
	}
}
