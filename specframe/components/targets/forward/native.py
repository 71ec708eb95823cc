"""A Llama-like decoder's native forward pass, and its LM head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from specframe.components.targets import architectures
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.layers import KVSelection, LayerChoice, reads_upper
from specframe.kernel.types import TokenTree, Verdict
from specframe.native.argmax import BoundedHead, GreedyPass, can_bound
from specframe.native.blocks import BLOCK
from specframe.native.bounds import odd_outputs, unlike
from specframe.native.build import load_native
from specframe.native.decoder import PackedLayers, packed
from specframe.native.linear import PackedLinear, QuantizedLinear, logits_of, pack_floats
from specframe.native.visibility import Causal, Listed, Mask, Tree
from specframe.neural.cache import SlotCache
from specframe.neural.forward import Features, Forward, GreedyRun, Newest, Output, Pass, is_query
from specframe.neural.quantize import Quantization, round_layers
from specframe.neural.slot_map import SlotMap
from specframe.neural.split_int8 import GROUP, SPAN, SplitInt8Cache

Unfit = Callable[[Any, Any, nn.ModuleList], str | None]
"""Function from a model's config, decoder and layers to the reason why native passes cannot run them, or None."""
CacheForm = Literal["bfloat16", "int8"]
DTYPES = {None: torch.float32, "bfloat16": torch.bfloat16, "int8": torch.uint8}
"""Storage dtype of a native pass's keys and values, by cache form."""
CHUNK = 256
"""Number of prompt tokens read at once, which bounds memory."""
FREE = 16
"""Number of tokens with the cost of one, as the pass is bound by reading weights."""


def together(lengths: Sequence[int]) -> Iterator[int]:
    """Yields the numbers of consecutive texts to read at once, given their lengths.

    Texts read together are padded to the longest one, so long texts, whose cost grows per token, are read alone.
    """
    count = longest = 0
    for length in lengths:
        longest = max(longest, length)
        if count and (count + 1) * longest > FREE:
            yield count
            count, longest = 0, length
        count += 1
    yield count


