/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The freeze handshake of a device (PROTOCOL section 10). The idea: CTAs that run and a host that wants
 * them to stand still share four words and no lock. A CTA says `started` and learns in the same atomic
 * whether the gate is open; it says `stopped` when nothing of its stores is under way. So when the host,
 * after closing the gate, reads as many `started` as it read `stopped` before, everybody stands, and
 * stands until the verdict.
 *
 * Here: CTAS CTAs execute OPS operations in stream order, the host freezes them up to FREEZES times, when
 * it likes, and must when the peer is dead. A verdict begins a new epoch: the operation at base is done
 * again from its inputs, one that others completed is taken as complete. A store is
 * under way as long as it may be: until it is released. The stamps that a push carries may have been read
 * before the CTA counted itself.
 *
 * With MESSAGE there is a message, too, which is no operation: it counts as started while it works and takes that away again.
 *
 * Safety: while the host says frozen, `have` does not change and no store lands, but for those of a CTA that
 * came to a closed gate and did not wait for the answer: they carry the old stamp and go to a slot that is
 * free. (Words of the next view are there a little before the gate opens; an operation of several steps asks
 * first, see cvy_asks_first().) The parts of an operation are of one epoch, and so is what was pushed for it. Progress (LTL `ends`, weak fairness): all operations end
 * and the host gets every freeze it asked for.
 */
#ifndef CTAS
#define CTAS 2
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef FREEZES
#define FREEZES 2
#endif

#define OPEN 0
#define CLOSED 1
#define GIVEN 7 /* part of a result that a repair brought */

byte gate = OPEN; /* top byte of the word that counts `started` */
byte started, stopped, have;
byte epoch = 1, base = 1; /* the control page: the verdict */
byte over;		  /* operations that all CTAs are through with; of the next one: */
byte here;		  /* epoch of the peer's data, 0: not here */
byte arrived, attempt;	  /* CTAs that arrived, in the epoch `attempt` */
byte part, left;	  /* epoch of the first CTA's part of the result, CTAs that are through */
bit flying[CTAS];	  /* a store that has not landed */
bit vain[CTAS];		  /* it was pushed before the answer came, which was: closed */
bit dead;		  /* the peer: its data come no more until it is removed */
bit frozen, rests;	  /* the host says so; the host has frozen for the last time */
byte freezes;

#ifdef MESSAGE
bit sending; /* a store of the message that has not landed */
bit delivered; /* it is over */
ltl ends { <>(rests && over == OPS && delivered) }
#else
#define sending 0
ltl ends { <>(rests && over == OPS) }
#endif

/* ---- CTA ---- */

#ifdef NO_EVERY_CTA
#define COUNTS (id == 0)
#else
#define COUNTS true
#endif

/* Counts itself and asks for the gate. */
inline start()
{
#ifdef NO_ONE_WORD /* two words without a fence between them: the look may come first */
	closed = gate;
	if
	:: COUNTS -> started++
	:: else
	fi
#else
	d_step {
		if
		:: COUNTS -> started++
		:: else
		fi;
		closed = gate
	}
#endif
}

/* All that I stored has landed, and nothing more comes. */
inline stop()
{
#ifndef NO_RELEASE
	flying[id] = 0;
#endif
	if
	:: COUNTS -> stopped++
	:: else
	fi;
#ifdef NO_RELEASE
	flying[id] = 0
#endif
}

/*
 * Out of the park: no longer stopped, and only then it counts whether the gate is open. Is it closed again, the host may
 * have read the word before, and it stands still.
 */
inline run_again()
{
#ifdef NO_RECOUNT
	gate == OPEN
#else
	do
	:: gate == OPEN ->
		if
		:: COUNTS -> stopped--
		:: else
		fi;
#ifndef NO_SECOND_LOOK
		if
		:: gate == OPEN -> break
		:: gate == CLOSED ->
			if
			:: COUNTS -> stopped++
			:: else
			fi
		fi
#else
		break
#endif
	od
#endif
}

/* Stores into the peers. They need not wait for the answer of start(): if it is `closed`, their stamp matches nothing. */
inline push()
{
	d_step {
		flying[id] = 1;
		vain[id] = closed
	}
}

/* The part of this CTA is complete. The last one makes it the operation's. */
inline arrive()
{
	d_step {
		assert(!frozen);
		assert(e == epoch);
		arrived = (attempt == e -> arrived + 1 : 1);
		attempt = e;
		mine = e;
		if
		:: arrived == CTAS -> have = s
		:: else
		fi
	}
}

/* Through with the operation: all its parts are of one epoch. */
inline leave()
{
	stop();
	d_step {
		assert(part == 0 || part == mine);
		part = mine;
		left++;
		if
		:: left == CTAS ->
			over = s;
			here = 0;
			arrived = 0;
			attempt = 0;
			part = 0;
			left = 0
		:: else
		fi;
		s++;
		mine = 0;
		e = 0
	}
}

