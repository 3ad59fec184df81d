/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine over two hops (docs/design/ep.md). The idea: rows of one living rank travel through the memory of
 * another, so a rank may not go away with its own rows alone. It ends an operation when *everybody* has said that nothing
 * is lacking: the closing word. So when somebody is done, nobody needs a path any more; when nobody is, all do it again by
 * the paths of the next view.
 *
 * Here: ranks 0 and 1 are on one host, 2 and 3 on another (with three ranks 2 alone). They run OPS operations of STEPS
 * steps in one lane. Up to DEATHS ranks die, anywhere. A view change is one step (gate.pml, view.pml): the survivors get an
 * epoch; an operation that one of them completed is complete for all, by what is in their memory; the next is done again.
 * A store to a peer is one step, which comes at any time and in any order; that it lands late is the same as that its rank
 * is slow.
 *
 * With BACK it is a combine: a forwarder adds what its host has for a far rank, and stores that.
 *
 * With LATE one rank may stop for ever, and there are deadlines. Time passes when no rank that runs can do anything
 * (`timeout`); of two such ranks none is more than one interval ahead. With EVICT the rank is removed after others have
 * left it out.
 *
 * Safety: a slot is written over only when its reader has taken what was there. An operation that somebody has completed
 * is whole at all survivors. With rows of all contributors, or under deadlines of all that have a path of ranks that run.
 * Only a rank that has stopped is left out. In the end all survivors have done all operations.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef STEPS
#define STEPS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define ALL ((1 << RANKS) - 1)
#define BIT(r) (1 << (r))
#define IS(m, r) ((m) >> (r) & 1)

/* src/kernels/layout/ep_hops.h; m: the contributors. */
#define SAME(a, b) ((a) / 2 == (b) / 2)
#define THERE(m, s) ((m) >> (2 - (s) / 2 * 2) & 3) /* of the other host */
#define INDEX(m, s) ((s) % 2 && IS(m, (s)-1))
#define FORWARDER(m, s) (2 - (s) / 2 * 2 + (THERE(m, s) == 3 -> INDEX(m, s) : THERE(m, s) == 2))
#define GIVES(m, r, t) ((r) != (t) && IS(m, t) && (SAME(r, t) || FORWARDER(m, r) == (t)))
#define PASSES(m, r, s) ((r) != (s) && IS(m, s) && !SAME(r, s) && FORWARDER(m, s) == (r))
#define STORES(m, r, t) (GIVES(m, r, t) || PASSES(m, r, t))

#define TAG(e, g) ((e)*16 + (g) + 1)
#define WITH_ROWS 64
#define AT(t, w) (((t)*RANKS + (w)) * 2 + g % 2) /* memory of t that w writes, slot of step g */
#define PAIR(t, w) ((t)*RANKS + (w))

byte mask = ALL, alive = ALL, epoch = 1;
byte was = ALL;			/* the view before */
byte word[RANKS * RANKS * 2];	/* tag: a rank has come to the step, with its rows where it gives some */
byte passed[RANKS * RANKS * 2]; /* tag: rows of that source, stored by its forwarder */
byte closing[RANKS * RANKS];	/* tag of the last closing word */
byte past[RANKS];		/* steps of the attempt that the rank is through with: taken, and passed on */
byte whole[RANKS];		/* the operation of which it lacks nothing */
byte done[RANKS];
byte deaths;

#ifdef BACK
byte sum[RANKS * RANKS]; /* whose rows are in what a forwarder stored */
#endif

#ifdef LATE
byte stopped;		   /* mask: the rank that stops for ever */
byte spoke[RANKS * RANKS]; /* the operation in which the rank said that it waits */
byte interval[RANKS];	   /* of the deadline: how many have passed in this operation */
byte left_out;		   /* by anybody */
byte after;		   /* it is removed when so many ranks are done */
#define RUNS(r) (IS(alive, r) && !IS(stopped, r))
#else
#define RUNS(r) IS(alive, r)
#endif

/* ---- a rank ---- */

/* Where rank r stores its word, and whose it waits for. */
#ifdef BACK
#define GIVES_DATA(m, r, t) (IS(m, t) && (r) != (t) && (SAME(r, t) || PASSES(m, r, t)))
#else
#define GIVES_DATA(m, r, t) GIVES(m, r, t)
#endif
#ifdef NO_BOTH_HEAR /* only where data go */
#define WRITES(m, r, t) GIVES_DATA(m, r, t)
#define WAITS(m, r, t) GIVES_DATA(m, t, r)
#else
#define WRITES(m, r, t) STORES(m, r, t)
#define WAITS(m, r, t) STORES(m, r, t)
#endif

