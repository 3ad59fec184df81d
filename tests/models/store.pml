/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may decide the next view when the store loses what it acknowledged (PROTOCOL section 4). The idea: a
 * member promises by learning, and follows only what descends from what it learned; a server that may
 * have missed a promise begins a new life, forgets whatever is not active, and counts only those who said
 * hello in that life and told what they know. So two rival views have no common majority.
 *
 * Here: MEMBERS members, one active view at first. Once, at any moment, a second server begins with a copy
 * of the first, or with nothing; the first may go on. So it is a failover to a lagging replica, an
 * isolated old primary, a restart with all, older or none of the data. A member talks to one server and
 * may change it MOVES times in all; up to DEATHS die, and are proven dead. So are those who know that they are fenced. Changes are opened because a member
 * is missing, and OPENS times for no reason. Whoever reports may be left out all the same. NAMES views in all.
 * Members tell each other that they have learned a view, and go on when all have, though no server may know it yet. Those of
 * PENDING have no vote at first; the first change admits them. With LATE the
 * reply to a hello comes later, or is lost with a move. The next call in the new life shows the server that it came.
 *
 * Safety: of two views that live members hold for active, one descends from the other; lives and views of a
 * member only grow. Progress: when nothing happens any more, a server that more than half of the voters talk
 * to has one active view with all that talk to it.
 */
#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef MOVES
#define MOVES 2
#endif
#ifndef OPENS
#define OPENS 1
#endif
#ifndef NAMES
#define NAMES 3 /* 4 at most */
#endif

#ifndef PENDING
#define PENDING 0 /* set of members */
#endif

#define BIT(x) (1 << (x))
#define HAS(set, x) (((set) >> (x)) & 1)
#define COUNT(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2) + HAS(set, 3))
#define ALL (BIT(MEMBERS) - 1)
#define NONE 15

/* Views by name (vid): members, parent, epoch, and what the record says of voters and doubtful views. */
byte v_members[4], v_parent[4], v_epoch[4], v_voters[4], v_doubt[4], names = 1;

/* The two servers. A life is `number.rnd`; here number * 2 + server. */
byte view[2], voters[2], doubt[2], life[2], hellos[2], obeyed[2], reports[2], acks[2];
bit acted[2], open[2]; /* acted: its view is active */
bit two;

/* Members: what they learned, whether they know it active, the life they obey, whom they talk to. */
byte learned[MEMBERS], obeys[MEMBERS];
byte offered[MEMBERS]; /* the life in the reply to its hello that is under way; 0: none */
byte told[MEMBERS]; /* views that it told the others to have learned: one bit each */
bit runs[MEMBERS], at[MEMBERS];
byte alive = ALL, fenced, deaths, moves, opens;
hidden byte i, j, yes;

#define UP(m) HAS(alive & ~fenced, m)
#define NUMBER(l) ((l) / 2)
#ifdef NO_HELLO
#define TALKS(m, d) (UP(m) && at[m] == (d) && view[d] != NONE)
#else
#define TALKS(m, d) (UP(m) && !offered[m] && at[m] == (d) && obeys[m] == life[d] && HAS(hellos[d], m) && view[d] != NONE)
#endif
#define ADMITTED(v) ((v) == 0 -> ALL & ~PENDING : v_members[v])
#define RANKING(v, a) (v_epoch[v] * 2 + (a))

/* Is x the view y or an ancestor of it? */
inline in_line(x, y)
{
	j = y;
	do
	:: j != x && j != 0 -> j = v_parent[j]
	:: else -> break
	od;
	yes = (j == x);
	j = 0
}

inline one_history()
{
	for (i : 0 .. MEMBERS * MEMBERS - 1) {
		if
		:: UP(i / MEMBERS) && UP(i % MEMBERS) && runs[i / MEMBERS] && runs[i % MEMBERS] &&
		   v_epoch[learned[i / MEMBERS]] <= v_epoch[learned[i % MEMBERS]] ->
			in_line(learned[i / MEMBERS], learned[i % MEMBERS]);
			assert(yes)
		:: else
		fi
	}
	i = 0;
	yes = 0
}

/* ---- a server ---- */