proctype cta(byte id)
{
	byte s = 1, e, mine;
	bit closed;

	do
	:: s > OPS -> break
	:: s <= OPS && over == s - 1 -> /* stream order; later launches find the gate as it is */
again:
		e = epoch;
		start();
recounted:
		push();
		if
		:: closed -> goto park
#ifndef NO_STAMP_LOOK
		:: !closed && e != epoch -> /* a verdict came between the stamps and the count */
			e = epoch;
			push()
		:: !closed && e == epoch
#else
		:: !closed
#endif
		fi;
		if
		:: base > s -> /* complete: here, while I was parked, or elsewhere */
			mine = (have >= s -> mine : GIVEN);
			goto through
#ifdef NO_PARK_IN_WAIT
		:: base <= s && here == e
#else
		:: base <= s && here == e
		:: base <= s && gate == CLOSED -> goto park
#endif
		fi;
		arrive(); /* the gate may have closed meanwhile: then the host waits for my `stopped` */
#ifndef NO_WAIT_FOR_ALL
		if
		:: have >= s
		:: have < s && gate == CLOSED -> goto park
		fi;
#endif
through:
		leave();
		goto next;
park:
		stop();
#ifdef NO_GATE_TO_COMPLETE /* what is here is completed, gate or not */
		if
		:: base <= s && have < s && here == e -> arrive()
		:: gate == OPEN
		fi;
#endif
		run_again();
		e = epoch;
		closed = OPEN;
		goto recounted;
next:
		skip
	od
}

/* ---- a message ---- */

#ifdef MESSAGE
#ifdef NO_MESSAGE_COUNT
#define COUNTS_IN 0
#else
#define COUNTS_IN 1
#endif

/* Nothing of it is under way any more; it may come in again. */
inline go_out()
{
#ifdef NO_MESSAGE_LAND
	started = started - COUNTS_IN;
	sending = 0
#else
	sending = 0;
	started = started - COUNTS_IN
#endif
}

/* Words are read beside the count, and hold if the answer is of their view; then it goes on while the peer is there. */
active proctype message()
{
	byte e;
	bit closed;

again:
	e = epoch;
#ifdef NO_MESSAGE_ONE_WORD
	closed = gate;
	started = started + COUNTS_IN;
#else
	d_step {
		started = started + COUNTS_IN;
		closed = gate
	}
#endif
	if
	:: closed ->
		go_out();
		gate == OPEN;
		goto again
#ifdef NO_MESSAGE_STAMP_LOOK
	:: !closed
#else
	:: !closed && e != epoch -> /* a view came between the words and the count */
		go_out();
		goto again
	:: !closed && e == epoch
#endif
	fi;
	d_step {
		assert(e == epoch);
		sending = 1
	}
	if
	:: !dead -> skip
#ifndef NO_MESSAGE_LOOK
	:: gate == CLOSED ->
		go_out();
		gate == OPEN;
		goto again
#endif
	fi;
	assert(e == epoch);
	go_out();
	delivered = 1
}
#endif

/* ---- what is not ours ---- */

/* Its data come in the epoch of the last verdict; it may die, and then the host must freeze. */
active proctype peer()
{
end:
	do
	:: d_step { !dead && over < OPS && here != epoch -> here = epoch }
	:: d_step { !dead && freezes < FREEZES -> dead = 1 }
	od
}

/* ---- host ---- */

inline look()
{
#if defined(NO_STOPPED_FIRST)
	ran = started;
	d_step {
		stood = stopped;
		h = have
	}
#elif defined(NO_HAVE_AFTER)
	h = have;
	stood = stopped;
	ran = started
#else
	stood = stopped;
	h = have;
	ran = started
#endif
}

/* What others completed is complete here, the rest is done again: new stamps, then the gate. */
inline verdict()
{
#ifdef NO_VERDICT_FIRST
	gate = OPEN;
#endif
	if
	:: base = h + 1
	:: h < OPS -> base = h + 2
	fi;
	d_step {
		epoch++;
		dead = 0;
		freezes++
	}
#ifndef NO_VERDICT_FIRST
	gate = OPEN
#endif
}

active proctype host()
{
	byte h, stood, ran;

	do
	:: freezes < FREEZES ->
		gate = CLOSED;
		look();
		do
		:: stood != ran -> look()
		:: else -> break
		od;
		atomic {
			frozen = 1; /* FROZEN goes out, the report is made, the commit comes */
			assert((!flying[0] || vain[0]) && (!flying[1] || vain[1]) && !sending);
			assert(have == h)
		}
		d_step {
			assert(have == h);
			frozen = 0;
			if
			:: h < base - 1 -> h = base - 1 /* a repair brought it */
			:: else
			fi;
			stood = 0;
			ran = 0
		}
		verdict();
		h = 0
	:: d_step { !dead -> freezes = FREEZES } -> break
	od;
	rests = 1
}

init
{
	atomic {
		run cta(0);
		run cta(1)
	}
}
