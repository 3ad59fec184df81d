# SPDX-License-Identifier: Apache-2.0
"""A decode server for a Mixture of Experts that loses a rank under load, and goes on.

    python -m covey.run -n 3 --restart=on-failure -- python examples/torch/moe_server.py --kill 1@40 --replicas 2

Each rank decodes its own requests; the experts are spread over all ranks. The server runs twice: first nobody dies, then
ranks are killed under load. Outputs of the second run are compared with those of the first, token by token.
"""

import argparse
import os
import pickle
import signal
import statistics
import struct
import sys
import time
from collections import deque

import torch
from moe_model import WHAT, Experts, Model, Shape, Span
from moe_requests import PROMPTS, Books, to_word

import covey

AGAIN, LATE = 1, 2  # in the last column of the board
BEFORE, WITHOUT, AFTER = "all ranks", "without the dead", "whole again"  # phases of a run
WHOLE_STEPS = 40  # with the replacement, before the server ends


class ExpertLayers:
    """The experts of this rank, and the way to the others: covey.Ep on tensors.

    Attributes:
        missed: [n] bool: rows of this step for which an expert had no living place
        again: a place died after rows went to it: the step must be done again
        dies_in: the layer in which this process kills itself; None: in none
    """

    def __init__(self, group, shape, replicas, tokens, device):
        self.group, self.shape, self.tokens, self.device = group, shape, tokens, device
        ranks, between = group.size, max(1, group.size // replicas)
        owners = [[(e * ranks // shape.experts + p * between) % ranks for p in range(replicas)]
                  for e in range(shape.experts)]
        self.owners = torch.tensor(owners).flatten()  # of place e * replicas + p
        self.ep = covey.Ep(group, max_tokens=tokens, hidden=shape.hidden, top_k=shape.top_k, experts=shape.experts,
                           owners=owners if replicas > 1 else [ranks[0] for ranks in owners], places=replicas)
        self.replicas, self.outputs = replicas, None
        self.experts = Experts(shape, [e for e in range(shape.experts) if group.rank in owners[e]], device)
        self.missed, self.again, self.dies_in = None, False, None

    def begin(self, rows):
        """A step with so many rows here."""
        self.missed, self.again = torch.zeros(rows, dtype=torch.bool), False
        if self.outputs is None:  # when this rank is a member: its handle is laid out then
            self.outputs = self._outputs()

    def _outputs(self):
        el, rows, device = self.ep.local_experts, self.ep.rows, self.device
        made = {"packed_x": torch.zeros(el, rows, self.shape.hidden, dtype=torch.bfloat16, device=device),
                "count": torch.zeros(el, dtype=torch.int32, device=device),
                "src_info": torch.zeros(el, rows, dtype=torch.int32, device=device),
                "range": torch.zeros(el, self.group.size, dtype=torch.int64, device=device)}
        if device.type == "cuda":
            made["route"] = torch.zeros(self.ep.route_bytes, dtype=torch.uint8, device=device)
        self.results = torch.zeros_like(made["packed_x"])
        return made

    def __call__(self, layer, x, ids, weights):
        """What the experts make of @x, summed by their weights."""
        stream = torch.cuda.current_stream() if self.device.type == "cuda" else None
        outputs = dict(self.outputs)
        if self.replicas > 1:
            outputs["placed"] = torch.full(ids.shape, -1, dtype=torch.int32, device=self.device)
        routed = self.ep.dispatch(x.bfloat16(), ids, weights, out=outputs, stream=stream)
        most = int(routed.count.max())
        self.results[:, :most] = self.experts(layer, routed.x[:, :most])
        if self.dies_in == layer:
            os.kill(os.getpid(), signal.SIGKILL)
        out = torch.empty(x.shape, dtype=torch.bfloat16, device=self.device)
        _, outcome = self.ep.combine(self.results, routed, ids, weights, out=out, stream=stream)
        if stream is not None:
            stream.synchronize()
            outcome = self.group.device_result()
        self._look(ids if routed.placed is None else routed.placed, outcome.ranks)
        return out.float()

    def _look(self, placed, ranks):
        """@ranks: the owners whose results are in the sum."""
        placed = placed.cpu().long()
        here = torch.zeros(self.group.size, dtype=torch.bool)
        here[sorted(ranks)] = True
        served = (placed >= 0) & here[self.owners[placed.clamp(min=0)]]
        self.missed |= ~served.all(1)
        self.again |= self.replicas > 1 and bool((~served & (placed >= 0)).any())


class Times:
    """How long steps took, as one rank sees it, which tells of the progress every two seconds."""

    def __init__(self):
        self.steps = {phase: [] for phase in (BEFORE, WITHOUT, AFTER)}  # (seconds, step, tokens)
        self.last, self.told = deque(maxlen=100), time.monotonic()

    def add(self, phase, step, seconds, tokens):
        self.steps[phase].append((seconds, step, tokens))
        self.last.append((seconds, tokens))

    def tell(self, server):
        if time.monotonic() > self.told + 2:
            self.told = time.monotonic()
            rate = sum(tokens for _, tokens in self.last) / sum(seconds for seconds, _ in self.last)
            books = server.books
            server.say(f"step {books.step}, {len(server.members)} ranks, {len(books.requests)} requests here, "
                       f"{books.counts.finished} finished, {rate:.0f} tokens/s")

    def summary(self, phase):
        steps = self.steps[phase]
        seconds, longest, _ = max(steps)
        rate = sum(tokens for _, _, tokens in steps) / sum(seconds for seconds, _, _ in steps)
        return (f"{phase}: {len(steps)} steps, {rate:.0f} tokens/s, step median "
                f"{1000 * statistics.median(seconds for seconds, _, _ in steps):.1f} ms, longest {1000 * seconds:.1f} ms "
                f"(step {longest})")


class Server:
    """One rank of it. @kills: (rank, step) of the second run."""

    def __init__(self, group, options, device):
        self.group, self.options, self.device = group, options, device
        shape = Shape(layers=options.layers)
        self.layers = ExpertLayers(group, shape, options.replicas, options.slots * options.chunk, device)
        self.model = Model(shape, device, self.layers)
        self.newcomer = group.rank not in group.view().members
        self.members = frozenset() if self.newcomer else group.view().members
        self.caches = {}  # of own requests, by number
        self.less_since = None  # when the first of those that are missing died, on this rank's clock
        self.begin(Books(1, options.slots, options.chunk, self.members))

    def begin(self, books):
        self.books, self.times = books, Times()

    def say(self, text):
        """By one rank: one that has seen everything, as long as there is one."""
        if self.group.rank == min(self.books.founders & self.members or self.members):
            print(f"run {self.books.run}: {text}", flush=True)

    # ---- the safe point ----

    def admit(self):
        """Newcomers come in and get the books; requests of ranks that are gone are queued again."""
        self.began = time.monotonic()
        books = pickle.dumps(self.books)
        outcome = self.group.admit(struct.pack("<ii", self.group.rank, len(books)))
        if outcome.ranks - self.members:
            self._hand_over(books, outcome)
        self._change(outcome)

    def _hand_over(self, books, outcome):
        """The lowest member gives its books to the newcomers, who know it and their length from the safe point."""
        if self.newcomer:
            root, length = struct.unpack("<ii", outcome.state)
            books = bytes(length)
        else:
            root = min(outcome.ranks & self.members)
        told = torch.frombuffer(bytearray(books), dtype=torch.uint8)
        try:
            self.group.broadcast(told, root)
        except covey.errors.RootError:  # it died. Members go on; a newcomer without books starts again
            if self.newcomer:
                raise
            return
        if self.newcomer:
            self.newcomer = False
            self.begin(pickle.loads(told.numpy().tobytes()))

    def _change(self, outcome):
        gone, came = self.members - outcome.ranks, outcome.ranks - self.members
        self.members, books = outcome.ranks, self.books
        if gone:
            requests, tokens = books.take_back(outcome.ranks)
            self.say(f"step {books.step}: rank {sorted(gone)} is gone, epoch {outcome.epoch}; {requests} requests of it "
                     f"are queued again, {tokens} tokens of them are read again")
        elif came and books.losses:
            self.say(f"step {books.step}: rank {sorted(came)} is in, epoch {outcome.epoch}")
        whole = len(self.members) == self.group.size
        books.change(outcome.ranks, len(gone), whole)
        self.less_since = None if whole else self.less_since or time.monotonic()

    # ---- steps ----

    def step(self):
        """Behind a safe point."""
        books = self.books
        if self.is_open() and len(books.requests) < (self.options.slots + 1) * self.group.size:
            books.arrive()
        books.assign(self.members)
        own = books.of(self.group.rank)
        self.caches = {r.number: self.caches[r.number] if r.fed else self.model.cache() for r in own}
        if (self.group.rank, books.step) in self.options.kills and books.run == 2:
            self.layers.dies_in = self.options.layers // 2
        while True:
            board, contributors = self.exchange(self.decode(own))
            if not board[:, -1].max() & AGAIN:
                break
            books.counts.steps_again += 1
        books.gave_up |= bool(board[:, -1].max() & LATE)
        whole = len(contributors) == self.group.size  # the step of a death is none
        phase = WITHOUT if not whole else AFTER if books.losses else BEFORE
        step, tokens = books.step, books.enter(board.tolist(), contributors)
        self.times.add(phase, step, time.monotonic() - self.began, tokens)
        self.times.tell(self)

    def decode(self, own):
        """This rank's row of the board."""
        chunk = self.options.chunk
        spans = [Span(self.caches[r.number], r.fed, r.rows(chunk)) for r in own]
        tokens = [t for r, s in zip(own, spans) for t in r.tokens[s.start:s.start + s.count]]
        self.layers.begin(len(tokens))
        given, at = self.model(tokens, spans).tolist(), 0
        row = [0] * self.options.slots
        for request, span in zip(own, spans):
            here = slice(at, at + span.count)
            at += span.count
            request.missed |= bool(self.layers.missed[here].any()) and not self.layers.again
            if request.speaks(chunk):
                row[request.slot] = to_word(given[at - 1], request.missed)
        late = self.less_since is not None and time.monotonic() > self.less_since + self.options.patience
        return [*row, AGAIN * self.layers.again + LATE * late]

    def exchange(self, row):
        """The rows of all ranks. An allreduce has the same result on all survivors."""
        board = torch.zeros(self.group.size, len(row), dtype=torch.int32)
        board[self.group.rank] = torch.tensor(row)
        return board, self.group.allreduce(board, op="max").ranks

    def is_open(self):
        """More requests arrive. In the second run until the group has been whole for a while after the last death."""
        books = self.books
        if books.run == 1:
            return books.arrived < len(PROMPTS)
        if books.step <= max(step for _, step in self.options.kills):
            return True
        return not books.gave_up and (books.whole_since is None or books.step < books.whole_since + WHOLE_STEPS)

    def serve(self):
        """Both runs; was all as it must be?"""
        right = True
        while True:
            self.admit()
            if self.is_open() or self.books.requests:
                self.step()
                continue
            right = report(self) and right
            if self.books.run == 2 or not self.options.kills:
                return right
            self.begin(Books(2, self.options.slots, self.options.chunk, self.members, self.books.wanted))


def report(server):
    """Was no output other than it must be?"""
    counts, run = server.books.counts, server.books.run
    for phase, steps in server.times.steps.items():
        if steps:
            server.say(server.times.summary(phase))
    server.say(f"{counts.finished} requests, {counts.tokens} tokens")
    if run == 1 and server.options.show:
        for prompt, tokens in sorted(server.books.wanted.items()):
            server.say(f"answer {bytes(tokens[len(PROMPTS[prompt].encode()):]).decode()!r} to {PROMPTS[prompt]!r}")
    if run == 2:
        server.say(f"requests taken over {counts.taken_over}, tokens read again {counts.read_again}, tokens lost in a "
                   f"death and made again {counts.lost}, steps done again {counts.steps_again}")
        server.say(f"outputs: {counts.equal} of {counts.finished} equal to run 1, {counts.missed} differ where experts "
                   f"were gone, {counts.wrong} differ otherwise")
    return counts.wrong == 0


def options_of(arguments):
    parser = argparse.ArgumentParser(description="A decode server for a Mixture of Experts that loses ranks.")
    parser.add_argument("--kill", metavar="RANK@STEP", action="append", default=[], help="may be given several times")
    parser.add_argument("--replicas", type=int, default=1, help="places of each expert (1)")
    parser.add_argument("--slots", type=int, default=4, help="requests of a rank at a time (4)")
    parser.add_argument("--chunk", type=int, default=4, help="tokens of a prompt that a step reads (4)")
    parser.add_argument("--layers", type=int, default=Shape.layers, help=f"of the model ({Shape.layers})")
    parser.add_argument("--patience", type=float, default=60, help="seconds that a replacement is awaited (60)")
    parser.add_argument("--show", action="store_true", help="print the answers of the first run")
    options = parser.parse_args(arguments)
    try:
        options.kills = [tuple(int(part) for part in kill.split("@")) for kill in options.kill]
        if any(len(kill) != 2 for kill in options.kills):
            raise ValueError
    except ValueError:
        parser.error(f"--kill {' '.join(options.kill)}: it must be RANK@STEP, as 1@40")
    for name in ("slots", "chunk", "layers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: it must be 1 or more")
    return options


def check(options, ranks):
    """What depends on the number of ranks."""
    if not 1 <= options.replicas <= ranks:
        raise SystemExit(f"--replicas {options.replicas}: it must be from 1 to {ranks}, the ranks")
    for rank, step in options.kills:
        if not 0 <= rank < ranks:
            raise SystemExit(f"--kill {rank}@{step}: the rank must be from 0 to {ranks - 1}")


def device_of(rank):
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def main():
    options = options_of(sys.argv[1:])
    torch.set_num_threads(1)
    device = device_of(int(os.environ.get("COVEY_RANK", 0)))
    with covey.join(device=device.index) as group:
        check(options, group.size)
        server = Server(group, options, device)
        if server.newcomer:
            options.kills = [(-1, step) for _, step in options.kills]  # nobody is killed twice
        else:
            server.say(f"{WHAT}, {options.layers} layers; {group.size} ranks on {device.type}, {options.replicas} places "
                       f"of each expert")
        right = server.serve()
        group.barrier()
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
