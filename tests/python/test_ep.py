# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine: each preset, type and output, against the routing that was drawn."""

import concurrent.futures
import sys

import numpy as np
import pytest

import covey

WORLD = 3


def routing(rng, tokens, top_k, experts):
    """Each token goes to @top_k experts, with a weight of a half each."""
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)]).astype(np.int32)
    return ids, np.full(ids.shape, 0.5, np.float32)


def weighed(routed, y):
    """Experts that are the identity: a row that came once for several is weighed by those that it names."""
    if routed.recv_experts is None:
        return y
    return y * routed.recv_weights.sum(1, where=routed.recv_experts >= 0)[:, None]


def experts(group, preset, rows):
    T, H, K, E = 16, 256, 2, 6
    rng = np.random.default_rng(group.rank)
    x = rng.integers(-8, 8, (T - group.rank, H)).astype(np.float32)
    ids, weights = routing(rng, len(x), K, E)
    shape = dict(max_tokens=T, hidden=H, top_k=K, experts=E, preset=preset, rows=rows)
    sizes = covey.Ep.sizes(group, **shape)
    with covey.Ep(group, **shape) as ep:
        routed = ep.dispatch(covey.to_bf16(x), ids, weights)
        assert (sizes["rows"], sizes["local_experts"]) == (ep.rows, ep.local_experts)
        for name in ("packed_x", "packed_scales", "src_info", "range", "count", "recv_experts", "recv_weights"):
            array = routed._arrays.get(name)
            assert sizes[name + "_bytes"] == (0 if array is None else array.nbytes), name
        assert routed.outcome.ranks == {0, 1, 2} and ep.local_experts == 2
        if rows == "e4m3":  # rows that are given so come as they are: element 0 of each token is its first id
            codes, scales = np.full((len(x), H), 0x38, np.uint8), np.ones((len(x), H // 128), np.float32)
            scales[:, 0] = ids[:, 0]
            routed = ep.dispatch(codes, ids, weights, x_scales=scales)
            some = routed.x.reshape(-1, H)[0]
            assert (some == 0x38).all() and float(routed.scales.reshape(-1)[0]) in range(E)
            with pytest.raises(TypeError, match="uint8"):
                ep.dispatch(covey.to_bf16(x), ids, weights, x_scales=scales)
            return
        y = covey.to_bf16(weighed(routed, covey.from_bf16(routed.x)))
        out, outcome = ep.combine(y, routed, ids, weights)
        assert outcome.ranks == {0, 1, 2}
        np.testing.assert_array_equal(covey.from_bf16(out), x)
        wide_ids(ep, x, ids, weights, routed)


def wide_ids(ep, x, ids, weights, routed):
    """In int64 the same comes; an id whose low word alone is an expert is skipped."""
    again = ep.dispatch(covey.to_bf16(x), ids.astype(np.int64), weights)
    np.testing.assert_array_equal(again.range, routed.range)
    np.testing.assert_array_equal(again.count, routed.count)
    out, _ = ep.combine(np.zeros_like(routed.x), again, ids.astype(np.int64), weights)
    assert not out.any()
    far = ep.dispatch(covey.to_bf16(x), ids.astype(np.int64) + (1 << 32), weights)
    assert not far.count.any()
    out, _ = ep.combine(np.ones_like(routed.x), far, ids.astype(np.int64) + (1 << 32), weights)
    assert not out.any()
    with pytest.raises(TypeError, match="int32 or int64"):
        ep.dispatch(covey.to_bf16(x), ids.astype(np.uint32), weights)


def origins(group, preset):
    """Masks, and outputs as callers of other systems know them, against the routing of all ranks."""
    T, H, K, E = 8, 64, 2, 6
    ranks = [np.random.default_rng(r) for r in range(group.size)]
    ids = [np.stack([rng.permutation(E)[:K] for _ in range(T)]).astype(np.int32) for rng in ranks]
    masks = [rng.integers(0, 2, T).astype(bool) for rng in ranks]
    x, weights = np.ones((T, H), np.float32), np.ones((T, K), np.float32)
    also = ["expert_tokens", "triplets", "flat"] + (["recv_counts"] if preset != "compact" else [])
    with covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, preset=preset) as ep:
        sizes = covey.Ep.sizes(group, max_tokens=T, hidden=H, top_k=K, experts=E, preset=preset)
        mine = [e for e in range(E) if e // 2 == group.rank]
        close = preset in ("win", "mesh")
        unit = 1 if close else 4
        routed = ep.dispatch(covey.to_bf16(x), ids[group.rank], weights, token_mask=masks[group.rank], also=also,
                             fill_tail=True, expert_alignment=unit, expert_tokens_as="sums")
        for name in ("expert_tokens", "triplets", "flat", "recv_counts"):
            array = getattr(routed, name)
            assert sizes[name + "_bytes"] == (0 if array is None else array.nbytes), name
        rows = {e: [(r, t, k) for r in range(group.size) for t in range(T) for k in range(K)
                    if masks[r][t] and ids[r][t, k] == e] for e in mine}
        np.testing.assert_array_equal(routed.expert_tokens, np.cumsum([-(-len(rows[e]) // unit) * unit for e in mine]))
        bins = [rows[e] for e in mine]
        if preset == "compact":  # one row a token, by the first of its experts here
            firsts = {}
            for r, t, k in (row for e in mine for row in rows[e]):
                firsts[r, t] = min(k, firsts.get((r, t), K))
            bins = [[(r, t, k) for (r, t), k in sorted(firsts.items())]]
        else:
            runs = [sum(r == s for r, _, _ in b) for b in bins for s in range(group.size)]
            np.testing.assert_array_equal(routed.recv_counts.reshape(-1), np.cumsum(runs))
        if close:  # the first row of a run is the end of the one before
            np.testing.assert_array_equal(routed.range.reshape(-1) & 0xffffffff, np.cumsum([0, *runs[:-1]]))
            assert routed.x.shape == (ep.rows, H) and ep.rows == group.size * T * K
            bins = [[row for b in bins for row in b]]
            with pytest.raises(covey.errors.InvalError, match="stand close"):
                ep.dispatch(covey.to_bf16(x), ids[group.rank], weights, also=["expert_tokens"], expert_alignment=4)
            short = ep._rooms([], T)
            short["triplets"] = short["triplets"][:-1]
            with pytest.raises(ValueError, match=f"triplets has {3 * ep.rows - 3} elements, it needs {3 * ep.rows}"):
                ep.dispatch(covey.to_bf16(x), ids[group.rank], weights, out=short)
        for b, triplets, flat, src in zip(bins, routed.triplets.reshape(len(bins), -1, 3),
                                          routed.flat.reshape(len(bins), -1, 2), routed.src_info.reshape(len(bins), -1)):
            assert [tuple(row) for row in triplets[:len(b)]] == b
            assert [tuple(row) for row in flat[:len(b)]] == [(r, t * K + k) for r, t, k in b]
            assert (triplets[len(b):] == -1).all() and (flat[len(b):] == -1).all() and (src[len(b):] == -1).all()
        masked_combine(ep, group, ids[group.rank], masks[group.rank], routed)


def masked_combine(ep, group, ids, mask, routed):
    x, weights = np.ones((len(ids), ep.hidden), np.float32), np.ones(ids.shape, np.float32)
    compact = routed.recv_experts is not None
    out, _ = ep.combine(routed.x, routed, ids, weights)
    owners = [len({e // 2 for e in row}) if compact else len(row) for row in ids]  # rows that come back
    np.testing.assert_array_equal(covey.from_bf16(out)[:, 0], np.where(mask, owners, 0))
    entries = np.zeros(ids.shape, np.uint8)
    entries[:, 1] = 1
    routed = ep.dispatch(covey.to_bf16(x), ids, weights, token_mask=entries)
    assert (routed.triplets is None) == (ep.preset != covey.EpPreset.WIN)
    out, _ = ep.combine(routed.x, routed, ids, weights)
    np.testing.assert_array_equal(covey.from_bf16(out), 1)
    for wrong, kind, why in (({"token_mask": entries[:-1]}, ValueError, "token_mask has 14 elements"),
                             ({"token_mask": entries.astype(np.int32)}, TypeError, "token_mask has elements of int32"),
                             ({"also": ["triplet"]}, ValueError, "it may have expert_tokens, recv_counts, triplets"),
                             ({"expert_tokens_as": "sum"}, ValueError, "sum"),
                             ({"expert_alignment": 4}, covey.errors.InvalError, "rounds (expert_tokens )?up")):
        with pytest.raises(kind, match=why):
            ep.dispatch(covey.to_bf16(x), ids, weights, **wrong)


def arrivals(group):
    """A thread reads rows while the dispatch runs; the factors of the experts are given to the combine."""
    T, H, K, E = 8, 64, 2, 6
    rng = np.random.default_rng(group.rank)
    ids, weights = routing(rng, T, K, E)
    x = np.full((T, H), 1 + group.rank, np.float32)
    shape = dict(max_tokens=T, hidden=H, top_k=K, experts=E, preset="flat")
    with covey.Ep(group, **shape) as ep:
        out = ep._rooms([], T)
        words = np.zeros(ep.arrived_words, np.uint32)
        assert covey.Ep.sizes(group, **shape)["arrived_bytes"] == words.nbytes
        seen = set()

        def read():
            ended = False
            while not ended:
                ended = words[covey.EpArrived.ENDED] == covey.ARRIVED
                for row in np.flatnonzero(words[covey.EpArrived.ROWS:] == covey.ARRIVED):
                    source = out["flat"].reshape(-1, 2)[row, 0]
                    assert (covey.from_bf16(out["packed_x"].reshape(-1, H)[row]) == 1 + source).all()
                    seen.add(int(row))

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reader = pool.submit(read)
            routed = ep.dispatch(covey.to_bf16(x), ids, weights, out=out, arrived=words)
            reader.result()
        assert seen == {e * ep.rows + i for e in range(ep.local_experts) for i in range(routed.count[e])}
        assert words[covey.EpArrived.RANGE] == covey.ARRIVED and not words[covey.EpArrived.AGAIN]
        mine = np.arange(ep.local_experts, dtype=np.float32) + 1 + 2 * group.rank  # expert e has e + 1
        y, outcome = ep.combine(routed.x, routed, ids, weights, expert_scale=mine)
        np.testing.assert_array_equal(covey.from_bf16(y), x * ((ids + 1) / 2).sum(1, keepdims=True))
        for wrong, kind, why in ((words[:-1], ValueError, "arrived has"), (words.astype(np.int64), TypeError, "int32")):
            with pytest.raises(kind, match=why):
                ep.dispatch(covey.to_bf16(x), ids, weights, arrived=wrong)
        assert ep.dispatch(covey.to_bf16(x), ids, weights).flat is not None
    with covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, preset="compact") as ep:
        routed = ep.dispatch(covey.to_bf16(x), ids, weights)
        with pytest.raises(covey.errors.InvalError, match="expert_scale differs by expert"):
            ep.combine(routed.x, routed, ids, weights, expert_scale=mine)


def empty(group, preset):
    """Ranks without tokens, or experts: arrays have no elements, or are None."""
    T, H, K, E = 4, 32, 2, WORLD - 1
    with covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, owners=list(range(E)), preset=preset) as ep:
        for number in range(2 * E):  # all tokens go to one rank; the last rank has no experts
            n = number % 2 * T * (group.rank > 0)
            ids, weights = np.full((n, K), number // 2, np.int32), np.ones((n, K), np.float32)
            ids[:, 1:] = -1
            x = np.full((n, H), 0x4000, np.uint16)  # 2.0
            routed = ep.dispatch(x if n or number else None, ids, weights)
            came = number % 2 and group.rank == number // 2
            if came:
                with pytest.raises(covey.errors.InvalError, match="y must not be NULL when rows came"):
                    ep.combine(None, routed, ids, weights)
            out, outcome = ep.combine(routed.x if came else None if number % 3 else np.empty((0, H), np.uint16), routed,
                                      ids, weights)
            assert outcome.ranks == {0, 1, 2} and out.shape == (n, H)
            assert (out == 0x4000).all()


def halves(group, preset):
    T, H, K, E = 16, 256, 2, 6
    rng = np.random.default_rng(group.rank)
    x = rng.integers(0, 16, (T, H)).astype(np.float16)
    x[0, :3] = 65504, 2.0 ** -24, -2.0 ** -14  # the largest, the smallest, and the smallest that is normal
    ids, weights = routing(rng, len(x), K, E)
    with covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, preset=preset, dtype=np.float16) as ep:
        with pytest.raises(TypeError, match="float16"):
            ep.dispatch(covey.to_bf16(x), ids, weights)
        routed = ep.dispatch(x, ids, weights)
        y = routed.x
        assert y.dtype == np.float16
        out, outcome = ep.combine(weighed(routed, y).astype(np.float16), routed, ids, weights)
        assert outcome.ranks == {0, 1, 2} and out.dtype == np.float16
        np.testing.assert_array_equal(out[1:], x[1:])
        np.testing.assert_array_equal(out[0, [0, 2]], x[0, [0, 2]])
    with pytest.raises(ValueError, match="bfloat16 or float16"):
        covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, dtype="float32")


def integers(group, preset, rows):
    """Rows come as codes and a scale, and results go back as codes: each step is off by half a scale at most."""
    T, H, K, E = 16, 264, 2, 6
    rng = np.random.default_rng(group.rank)
    x = rng.integers(-8, 9, (T - group.rank, H)).astype(np.float32)
    x[0] = 0
    ids, weights = routing(rng, len(x), K, E)
    shape = dict(max_tokens=T, hidden=H, top_k=K, experts=E, preset=preset, rows=rows, combine_rows="int8")
    sizes = covey.Ep.sizes(group, **shape)
    with covey.Ep(group, **shape) as ep:
        routed = ep.dispatch(covey.to_bf16(x), ids, weights)
        assert (sizes["packed_x_bytes"], sizes["packed_scales_bytes"]) == (routed.x.nbytes, routed.scales.nbytes)
        codes = routed.x
        if rows == "int4":  # the low four bits are the even element
            low, high = (codes << 4).view(np.int8) >> 4, codes.view(np.int8) >> 4
            codes = np.stack([low, high], -1).reshape(*codes.shape[:-1], H)
        y = np.nan_to_num(codes * routed.scales.reshape(*codes.shape[:-1], 1))
        out, outcome = ep.combine(covey.to_bf16(np.nan_to_num(weighed(routed, y))), routed, ids, weights)
        assert outcome.ranks == {0, 1, 2}
        got = covey.from_bf16(out)
        assert not got[0].any()
        assert abs(got - x).max() <= 8 * (0.51 / (7 if rows == "int4" else 127) + 0.51 / 127 + 2 / 256)
        assert (got[1:] != x[1:]).any()
        if preset != "compact":  # each expert has its factors: those of the first one here are 0
            factors = np.ones((E, H), np.float32)
            factors[group.rank * 2] = 0
            routed = ep.dispatch(covey.to_bf16(x), ids, weights, smooth=factors)
            first, second = routed.count[:2]
            again = routed.x[first:] if preset != "ll" else routed.x[1]
            assert not routed.x.reshape(-1, codes.shape[-1] if rows == "int8" else H // 2)[:first].any()
            assert again[:second].any()
        else:
            with pytest.raises(covey.Error, match="COVEY_EP_LL"):
                ep.dispatch(covey.to_bf16(x), ids, weights, smooth=np.ones((E, H), np.float32))
    with pytest.raises(ValueError, match="none of plain, int8"):
        covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, combine_rows="int4")


def replicas(group, preset):
    """Expert e multiplies by e + 1. Expert 0 is on all ranks, 1 and 2 on two, 3 on one."""
    T, H, K, E, P = 8, 16, 2, 4, 3
    owners = [[0, 1, 2], [1, 2], [2, 0, -1], [1]]
    rng = np.random.default_rng(group.rank)
    x = rng.integers(-3, 4, (T, H)).astype(np.float32)
    ids, weights = routing(rng, T, K, E)
    shape = dict(max_tokens=T, hidden=H, top_k=K, experts=E, preset=preset, owners=owners, places=P)
    mine = [e for e, ranks in enumerate(owners) if group.rank in ranks]
    assert covey.Ep.sizes(group, **shape)["local_experts"] == len(mine)
    with covey.Ep(group, **shape) as ep:
        routed = ep.dispatch(covey.to_bf16(x), ids, weights, fill_tail=True)
        serves = [e * P + group.rank % len([r for r in ranks if r >= 0]) for e, ranks in enumerate(owners)]
        np.testing.assert_array_equal(routed.placed, np.array(serves)[ids])
        y = covey.from_bf16(routed.x)
        if preset == "ll":
            y = y * (np.array(mine, np.float32) + 1)[:, None, None]
        elif preset == "win":
            factors = np.repeat(np.array(mine, np.float32) + 1, routed.count)
            assert (routed.triplets[len(factors):] == -1).all()
            y[:len(factors)] *= factors[:, None]
        else:
            factors = np.array([*mine, -1], np.float32) + 1  # -1: not served here
            y = y * (factors[routed.recv_experts] * routed.recv_weights).sum(1)[:, None]
        out, outcome = ep.combine(covey.to_bf16(np.nan_to_num(y)), routed, ids, weights)
        assert outcome.ranks == {0, 1, 2}
        np.testing.assert_array_equal(covey.from_bf16(out), x * ((ids + 1) * weights).sum(1)[:, None])
        ep.remap([[2], [0], [1], [2]])
        np.testing.assert_array_equal(ep.dispatch(covey.to_bf16(x), ids, weights).placed, ids * P)
        with pytest.raises(covey.Error, match=r"expert_owner\[0\]\[0\] and \[1\] are both rank 1"):
            ep.remap([[1, 1], [0], [1], [2]])
        with pytest.raises(ValueError, match=r"owners\[3\] has 4 ranks"):
            ep.remap([[2], [0], [1], [0, 1, 2, -1]])
        with pytest.raises(ValueError, match=r"owners\[0\] is 2"):
            ep.remap([2, 0, 1, 2])


def special(group, preset):
    """Experts that no rank has: 6 gives 0, 7 the token, 8 and 9 a1 * x + a2 * v; 10 is none. Each expert of a rank gives x."""
    T, H, K, E = 8, 16, 4, 6
    rng = np.random.default_rng(group.rank)
    x = rng.integers(-3, 4, (T, H)).astype(np.float32)
    ids = np.stack([rng.permutation(E + 5)[:K] for _ in range(T)]).astype(np.int32)
    weights = rng.integers(1, 3, (T, K)).astype(np.float32)
    a1, a2 = np.array([2, 0], np.float32), np.array([1, -2], np.float32)
    v = rng.integers(-3, 4, (2, H)).astype(np.float32)
    with covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, preset=preset) as ep:
        routed = ep.dispatch(covey.to_bf16(x), ids, weights)
        y = weighed(routed, covey.from_bf16(routed.x))
        given = dict(x=covey.to_bf16(x), zero_experts=1, copy_experts=1, constants=(a1, a2, v))
        out, _ = ep.combine(covey.to_bf16(np.nan_to_num(y)), routed, ids, weights, **given)
        terms = np.where((ids < 6) | (ids == 7), 1, 0)[..., None] * x[:, None]
        for j in range(2):
            terms = terms + (ids == 8 + j)[..., None] * (a1[j] * x + a2[j] * v[j])[:, None]
        np.testing.assert_array_equal(covey.from_bf16(out), (weights[..., None] * terms).sum(1))
        out, _ = ep.combine(covey.to_bf16(np.nan_to_num(y)), routed, ids, weights, bias=x, **given)
        np.testing.assert_array_equal(covey.from_bf16(out), x + (weights[..., None] * terms).sum(1))
        for wrong, kind, why in (({"constants": (a1, a2)}, ValueError, "must be \\(a1, a2, v\\)"),
                                 ({"constants": (a1, a2, v[:1])}, ValueError, "have 2, 2 and 16 elements"),
                                 ({"constants": (a1, a2, v.astype(np.float64))}, TypeError, "constant_v has elements"),
                                 ({"x": None}, covey.errors.InvalError, "x must not be NULL"),
                                 ({"x": x}, TypeError, "x has elements of float32"),
                                 ({"bias": x[1:]}, ValueError, "bias has 112 elements, it needs 128"),
                                 ({"copy_experts": -1}, covey.errors.InvalError, "must be 0 or more")):
            with pytest.raises(kind, match=why):
                ep.combine(routed.x, routed, ids, weights, **{**given, **wrong})


PRESETS = {
    experts: ["ll bf16", "compact bf16", "ll e4m3", "compact e4m3", "flat bf16", "win bf16", "mesh e4m3"],
    integers: ["ll int8", "compact int8", "ll int4", "compact int4", "win int8", "mesh int4"],
    halves: ["ll", "compact", "flat", "win"],
    origins: ["ll", "compact", "flat", "win", "mesh"],
    special: ["ll", "compact", "flat", "win", "mesh"],
    replicas: ["ll", "compact", "win"],
    empty: ["ll", "compact", "win"],
    arrivals: [""],
}


@pytest.mark.parametrize("what,preset", [(what, preset) for what in PRESETS for preset in PRESETS[what]])
def test_dispatch_and_combine(ranks, what, preset):
    ranks.run(WORLD, what, *preset.split())


def test_ep_needs_no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    names = {}
    exec("from covey.ep import *\nfrom covey.ep import Ep, Routed, from_bf16, to_bf16", names)
    assert names["Ep"] is covey.Ep
    with pytest.raises(ModuleNotFoundError, match="torch"):
        from covey.ep import Buffer  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'Buffers'"):
        from covey.ep import Buffers  # noqa: F401
