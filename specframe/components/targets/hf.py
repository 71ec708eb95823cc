"""A Hugging Face language model as a target: one forward pass scores whole trees, over a slot cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from specframe.components.targets import adapters, architectures, image_probe, kind, loading, probe
from specframe.components.targets.anatomy import LoadedModel
from specframe.components.targets.forward import kept, resume
from specframe.components.targets.forward import native as native_passes
from specframe.components.targets.forward.compiled import CompiledForward
from specframe.components.targets.forward.native import CacheForm
from specframe.components.targets.forward.state import State, check_prompts
from specframe.components.targets.source import gguf_file
from specframe.components.targets.tokenizer import TokenizerSource
from specframe.kernel.errors import InputError
from specframe.kernel.layers import ChosenSlots, CommittedMemory, KVSelection, LayerChoice, PromptSelection
from specframe.kernel.types import (
    Committed,
    Drafts,
    GreedyScores,
    KnownPrefix,
    Prompts,
    Scores,
    Teacher,
    TokenTree,
    Verdict,
)
from specframe.native.linear import logits_of, unpack_again
from specframe.neural.forward import Features, without_gradients
from specframe.neural.quantize import Quantization
from specframe.recipes.versions import Renamed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class HFTarget(LoadedModel):
    """A language model, or the text decoder of one that reads images: a folder, a GGUF file, a Hub name, `zoo://NAME`.

    No remote code runs. Raises InputError or FetchError for a model that cannot be found or fetched, WeightsError for
    bad weights, and CompositionError for one that does not score trees as it scores texts, tested once per kind.

    Args:
        dtype: `auto` is float32 on a CPU, else as stored; `stored` makes GGUF bfloat16, and float16 float32 on a CPU.
        device: `auto` is CUDA if available, otherwise the CPU.
        adapter: folder of a PEFT adapter, which is merged into the weights.
        attention: transformers' attn_implementation, sdpa or eager; none: transformers' choice.
        fallback: the model that `specframe run`, and no other command, decodes with if `model` cannot be fetched.
        quantize: its matrices in 4 or 8 bits, on a CPU; plain decoding and every report use the quantized model, too.
        native: native code for the layers, on a CPU: for Llama's in bfloat16 or float32.
        compile: torch.compile for the pass over a tree, if native code does not compute it.
        cache: rounds keys and values of native passes (`int8`: but the newest); the law is that of the rounded ones.
        prompt: which tokens of a longer prompt to read; the target is then approximate, and reports call it lossy.
        keep: which keys and values of a longer prompt to keep once it is read; the target is then approximate, too.
        context: maximum length of a row in tokens.
    """

    prompt: PromptSelection | None = None
    """Selection of tokens to read from a longer prompt; None: all of them."""
    keeps: KVSelection | None = None
    """Selection of a longer prompt's keys and values to keep; None: all of them."""
    renamed: ClassVar = {"kernels": Renamed("native", until="0.4"), "otherwise": Renamed("fallback", until="0.4")}
    _sees = False  # True once trees after images are known to be scored correctly

    def __init__(
        self,
        *,
        model: str,
        dtype: Literal["auto", "stored", "float32", "bfloat16", "float16", "float64"] = "auto",
        device: str = "auto",
        revision: str | None = None,
        adapter: str | None = None,
        attention: str | None = None,
        fallback: str | None = None,
        quantize: Quantization | None = None,
        native: bool = False,
        compile: bool = False,
        cache: CacheForm | None = None,
        prompt: PromptSelection | None = None,
        keep: KVSelection | None = None,
        context: int | None = None,
    ) -> None:
        packs = quantize or native
        loaded = loading.load(model, adapter, packs, dtype=dtype, device=device, revision=revision, attention=attention)
        self._attach(loaded, TokenizerSource(place := loading.locate(model), revision, model), gguf_file(place))
        self.cache, self.context = cache, architectures.choose_context(self.config, context)
        if quantize is not None:
            self._quantize(quantize)
        elif native and self.device.type == "cpu":
            self._take_native()
        native_passes.require_cache(cache, self.forward)
        probe.check_once(self.full())
        self._drop_model()
        if compile and not isinstance(self.forward, native_passes.NativeForward):
            self.parts.require_rewindable("be compiled")
            self.computing.inner = CompiledForward(self.parts.eager, self.dtype)
        if prompt is not None:
            prompt.bind(self)
            self.prompt = prompt
        self.keep_part(keep)

    @classmethod
    def from_model(cls, model: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None) -> HFTarget:
        """Creates a target from a model in memory; its weights, config, hooks and mode are left unchanged."""
        target = cls.__new__(cls)
        target._attach(adapters.unwrap(model), TokenizerSource(tokenizer))
        probe.check_once(target)
        return target

    def fingerprint(self) -> str:
        """Returns a name for the kind of model, its dtype and its forward passes."""
        return kind.fingerprint(self, probe.EDITION)

    def sibling(self) -> HFTarget:
        """Returns a target around the same weights with its own state and features."""
        target = self.full()
        target.prompt = self.prompt
        target.keep_part(self.keeps)
        return target

    @property
    def approximate(self) -> bool:
        """True if it reads only a part of long prompts, or keeps only a part of their keys and values."""
        return self.prompt is not None or self.keeps is not None

    def keep_part(self, kv_selection: KVSelection | None) -> None:
        """Keeps the keys and values of a prompt that a KV selection chooses. Raises CompositionError if it cannot."""
        self.keeps = None if kv_selection is None else kept.bound(self, self.full(), kv_selection)
        if kv_selection is not None and kv_selection.queries:
            self._taps.request_ends()

    def full(self) -> HFTarget:
        """Returns a sibling that reads and keeps all of every prompt."""
        target = HFTarget.__new__(HFTarget)
        target._attach(self.weights, self.source, self.gguf, self.forward)
        target.quantization, target.cache, target.context = self.quantization, self.cache, self.context
        return target

    @property
    def reach(self) -> tuple[int, str]:
        """Number of positions available to a row, and the reason for the limit."""
        return architectures.reach(self.config, self.forward.windows, self.context)

    def request(self, taps: frozenset[str]) -> None:
        """Adds the named features to every Scores: `last`, `layer.K`, `images` (see Taps)."""
        self._taps.request(taps)

    def open(self, slots: int, room: int) -> None:
        """Begins a session with storage for `slots` rows of `room` positions, which is not moved during the session.
        Raises CompositionError for more positions than the architecture can score as a tree.
        """
        # A tree may extend beyond the context; nothing there can be committed (see `positions_of`).
        architectures.require_reach(min(room, self.context), *self.reach)
        self._follow_model()
        self._state = self.parts.begin(self.forward, slots, room, self.device, self._state)
        self._dtype = self.dtype  # a model would search its parameters for it

    @without_gradients
    def admit(self, prompts: Prompts) -> tuple[TokenTree, Scores]:
        """Returns the last prompt tokens of new rows as root-only trees, their scores, and the prompts' features.

        Unlike later roots, the last prompt token is processed by this pass; the commit only adds the bonus token.
        """
        state = self._running()
        check_prompts(prompts, self.context, self.vocab_size)
        if self.approximate:
            kept.require_texts(prompts)
        prompts = kept.shortened(prompts, self.prompt)
        self.parts.require_seeing(self.forward, prompts.inputs)
        self._sees = self._sees or image_probe.check_once(self, prompts)
        logits, features = state.read_prompts(self.forward, prompts, self._taps, self.parts.vision)
        assert logits is not None  # [A, 1, V]
        state.take(self._cast(features))
        last = prompts.tokens.gather(1, prompts.count[:, None] - 1)[:, 0]
        return TokenTree.root_only(last), Scores(logits, state.features)

    @without_gradients
    def read_ahead(self, prompt: Sequence[int], limit: int, prefix: KnownPrefix | None = None) -> int:
        """Reads up to `limit` further tokens of a prompt before its admission; returns the total number read."""
        state = self._running()
        if self.prompt is not None:
            return 0  # the selection depends on the prompt's end
        if not self.image_tokens.isdisjoint(prompt):
            raise InputError("a prompt with an image is read whole: admit it without reading it ahead")
        if not state.early_tokens and prompt:
            whole = Prompts(torch.tensor([[*prompt]]), torch.tensor([len(prompt)]))
            check_prompts(whole, self.context, self.vocab_size)
        if piece := state.place_ahead(prompt, limit, prefix):
            state.add_ahead(piece, self._cast(state.read_piece(self.forward, piece, self._taps.of_prompts)))
        return len(state.early_tokens)

    def _cast(self, features: Features) -> Features:
        """Converts the features to the target's dtype; a native pass returns some in float32."""
        return self._taps.cast(features, self._dtype)

    @without_gradients
    def score(self, tree: TokenTree) -> Scores:
        """Scores all nodes of the tree in one forward pass; each sees the committed tokens and its ancestors."""
        state = self._running()
        drafted = state.begin(tree)
        logits, features = resume.score(self.computing, self._taps.every, tree, state.rows, self.context, drafted)
        return Scores(logits, self._taken(state, features))

    @without_gradients
    def choose(self, tree: TokenTree) -> Scores | GreedyScores:
        """Scores the tree; returns `GreedyScores` for native passes with a floating-point LM head."""
        if not self.forward.finds_best:
            return self.score(tree)
        state = self._running()
        drafted = state.begin(tree)
        features, verdict = resume.choose(self.computing, self._taps.every, tree, state.rows, self.context, drafted)
        make = partial(logits_of, self.forward.head, features["last"])
        return GreedyScores(features["best"], self._taken(state, features), make, verdict)

    def _taken(self, state: State, features: Features) -> Features:
        """Keeps the requested features until the commit, and returns them."""
        state.take(self._cast({tap: values for tap, values in features.items() if tap in self._taps.every}))
        return state.features

    @without_gradients
    def run_layers(
        self, chosen: LayerChoice, tree: TokenTree, nodes: Tensor, slots: ChosenSlots | None = None
    ) -> Mapping[str, Tensor]:
        """Returns the features [B, F, D] of draft nodes [B, F] after the chosen layers alone: see `LayeredTarget`."""
        given = self._taps.every, self.context, chosen, tree, nodes, slots
        return self._cast(self._running().run_layers(self.computing, *given))

    @without_gradients
    def replay_layers(self, chosen: LayerChoice, tokens: Tensor) -> Tensor:
        """Returns the feature `last` [B, W, D] of the last tokens [B, W] after some layers: see `LayeredTarget`."""
        rows = self._running().rows.before(tokens.shape[1])
        return resume.replay(self.computing, chosen, tokens, rows, self.context).to(self.dtype)

    def commit(self, tree: TokenTree, verdict: Verdict) -> Committed:
        """Commits a verdict; keeps the keys and values of the root and the accepted path, drops the rest."""
        state = self._running()
        committed = state.commit(tree, verdict)
        if self.keeps is not None and committed.prompt is not None:
            kept.shorten(state, self.forward, self.keeps, committed, self.context)
        return committed

    def memory(self) -> CommittedMemory:
        """Returns the keys and values of the committed tokens."""
        return self._running().rows

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._running().keep(rows)

    @without_gradients
    def teach(
        self, tokens: Tensor, mask: Tensor, drafts: Drafts | None = None, inputs: Mapping[str, Tensor] | None = None
    ) -> Teacher:
        """Runs one causal pass over right-padded texts [B, L], which may end in drafts; without cache or gradients."""
        self._require_evaluation()
        self.require_inputs(given := inputs or {})
        if drafts is not None:
            self.parts.require_rewindable("read texts that end in drafts")
        read = self._shared.read if "last" in self._taps.wanted and self._shared.known else None
        unpack_again(self.model)  # training reads many texts
        asked = (tokens, mask), self._taps.wanted | self._taps.images(given), drafts, self.context, read, given
        return self.parts.vision.look(lambda: self.parts.eager.teach(*asked), given)

    def check(self) -> None:
        """Scores a small batch, a tree and each of its paths outside of the session; raises CompositionError."""
        self._refuse(probe.find_fault, probe.WHAT)

    def check_layers(self, chosen: LayerChoice, kv_selection: KVSelection | None = None) -> None:
        """Drafts and verifies a small batch with these layers; raises CompositionError if that changes scores."""
        self.parts.require_rewindable(what := "draft with its own layers")
        native_passes.require_layers(self.forward, chosen, kv_selection)
        if chosen.quantize is not None:
            native_passes.add_copy(self.forward, chosen.quantize, self.quantization)
        if kv_selection is not None and kv_selection.queries:
            self._taps.request_queries()
        self._refuse(lambda target: probe.find_layer_fault(target, chosen, kv_selection), what)

    def _refuse(self, find: Callable[[HFTarget], str | None], what: str) -> None:
        running, self._state = self._state, None
        try:
            probe.refuse(self, find(self), what)
        finally:
            self._state = running

    def _running(self) -> State:
        if self._state is None:
            raise InputError("the target has no session: call open first")
        self._require_evaluation()
        return self._state

    def _require_evaluation(self) -> None:
        if self._is_training():
            raise InputError("the target is in training mode, and dropout changes its distribution; call model.eval()")
