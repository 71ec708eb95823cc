"""Interface of a drafter's network, and the network of drafters with their own decoder layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor, nn

from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import NeuralTarget
from specframe.kernel.types import Committed, Frontier, PairSpec, Predicted
from specframe.native.modules import Cells
from specframe.neural.blocks import State
from specframe.neural.compiled import CompiledLayers
from specframe.neural.layer import DecoderLayer
from specframe.neural.masks import TextWindow, block_causal
from specframe.neural.session import FeatureSession

if TYPE_CHECKING:
    from transformers import Cache

NetworkT = TypeVar("NetworkT", bound=nn.Module)
Embed = Callable[[Tensor], Tensor]
"""The target's token embeddings, [..] -> [.., D]."""


class DraftSession(Protocol):
    """The decoding state of a session's rows."""

    def commit(self, committed: Committed) -> None:
        """Adds the committed pairs; rows that come with a prompt are new, and follow the others."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        ...

    def expand(self, frontier: Frontier) -> Predicted:
        """The predictions of the next levels below each frontier node; the root starts a draft."""
        ...


class DraftNetwork:
    """Interface that `NeuralDrafter` needs of a network, an `nn.Module`: its unrolling and its session.

    The three attributes are those of `FeatureDrafter`. The defaults suit a network that reads the tap `last` and
    predicts the feature of the next position.
    """

    spec: PairSpec = PairSpec()
    block: int = 1
    levels: int = 1

    def fuse(self, features: Tensor) -> Tensor:
        """Fuses the taps' concatenated features into those paired with the tokens: [.., A D] -> [.., D]."""
        return features

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """The predictions along texts: see `FeatureDrafter.unroll`."""
        raise NotImplementedError

    def open(self, embed: Embed, slots: int, room: int) -> DraftSession:
        """A session of at most `slots` rows, none yet, each of at most `room` positions."""
        raise NotImplementedError


@dataclass(frozen=True)
class LevelModules:
    """The modules of a network that computes pairs, layer and head, in this order, for `block` levels per forward pass.

    Several features of a token go through `entry`. Pairs go through `fusion` or `cells`, or the layer reads both parts
    concatenated.
    """

    layer: DecoderLayer
    entry: nn.Module | None = None  # [A D] -> [D]; None: a token has one feature
    fusion: nn.Module | None = None  # [2D] -> [D]
    cells: Cells | None = None  # an LSTM along the pairs, 2D -> D
    block: int = 1
    norm: nn.Module | None = None  # before the head
    feeds_normed: bool = False  # True if the fed-back features have passed that norm


class FeatureNetwork(DraftNetwork, nn.Module):
    """A network of decoder layers over pairs of a token and the features before it (EAGLE's family, Falcon).

    A family computes the first layer's inputs from pairs in `inputs`. If the head's input or the fed-back features
    differ from the last layer's output, `hidden` and `features` compute them from it.
    """

    layer: DecoderLayer

    @property
    def native(self) -> LevelModules | None:
        """The modules by which native code can compute it; None: it is expanded level by level."""
        return None

    @property
    def width(self) -> int:
        """Width of the layer's inputs."""
        return int(self.layer.config.hidden_size)

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """The layer's inputs for pairs, embedding first, and the state after them: [B, M, 2D] -> [B, M, D].

        `state` is carried from pair to pair, see `start`. `counts` are the rows' numbers of pairs; outputs beyond them
        are never used.
        """
        raise NotImplementedError

    def text_inputs(self, pairs: Tensor) -> Tensor:
        """The layer's inputs along whole texts, with gradients in training: [B, n, 2D] -> [B, n, D]."""
        return self.inputs(pairs, self.start(len(pairs)))[0]

    def embedded(self, embed: Embed) -> Embed:
        """The token embedding that it reads: the given one of the target, unless it has its own."""
        return embed

    def start(self, batch: int) -> State:
        """The state before the first pair: tensors [P, batch, D], none if nothing is carried."""
        return ()

    def mask(self, pairs: Tensor) -> Tensor:
        """Returns the mask inputs, which query the levels after a pair's first: [.., 2D] -> [.., K - 1, D]."""
        raise NotImplementedError

    def hidden(self, outputs: Tensor) -> Tensor:
        """Returns the LM head's input from the layer's outputs, [.., P] -> [.., H]."""
        return outputs

    def features(self, outputs: Tensor) -> Tensor:
        """Returns the features that are fed back and compared with the imitated tap: [.., P] -> [.., D]."""
        return outputs

    def predicted(self, outputs: Tensor) -> Predicted:
        """The layer's outputs as predictions: [B, n, K, P]."""
        return Predicted(self.hidden(outputs), self.features(outputs))

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """The predictions along texts, one of each entry."""
        pairs = torch.cat([self.embedded(embed)(tokens), features], -1)  # [B, n, 2D]
        return self.predicted(self(pairs, positions, mask)[:, :, None])

    def forward(
        self, pairs: Tensor, positions: Tensor | None = None, mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """The layers' outputs for whole texts, [B, n, 2D] -> [B, n, P]; block-causal, or by positions and mask.

        Only the last layer is block-causal: keys and values of all layers depend on the pairs up to their own.
        With a cache, the entries also see those of earlier calls, by the mask [B or 1, 1, n, S].
        """
        batch, length, _ = pairs.shape
        inputs = self.text_inputs(pairs)
        if positions is None:
            positions = torch.arange(length, device=pairs.device).expand(batch, -1)
        before = None
        if mask is None and self.block > 1:
            mask, before = (block_causal(length, block, pairs.device) for block in (self.block, 1))
        outputs: Tensor = self.layer(inputs, positions, mask, cache, before)
        return outputs

    def open(self, embed: Embed, slots: int, room: int) -> DraftSession:
        """A session of at most `slots` rows, none yet, each of at most `room` positions."""
        return FeatureSession(self, self.embedded(embed), slots, room=room)


def seeded(build: Callable[[], NetworkT], target: NeuralTarget) -> NetworkT:
    """The network that `build` makes, ready to draft: on the target's device, in its dtype, in evaluation mode.

    Its random weights are the same in every run; the state of global generators is unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would reach accelerators, too
        return build().to(target.device, target.dtype).eval()


def with_options(
    session: DraftSession, name: str, window: TextWindow | None, compiled: CompiledLayers | None
) -> DraftSession:
    """Applies the options to a drafter's new session. Raises CompositionError for a session that is not over pairs."""
    for option, value in {"a window": window, "compile": compiled}.items():
        if value is not None and not isinstance(session, FeatureSession):
            raise CompositionError(f"drafter {name}: {option} fits sessions over pairs alone; leave it out")
    if isinstance(session, FeatureSession):
        if window is not None:
            session.limit(window)
        if compiled is not None:
            session.compile(compiled)
    return session
