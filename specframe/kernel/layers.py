"""Models that draft with some of their layers, or from a part of the text: a target itself, or a drafting model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

from specframe.kernel.interfaces import Drafter, NeuralTarget, Target
from specframe.kernel.training import LanguageModelDrafter

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import Committed, Frontier, Proposal, TokenTree


@dataclass(frozen=True)
class LayerChoice:
    """Choice of the attention and MLP blocks of a decoder that run; one that is left out passes its input on."""

    attention: tuple[bool, ...]
    mlp: tuple[bool, ...]
    quantize: Literal["int4", "int8"] | None = None
    """Quantization of the layers that run: a copy that shares keys and values; None: the target's own layers run."""

    @classmethod
    def first(cls, count: int, layers: int) -> LayerChoice:
        """The first `count` of `layers` layers."""
        runs = tuple(layer < count for layer in range(layers))
        return cls(runs, runs)

    @classmethod
    def without(cls, layers: int, attention: Collection[int], mlp: Collection[int]) -> LayerChoice:
        """All of `layers` layers except these attention and these MLP blocks."""
        return cls(
            tuple(layer not in attention for layer in range(layers)), tuple(layer not in mlp for layer in range(layers))
        )

    @property
    def layers(self) -> int:
        """Number of layers of the decoder."""
        return len(self.attention)

    @property
    def active_layers(self) -> tuple[int, ...]:
        """The layers that run at least in part."""
        return tuple(layer for layer in range(self.layers) if self.attention[layer] or self.mlp[layer])

    @property
    def whole(self) -> int:
        """Number of layers before the first incomplete one."""
        both = [a and m for a, m in zip(self.attention, self.mlp, strict=True)]
        return both.index(False) if False in both else self.layers

    @property
    def rest(self) -> LayerChoice:
        """All layers from the first incomplete one on, each complete."""
        runs = tuple(layer >= self.whole for layer in range(self.layers))
        return LayerChoice(runs, runs)


NEWEST_QUERIES = 64
"""Number of a prompt's last tokens whose queries a target's memory keeps."""


@dataclass(frozen=True)
class ChosenSlots:
    """The committed slots that every node of a draft sees, together with its own path and nothing else.

    A row's slots ascend, and their number is the same for all layers and KV heads; shorter rows are padded with -1.
    Keys keep their positions in the text.
    """

    slots: Tensor  # [layers or 1, B, KV heads or 1, K] int64
    upper: bool = False  # True if only the upper halves of keys and values in split int8 are read


@dataclass
class SeenTokens:
    """Counts of the committed tokens that drafts see, and of all committed tokens."""

    drafts: int = 0
    seen: int = 0
    committed: int = 0

    def add(self, most: int, counts: Sequence[int]) -> None:
        """Counts a draft of each row, given the rows' committed tokens, of which it sees at most `most`."""
        self.drafts += len(counts)
        self.seen += sum(min(most, count) for count in counts)
        self.committed += sum(counts)

    def figures(self, budget: int) -> dict[str, float]:
        """Means over the drafts; empty without any."""
        if not self.drafts:
            return {}
        means = {"seen": self.seen / self.drafts, "context": self.committed / self.drafts}
        return {"budget": budget, **means, "share": self.seen / max(1, self.committed)}


class CommittedMemory(Protocol):
    """A target's keys and values of the committed tokens, read-only. A slot is a position of the row's text."""

    @property
    def count(self) -> Tensor:
        """Number of committed slots of each row, which are its first ones: [B] int64."""

    @property
    def counts(self) -> Sequence[int]:
        """`count` on the host."""

    @property
    def keys(self) -> Tensor:
        """The keys of all layers, after rotary embedding: [layers, B, KV heads, S, D]."""

    @property
    def values(self) -> Tensor:
        """The values of all layers: [layers, B, KV heads, S, D]."""

    @property
    def queries(self) -> Tensor:
        """The queries of the newly committed tokens, at most `NEWEST_QUERIES` of a prompt: [layers, R, heads, T, D].

        They are rotated and scaled, so that their products with keys are the inputs of attention's softmax. The newest
        token's are the last; shorter rows are padded with 0 on the left. The R rows are those of the commit.
        Consecutive heads share a KV head.
        """

    def copy(self, row: int, count: int) -> Tensor:
        """Keys and values of a row's first `count` slots, [2 * layers, KV heads, count, D], for a `KnownPrefix`.

        Raises CompositionError if another row cannot begin with them.
        """


class KVSelection(Protocol):
    """Chooses the committed slots that a draft sees. It may read anything committed, but never the draft."""

    budget: int
    """The most slots it chooses."""
    per_head: bool
    """True if the chosen slots may differ between layers and KV heads."""
    queries: bool
    """True if it reads the queries of committed tokens."""

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows, each of at most `room` positions; forgets earlier ones."""

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Processes the committed tokens; rows that come with a prompt are the last ones of the memory."""

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """The slots that the next draft sees."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the others are finished."""