inline forget_votes(d)
{
	hellos[d] = 0;
	obeyed[d] = 0;
	reports[d] = 0;
	acks[d] = 0
}

/* A commit that is not active may be unknown to those who promised a rival: void, until a member tells it. */
inline new_life(d, number)
{
	life[d] = ((number) + 1) * 2 + d;
	forget_votes(d);
#ifndef NO_VOID
	if
	:: !acted[d] ->
		view[d] = NONE;
		open[d] = 0
	:: else
	fi
#endif
}

inline take(d, m)
{
	if
	:: view[d] != NONE -> in_line(view[d], learned[m])
	:: else -> yes = 1
	fi;
	hellos[d] = (yes -> hellos[d] : 0); /* they said hello to a rival of this record */
	obeyed[d] = (yes -> obeyed[d] : 0);
	reports[d] = 0;
	acks[d] = 0;
	view[d] = learned[m];
	acted[d] = runs[m];
	open[d] = 0;
	if
	:: runs[m] ->
		voters[d] = learned[m];
		doubt[d] = 0
	:: else ->
		voters[d] = v_voters[learned[m]];
		doubt[d] = v_doubt[learned[m]] | BIT(learned[m])
	fi
}

inline hello(d, m)
{
	if
	:: obeys[m] != life[d] && NUMBER(life[d]) <= NUMBER(obeys[m]) ->
#ifndef NO_NEW_LIFE
		new_life(d, NUMBER(obeys[m]))
#else
		skip
#endif
	:: else
	fi;
	yes = 1;
	if
	:: view[d] == learned[m] && runs[m] && !acted[d] -> /* what was reported for it stands */
		activate(d);
		yes = 1
	:: else -> hello_other(d, m)
	fi;
	if
	:: yes ->
#ifndef NO_NEW_LIFE
		assert(obeys[m] == life[d] || NUMBER(life[d]) > NUMBER(obeys[m]));
#endif
		hellos[d] = hellos[d] | BIT(m);
#ifdef LATE
		obeyed[d] = (obeys[m] == life[d] -> obeyed[d] | BIT(m) : obeyed[d] & ~BIT(m));
		offered[m] = life[d]
#else
		obeyed[d] = hellos[d];
		obeys[m] = life[d]
#endif
	:: else -> fenced = fenced | BIT(m)
	fi;
	yes = 0
}

inline hello_other(d, m)
{
	if
	:: view[d] == NONE || RANKING(learned[m], runs[m]) > RANKING(view[d], acted[d]) ->
		take(d, m);
		yes = 1
	:: else ->
		in_line(learned[m], view[d]);
		yes = yes && HAS(v_members[view[d]], m)
	fi
}

/* More than half of a set W of voters is kept; or half, and the server surely knows every promise; or the others are dead. */
#ifdef NO_KEPT_ONLY
#define KEPT(d, W, T) COUNT((W) & reports[d])
#else
#define KEPT(d, W, T) COUNT((W) & (T))
#endif
/* The dead need not agree, nor those who were told that they are fenced: these promise nothing any more. */
#ifdef NO_TOLD_FENCED
#define FENCED(d) (fenced | (ALL & ~v_members[view[d]]))
#else
#define FENCED(d) fenced
#endif
#define LIVES(d) (alive & ~FENCED(d))
#ifdef NO_PENDING_COUNTED
#define OTHERS(d, W) (W)
#else
#define OTHERS(d, W) ((W) | v_members[view[d]]) /* a rival may have admitted who has no vote here */
#endif
#ifdef NO_PROMISE
#define SAID(d) hellos[d]
#else
#define SAID(d) obeyed[d]
#endif
#ifdef NO_SURE
#define SURE(d, W) 1
#else
#define SURE(d, W) ((OTHERS(d, W) & LIVES(d) & ~SAID(d)) == 0)
#endif
#ifdef NO_DEAD_COUNTED
#define SIZE(W) COUNT((W) & alive)
#else
#define SIZE(W) COUNT(W)
#endif
#define AGREE(d, W, T) (2 * KEPT(d, W, T) > COUNT(W) || (2 * KEPT(d, W, T) >= SIZE(W) && SURE(d, W)) || \
			(OTHERS(d, W) & LIVES(d) & ~(T)) == 0)
