# SPDX-License-Identifier: Apache-2.0
"""Requests of a decode server, and what its ranks know of them.

Every rank has the same books and changes them in the same way: by the members of a safe point, and by the board of new
tokens that a step ends with. So no rank is in charge, and any of them can hand the books to a newcomer.
"""

from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Optional, Tuple

PROMPTS = """\
A baker who oversleeps sells no bread in the morning.
The river rose in the night, and at dawn the lower road was gone.
To mend a wheel, take it off first; to mend a wagon, unload it.
Seven birds sat on the wire. One flew up, and the others did not notice.
Write down what you have promised, or others will remember it for you.
The lighthouse keeper had two lamps, so that one could be cleaned.
A map that is too large is as useless as one that is too small.
When the orchestra lost its second violin, the conductor changed one page.
Salt keeps the fish, smoke keeps the meat, and a lid keeps the cat away.
The last train leaves at ten. The one before it leaves when it is full.
If a bridge has three pillars, ask what it does with two.
Every evening the shopkeeper counted the coins twice, and the buttons once.
""".splitlines()


@dataclass
class Request:
    number: int
    prompt: int
    tokens: List[int]  # of the prompt, and those that have come
    ends: int  # it is finished with so many
    owner: Optional[int] = None  # the rank that decodes it
    slot: int = 0  # there
    fed: int = 0  # tokens that its owner's model has read
    missed: bool = False  # an expert of one of its tokens had no living place

    def rows(self, chunk: int) -> int:
        """In the next step."""
        return min(len(self.tokens) - self.fed, chunk)

    def speaks(self, chunk: int) -> bool:
        """The next step gives its next token."""
        return self.fed + chunk >= len(self.tokens)


@dataclass
class Counts:
    finished: int = 0
    equal: int = 0  # to the run without deaths
    missed: int = 0  # different, because experts were gone
    wrong: int = 0  # different without such a reason
    tokens: int = 0
    lost: int = 0  # of a dead rank's last step: computed again elsewhere
    taken_over: int = 0  # requests
    read_again: int = 0  # tokens of these, which the new owner must read
    steps_again: int = 0


@dataclass
class Books:
    """Of one run of the server."""

    run: int
    slots: int  # of a rank
    chunk: int  # tokens of a request that one step reads at most
    founders: FrozenSet[int]  # ranks that have been here since the run began
    wanted: Dict[int, List[int]] = field(default_factory=dict)  # outputs by prompt, of a run without deaths
    step: int = 0
    arrived: int = 0
    requests: Dict[int, Request] = field(default_factory=dict)  # those that are not finished
    counts: Counts = field(default_factory=Counts)
    losses: int = 0  # ranks
    whole_since: Optional[int] = 0  # step; None: ranks are missing
    gave_up: bool = False  # they are not awaited any more

    def change(self, members, gone: int, whole: bool) -> None:
        """At a safe point."""
        self.founders &= members
        self.losses += gone
        if not whole:
            self.whole_since = None
        elif self.whole_since is None:
            self.whole_since = self.step

    def arrive(self) -> None:
        """The next request: the prompts follow each other, and each has its own length of answer."""
        prompt = self.arrived % len(PROMPTS)
        tokens = list(PROMPTS[prompt].encode())
        self.requests[self.arrived] = Request(self.arrived, prompt, tokens, len(tokens) + 16 + 7 * prompt % 24)
        self.arrived += 1

    def of(self, rank: int) -> List[Request]:
        return [r for r in self.requests.values() if r.owner == rank]

    def take_back(self, members) -> Tuple[int, int]:
        """Requests of ranks that are gone are queued again. Their tokens are here; keys and values are not.

        Returns:
            how many, and how many tokens their new owners must read again
        """
        found = [r for r in self.requests.values() if r.owner is not None and r.owner not in members]
        again = sum(r.fed for r in found)
        for request in found:
            request.owner, request.fed = None, 0
        self.counts.taken_over += len(found)
        self.counts.read_again += again
        return len(found), again

    def assign(self, members) -> None:
        """Waiting requests, oldest first, to the ranks with the fewest."""
        used = {rank: {r.slot for r in self.of(rank)} for rank in sorted(members)}
        for request in sorted((r for r in self.requests.values() if r.owner is None), key=lambda r: r.number):
            rank = min(used, key=lambda r: len(used[r]))
            if len(used[rank]) == self.slots:
                return
            request.owner, request.slot = rank, min(set(range(self.slots)) - used[rank])
            used[rank].add(request.slot)

    def enter(self, board: List[List[int]], contributors) -> int:
        """What a step has given: row r of @board has a word for each slot of rank r. Returns the number of new tokens."""
        new = 0
        for request in list(self.requests.values()):
            if request.owner is None:
                continue
            speaks = request.speaks(self.chunk)
            if request.owner not in contributors:
                self.counts.lost += speaks
                continue
            request.fed += request.rows(self.chunk)
            if speaks:
                new += 1
                self._hear(request, *from_word(board[request.owner][request.slot]))
        self.step += 1
        self.counts.tokens += new
        return new

    def _hear(self, request: Request, token: int, missed: bool) -> None:
        request.tokens.append(token)
        request.missed |= missed
        if len(request.tokens) == request.ends:
            self._finish(self.requests.pop(request.number))

    def _finish(self, request: Request) -> None:
        counts = self.counts
        wanted = self.wanted.get(request.prompt) if request.missed else self.wanted.setdefault(request.prompt,
                                                                                              request.tokens)
        counts.finished += 1
        if request.tokens == wanted:
            counts.equal += 1
        elif request.missed:
            counts.missed += 1
        else:
            counts.wrong += 1


def to_word(token: int, missed: bool) -> int:
    """On the board; 0: nothing."""
    return 1 + 2 * token + int(missed)


def from_word(word: int):
    return (word - 1) // 2, bool((word - 1) % 2)
