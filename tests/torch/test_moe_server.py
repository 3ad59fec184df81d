# SPDX-License-Identifier: Apache-2.0
"""examples/torch/moe_server.py: ranks die under load, and its outputs are those of a run without deaths."""

import ast
import os
import re
import subprocess
import sys

import pytest
import torch

_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "examples", "torch")
sys.path.insert(0, _FOLDER)

from moe_model import Experts, Model, Shape, Span
from moe_requests import PROMPTS, Books, to_word
from moe_server import check, options_of

LAYERS, SLOTS, CHUNK = 2, 4, 4


def output(ranks, *options, restart=True):
    """Runs the server: its exit status, its standard output, and that with its errors."""
    command = [os.path.join(os.environ["COVEY_BUILD"], "tools", "ep-run"), "-n", str(ranks),
               *(["--restart=on-failure"] if restart else []), "--", sys.executable,
               os.path.join(_FOLDER, "moe_server.py"), "--layers", str(LAYERS), *options]
    environment = {k: v for k, v in os.environ.items() if k not in ("COVEY_STORE", "COVEY_GROUP")}
    environment.update(CUDA_VISIBLE_DEVICES="", COVEY_HANG_MS="20000")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stdout + done.stderr


def numbers(pattern, text):
    found = re.search(pattern, text)
    assert found, f"no {pattern!r} in:\n{text}"
    return [int(n) for n in found.groups()]


def plain_model(shape):
    """The network without ranks: each token's experts, one by one."""
    experts = Experts(shape, list(range(shape.experts)), torch.device("cpu"))

    def moe(layer, x, ids, weights):
        every = experts(layer, x.expand(shape.experts, *x.shape))
        chosen = every[ids, torch.arange(len(x))[:, None]]
        return (weights[:, :, None] * chosen).sum(1).bfloat16().float()

    return Model(shape, torch.device("cpu"), moe)


def answer(model, prompt, count, chunk):
    tokens, cache, fed = list(prompt.encode()), model.cache(), 0
    first = len(tokens)
    while len(tokens) < first + count:
        rows = min(chunk, len(tokens) - fed)
        given = model(tokens[fed:fed + rows], [Span(cache, fed, rows)])
        fed += rows
        if fed == len(tokens):
            tokens.append(int(given[-1]))
    return bytes(tokens[first:]).decode()


def check_answers(printed, everything):
    """Those of some prompts are what the model alone gives, in any batch."""
    told = dict(reversed(pair) for pair in re.findall(r"answer ('.*'|\".*\") to ('.*'|\".*\")", printed))
    assert len(told) == len(PROMPTS), everything
    model = plain_model(Shape(layers=LAYERS))
    for prompt in PROMPTS[:3]:
        found = ast.literal_eval(told[repr(prompt)])
        assert len(set(found)) > 2
        assert answer(model, prompt, len(found), 1) == answer(model, prompt, len(found), 9) == found


def expected(ranks, kills):
    """What the books say of deaths before a replacement comes: (requests taken over, tokens lost, tokens read again)."""
    members = frozenset(range(ranks))
    books = Books(2, SLOTS, CHUNK, members)
    while books.step <= max(kills.values()) + 1:
        members -= {rank for rank, step in kills.items() if step < books.step}
        books.take_back(members)
        if len(books.requests) < (SLOTS + 1) * ranks:
            books.arrive()
        books.assign(members)
        board = [[to_word(0, False)] * SLOTS for _ in range(ranks)]
        books.enter(board, members - {rank for rank, step in kills.items() if step == books.step})
    return books.counts.taken_over, books.counts.lost, books.counts.read_again


@pytest.mark.parametrize("ranks, replicas, kills", [(2, 1, {1: 40}), (3, 2, {1: 40}), (4, 2, {0: 20, 1: 21})])
def test_ranks_die_under_load_and_are_replaced(ranks, replicas, kills):
    options = [word for rank, step in kills.items() for word in ("--kill", f"{rank}@{step}")]
    code, printed, everything = output(ranks, *options, "--replicas", str(replicas), "--show")
    assert code == 0, everything
    check_answers(printed, everything)
    for rank, step in kills.items():
        numbers(rf"step ({step + 1}): rank \[{rank}\] is gone", printed)
    assert printed.count("] is in, epoch") >= 1, everything
    taken, again, lost, steps = numbers(r"taken over (\d+), tokens read again (\d+), tokens lost in a death and made again "
                                        r"(\d+), steps done again (\d+)", printed)
    assert (taken, lost, again) == expected(ranks, kills) and lost > 0, everything
    equal, finished, missed, wrong = numbers(r"outputs: (\d+) of (\d+) equal to run 1, (\d+) differ where experts were "
                                             r"gone, (\d+) differ otherwise", printed)
    assert wrong == 0 and equal + missed == finished and equal > 0, everything
    if replicas > 1:
        assert missed == 0 and steps <= len(kills), everything  # if all survivors had the rows, which is the rule
    else:
        assert missed >= taken and steps == 0, everything


def test_nobody_comes():
    code, printed, everything = output(2, "--kill", "1@5", "--replicas", "2", "--patience", "1", restart=False)
    assert code == 0, everything
    equal, finished = numbers(r"outputs: (\d+) of (\d+) equal to run 1", printed)
    assert equal == finished > 0 and "whole again" not in printed, everything


@pytest.mark.parametrize("words, why", [("--replicas 3", "--replicas 3: it must be from 1 to 2, the ranks"),
                                        ("--kill 2@1", "--kill 2@1: the rank must be from 0 to 1"),
                                        ("--kill 2", "--kill 2: it must be RANK@STEP"),
                                        ("--slots 0", "--slots 0: it must be 1 or more")])
def test_wrong_options_are_named(words, why, capsys):
    with pytest.raises(SystemExit) as refused:
        check(options_of(words.split()), 2)
    assert why in f"{refused.value} {capsys.readouterr().err}"