#define DOUBTS(d, T, v) (acted[d] || !HAS(doubt[d], v) || AGREE(d, v_members[v], T))
#define QUORUM(d, T) ((T) && AGREE(d, ADMITTED(voters[d]), T) && DOUBTS(d, T, 1) && DOUBTS(d, T, 2) && DOUBTS(d, T, 3))

/* The last report, or a call of who has waited long enough, decides: T stays. */
#define KEEP(d, out) (reports[d] & alive & ~(out))
#define DECIDES(d, out) (open[d] && view[d] != NONE && names < NAMES && ((out) == 0 || (reports[d] & alive & (out))) && \
			 QUORUM(d, KEEP(d, out)))

inline commit(d, T)
{
	v_members[names] = T;
	v_parent[names] = view[d];
	v_epoch[names] = v_epoch[view[d]] + 1;
	v_voters[names] = voters[d];
	v_doubt[names] = (acted[d] -> 0 : doubt[d]);
	view[d] = names;
	acted[d] = 0;
	open[d] = 0;
	reports[d] = 0;
	acks[d] = 0;
	names++
}

inline activate(d)
{
	acted[d] = 1;
	acks[d] = 0;
	voters[d] = view[d];
	doubt[d] = 0
}

#define MISSING(d) (v_members[view[d]] & ~(alive & ~fenced & hellos[d] & HERE(d)))
#define HERE(d) ((at[0] == (d)) + 2 * (at[1] == (d)) + HERE2(d) + HERE3(d))
#if MEMBERS > 2
#define HERE2(d) (4 * (at[2] == (d)))
#else
#define HERE2(d) 0
#endif
#if MEMBERS > 3
#define HERE3(d) (8 * (at[3] == (d)))
#else
#define HERE3(d) 0
#endif
#define ROOM (names + open[0] + open[1] < NAMES)

proctype server(byte d)
{
end:
	do
	:: d_step { view[d] != NONE && !open[d] && (HERE(d) & hellos[d] & alive & ~fenced) && MISSING(d) && ROOM ->
		open[d] = 1;
		reports[d] = 0 }
	:: d_step { view[d] != NONE && !open[d] && opens < OPENS && ROOM ->
		opens++;
		open[d] = 1;
		reports[d] = 0 }
	/* who complains, was accused or is marked is left out, and so is who has not reported */
	:: d_step { DECIDES(d, 0) -> commit(d, KEEP(d, 0)) }
	:: d_step { DECIDES(d, 1) -> commit(d, KEEP(d, 1)) }
	:: d_step { DECIDES(d, 2) -> commit(d, KEEP(d, 2)) }
	:: d_step { DECIDES(d, 4) -> commit(d, KEEP(d, 4)) }
	:: d_step { DECIDES(d, 8) -> commit(d, KEEP(d, 8)) }
	:: d_step { view[d] != NONE && !open[d] && !acted[d] &&
#ifdef NO_ALL_ACKS
		acks[d] -> activate(d) }
#else
		!(v_members[view[d]] & ~acks[d]) -> activate(d) }
#endif
	od
}

/* ---- a member ---- */

inline learn(d, m)
{
	in_line(learned[m], view[d]);
	if
	:: yes && HAS(v_members[view[d]], m) ->
		learned[m] = view[d];
		runs[m] = 0;
		told[m] = told[m] | BIT(view[d])
	:: else -> fenced = fenced | BIT(m)
	fi;
	yes = 0
}

/* A view that its members make active: all had a vote on it, and it was not doubtful. */
#ifdef NO_VOTERS
#define VOTED(v) 1
#else
#define VOTED(v) ((v_members[v] & ~ADMITTED(v_voters[v])) == 0)
#endif
#define CERTAIN(v) (v_doubt[v] == 0)
#ifdef NO_VID
#define TOLD(v, m) (!HAS(v_members[v], m) || told[m] != 0)
#else
#define TOLD(v, m) (!HAS(v_members[v], m) || HAS(told[m], v))
#endif
#if MEMBERS > 2
#define TOLD2(v) TOLD(v, 2)
#else
#define TOLD2(v) 1
#endif
#if MEMBERS > 3
#define TOLD3(v) TOLD(v, 3)
#else
#define TOLD3(v) 1
#endif
#define ALL_TOLD(v) (TOLD(v, 0) && TOLD(v, 1) && TOLD2(v) && TOLD3(v))

