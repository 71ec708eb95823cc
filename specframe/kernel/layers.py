"""Models that draft with some of their layers, or on a part of the text: a target itself, or a drafting model."""

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
    """Choice of the attentions and MLPs that run in a decoder's layers; one that is left out passes its input on."""

    attention: tuple[bool, ...]
    mlp: tuple[bool, ...]
    quantize: Literal["int4", "int8"] | None = None
    """Quantization of the layers that run, a copy on the same keys and values; None: they are the target's own."""

    @classmethod
    def first(cls, count: int, layers: int) -> LayerChoice:
        """The first `count` of `layers` layers."""
        runs = tuple(layer < count for layer in range(layers))
        return cls(runs, runs)

    @classmethod
    def without(cls, layers: int, attention: Collection[int], mlp: Collection[int]) -> LayerChoice:
        """Returns all of `layers` layers but these attentions and these MLPs."""
        return cls(
            tuple(layer not in attention for layer in range(layers)), tuple(layer not in mlp for layer in range(layers))
        )

    @property
    def layers(self) -> int:
        """Number of layers of the decoder."""
        return len(self.attention)

    @property
    def kept(self) -> tuple[int, ...]:
        """The layers that run at least in part."""
        return tuple(layer for layer in range(self.layers) if self.attention[layer] or self.mlp[layer])

    @property
    def whole(self) -> int:
        """Number of layers that run before the first of which something is left out."""
        both = [a and m for a, m in zip(self.attention, self.mlp, strict=True)]
        return both.index(False) if False in both else self.layers

    @property
    def rest(self) -> LayerChoice:
        """All layers, as a whole, from the first incomplete one on."""
        runs = tuple(layer >= self.whole for layer in range(self.layers))
        return LayerChoice(runs, runs)


NEWEST_QUERIES = 64
"""Number of a prompt's last tokens whose queries a target's memory has."""


@dataclass(frozen=True)
class ChosenSlots:
    """The committed slots that every node of a draft sees, together with its own path and nothing else.

    Those of a row ascend, and are as many for all layers and heads of keys; -1 stands after them where a row has
    fewer. Keys keep the positions of the text.
    """

    slots: Tensor  # [layers or 1, B, heads of keys or 1, K] int64
    upper: bool = False  # True if only the upper halves of keys and values in split int8 are read


@dataclass
class SeenTokens:
    """Counts of the committed tokens that drafts see, and of those that there are."""

    drafts: int = 0
    seen: int = 0
    committed: int = 0

    def add(self, most: int, counts: Sequence[int]) -> None:
        """Counts a draft of each row, which has so many committed tokens and sees `most` of them at most."""
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
    """A target's keys and values of what is committed, to be read alone. A slot is a position of the row's text."""

    @property
    def count(self) -> Tensor:
        """The committed slots of each row, the first ones: [B] int64."""

    @property
    def counts(self) -> Sequence[int]:
        """The same on the host."""

    @property
    def keys(self) -> Tensor:
        """The keys of all layers, rotated: [layers, B, heads of keys, S, D]."""

    @property
    def values(self) -> Tensor:
        """The values of all layers: [layers, B, heads of keys, S, D]."""

    @property
    def queries(self) -> Tensor:
        """The queries of the tokens just committed, of a prompt at most `NEWEST_QUERIES`: [layers, R, heads, T, D].

        They are rotated and scaled: products with keys are what the softmax of attention gets. The newest token's are
        the last ones; 0 stands before a row's first. The R rows are those of the commit. Several heads in a row share a
        head of keys.
        """

    def copy(self, row: int, count: int) -> Tensor:
        """Keys and values of a row's first `count` slots, [2 * layers, heads of keys, count, D], for a `KnownPrefix`.

        Raises CompositionError where another row could not begin with them.
        """


class KVSelection(Protocol):
    """Chooses the committed slots that a draft sees. It may look at anything committed, and never at the draft."""

    budget: int
    """The most slots it chooses."""
    per_head: bool
    """True if it may choose other slots for every layer and head of keys."""
    queries: bool
    """True if it reads the queries of what is committed."""

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows, each of at most `room` positions; forgets earlier ones."""

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Takes in the committed tokens; rows that come with a prompt are the last ones of the memory."""

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """The slots that the next draft sees."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the others are finished."""