class NativeForward:
    """A model's embedding, its layers over a cache, the final norm and the LM head. No sliding windows.

    Hidden states are float32. A pass over a tree and token-by-token passes over the same text agree bit for bit.
    """

    windows = False
    widths: Callable[[int], int] | None = None

    def __init__(
        self, config: Any, decoder: Any, layers: nn.ModuleList, head: nn.Module, cache: CacheForm | None = None
    ) -> None:
        """Packs the parts of a model that `unfit` or `unfit_floats` accepts.

        Keys and values are stored in float32, or rounded to the form `cache`.
        """
        self.cache = cache
        self.head: nn.Module = packed(head)
        self._bounded: BoundedHead | None = None
        self._greedy: GreedyPass | None = None
        self._embeddings: Tensor = decoder.embed_tokens.weight
        self._pack = lambda parts: PackedLayers(config, decoder.rotary_emb, list(parts), DTYPES[cache])
        self._modules, self._layers = layers, self._pack(layers)
        self._copies: dict[Quantization, PackedLayers] = {}
        self._ending: Tensor = decoder.norm.weight.detach().float().contiguous()

    def add_copy(self, quantization: Quantization) -> None:
        """Quantizes a copy of layers that were not quantized, for passes that choose it."""
        if quantization not in self._copies:
            self._copies[quantization] = self._pack(round_layers(self._modules, quantization))

    def run(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs all or the chosen layers. Texts are read in chunks, with bitwise identical results.

        `last` is in the model's dtype; a layer's feature, the next one's input, is float32 or rounded. See `Forward`.
        """
        memory.aim(asked.visibility.slots, asked.visibility.end, asked.row)
        if isinstance(asked.visibility, Causal):
            last, features = self._read(asked, asked.visibility, memory)
        else:
            last, features = self.decode(asked, asked.visibility, memory)
        if "last" in asked.taps:
            features["last"] = last
        if "best" in asked.taps and self._bounded is not None:
            features["best"] = self._bounded.argmax(last)
        return None if asked.headless else logits_of(self.head, asked.selected(last)), features

    @property
    def finds_best(self) -> bool:
        """True if it has the tap `best`."""
        return self._bounded is not None

    @property
    def greedy(self) -> GreedyRun | None:
        """The pass over a tree from tokens to their argmax successors, if it is one native call; else None."""
        return None if self._greedy is None else self._choose

    def find_best(self) -> None:
        """Builds a copy of the LM head for the tap `best`, if that tap is faster than logits."""
        if can_bound(self.head):
            self._bounded = BoundedHead(self.head)
            if self.cache != "int8" and self._embeddings.dtype in (torch.bfloat16, torch.float32):
                table = self._embeddings.detach()
                self._greedy = GreedyPass(self._layers, self._bounded, table, self._ending)

    def _read(self, asked: Pass, visibility: Causal, memory: SlotCache) -> tuple[Tensor, dict[str, Tensor]]:
        """The hidden states and features [B, T, D] of texts, 0 at padding; and the queries of the newest tokens."""
        found: dict[str, Tensor] = {}
        first, newest = 0, Newest(visibility.lengths)
        for count in together(visibility.lengths):
            rows = slice(first, first + count)
            width = max(visibility.lengths[rows])
            if isinstance(memory, SplitInt8Cache):
                memory.begin(asked.row + first, count, visibility.start)
            for begin, end in self._pieces(visibility.start, width):
                span = rows, slice(begin, end)
                part, tree = _chunk(asked, span, visibility.start + begin)
                if not newest.begin_before(end):
                    part = replace(part, taps=frozenset(tap for tap in part.taps if not is_query(tap)))
                last, features = self.decode(part, tree, memory)
                if isinstance(memory, SplitInt8Cache):
                    counts = [min(max(length - begin, 0), end - begin) for length in visibility.lengths[rows]]
                    memory.append(asked.row + first, counts)
                for tap, values in {**features, "": last}.items():
                    if is_query(tap):
                        newest.put(found.setdefault(tap, newest.empty(values)), values, begin, rows)
                        continue
                    if tap not in found:
                        found[tap] = values.new_zeros(*asked.tokens.shape, values.shape[2])
                    found[tap][span] = values
            first += count
        return found.pop(""), found

    def _pieces(self, start: int, width: int) -> Iterator[tuple[int, int]]:
        """Yields the pieces in which texts of `width` tokens are read, from slot `start` on.

        In split int8 a piece ends where tokens are rounded.
        """
        begin = 0
        while begin < width:
            end = begin + (CHUNK if self.cache != "int8" else SPAN - (start + begin) % SPAN)
            yield begin, min(end, width)
            begin = end

    def decode(
        self, asked: Pass, visibility: Tree | Mask | Listed, memory: SlotCache
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The states after the final norm, [B, T, D] in the model's dtype, and the layers' features."""
        if self.cache == "int8" and int((asked.positions.amax(1) - asked.positions.amin(1)).max()) > SPAN:
            raise InputError(f"a tree over keys and values in int8 has at most {SPAN} levels")
        entry = embedding(asked.tokens, self._embeddings) if asked.states is None else asked.states.clone()
        hidden = entry.float().contiguous()  # [B, T, D]
        form = torch.bfloat16 if asked.rounded and entry.dtype == torch.bfloat16 else torch.float32
        wanted = self._room(hidden.shape[:2], asked.taps, form)
        few = None if asked.layers is None else asked.layers.quantize
        layers = self._layers if few is None else self._copies[few]
        places = asked.positions if asked.places is None else asked.places
        layers.run(hidden, places, visibility, memory, asked.row, wanted, asked.layers, ending=self._ending)
        for tap in filter(is_query, wanted):
            wanted[tap] *= self._layers.shape.scale
        return hidden.to(self._embeddings.dtype), wanted

    def _choose(
        self, tree: TokenTree, rows: SlotMap, taps: frozenset[str], context: int
    ) -> tuple[Features, Verdict | None]:
        """The features of all nodes of a tree, among them `best` and `last`, and the verdict, in one native call."""
        assert self._greedy is not None
        rows.memory.aim(rows.base, rows.base + tree.shape[1])
        wanted = self._room(tree.shape, taps, self._embeddings.dtype, torch.zeros)
        last, best, verdict = self._greedy.run(tree, rows.counts, rows.base, rows.memory, wanted, context)
        return {**wanted, "last": last, "best": best}, verdict

    def _room(
        self, shape: Sequence[int], taps: Iterable[str], form: torch.dtype, make: Callable[..., Tensor] = torch.empty
    ) -> dict[str, Tensor]:
        """Buffers for the features [B, T, D] of layers, in a dtype, and for queries, in float32."""
        sizes, wanted = self._layers.shape, {}
        for tap in filter(lambda tap: "." in tap, taps):
            if is_query(tap):
                wanted[tap] = make(*shape, sizes.heads * sizes.head_size)
            else:
                wanted[tap] = make(*shape, sizes.width, dtype=form)
        return wanted


def _chunk(asked: Pass, span: tuple[slice, slice], start: int) -> tuple[Pass, Tree]:
    """The part of texts [B, T] at a span of rows and tokens, the first of which take slot `start`, as chains."""
    tokens = asked.tokens[span]
    batch, count = tokens.shape
    order = torch.arange(count)
    sees = (order[:, None] >= order).expand(batch, -1, -1)
    visibility = Tree(sees, torch.full((batch,), start), start)
    states = None if asked.states is None else asked.states[span]
    row = asked.row + span[0].start
    return replace(
        asked, tokens=tokens, positions=asked.positions[span], visibility=visibility, row=row, states=states
    ), visibility


def native_forward(
    head: nn.Module, parts: tuple[Any, Any, nn.ModuleList], option: str, unfit: Unfit, cache: CacheForm | None = None
) -> NativeForward | None:
    """The native forward pass of a model with this LM head, whose config, decoder and layers are `parts`.

    None, with a warning that names the option, if `unfit` gives a reason. Raises CompositionError in that case for a
    cache form that only native passes support.
    """
    reason = unfit(*parts)
    first: Any = parts[2][0]
    if reason is None and cache == "int8" and first.self_attn.head_dim % GROUP:
        reason = f"its heads have {first.self_attn.head_dim} numbers, which {GROUP} does not divide"
    if reason is not None:
        if cache is not None:
            raise CompositionError(f"cache: {cache} is kept by native passes alone, and {reason}")
        logging.getLogger(__name__).warning("%s: %s, so its forward pass is transformers' own", option, reason)
        return None
    pack_floats(parts[2])
    return NativeForward(*parts, head, cache)


def require_cache(cache: CacheForm | None, forward: Forward) -> None:
    """Raises CompositionError for a cache form that a forward pass does not support."""
    if cache != forward.cache:
        raise CompositionError(
            f"cache: {cache} is kept by native passes alone: add `native: true` or `quantize`, on a CPU"
        )


def require_layers(forward: Forward, chosen: LayerChoice, kv_selection: KVSelection | None) -> None:
    """Raises CompositionError if a cache's form does not support drafts by these layers with this KV selection."""
    if forward.cache == "int8" and chosen.whole < chosen.layers:
        raise CompositionError("cache: int8 goes with drafts by all layers: leave out `exit` and `skip`")
    if reads_upper(kv_selection) and forward.cache != "int8":
        raise CompositionError(
            "the KV selection reads the upper halves of keys and values: add `cache: int8` to the target"
        )


def add_copy(forward: Forward, quantization: Quantization, own: Quantization | None) -> None:
    """Makes a quantized copy of a target's layers, whose matrices have the quantization `own`, if any.

    Raises CompositionError if the target's passes cannot run it, or if its matrices are quantized already.
    """
    if not isinstance(forward, NativeForward):
        raise CompositionError(
            f"a draft by a copy in {quantization} runs by native passes: add `native: true` to the target, on a CPU"
        )
    if own is not None:
        raise CompositionError(f"the target's matrices are in {own} already: leave out the drafter's `quantize`")
    forward.add_copy(quantization)


def unfit(config: Any, decoder: Any, layers: nn.ModuleList) -> str | None:
    """Returns why the native passes cannot run a quantized model's layers, or None if they can."""
    if (reason := unlike(config, getattr(decoder, "rotary_emb", None), list(layers))) is not None:
        return reason
    matrices = [module for module in layers.modules() if isinstance(module, QuantizedLinear)]
    if not matrices:
        return "its weights are unpacked"
    return odd_outputs(matrices)


def unfit_floats(config: Any, decoder: Any, layers: nn.ModuleList) -> str | None:
    """Returns why the native passes cannot run a model's bfloat16 or float32 layers, or None if they can."""
    if (reason := unlike(config, getattr(decoder, "rotary_emb", None), list(layers))) is not None:
        return reason
    limits = [view.limit for view in architectures.views(config).values() if view.limit is not None]
    if min(limits, default=architectures.context(config)) < architectures.context(config):
        return "its attention has a window"
    matrices = [module for module in layers.modules() if isinstance(module, nn.Linear)]
    if {matrix.dtype if isinstance(matrix, PackedLinear) else matrix.weight.dtype for matrix in matrices} not in (
        {torch.bfloat16},
        {torch.float32},
    ):
        return "its weights are neither in bfloat16 nor in float32"
    if any(matrix.in_features % BLOCK for matrix in matrices):
        return f"one of its matrices has inputs that {BLOCK} does not divide"
    try:
        load_native()
    except InputError as error:
        return str(error)
    return odd_outputs(matrices)
