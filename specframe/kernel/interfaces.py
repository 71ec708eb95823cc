"""The interfaces plugins implement: Protocols, so no subclassing is needed; conformance is tested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor

    from specframe.kernel.capabilities import ImageReader, Needs, Promise
    from specframe.kernel.sampling import Laws, RandomSource
    from specframe.kernel.types import (
        Committed,
        Context,
        Cycle,
        Drafts,
        Expand,
        GreedyScores,
        KnownPrefix,
        Prompts,
        Scores,
        Teacher,
        TokenTree,
        Verdict,
    )


class Target(Protocol):
    """The model whose law must be preserved.

    The rows of a session are dense: with R rows, every tensor's first dimension is R. Rows join after the others
    (`admit`) and leave by `keep`. A target may also have the members of `TextTarget`.
    """

    context: int
    """The most positions a row may take."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""

    def request(self, taps: frozenset[str]) -> None:
        """Makes the named features part of every Scores. Raises for a tap the target does not have."""

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows, each of at most `room` positions, the nodes of a tree included.

        Earlier sessions end. Raises CompositionError for a room that the architecture cannot take.
        """

    def admit(self, prompts: Prompts) -> tuple[TokenTree, Scores]:
        """The last prompt tokens of new rows as root-only trees, their scores, and the prompts' features.

        Logits are [A, 1, V], features [A, L, D]. The rows join the session by the commit that must follow.
        """

    def score(self, tree: TokenTree) -> Scores:
        """One forward pass over all nodes of the tree, each of which sees the committed tokens and its ancestors."""

    def commit(self, tree: TokenTree, verdict: Verdict) -> Committed:
        """Commits a verdict: keeps the state of the root and the accepted path, and drops the rest."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the others are finished."""


@runtime_checkable
class NeuralTarget(Target, Protocol):
    """A target whose embedding, LM head and layer shape a feature drafter can share."""

    config: Any
    """The transformers PretrainedConfig of its text model; drafters build their layers from it."""

    @property
    def device(self) -> torch.device:
        """The device of its tokens."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its features."""

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's token embeddings, as its first layer reads them: [...] int64 -> [..., D]."""

    def head(self, features: Tensor) -> Tensor:
        """The target's logits for features of the tap `last`: [..., D] -> [..., V]. Differentiable."""

    def teach(
        self, tokens: Tensor, mask: Tensor, drafts: Drafts | None = None, inputs: Mapping[str, Tensor] | None = None
    ) -> Teacher:
        """One causal forward pass without gradients over right-padded texts [B, L], ended by `drafts`, and `inputs`."""


class TextTarget:
    """Optional attributes and methods of a target, with defaults for missing ones.

    A target defines them under these names; callers read them through `text_of`.
    """

    def __init__(self, target: Target) -> None:
        self.target = target

    @property
    def device(self) -> torch.device | None:
        """The device of its tokens; None: the CPU."""
        return getattr(self.target, "device", None)

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of transformers, or None."""
        return getattr(self.target, "tokenizer", None)

    @property
    def ends(self) -> Collection[int]:
        """The tokens that end a text."""
        return getattr(self.target, "ends", ())

    @property
    def model(self) -> Any:
        """Model of transformers, or None."""
        return getattr(self.target, "model", None)

    @property
    def generation_config(self) -> Any:
        """The generation config of transformers that comes with its model, or None."""
        return getattr(self.target, "generation_config", None)

    @property
    def gguf(self) -> Path | None:
        """A GGUF file of the same model, or None."""
        return getattr(self.target, "gguf", None)

    @property
    def computing(self) -> Any:
        """The module of the forward pass over nodes, whose calls are timed; None: they are not timed."""
        return getattr(self.target, "computing", None)

    @property
    def image_tokens(self) -> frozenset[int]:
        """The tokens that stand for parts of an image; empty: it reads only text."""
        return getattr(self.target, "image_tokens", frozenset())

    @property
    def processor(self) -> ImageReader | None:
        """The processor of texts with images; None: it reads only text."""
        return getattr(self.target, "processor", None)

    @property
    def choose(self) -> Callable[[TokenTree], Scores | GreedyScores]:
        """`score`, or a method that may return `GreedyScores`, if it finds argmax tokens faster than logits."""
        return getattr(self.target, "choose", self.target.score)

    @property
    def read_ahead(self) -> Callable[[Sequence[int], int, KnownPrefix | None], int] | None:
        """A method that reads up to `limit` further tokens of a prompt, except its last, before the row's admission.

        It is called with the prompt, the limit and, if nothing is read yet, a `prefix` that the prompt begins with; it
        returns the total number of tokens read. Other rows go on in between: one prompt at a time, in a free slot,
        until other prompts take that slot; its own admission reads only the rest. None: prompts are read at once.
        """
        return getattr(self.target, "read_ahead", None)

    def require_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        """Raises InputError for inputs of a prompt that the target does not read: see `Prompts.inputs`."""
        if hasattr(self.target, "require_inputs"):
            self.target.require_inputs(inputs)
        elif inputs:
            raise InputError("the target reads texts alone; leave the image out")

    def fingerprint(self) -> str | None:
        """A key of all that the time of a forward pass depends on, except the machine; None: it is not timed."""
        return self.target.fingerprint() if hasattr(self.target, "fingerprint") else None

    def sibling(self) -> Target | None:
        """Another target around the same weights, with its own state and features; None: it must be built anew."""
        return self.target.sibling() if hasattr(self.target, "sibling") else None

    def full(self) -> Target:
        """A sibling that reads prompts whole, of a target that is `approximate`; otherwise the target itself."""
        return self.target.full() if hasattr(self.target, "full") else self.target


def text_of(target: Target) -> TextTarget:
    """The optional attributes and methods of a target, with defaults for missing ones."""
    return TextTarget(target)


class TreePolicy(Protocol):
    """Decides which nodes a draft has."""

    promise: Promise
    """Promise of every tree; `draws` and `nodes` are set."""

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The tree below root [B], grown by calling the drafter's expand as often as needed."""