def reads_upper(kv_selection: KVSelection | None) -> bool:
    """Returns whether a KV selection reads only the upper halves of keys and values in split int8: its `upper`."""
    return getattr(kv_selection, "upper", False) is True


class PromptSelection(Protocol):
    """Chooses the tokens of a long prompt that are read in place of all of it, by a drafter or by a target.

    Its constructor opens no file: `bind` loads weights.
    """

    tokens: int
    """The most tokens that are read."""

    def sized(self, tokens: int) -> Self:
        """The same for another number of tokens, before `bind`. Raises InputError for one that is too small."""
        ...

    def bind(self, target: Target, drafter: Drafter | None = None) -> None:
        """Attaches to the target of a prompt, and to the drafter that is to read what is chosen, if one is."""

    def choose(self, prompt: Sequence[int]) -> list[int]:
        """The places that are read, `tokens` of them, ascending, of a prompt that has more."""
        ...


@runtime_checkable
class LookingAhead(Protocol):
    """A KV selection that reads queries of tokens after a new prompt, too, a likely answer.

    They follow from the prompt and its first token, and are forgotten before the first draft.
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
        """Raises CompositionError where the target cannot draft with the chosen layers, on what a KV selection chooses.

        A running session goes on. A quantized copy, where one is chosen, is made now. For a KV selection that reads
        queries the target's memory keeps them from now on.
        """

    def run_layers(
        self, chosen: LayerChoice, tree: TokenTree, nodes: Tensor, slots: ChosenSlots | None = None
    ) -> Mapping[str, Tensor]:
        """The features [B, F, D] of draft nodes [B, F] when the chosen layers alone run: `last`, and `layer.K`.

        K is `chosen.whole - 1`, the last layer that none was left out before. The tree is a frontier's: its first is
        the root alone, and a node's parent ran before. `score` does not run the first `chosen.whole` layers again over
        nodes that they ran over here, by their paths.

        With chosen `slots` the nodes see these of the committed ones alone, and their own paths. There is `last` alone
        then. What is written for the nodes then, or by a quantized copy, serves this draft only: `score` runs all
        layers over them.
        """

    def memory(self) -> CommittedMemory:
        """The keys and values of what the running session has committed."""

    def replay_layers(self, chosen: LayerChoice, tokens: Tensor) -> Tensor:
        """The feature `last` [B, W, D] of each row's last W processed tokens [B, W], when the chosen layers alone run.

        These are the committed tokens before the root. The first one sees the whole target's entries of the tokens
        before it, each later one also these layers' entries of the tokens between. It is called between a commit and
        the next draft, and leaves no trace. The outputs of rows with fewer tokens are undefined there.
        """

    def norm(self, features: Tensor) -> Tensor:
        """The tap `last` of a decoder that ends with a layer of these features, [..., D] -> [..., D].

        Raises CompositionError for a target whose earlier layers cannot be read in this way.
        """


def reader_of(drafter: Drafter) -> Callable[[], LayeredTarget] | None:
    """The method `as_target` of a drafter whose model can read texts as a target does; None for any other.

    It returns the model as a target of its own state, whose memory has queries where its attention shows them.
    """
    return getattr(drafter, "as_target", None)


class ExitingModel(LanguageModelDrafter, Protocol):
    """A language model whose first layers are smaller drafters, read by the model's own final norm and LM head."""

    @property
    def depth(self) -> int:
        """Number of layers."""

    def read_exits(
        self, tokens: Tensor, exits: Sequence[int], kept: Tensor | None = None
    ) -> Sequence[Callable[[], Tensor]]:
        """Returns for each exit, a number of layers, a function that computes its logits [B, L, V] of texts [B, L].

        Gradients reach the module. Where `kept` [layers, B] is False, a layer passes a text's states on unchanged.
        """

    def exit_after(self, exits: Sequence[int]) -> None:
        """Prepares `expand_to` for these numbers of layers, ascending; between `bind` and `open`."""

    def expand_to(self, frontier: Frontier, exit: int) -> Proposal:
        """The logits after each frontier node by the first `exit` layers, one of those prepared or all: [B, F, 1, V].

        They are those of a model of these layers that has read the whole text.
        """
