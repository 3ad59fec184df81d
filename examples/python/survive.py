# SPDX-License-Identifier: Apache-2.0
"""A Mixture-of-Experts step that loses a rank: tokens go to experts and come back; then one process is killed.

    python -m covey.run -n 4 -- python examples/python/survive.py

Every rank has two experts; expert e multiplies by e + 1. Rank 2 dies in step 5. The others go on with its experts
missing, and renormalise; in the next step its experts have new owners.
"""

import os
import signal

import numpy as np

import covey

TOKENS, HIDDEN, TOP_K, EXPERTS = 8, 64, 2, 8


def step(group, ep, number):
    """One layer: the result of each token, and how many ranks took part."""
    rng = np.random.default_rng(1000 * number + group.rank)
    x = rng.integers(-4, 5, (TOKENS, HIDDEN)).astype(np.float32)
    experts = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)]).astype(np.int32)
    weights = np.full((TOKENS, TOP_K), 0.5, np.float32)

    routed = ep.dispatch(covey.to_bf16(x), experts, weights)
    y = covey.from_bf16(routed.x)
    mine = [e for e in range(EXPERTS) if owners[e] == group.rank]
    for local, expert in enumerate(mine):
        y[local, : routed.count[local]] *= expert + 1
    out, outcome = ep.combine(covey.to_bf16(y), routed, experts, weights, renormalise=True)

    valid = np.isin(experts, [e for e in range(EXPERTS) if owners[e] in outcome.ranks])
    scale = np.where(valid, experts + 1, 0).sum(1) / np.maximum(valid.sum(1), 1)
    close = np.allclose(covey.from_bf16(out), x * scale[:, None], rtol=0.02)
    return close, outcome


with covey.join() as group:
    owners = [e * group.size // EXPERTS for e in range(EXPERTS)]
    with covey.Ep(group, max_tokens=TOKENS, hidden=HIDDEN, top_k=TOP_K, experts=EXPERTS, owners=owners) as ep:
        for number in range(10):
            living = sorted(group.admit().ranks)
            if any(owner not in living for owner in owners):  # experts of the dead go to the living
                owners = [living[e % len(living)] for e in range(EXPERTS)]
                ep.remap(owners)
            if number == 5 and group.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            right, outcome = step(group, ep, number)
            if group.rank == living[0]:
                print(f"step {number}: {len(outcome.ranks)} ranks, epoch {outcome.epoch}: "
                      f"{'right' if right else 'WRONG'}")