@runtime_checkable
class Observer(Protocol):
    """A part that follows its session: a tree policy, verifier or drafter that decides by earlier cycles.

    It keeps its state per row, as tensors [B, ...], so that a row's tokens depend neither on the other rows nor on a
    clock. It may use everything it has observed, all of which precedes the next draw. A tree policy is opened once
    per session; when all rows have left, it gets `keep` with no rows.
    """

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows, each of at most `room` positions; forgets earlier ones."""

    def observe(self, cycle: Cycle) -> None:
        """Observes a cycle. If its `committed.prompt` is set, its rows are new: they join after the others."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the others are finished."""


class Drafter(Protocol):
    """Proposes tokens. It may also be an Observer.

    Its constructor opens no file: `bind` loads weights, so that checking a recipe is fast.
    """

    taps: frozenset[str]
    """The target features it reads."""
    promise: Promise
    """Promise of every draft: without `draws` and `nodes` if it grows the recipe's tree policy."""

    def bind(self, target: Target) -> None:
        """Attaches to the target: requests taps, shares its frozen embedding and head."""

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows, each of at most `room` positions; forgets earlier ones."""

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B]; drafting changes no state that a later commit would have to undo."""

    def commit(self, committed: Committed) -> None:
        """Adds the committed tokens. The rows of a commit with a prompt are new: they join after the others."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the others are finished."""


def drafting_ahead(drafter: Drafter) -> Callable[[TokenTree, Context], None] | None:
    """The method `run_ahead` of a drafter whose promise has `ahead`; None: it waits while the target scores its draft.

    The method continues a draft while it is being scored, in a second thread; the drafter runs in no other meanwhile.
    The thread is joined before anything is verified, so random draws come in the order draft, ahead, verify. The next
    `propose` may use the result, if the commit before it shows that its prefix was emitted.
    """
    return getattr(drafter, "run_ahead", None) if drafter.promise.overlaps_scoring else None  # a wrapper always has it


class TextDrafter(Drafter, Protocol):
    """A drafter that reads only tokens, and whose vocabulary may differ from the target's.

    A wrapper translates for it: `bind` gets a target of the drafter's vocabulary, and commits hold its tokens.
    """

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of transformers, or None."""

    def rewind(self, count: Tensor) -> None:
        """Forgets all but the first `count` [B] committed tokens of each row, at least 1: a commit must follow."""


class Verifier(Protocol):
    """The acceptance rule. At temperature 0 a session itself follows the argmax, for every lossless rule."""

    lossless: bool
    """True if it promises the target's own law, which is tested."""
    needs: Needs
    """Requirements on every draft for the rule to be lossless."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's laws after the nodes: all at once, or one by one."""


class Head(Protocol):
    """Map from a feature drafter's hidden state to logits."""

    def bind(self, target: NeuralTarget) -> None:
        """Attaches to the target whose vocabulary it shares."""

    def __call__(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
