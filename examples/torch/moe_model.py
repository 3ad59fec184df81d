# SPDX-License-Identifier: Apache-2.0
"""A Mixture-of-Experts language model in small integers: every sum in it is exact.

It has the shape of Qwen3-30B-A3B at 1/8 of its width, 1/12 of its layers and half of its experts: 64, of which a token
names 4. Tokens are bytes. Weights are random, from a seed, so the text has no sense.

Activations are integers from -127 to 127, weights from -7 to 7, and curved functions are tables. A sum of their products
is an integer below 2^24, which float32 has exactly, in any order of its terms. So the bits of a token depend neither on
the batch that it is in, nor on its rank, nor on the device.
"""

from dataclasses import dataclass
from typing import Callable, List, NamedTuple

import torch

WHAT = "Qwen3-30B-A3B at 1/8 of its width and half of its experts"
TOKENS, FIRST, LAST = 256, 32, 126  # bytes go in; printable ones come out
LONGEST = 512  # tokens of a sequence


@dataclass(frozen=True)
class Shape:
    layers: int = 4  # of 48
    hidden: int = 256  # of 2048
    heads: int = 4  # of 32, with one head of keys and values
    head: int = 128
    experts: int = 64  # of 128
    top_k: int = 4  # of 8
    inner: int = 96  # of an expert, of 768


class Span(NamedTuple):
    """Rows of one sequence in a batch."""

    cache: torch.Tensor  # [layers, 2, LONGEST, head]: keys and values
    start: int  # of the first row in its sequence
    count: int


def limited(x):
    """Integers from -127 to 127."""
    return x.round_().clamp_(-127, 127)


def unique(scores):
    """[n, m] integers as numbers that differ within a row: of equal ones the first is the largest."""
    m = scores.shape[1]
    return scores.double() * m + torch.arange(m - 1, -1, -1, device=scores.device)


def random_weights(seed, *sides):
    made = torch.Generator().manual_seed(seed)
    return torch.randint(-7, 8, sides, generator=made, dtype=torch.int8).float()


class Expert:
    """Weights of expert @number in @layer. All ranks can make them."""

    def __init__(self, shape: Shape, layer: int, number: int):
        seed = 1_000_000 + 1000 * layer + number
        self.up = random_weights(2 * seed, shape.hidden, 2 * shape.inner)
        self.down = random_weights(2 * seed + 1, shape.inner, shape.hidden)


class Experts:
    """Some experts of each layer, one after the other in one tensor."""

    def __init__(self, shape: Shape, numbers: List[int], device: torch.device):
        self.silu = _silu(device)
        self.layers = []
        for layer in range(shape.layers):
            made = [Expert(shape, layer, number) for number in numbers]
            self.layers.append((torch.stack([e.up for e in made]).to(device),
                                torch.stack([e.down for e in made]).to(device)))

    def __call__(self, layer, x):
        """[experts, n, hidden] of integers: the result of each expert for its rows."""
        up, down = self.layers[layer]
        gate, value = limited(x.float() @ up / 64).chunk(2, 2)
        return limited(limited(self.silu[(gate + 127).long()] * value / 32) @ down / 16)


def _silu(device):
    x = torch.arange(-127.0, 128)
    return (x * torch.sigmoid(x / 16)).round().to(device)


class Model:
    """All of the network but its experts, which are a function: moe(layer, x, ids, weights) -> [n, hidden]."""

    def __init__(self, shape: Shape, device: torch.device, moe: Callable):
        self.shape, self.device, self.moe = shape, device, moe
        self.embedding = random_weights(0, TOKENS, shape.hidden).to(device)
        self.scores = random_weights(1, shape.hidden, LAST + 1 - FIRST).to(device)
        self.exp = (127 * torch.exp(-torch.arange(256.0) / 16)).round().to(device)  # of minus the index
        angles = torch.arange(LONGEST)[:, None] / 10000 ** (torch.arange(shape.head // 2) * 2 / shape.head)
        self.cos, self.sin = ((127 * f(angles)).round().to(device) for f in (torch.cos, torch.sin))
        self.layers = [self._layer(2 + 10 * layer) for layer in range(shape.layers)]

    def _layer(self, seed):
        shape = self.shape
        sides = {"qkv": (shape.hidden, (shape.heads + 2) * shape.head), "out": (shape.heads * shape.head, shape.hidden),
                 "router": (shape.hidden, shape.experts)}
        return {name: random_weights(seed + i, *side).to(self.device) for i, (name, side) in enumerate(sides.items())}

    def cache(self):
        """Of one sequence."""
        return torch.zeros(self.shape.layers, 2, LONGEST, self.shape.head, device=self.device)

    def __call__(self, tokens: List[int], spans: List[Span]):
        """The next token after each row: greedy."""
        h = self.embedding[torch.tensor(tokens, dtype=torch.int64, device=self.device)]
        for number, weights in enumerate(self.layers):
            h += self._attention(number, weights, _norm(h), spans)
            x = _norm(h)
            h += 2 * self.moe(number, x, *self._route(x @ weights["router"])).round()
        scores = unique(_norm(h) @ self.scores)
        return FIRST + scores.argmax(1) if len(scores) else torch.empty(0, dtype=torch.int64)

    def _route(self, scores):
        """The experts of each token, and their weights in 128ths."""
        ids = unique(scores).topk(self.shape.top_k).indices
        best = scores.gather(1, ids)
        parts = self.exp[((best[:, :1] - best) / 64).clamp(max=255).long()]
        return ids, (128 * parts / parts.sum(1, keepdim=True)).round() / 128

    def _attention(self, number, weights, x, spans):
        shape = self.shape
        qkv = limited(x @ weights["qkv"] / 64).view(len(x), shape.heads + 2, shape.head)
        made, at = torch.empty(len(x), shape.heads * shape.head, device=self.device), 0
        for cache, start, count in spans:
            rows, here = qkv[at:at + count], slice(start, start + count)
            cache[number, 0, here] = self._turned(rows[:, -2:-1], here)[:, 0]
            cache[number, 1, here] = rows[:, -1]
            keys, values = cache[number, :, :start + count]
            made[at:at + count] = self._seen(self._turned(rows[:, :-2], here), keys, values, start)
            at += count
        return limited(made @ weights["out"] / 64)

    def _turned(self, x, places):
        """[n, heads, head] by the angles of their places."""
        a, b = x.chunk(2, 2)
        cos, sin = self.cos[places, None], self.sin[places, None]
        return limited(torch.cat((a * cos - b * sin, a * sin + b * cos), 2) / 127)

    def _seen(self, q, keys, values, start):
        """[n, heads * head]: the mean of the values up to each row, by their scores."""
        scores = torch.div(torch.einsum("nhd,md->nhm", q, keys), 256, rounding_mode="floor")
        later = torch.arange(len(keys), device=q.device) > start + torch.arange(len(q), device=q.device)[:, None]
        scores.masked_fill_(later[:, None], float("-inf"))
        parts = self.exp[(scores.amax(2, keepdim=True) - scores).clamp_(max=255).long()].masked_fill_(later[:, None], 0)
        mean = torch.einsum("nhm,md->nhd", parts, values) / parts.sum(2, keepdim=True)
        return limited(4 * mean).flatten(1)


def _norm(h):
    """Rows of about 32 in the mean of squares. In float64 the squares have an exact sum, too."""
    wide = h.double()
    return limited(32 * wide / (wide.square().mean(1, keepdim=True) + 1).sqrt()).float()