proctype member(byte m)
{
end:
	do
	:: d_step { UP(m) && !TALKS(m, at[m]) && !offered[m] -> hello(at[m], m) }
#ifdef LATE
	:: d_step { UP(m) && offered[m] -> obeys[m] = offered[m]; offered[m] = 0 }
	:: d_step { TALKS(m, at[m]) && !HAS(obeyed[at[m]], m) -> obeyed[at[m]] = obeyed[at[m]] | BIT(m) } /* peek */
#endif
	:: d_step { TALKS(m, at[m]) && learned[m] == view[at[m]] && open[at[m]] && !HAS(reports[at[m]], m) ->
		if
		:: runs[m] && !acted[at[m]] -> activate(at[m])
		:: else
		fi;
		reports[at[m]] = reports[at[m]] | BIT(m) }
	:: d_step { TALKS(m, at[m]) && v_epoch[view[at[m]]] > v_epoch[learned[m]] -> learn(at[m], m) }
	:: d_step { TALKS(m, at[m]) && learned[m] == view[at[m]] && !open[at[m]] && !acted[at[m]] && !HAS(acks[at[m]], m) ->
		acks[at[m]] = acks[at[m]] | BIT(m) }
	:: d_step { TALKS(m, at[m]) && learned[m] == view[at[m]] && !open[at[m]] && acted[at[m]] && !runs[m] ->
		runs[m] = 1;
		one_history() }
	:: d_step { UP(m) && learned[m] != 0 && !runs[m] && CERTAIN(learned[m]) && VOTED(learned[m]) && ALL_TOLD(learned[m]) ->
		runs[m] = 1;
		one_history() }
	:: d_step { TALKS(m, at[m]) && learned[m] != view[at[m]] && v_epoch[view[at[m]]] == v_epoch[learned[m]] -> /* a rival */
		fenced = fenced | BIT(m) }
	:: d_step { two && moves < MOVES && UP(m) -> moves++; at[m] = 1 - at[m]; offered[m] = 0 }
	:: d_step { UP(m) && deaths < DEATHS -> deaths++; alive = alive & ~BIT(m) }
	:: atomic { !UP(m) -> break }
	od
}

/* The second server, from what it has. It is another server, so it begins a new life. */
proctype takeover()
{
	d_step {
		two = 1;
		view[1] = view[0];
		acted[1] = acted[0];
		open[1] = open[0];
		voters[1] = voters[0];
		doubt[1] = doubt[0];
		life[1] = life[0];
		new_life(1, NUMBER(life[0]));
#ifdef NO_FORGET_HELLOS
		hellos[1] = hellos[0];
#endif
	}
	if
	:: skip
	:: d_step { hellos[1] == 0 -> /* nothing at all */
		view[1] = NONE;
		acted[1] = 0;
		open[1] = 0;
		life[1] = 1 }
	fi
}

#define TALKERS(d) (alive & ~fenced & HERE(d))
#define CARRIED(d) (2 * COUNT(ADMITTED(voters[d]) & TALKERS(d)) > COUNT(ADMITTED(voters[d])))

init
{
	atomic {
		do
		:: deaths < DEATHS -> deaths++
		:: moves < MOVES -> moves++
		:: opens < OPENS -> opens++
		:: break
		od;
		v_members[0] = ALL;
		hellos[0] = ALL;
		obeyed[0] = ALL;
		acted[0] = 1;
		view[1] = NONE;
		life[0] = 2;
		for (i : 0 .. MEMBERS - 1) {
			obeys[i] = 2;
			runs[i] = 1;
			run member(i)
		}
		i = 0;
		run server(0);
		run server(1);
		if
		:: run takeover()
		:: skip
		fi
	}
	atomic {
		timeout;
		for (i : 0 .. MEMBERS - 1) {
			assert(!UP(i) || !ROOM || !CARRIED(at[i]) ||
			       (TALKS(i, at[i]) && learned[i] == view[at[i]] && acted[at[i]] && runs[i]))
		}
	}
}