#ifdef NO_NEW_PATHS /* the forwarders of the view before */
#define PATHS was
#else
#define PATHS m
#endif

#define TELLS(t) (IS(m, t) && t != r && !IS(out, t))
#define CAME(t) ((word[AT(r, t)] & ~WITH_ROWS) == TAG(e, g))
#define BROUGHT(t) (word[AT(r, t)] == TAG(e, g) + WITH_ROWS)
#define WORD_HERE(t) (IS(out, t) || !IS(m, t) || !WAITS(m, r, t) || CAME(t))

/* Rows of t are here, or do not come because a rank was left out. */
#ifdef BACK
#define BEARER(t) (SAME(r, t) -> t : FORWARDER(m, r))
#define ROWS(t) (BROUGHT(BEARER(t)) && (BEARER(t) == t || IS(sum[PAIR(r, BEARER(t))], t)))
#else
#define BEARER(t) (SAME(r, t) || FORWARDER(m, t) == r -> t : FORWARDER(m, t))
#define ROWS(t) (BEARER(t) == t -> BROUGHT(t) : passed[AT(r, t)] == TAG(e, g))
#endif
#ifdef BACK
#define ROWS_HERE(t) (t == r || !IS(m, t) || IS(out, t) || IS(out, BEARER(t)) || BROUGHT(BEARER(t)))
#else
#define ROWS_HERE(t) (t == r || !IS(m, t) || IS(out, t) || IS(out, BEARER(t)) || ROWS(t))
#endif

#if RANKS == 3
#define EACH(WHAT) (WHAT(0) && WHAT(1) && WHAT(2))
#else
#define EACH(WHAT) (WHAT(0) && WHAT(1) && WHAT(2) && WHAT(3))
#endif
#define CLOSED(t) (t == r || !IS(m, t) || IS(out, t) || closing[PAIR(r, t)] == TAG(e, op))

#ifdef NO_PASS_FIRST /* rows may still have to be passed on in the next step */
#define PASSED_ON (owed == 0)
#else
#define PASSED_ON (owes == 0)
#endif

/* Here is written what the reader may still need, if it has not come past the step before the last. */
#define FREE(t) assert(!RUNS(t) || past[t] + 1 >= g)

/* A step begins: words to store, and sources whose rows are to be passed on. */
inline begin_step()
{
	i = 0;
	do
	:: i < RANKS ->
		if
		:: TELLS(i) && WRITES(PATHS, r, i) -> todo = todo | BIT(i)
		:: else
		fi;
#ifndef BACK
		if
		:: TELLS(i) && PASSES(m, r, i) && IS(m, r ^ 1) -> owes = owes | BIT(i)
		:: else
		fi;
#endif
		i++
	:: else -> break
	od;
	i = 0
}

inline begin()
{
	d_step {
		e = epoch;
		m = mask;
		op = done[r] + 1;
		g = 0;
		got = m;
		todo = 0;
		owes = 0;
		shut = 0;
		out = 0;
#ifdef NO_PASS_FIRST
		owed = 0;
#endif
#ifdef LATE
		interval[r] = 0;
#endif
		begin_step()
	}
}

