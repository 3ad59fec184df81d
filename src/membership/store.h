/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format of the store's calls: one Lua script (store/), one hash per group `covey:{NAME}:g` (KEYS[1]), one
 * channel for hints `covey:{NAME}:n` (KEYS[2]).
 *
 * Request, all strings (`-`: none):
 *   name gid rank inc nonce life rnd  then the arguments of the call
 * rnd: 32 fresh random hex digits, from which the script takes every random name it needs.
 *
 *   register  rank|any addr host create(0|1) world max policy(auto|manual) secret job age lapse gone gids tell(0|1)
 *             setting...
 *             age: ms since this process was started, or `-`; lapse: ms of silence that count as death, 0: none do;
 *             gone: `rank:inc,...` of processes that are surely dead; gids: `gid,...` of groups of this name in which
 *             the caller was registered; tell: the founders conflict, and all must get the error; each setting
 *             `name=value`, without spaces. Missing arguments at the end are `-`
 *   ready     epoch
 *   hello     npairs field value ...           the member's record (see below) and `ph` = run if it saw the view
 *                                              active, else inst; npairs 0: none
 *   open      epoch reason n  rank inc ...     n accused
 *   report    epoch vid done ent adm stamp flags proven bad
 *             flags: letters of `s` spoiled, `m` mismatch, `l` leaving, `a` all members of the view have acknowledged
 *             it, `o` opens the change first if a member is proven dead; or `-`
 *             proven, bad: `rank:inc,...` or `-`
 *   decide    epoch force(0|1|2)
 *   ack       epoch vid
 *   peek      epoch rev                        of the caller's record; from outside: 0 -1
 *   beat      epoch rev stat                   like peek; also stores t:R = `server-ms stat`
 *   prove     rank inc kind                    (common rank, inc are `-`: from outside, or a member's own)
 *   ask       kind args                        evict R[,R] | retire R[,R] | recover R[,R] | extend N |
 *                                              policy auto|manual | forget
 *
 * Reply: status, then pairs `field value`. Statuses: OK, WAIT, COMMIT, ACTIVE, NOQUORUM, REFUSED, TAKEN,
 * BUSY, FULL, CLOSED, GONE, FENCED, LIFE, VERSION, ERROR. Pairs of every reply but GONE and ERROR:
 * gid life ph epoch vid rev. Other pairs:
 *
 *   register OK     rank inc secret max policy world + record
 *   hello OK, report/decide COMMIT                + record
 *   peek, beat OK   + record when the caller's epoch is not the store's epoch, see below;
 *                   + j: e: w: when rev is not the store's: all; if the reply has `gone`, those that changed since the
 *                   caller's rev; gone = `j:R,...` that were deleted, or `-`
 *   peek from outside    every field of the hash but secret
 *   register, hello   + all j: too
 *   beat OK         + now (server ms) and the ms of t: of the next 16 ranks, for leases
 *   WAIT to a repeated ack    wait = `rank,...` still missing
 *   NOQUORUM        need = missing voters
 *   REFUSED, BUSY, FULL, CLOSED, VERSION, ERROR    why = one line for people; REFUSED to a process that joins also
 *                   err = INVAL|BUSY
 *   ERROR           why also `NOPERM COMMAND: ...` (the user of the connection may not run it) and `NOCOMMAND COMMAND`
 *                   (the server does not have it)
 *   TAKEN to register    kind = run|job|value|rank, why, now (server ms), count = processes in the way, and of 64 of
 *                   them t: and m: or j:
 *
 * Record of changes, to peek, beat, report and decide of a caller whose view was the last one and became active:
 * on = `epoch vid` of that view, the scalars that change, one l:, and the m: that are new or have another `from`. It
 * needs no o: and u:, since o: are the admitted of the caller's view and there is no u:.
 *
 * Whole record: proto gid secret max policy world job alike old incs epoch vid base fail stamp size, act (epoch of the
 * last view known active here; it shows whether the view is) and all m: o: u: l: e: w:, as in the hash.
 *
 *   fail = `seq LOST|MISMATCH` or `0`
 *   m:R = `inc from addr host` (from `-`: pending)
 *   o:R = inc
 *   u:E = `rank:inc,...` admitted of doubtful view E
 *   l:E = `vid removed added lag` each `rank,...` or `-`, of the last 16 epochs
 *   j:R = `inc nonce addr host epoch` (epoch 0: not ready)
 *   e:R = `inc evict|retire`
 *   w:R = `recover|extend`
 *   x:R = `inc by reason`
 *   d:R = `inc by kind`
 *   q:R = `inc left|retired ms`
 *   t:R = `ms stat`, stat = `phase;done seq,numbers;links` (numbers: observe/metrics.h; links: `1:shm,2:tcp,...`)
 *   r:R = `inc done ent adm stamp flags`
 *   b:R = `rank:inc,...`
 *   k:R = inc
 *   c:R = `inc` or `inc said`
 *
 * Notice on the channel: `epoch phase`. When a view became active, also the pairs of every reply. At a commit of at
 * most 64 members, also the record without `secret`. Each field and each value is a line of its own.
 */
#ifndef CVY_STORE_H
#define CVY_STORE_H

#define CVY_STORE_PROTO "2" /* schema version of the hash */

extern const char cvy_store_lua[];  /* the parts in store/, joined; built into the library */
extern const char cvy_store_sha1[]; /* its SHA-1 in hex, computed at build time */

#endif