def reads_upper(kv_selection: KVSelection | None) -> bool:
    """Returns whether a KV selection reads only the upper halves of keys and values in split int8: its `upper`."""
    return getattr(kv_selection, "upper", False) is True


class PromptSelection(Protocol):
    """Chooses the tokens of a long prompt that a drafter or a target reads in place of the whole prompt.

    Its constructor opens no file: `bind` loads weights.
    """

    tokens: int
    """The most tokens that are read."""

    def sized(self, tokens: int) -> Self:
        """Returns this selection with another number of tokens, before `bind`. Raises InputError if it is too small."""
        ...

    def bind(self, target: Target, drafter: Drafter | None = None) -> None:
        """Attaches to the target of the prompts, and to the drafter that reads the chosen tokens, if one does."""

    def choose(self, prompt: Sequence[int]) -> list[int]:
        """The `tokens` positions to read of a prompt that has more, in ascending order."""
        ...


@runtime_checkable
class LookingAhead(Protocol):
    """A KV selection that also reads queries of a likely answer, the tokens after a new prompt.

    The answer follows from the prompt and its first token, and is dropped before the first draft.
    """

    lookahead: int
    """The most tokens whose queries it reads."""

    def bind(self, target: Target) -> None:
        """Attaches to the target of the prompts."""

    def answers(self, committed: Committed) -> Tensor | None:
        """The likely answers after new rows, `lookahead` tokens [R, T] with the rows' roots first.

        None: the most probable tokens of the layers that draft.
        """

    def look_ahead(self, queries: Tensor, memory: CommittedMemory) -> None:
        """Observes the queries [layers, R, heads, T, D] of tokens after new rows, the last ones of the memory."""


@runtime_checkable
class LayeredTarget(NeuralTarget, Protocol):
    """A target whose own layers a drafter can run over a draft, on the keys and values of the committed text."""

    def check_layers(self, chosen: LayerChoice, kv_selection: KVSelection | None = None) -> None:
        """Raises CompositionError if the target cannot draft with the chosen layers and the KV selection.

        A running session goes on. A quantized copy, if one is chosen, is made now. For a KV selection that reads
        queries, the target's memory keeps them from now on.
        """

    def run_layers(
        self, chosen: LayerChoice, tree: TokenTree, nodes: Tensor, slots: ChosenSlots | None = None
    ) -> Mapping[str, Tensor]:
        """The features [B, F, D] of draft nodes [B, F] by the chosen layers alone: `last`, and `layer.K`.

        K is `chosen.whole - 1`, the last layer before the first incomplete one. The tree is a frontier's: the first
        frontier is the root alone, and a node's parent ran before it. `score` does not run the first `chosen.whole`
        layers again over nodes that they ran over here, matched by path.

        With chosen `slots` the nodes see only these committed slots and their own paths, and the only feature is
        `last`. Keys and values written then, or by a quantized copy, serve this draft only: `score` runs all layers
        over the nodes.
        """

    def memory(self) -> CommittedMemory:
        """The keys and values of the running session's committed tokens."""

    def replay_layers(self, chosen: LayerChoice, tokens: Tensor) -> Tensor:
        """The feature `last` [B, W, D] of each row's last W processed tokens [B, W], by the chosen layers alone.

        These are the committed tokens before the root. The first one sees the whole target's entries of earlier
        tokens; each later one also sees these layers' entries of the tokens in between. It is called between a commit
        and the next draft, and changes no state. Outputs beyond a shorter row's tokens are undefined.
        """

    def norm(self, features: Tensor) -> Tensor:
        """Applies the final norm to a layer's features, as if the decoder ended there: [..., D] -> [..., D].

        The result is read as the tap `last`. Raises CompositionError if earlier layers cannot be read in this way.
        """


def reader_of(drafter: Drafter) -> Callable[[], LayeredTarget] | None:
    """The method `as_target` of a drafter whose model can read texts as a target does; None for any other.

    It returns the model as a target with its own state, whose memory has queries if its attention exposes them.
    """
    return getattr(drafter, "as_target", None)


class ExitingModel(LanguageModelDrafter, Protocol):
    """A language model whose first layers are smaller drafters, read by the model's own final norm and LM head."""

    @property
    def depth(self) -> int:
        """Number of layers."""

    def read_exits(
        self, tokens: Tensor, exits: Sequence[int], layer_mask: Tensor | None = None
    ) -> Sequence[Callable[[], Tensor]]:
        """Returns for each exit, a number of layers, a function that computes its logits [B, L, V] of texts [B, L].

        Gradients reach the module. A layer passes a text's states on unchanged where `layer_mask` [layers, B] is False.
        """

    def exit_after(self, exits: Sequence[int]) -> None:
        """Prepares `expand_to` for these numbers of layers, ascending; called between `bind` and `open`."""

    def expand_to(self, frontier: Frontier, exit: int) -> Proposal:
        """The logits after each frontier node by the first `exit` layers, a prepared number or all: [B, F, 1, V].

        They equal those of a model of these layers that has read the whole text.
        """
