# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine for Mixture of Experts: tokens go to the ranks that own their experts, results come back.

T = max_tokens, K = top_k, H = hidden, R = size of the group, El = experts of this rank.
"""

import ctypes
from typing import Any, Optional, Sequence, Union

from .. import _abi
from .._abi import Dtype, EpArrived, EpBackAs, EpCombineAs, EpPreset, EpRowsAs, EpTokensAs
from .._library import lib
from ..buffers import buffer, stream_of
from ..group import Group, _enum
from ..outcome import Outcome, wait_in_slices


_INVAL = -1
ARRIVED = _abi.COVEY_EP_ARRIVED  # a word of `arrived`, when what it stands for can be read


class Routed:
    """What a dispatch gave: the rows here, and what the combine of these tokens needs.

    Attributes:
        x: LL: [El, R * T, H] the rows of each expert, from source 0, 1, ... without gaps; COMPACT: [R * T, H];
            FLAT is as LL, here and below. WIN: [N, H], the rows of expert after expert, N = Ep.rows
        scales: with rows in e4m3, int8 or int4: their scales
        count: [El] int32: rows of each local expert
        src_info, range, recv_experts, recv_weights, route: as in struct covey_dispatch_args
        expert_tokens, recv_counts, triplets, flat: the same, where they were asked for, else None; FLAT always has flat,
            WIN triplets
        placed: [n, K] int32: the place that serves each entry, expert * places + place, or -1; with one place each None
            (or what `out` had). The combine takes it from here
        token_mask: as it was given to the dispatch: the combine takes it from here
        outcome: its `ranks` are the sources whose tokens are here
    """

    def __init__(self, outcome: Outcome, arrays: dict, token_mask=None):
        self.outcome, self.token_mask = outcome, token_mask
        self._arrays = arrays
        self.x, self.scales, self.count = arrays["packed_x"], arrays.get("packed_scales"), arrays["count"]
        self.src_info, self.range, self.route = arrays["src_info"], arrays["range"], arrays.get("route")
        self.recv_experts, self.recv_weights = arrays.get("recv_experts"), arrays.get("recv_weights")
        self.expert_tokens, self.recv_counts = arrays.get("expert_tokens"), arrays.get("recv_counts")
        self.triplets, self.flat = arrays.get("triplets"), arrays.get("flat")
        self.placed = arrays.get("placed")


class Ep:
    """Buffers and layout of one pair of dispatch and combine. All ranks make and close theirs in the same order.

    Args:
        group: the group
        max_tokens, hidden, top_k, experts: shapes; the same on all ranks
        preset: "ll", "compact", "ht": the rows of compact, over two hops on devices; "flat": the rows of LL, each with
            its source and entry; or "win" or "mesh": the rows of experts without gaps, each with its source, token and k
        dtype: "bfloat16" or "float16": elements of tokens and results
        rows: "bf16", "e4m3", "e4m3_pow2", "int8" or "int4": what dispatch gives; "bf16": elements of dtype; "e4m3_pow2":
            scales of e4m3 are powers of two
        combine: "expert" or "rank": which rows come back (not COMPACT)
        owners: [experts] the rank of each; with places above 1 [experts][at most places]: -1, or nothing, where an
            expert has fewer places. None: as covey_ep_create() says
        lanes: on devices, processors that a call takes; 0: as many as pay
        combine_rows: "plain" or "int8": how results come back; "plain": elements of dtype
        places: the most places of an expert (docs/guide/replicas.md)
    """

    def __init__(self, group: Group, *, max_tokens: int, hidden: int, top_k: int, experts: int,
                 preset: Union[EpPreset, str] = "ll", rows: Union[EpRowsAs, str] = "bf16",
                 combine: Union[EpCombineAs, str] = "expert", owners: Optional[Sequence] = None,
                 lanes: int = 0, dtype: Any = Dtype.BFLOAT16, combine_rows: Union[EpBackAs, str] = "plain",
                 places: int = 1):
        self.group, self.preset = group, EpPreset(_enum(preset, EpPreset))
        self.max_tokens, self.hidden, self.top_k, self.experts = max_tokens, hidden, top_k, experts
        self.rows_as, self.dtype, self.places = EpRowsAs(_enum(rows, EpRowsAs)), _element(dtype), places
        config = _config(max_tokens, hidden, top_k, experts, self.preset, self.rows_as, combine, owners, lanes,
                         self.dtype, combine_rows, places)
        self._handle: Optional[ctypes.c_void_p] = ctypes.c_void_p()
        self._sent: Any = None  # the function that receives what was sent, and its buffers
        group._eps.add(self)
        group._check(lambda g: lib.covey_ep_create(g, ctypes.byref(config), ctypes.byref(self._handle)))

    @staticmethod
    def sizes(group: Group, *, max_tokens: int, hidden: int, top_k: int, experts: int,
              preset: Union[EpPreset, str] = "ll", rows: Union[EpRowsAs, str] = "bf16",
              owners: Optional[Sequence] = None, ranks: int = 0,
              combine_rows: Union[EpBackAs, str] = "plain", places: int = 1) -> dict:
        """What an Ep of these arguments would take, before it is made.

        Args:
            ranks: size of the group to count for, from this rank + 1 to max_ranks; 0: its present size

        Returns:
            the fields of struct covey_ep_sizes by their names: space_bytes, window_bytes, packed_x_bytes, ...
        """
        config = _config(max_tokens, hidden, top_k, experts, preset, rows, "expert", owners, 0, Dtype.BFLOAT16,
                         combine_rows, places)
        sizes = _abi.covey_ep_sizes(size=ctypes.sizeof(_abi.covey_ep_sizes))
        group._check(lambda g: lib.covey_ep_sizes(g, ctypes.byref(config), ranks, ctypes.byref(sizes)))
        return {name: getattr(sizes, name) for name, *_ in sizes._fields_ if name != "size"}

    def remap(self, owners: Optional[Sequence] = None) -> None:
        """Lays out for new owners and the group's present size; on all ranks, after admit()."""
        given = _owners(owners, self.experts, self.places)
        self.group._check(lambda _: lib.covey_ep_remap(self._live(), given))

    def close(self) -> None:
        """Gives the space back; all ranks do so in the same order."""
        self.group._direct(lambda _: self._destroy() or 0)

    def _destroy(self) -> None:
        if self._sent:  # the operation continues, with these buffers
            self.group._orphans.append(self._sent)
        handle, self._handle = self._handle, None
        lib.covey_ep_destroy(handle)

    def __del__(self):
        """Without close(): the group frees it at its end, since ranks free theirs in one order."""
        if getattr(self, "_handle", None):
            self.group._lost.append([self._handle, self._sent])

    def _live(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("this Ep is closed")
        return self._handle

    def _ask(self, function) -> int:
        """A number of the handle."""
        answer = self.group._direct(lambda _: function(self._live()))
        if answer == -41:
            raise ValueError("this Ep is closed")
        return answer

    def __enter__(self) -> "Ep":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    @property
    def local_experts(self) -> int:
        """El: the experts that this rank owns."""
        return self._ask(lib.covey_ep_local_experts)

    @property
    def rows(self) -> int:
        """R * T: the rows kept for each local expert; COMPACT: of this rank; WIN: R * T * min(K, El) for all."""
        return self._ask(lib.covey_ep_rows)

    @property
    def route_bytes(self) -> int:
        """Bytes of `route` on a device."""
        return self._ask(lib.covey_ep_route_bytes)

    @property
    def arrived_words(self) -> int:
        """Elements of `arrived`: those of EpArrived, then one for each row."""
        bins = self._bins()
        return EpArrived.ROWS + bins * self.rows if bins else 0

    def _by_expert(self) -> bool:
        """Does each local expert have rows of its own, Ep.rows of them?"""
        return self.preset in (EpPreset.LL, EpPreset.FLAT)

    def _once(self) -> bool:
        """Has a token one row at a rank, for all experts there?"""
        return self.preset in (EpPreset.COMPACT, EpPreset.HT)

    def _bins(self) -> int:
        """How often Ep.rows rows are kept here."""
        return self.local_experts if self._by_expert() else min(self.local_experts, 1)

    def _rooms(self, also: Sequence[str], n: int) -> dict:
        """Outputs of a dispatch in host memory: bfloat16 stands in uint16, e4m3 and two int4 in uint8."""
        import numpy as np

        el, rows, size, groups = self.local_experts, self.rows, self.group.size, self._groups()
        compact, by_expert = self._once(), self._by_expert()
        kinds = {EpRowsAs.BF16: self._numpy(), EpRowsAs.INT8: np.int8}
        bins, runs = (el,) if by_expert else (), () if compact else (el,)
        arrays = {"packed_x": np.empty((*bins, rows, self._width()), kinds.get(self.rows_as, np.uint8)),
                  "count": np.zeros(el, np.int32), "src_info": np.empty((*bins, rows), np.int32),
                  "range": np.zeros((*runs, size), np.int64)}
        if self.rows_as != EpRowsAs.BF16:
            arrays["packed_scales"] = np.empty((el, groups, rows) if by_expert else (rows, groups), np.float32)
        if compact:
            arrays["recv_experts"] = np.empty((rows, self.top_k), np.int32)
            arrays["recv_weights"] = np.empty((rows, self.top_k), np.float32)
        also = [*also, *_NEEDED.get(self.preset, [])]
        if self.places > 1:
            arrays["placed"] = np.empty((n, self.top_k), np.int32)
        more = {"expert_tokens": ((el,), np.int64), "recv_counts": ((el, size), np.int32),
                "triplets": ((*bins, rows, 3), np.int32), "flat": ((*bins, rows, 2), np.int32)}
        for name in also:
            if name not in more:
                raise ValueError(f"also has {name!r}: it may have {', '.join(more)}")
            arrays[name] = np.empty(*more[name])
        return arrays

    def _width(self) -> int:
        """Elements of a row of packed_x: in int4 a byte has two."""
        return self.hidden // 2 if self.rows_as == EpRowsAs.INT4 else self.hidden

    def _groups(self) -> int:
        """Scales of such a row."""
        return -(-self.hidden // 128) if self.rows_as in (EpRowsAs.E4M3, EpRowsAs.E4M3_POW2) else 1

    def _numpy(self) -> str:
        """The type of elements in arrays that are made here."""
        return "float16" if self.dtype == Dtype.FLOAT16 else "uint16"

    def dispatch(self, x, experts, weights=None, *, x_scales=None, smooth=None, out: Optional[dict] = None, active_ranks=None, waited=None,
                 timeout_ms: int = 0, stream: Any = None, token_mask=None, also: Sequence[str] = (),
                 fill_tail: bool = False, expert_tokens_as: Union[EpTokensAs, str] = "counts",
                 expert_alignment: int = 0, arrived=None) -> Routed:
        """Sends each token to the ranks that own its experts, and waits (on a device: launches).

        Args:
            x: [n, H] of dtype, or uint16 with the bits of bfloat16; with x_scales e4m3, or uint8 with its bits; None:
                no tokens
            experts: [n, K] int32 or int64; an id below 0 or above the experts is skipped
            weights: [n, K] float32; COMPACT needs them
            x_scales: [n, ceil(H / 128)] float32: the rows travel as they are; only with rows "e4m3" or
                "e4m3_pow2"
            smooth: [experts, H] float32: factors of the elements by expert, before they become codes; with rows "int8"
                or "int4", not with COMPACT; the same on all ranks
            out: arrays by the names of struct covey_dispatch_args; None: made here, in numpy
            active_ranks: [R] int32, input and output: a rank with 0 is neither waited for nor sent to
            waited: [R] uint64: the wait for each source is added
            timeout_ms: then missing sources are masked; 0: the group's late_ms; -1: never
            token_mask: [n] or [n, K], bool or uint8: a token, or an entry of experts, with 0 takes no part; unchanged
                until the combine
            also: outputs that are made here, too, if out is None: of "expert_tokens" [El] int64, "recv_counts" [El, R]
                int32 (not COMPACT), "triplets" [El, R * T, 3] int32, "flat" [El, R * T, 2] int32; COMPACT: [R * T, 3],
                [R * T, 2]; WIN: [N, 3], [N, 2]
            fill_tail: past the last row src_info, recv_experts, triplets and flat are -1, and recv_weights 0
            expert_tokens_as: "counts", or "sums": inclusive prefix sums
            expert_alignment: expert_tokens are rounded up to a multiple of it; WIN: 0 or 1
            arrived: [arrived_words] uint32 or int32, zeros: a word becomes ARRIVED when other threads or kernels may read
                what it stands for, of EpArrived or a row of `out`, while the dispatch continues
        """
        inputs = {"x": x, "x_scales": x_scales, "smooth": smooth, "experts": experts, "weights": weights,
                  "active_ranks": active_ranks, "waited": waited, "token_mask": token_mask, "arrived": arrived}
        on_device, args, kept, arrays = self._dispatch_args(inputs, self._rooms(also, self._tokens(experts)) if out is None
                                                           else dict(out))
        args.timeout_ms, args.fill_tail, args.expert_alignment = timeout_ms, fill_tail, expert_alignment
        args.expert_tokens_as = _enum(expert_tokens_as, EpTokensAs)
        outcome = Outcome()
        if on_device:
            rest = ctypes.byref(args), stream_of(stream, True), ctypes.byref(outcome._raw)
            self.group._check(lambda _: lib.covey_dispatch(self._live(), *rest))
        else:
            self._exchange(lib.covey_dispatch_send, lib.covey_dispatch_recv, args, outcome, kept)
        return Routed(outcome, arrays, token_mask)

    def _dispatch_args(self, inputs: dict, arrays: dict):
        args = _abi.covey_dispatch_args(size=ctypes.sizeof(_abi.covey_dispatch_args))
        args.num_tokens = self._tokens(inputs["experts"])
        kept = self._fill(args, args.num_tokens, {**arrays, **inputs})
        elements = kept["x"].count if "x" in kept else 0
        if elements != args.num_tokens * self.hidden:
            raise ValueError(f"x has {elements} elements: it must be [n, {self.hidden}], and experts "
                             f"[n, {self.top_k}], for as many tokens")
        self._mask(args, kept)
        return _on_device(kept), args, kept, arrays

    def _tokens(self, experts) -> int:
        n, rest = divmod(buffer(experts).count, self.top_k)
        if rest:
            raise ValueError(f"experts has {buffer(experts).count} elements: it must be [n, {self.top_k}]")
        return n

    def _mask(self, args, kept: dict) -> None:
        """How many columns the mask has."""
        mask, n = kept.get("token_mask"), args.num_tokens
        if not mask:
            return
        if mask.count not in (n, n * self.top_k):
            raise ValueError(f"token_mask has {mask.count} elements: it must be [n] or [n, {self.top_k}], for {n} tokens")
        args.mask_columns = 1 if mask.count == n else self.top_k

    def _exchange(self, send, receive, args, outcome: Outcome, kept: dict) -> None:
        """Sends and receives, on host memory."""
        self._send(send, receive, args, kept)
        err = self._receive(outcome)
        if err:
            raise self.group._error(err)

    def _send(self, send, receive, args, kept: Any, on: Optional[int] = None) -> None:
        """Sends, on host memory or on the stream @on; _receive() follows. What Ctrl-C left is received first."""
        if self._sent:
            self._receive(Outcome())
        sent, pointer = (receive, kept), ctypes.byref(args)

        def begin(_) -> int:
            handle = self._live()
            self._sent = sent
            return send(handle, pointer, on)

        err = self.group._direct(begin)
        if err:
            self._sent = None
            raise self.group._error(err)

    def _receive(self, outcome: Outcome) -> int:
        """Waits in slices; the buffers stay alive for as long as the operation may use them. 0 if nothing was sent,
        or Ctrl-C came when it had been received."""
        if not self._sent:
            return 0
        receive, pointer = self._sent[0], ctypes.byref(outcome._raw)
        err = wait_in_slices(lambda until: self.group._direct(lambda _: receive(self._live(), until, pointer)), None)
        self._sent = None
        return 0 if err == _INVAL else err

    def _shapes(self, n: int) -> dict:
        """The least elements of each argument, for @n tokens."""
        el, rows, size, bins = self.local_experts, self.rows, self.group.size, self._bins()
        runs = (bins if self._once() else el) * size
        return {"x": n * self.hidden, "x_scales": n * -(-self.hidden // 128),
                "smooth": self.experts * self.hidden, "experts": n * self.top_k, "weights": n * self.top_k, "out": n * self.hidden,
                "bias": n * self.hidden,
                "packed_x": bins * rows * self._width(), "y": bins * rows * self.hidden, "count": el,
                "src_info": bins * rows, "range": runs, "packed_scales": bins * rows * self._groups(),
                "recv_experts": bins * rows * self.top_k, "recv_weights": bins * rows * self.top_k,
                "token_mask": n, "expert_tokens": el, "recv_counts": el * size, "triplets": bins * rows * 3,
                "flat": bins * rows * 2, "arrived": self.arrived_words, "expert_scale": el, "placed": n * self.top_k,
                "active_ranks": size, "waited": size, "route": self.route_bytes, **dict.fromkeys(_CONSTANTS, 0)}

    def _fill(self, args, n: int, arrays: dict) -> dict:
        """Puts the addresses of @arrays into the fields of @args; returns their buffers, with type and length checked."""
        kept, least = {}, self._shapes(n)
        for name, array in arrays.items():
            if array is None:
                continue
            b = buffer(array, writable=name not in _INPUTS, bits=True)
            want = _TYPES.get(name, self.dtype)
            wide = name == "experts" and b.dtype == Dtype.INT64
            signed = name == "arrived" and b.dtype == Dtype.INT32  # libraries that have few unsigned types
            if name == "packed_x" and self.rows_as == EpRowsAs.INT8:
                want = Dtype.INT8
            elif (name == "packed_x" and self.rows_as != EpRowsAs.BF16
                    or name == "x" and arrays.get("x_scales") is not None):
                want = Dtype.UINT8
            if b.dtype != want and name != "route" and not wide and not signed:
                raise TypeError(f"{name} has elements of {b.dtype.name.lower()}, it needs {want.name.lower()}"
                                + {"experts": " or int64", "arrived": " or int32"}.get(name, ""))
            empty = name == "y" and not b.count  # the library knows whether rows came
            if b.count * b.itemsize < least[name] * (1 if name == "route" else b.itemsize) and not empty:
                raise ValueError(f"{name} has {b.count} elements, it needs {least[name]}")
            kept[name] = b
            setattr(args, "experts64" if wide else name, b.address if b.count else None)
        return kept

    def combine(self, y, routed: Routed, experts, weights, *, out=None, renormalise: bool = False, active_ranks=None,
                waited=None, timeout_ms: int = 0, stream: Any = None, expert_scale=None, x=None,
                zero_experts: int = 0, copy_experts: int = 0, constants: Optional[Sequence] = None, bias=None):
        """Brings the experts' results back and sums them.

        Args:
            y: the results in the rows of routed.x; None, or without elements, where no row came
            routed: what the dispatch of these tokens gave; with its token_mask a token without an entry left is zeros
            experts, weights: [n, K], as given to the dispatch; experts in int32 or int64
            out: [n, H] of dtype, or uint16 with the bits of bfloat16; None: made here, in numpy
            renormalise: scale by what is missing where an owner took no part
            expert_scale: [El] float32: each result is multiplied by that of its expert; LL and FLAT
            zero_experts, copy_experts, constants: on host memory, what ids from the number of experts on are, in this
                order: so many experts that give 0, so many that give x, and (a1, a2, v), float32 [n], [n] and [n, H]: n
                that give a1 * x + a2 * v. No rank has them
            x: [n, H] of dtype, or uint16: the tokens; needed with copy_experts or constants
            bias: [n, H] float32, on host memory: each sum begins with it, and is rounded once

        Returns:
            (out, outcome); outcome.ranks are the owners whose rows took part
        """
        if out is None:
            import numpy as np

            out = np.empty((buffer(experts).count // self.top_k, self.hidden), self._numpy())
        args = _abi.covey_combine_args(size=ctypes.sizeof(_abi.covey_combine_args), timeout_ms=timeout_ms,
                                       renormalise=int(renormalise))
        args.num_tokens = self._tokens(experts)
        kept = self._fill(args, args.num_tokens, {"y": y, "experts": experts, "weights": weights, "out": out, "count": routed.count,
                            "src_info": routed.src_info, "range": routed.range, "route": routed.route,
                            "active_ranks": active_ranks, "waited": waited, "token_mask": routed.token_mask,
                            "expert_scale": expert_scale, "placed": routed.placed, "x": x, "bias": bias,
                            **self._constants(args, constants)})
        args.zero_experts, args.copy_experts = zero_experts, copy_experts
        self._mask(args, kept)
        outcome = Outcome()
        if _on_device(kept):
            rest = ctypes.byref(args), stream_of(stream, True), ctypes.byref(outcome._raw)
            self.group._check(lambda _: lib.covey_combine(self._live(), *rest))
        else:
            self._exchange(lib.covey_combine_send, lib.covey_combine_recv, args, outcome, kept)
        return out, outcome

    def _constants(self, args, constants: Optional[Sequence]) -> dict:
        """a1, a2 and v of constant experts, and how many these are."""
        if constants is None:
            return {}
        if len(constants) != 3:
            raise ValueError(f"constants has {len(constants)} entries: it must be (a1, a2, v)")
        a1, a2, v = (buffer(array).count for array in constants)
        if a2 != a1 or v != a1 * self.hidden:
            raise ValueError(f"constants have {a1}, {a2} and {v} elements: they must be [n], [n] and [n, {self.hidden}]")
        args.constant_experts = a1
        return dict(zip(_CONSTANTS, constants))


def _on_device(kept: dict) -> bool:
    """Is the call one on a device? The library refuses a mixture."""
    return any(b.on_device for b in kept.values())


def _owners(owners, experts: int, places: int):
    if owners is None:
        return None
    if len(owners) != experts:
        raise ValueError(f"owners has {len(owners)} entries: it needs one for each of the {experts} experts")
    if places > 1:
        owners = [rank for e, ranks in enumerate(owners) for rank in _places(e, ranks, places)]
    return (ctypes.c_int * len(owners))(*owners)


def _places(expert: int, ranks, places: int) -> list:
    """The ranks of an expert, and -1 for the places that it does not have."""
    if not hasattr(ranks, "__len__"):
        raise ValueError(f"owners[{expert}] is {ranks!r}: with places={places} it must be a list of ranks")
    if len(ranks) > places:
        raise ValueError(f"owners[{expert}] has {len(ranks)} ranks: an expert has at most places={places}")
    return [*ranks, *[-1] * (places - len(ranks))]


def _config(max_tokens, hidden, top_k, experts, preset, rows, combine, owners, lanes, dtype, combine_rows, places):
    config = _abi.covey_ep_config(size=ctypes.sizeof(_abi.covey_ep_config), dtype=dtype)
    config.max_tokens, config.hidden, config.top_k, config.experts = max_tokens, hidden, top_k, experts
    config.preset, config.rows = _enum(preset, EpPreset), _enum(rows, EpRowsAs)
    config.combine, config.expert_owner, config.lanes = _enum(combine, EpCombineAs), _owners(owners, experts, places), lanes
    config.combine_rows, config.places = _enum(combine_rows, EpBackAs), places
    return config


_NEEDED = {EpPreset.FLAT: ["flat"], EpPreset.WIN: ["triplets"]}
_CONSTANTS = ("constant_a1", "constant_a2", "constant_v")
_INPUTS = ("x", "x_scales", "smooth", "experts", "weights", "y", "token_mask", "expert_scale", "bias", *_CONSTANTS)
_TYPES = {"experts": Dtype.INT32, "weights": Dtype.FLOAT32, "count": Dtype.INT32, "src_info": Dtype.INT32,
          "range": Dtype.INT64, "packed_scales": Dtype.FLOAT32, "x_scales": Dtype.FLOAT32,
          "smooth": Dtype.FLOAT32, "active_ranks": Dtype.INT32, "waited": Dtype.UINT64,
          "recv_experts": Dtype.INT32, "recv_weights": Dtype.FLOAT32, "token_mask": Dtype.UINT8,
          "expert_tokens": Dtype.INT64, "recv_counts": Dtype.INT32, "triplets": Dtype.INT32, "flat": Dtype.INT32,
          "arrived": Dtype.UINT32, "expert_scale": Dtype.FLOAT32,
          "placed": Dtype.INT32, "bias": Dtype.FLOAT32, **dict.fromkeys(_CONSTANTS, Dtype.FLOAT32)}  # the others: the handle's


def _element(dtype) -> Dtype:
    """By a Dtype, its name, or a type of numpy, ml_dtypes or torch."""
    if isinstance(dtype, Dtype):
        return dtype
    name = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.").upper()
    if name not in ("BFLOAT16", "FLOAT16"):
        raise ValueError(f"dtype is {dtype!r}: it must be bfloat16 or float16")
    return Dtype[name]


def to_bf16(values):
    """float32 numpy values as bfloat16 bits in uint16, rounded to nearest even; a NaN stays one."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def from_bf16(bits):
    """bfloat16 bits in uint16 as float32."""
    import numpy as np

    bits = np.ascontiguousarray(bits)
    if str(bits.dtype) == "bfloat16":
        bits = bits.view(np.uint16)
    return (bits.astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