/* What came of the step counts; the next begins, or the words that close the operation go out. */
inline end_step()
{
	i = 0;
	do
	:: i < RANKS ->
		if
		:: i != r && IS(m, i) && !(ROWS(i)) -> got = got & ~BIT(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
#ifdef NO_PASS_FIRST
	owed = owes;
	owes = 0;
#endif
	past[r]++;
	g++;
	if
	:: g % STEPS != 0 -> begin_step()
	:: else ->
		whole[r] = op;
		shut = 1;
		todo = m & ~BIT(r) & ~out;
		whole_enough()
	fi
}

inline whole_enough()
{
#ifdef LATE
	do
	:: i < RANKS ->
		assert(i == r || !IS(m, i) || !RUNS(i) || !RUNS(BEARER(i)) || IS(got, i));
		i++
	:: else -> break
	od;
	i = 0
#else
	assert(got == m)
#endif
}

inline end_operation()
{
	done[r] = op;
	op++;
	shut = 0;
	todo = 0;
	out = 0;
	got = m;
#ifdef LATE
	interval[r] = 0;
#endif
	if
	:: op <= OPS -> begin_step()
	:: else -> e = 0
	fi
}

inline store_word(t)
{
	FREE(t);
	word[AT(t, r)] = TAG(e, g) + (GIVES_DATA(PATHS, r, t) -> WITH_ROWS : 0);
#ifdef BACK
	sum[PAIR(t, r)] = BIT(r) | (IS(m, r ^ 1) && CAME(r ^ 1) -> BIT(r ^ 1) : 0);
#endif
	todo = todo & ~BIT(t)
}

/* A forwarder of a combine stores for a far rank when it has what its host gives. */
#ifdef BACK
#define READY(t) (SAME(r, t) || !PASSES(m, r, t) || WORD_HERE(r ^ 1))
#else
#define READY(t) true
#endif

inline pass_on(s)
{
	FREE(r ^ 1);
	passed[AT(r ^ 1, s)] = TAG(e, g);
	owes = owes & ~BIT(s)
}

#ifdef NO_PASS_FIRST
inline pass_on_later(s)
{
	assert(word[(PAIR(r, s)) * 2 + (g + 1) % 2] == TAG(e, g - 1) + WITH_ROWS);
	passed[(PAIR(r ^ 1, s)) * 2 + (g + 1) % 2] = TAG(e, g - 1);
	owed = owed & ~BIT(s)
}
#endif

#ifdef LATE

#ifdef NO_WAIT_WORD
#define SPEAKS(t) false
#else
#define SPEAKS(t) TELLS(t)
#endif

/* The first interval has passed: every rank says that it waits. */
inline speak()
{
	interval[r] = 1;
	do
	:: i < RANKS ->
		if
		:: SPEAKS(i) -> spoke[PAIR(i, r)] = op
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

#ifdef NO_SILENCE /* the rank whose rows are not here is late */
#define SILENT(t) (shut -> !CLOSED(t) : !(ROWS(t)))
#else
#define SILENT(t) (spoke[PAIR(r, t)] != op && !CLOSED(t))
#endif

/* The second has passed: a rank that has neither closed nor said that it waits is left out. */
inline leave_out()
{
	interval[r] = 2;
	lost = 0;
	do
	:: i < RANKS ->
		if
		:: TELLS(i) && SILENT(i) ->
			assert(!RUNS(i));
			lost = lost | BIT(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	out = out | lost;
	left_out = left_out | lost;
	todo = todo & ~lost;
	owes = owes & ~lost;
	lost = 0
}

#define SPOKEN(q) (!IS(m, q) || !RUNS(q) || done[q] >= op || interval[q] >= 1)
#endif

/* Fewer states: what a rank that is through knows matters to nobody. */
inline rest()
{
	e = 0;
	m = 0;
	op = 0;
	g = 0;
	todo = 0;
	owes = 0;
	got = 0;
	out = 0;
	shut = 0
}

proctype rank(byte r)
{
	byte e, m, op, g, i;
	byte todo, owes, got, out;
	bit shut; /* the last step is over: closing words */
#ifdef NO_PASS_FIRST
	byte owed;
#endif
#ifdef LATE
	byte lost;
#endif

again:
	begin();
	do
	:: d_step { done[r] == OPS || !RUNS(r) -> rest() } -> break
	:: RUNS(r) && done[r] < OPS && epoch != e -> goto again
	:: d_step { RUNS(r) && epoch == e && !shut && IS(todo, 0) && READY(0) -> store_word(0) }
	:: d_step { RUNS(r) && epoch == e && !shut && IS(todo, 1) && READY(1) -> store_word(1) }
	:: d_step { RUNS(r) && epoch == e && !shut && IS(todo, 2) && READY(2) -> store_word(2) }
#if RANKS > 3
	:: d_step { RUNS(r) && epoch == e && !shut && IS(todo, 3) && READY(3) -> store_word(3) }
#endif
#ifndef BACK
	:: d_step { RUNS(r) && epoch == e && IS(owes, 0) && BROUGHT(0) -> pass_on(0) }
	:: d_step { RUNS(r) && epoch == e && IS(owes, 1) && BROUGHT(1) -> pass_on(1) }
	:: d_step { RUNS(r) && epoch == e && IS(owes, 2) && BROUGHT(2) -> pass_on(2) }
#if RANKS > 3
	:: d_step { RUNS(r) && epoch == e && IS(owes, 3) && BROUGHT(3) -> pass_on(3) }
#endif
#endif
	:: d_step {
		RUNS(r) && epoch == e && !shut && todo == 0 && PASSED_ON && EACH(WORD_HERE) && EACH(ROWS_HERE) ->
		end_step()
	}
#ifdef NO_PASS_FIRST
	:: d_step { RUNS(r) && epoch == e && IS(owed, 0) -> pass_on_later(0) }
	:: d_step { RUNS(r) && epoch == e && IS(owed, 1) -> pass_on_later(1) }
	:: d_step { RUNS(r) && epoch == e && IS(owed, 2) -> pass_on_later(2) }
#endif
#ifdef NO_CLOSING
	:: d_step { RUNS(r) && epoch == e && shut -> end_operation() }
#else
	:: d_step { RUNS(r) && epoch == e && shut && IS(todo, 0) -> closing[PAIR(0, r)] = TAG(e, op); todo = todo & ~BIT(0) }
	:: d_step { RUNS(r) && epoch == e && shut && IS(todo, 1) -> closing[PAIR(1, r)] = TAG(e, op); todo = todo & ~BIT(1) }
	:: d_step { RUNS(r) && epoch == e && shut && IS(todo, 2) -> closing[PAIR(2, r)] = TAG(e, op); todo = todo & ~BIT(2) }
#if RANKS > 3
	:: d_step { RUNS(r) && epoch == e && shut && IS(todo, 3) -> closing[PAIR(3, r)] = TAG(e, op); todo = todo & ~BIT(3) }
#endif
	:: d_step { RUNS(r) && epoch == e && shut && todo == 0 && EACH(CLOSED) -> end_operation() }
#endif
#ifdef LATE
	:: d_step { timeout && RUNS(r) && epoch == e && interval[r] == 0 -> speak() }
	:: d_step { timeout && RUNS(r) && epoch == e && interval[r] == 1 && EACH(SPOKEN) -> leave_out() }
#endif
	od
}

/* ---- what befalls them ---- */

/* One after the other or together; somebody stays. */
active proctype death()
{
	do
	:: atomic { deaths < DEATHS && IS(alive, 0) && alive != 1 -> alive = alive & ~1; deaths++ }
	:: atomic { deaths < DEATHS && IS(alive, 1) && alive != 2 -> alive = alive & ~2; deaths++ }
	:: atomic { deaths < DEATHS && IS(alive, 2) && alive != 4 -> alive = alive & ~4; deaths++ }
#if RANKS > 3
	:: atomic { deaths < DEATHS && IS(alive, 3) && alive != 8 -> alive = alive & ~8; deaths++ }
#endif
	:: break
	od
}

/* Fewer states: old tags match nothing, so they are taken away. */
inline forget()
{
	do
	:: i < RANKS * RANKS ->
		word[2 * i] = 0;
		word[2 * i + 1] = 0;
		passed[2 * i] = 0;
		passed[2 * i + 1] = 0;
		closing[i] = 0;
		i++
	:: else -> break
	od;
	i = 0
}

/* All stand, and learn the view: what one of them has done is done for all. */
inline change()
{
	forget();
	do
	:: i < RANKS ->
		if
		:: IS(alive, i) && done[i] > most -> most = done[i]
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < RANKS ->
		if
		:: IS(alive, i) && done[i] < most ->
			assert(whole[i] == most);
			done[i] = most
		:: else
		fi;
		whole[i] = 0;
		past[i] = 0;
		done[i] = (IS(alive, i) -> done[i] : 0);
		i++
	:: else -> break
	od;
	i = 0;
	most = 0;
	was = mask;
	mask = alive;
	epoch++
}

active proctype view()
{
	byte i, most;

end:
	do
	:: d_step { (mask & alive) != mask -> change() }
	od
}

#ifdef LATE
/* Not later: intervals are of one wait, and a rank that stops then is found in the next operation. */
#define IN_TIME(r) (interval[r] == 0)
#define MAY_STOP (stopped == 0 && EACH(IN_TIME))

active proctype stop()
{
	do
	:: d_step { MAY_STOP -> stopped = 1 }
	:: d_step { MAY_STOP -> stopped = 2 }
	:: d_step { MAY_STOP -> stopped = 4 }
#if RANKS > 3
	:: d_step { MAY_STOP -> stopped = 8 }
#endif
	:: break
	od;
#ifdef EVICT
	select(after : 0 .. 2);
end_unless_left_out:
	d_step {
		left_out != 0 && (done[0] != 0) + (done[1] != 0) + (done[2] != 0) >= after -> alive = alive & ~left_out
	}
#endif
end:
	false
}
#endif

init
{
	atomic {
		run rank(0);
		run rank(1);
		run rank(2);
#if RANKS > 3
		run rank(3)
#endif
	}
}
