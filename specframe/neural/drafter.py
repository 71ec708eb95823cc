"""The shell of a neural drafter: everything that does not depend on its network."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, cast

import torch
from torch import Tensor, nn

from specframe.kernel.capabilities import Promise, untrained_form
from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import Head, NeuralTarget
from specframe.kernel.training import Trainable
from specframe.kernel.types import Committed, Frontier, PairSpec, Predicted, Proposal
from specframe.neural.compiled import CompiledLayers
from specframe.neural.forward import without_gradients
from specframe.neural.growth import NativeSearches
from specframe.neural.heads import make_proposal, neural_target, support_of
from specframe.neural.masks import TextWindow
from specframe.neural.network import NetworkT, seeded, with_options
from specframe.neural.quantize import Quantization, QuantizedCopy, round_layers, rounds
from specframe.neural.weights import checkpoint
from specframe.neural.weights.origin import KnownRows, record_target, require_vocabulary, warn_of_another

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specframe.kernel.interfaces import Target, TreePolicy
    from specframe.kernel.types import Context, SearchBeam, TokenTree
    from specframe.neural.network import DraftNetwork, DraftSession


class NeuralDrafter(Generic[NetworkT]):
    """A drafter that shares the target's embedding and LM head, and has its own network.

    A family defines its `name`, the network that `build` makes, and the `identity` that a checkpoint and the drafter
    must agree on; its network is a `DraftNetwork`. The rest is common to all: binding, checking, loading and
    saving of weights, a separate head or the network's own LM heads, training of a head alone with the network
    frozen, confidence, the session, and training.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained, the same in every run.
        head: the map from predictions to logits; none: the network's own LM heads, or the target's.
        quantize: the network's linear layers in 4 or 8 bits while it decodes; saved unrounded.
        compile: whether torch.compile computes the decoder layers while it decodes; not with `quantize` on a CPU.
    """

    name: ClassVar[str]
    promise: Promise = Promise()
    taps: frozenset[str] = frozenset({"last"})
    spec: PairSpec = PairSpec()
    """Features that it reads, and the use of its predictions; like the next two, set from the network by `bind`."""
    block: int = 1
    """Distance of the first prediction from its entry; 0 if draft nodes have the target's own features."""
    levels: int = 1
    """Number of predictions from an entry in training."""
    window: TextWindow | None = None
    """The committed pairs that drafts see; None: all."""
    _known: int | None = None  # number of first tokens that its own LM heads have rows for; None: all

    def __init__(
        self,
        *,
        weights: str | None = None,
        head: Head | None = None,
        quantize: Quantization | None = None,
        compile: bool = False,
    ) -> None:
        self.weights = weights
        self.head = head
        self.quantize = quantize
        self.compiled = CompiledLayers(f"drafter {self.name}") if compile else None
        self._bound: tuple[NeuralTarget, NetworkT] | None = None
        self._session: DraftSession | None = None
        self._quantized = QuantizedCopy[NetworkT]()
        self._reader: Callable[[Tensor], Tensor] | None = None
        self._searches = NativeSearches()
        self._search: SearchBeam | None = None

    def untrained(self, vocab: int) -> Self:
        """A copy of this drafter without weights, unbound and not compiled, for a target of `vocab` tokens."""
        drafter = copy.copy(self)
        drafter.weights = drafter._bound = drafter._session = drafter._reader = drafter._known = drafter.compiled = None
        drafter.head = untrained_form(self.head, vocab)
        return drafter

    def build(self, target: NeuralTarget) -> NetworkT:
        """A new network for the target."""
        raise NotImplementedError

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the fields on which checkpoint and drafter must agree; `format` and width are checked anyway."""
        return {}

    def load(self, target: NeuralTarget, weights: str) -> NetworkT:
        """The network of a checkpoint. Raises WeightsError for one that does not fit, all misfits listed."""
        checkpoint.check(weights, self._identity(target.config))
        return self.filled(target, weights)

    def fresh(self, target: NeuralTarget) -> NetworkT:
        """The untrained network, the same in every run, on the target's device and in its dtype."""
        return seeded(lambda: self.build(target), target)

    def filled(self, target: NeuralTarget, folder: str | Path, *, file: str = checkpoint.WEIGHTS) -> NetworkT:
        """A network with the weights of a file. Raises WeightsError, all misfits listed, if they do not fit."""
        network = seeded(lambda: self.build(target), target)
        rows = KnownRows(target.vocab_size)
        checkpoint.load(network, folder, file=file, fit=rows)
        self._known = rows.known
        return network

    def store(self, folder: Path) -> None:
        """Writes the network's config.json and model.safetensors, in bfloat16."""
        stored = self._identity(self.target.config) | checkpoint.target_shape(self.target.config)
        checkpoint.save(self.network, stored, folder, torch.bfloat16)

    def session(self, slots: int, room: int) -> DraftSession:
        """A session of at most `slots` rows, none yet, of at most `room` positions each, within the window."""
        session = cast("DraftNetwork", self.decoding).open(self.target.embed, slots, room)
        return with_options(session, self.name, self.window, self.compiled)

    def bind(self, target: Target) -> None:
        """Builds the network in the target's shape, or loads it.

        Raises CompositionError for a target without hidden states, WeightsError for weights that do not
        fit, all misfits listed.
        """
        model = neural_target(target, self.name)
        if self.compiled is not None and rounds(f"drafter {self.name}", self.quantize, model.device):
            raise CompositionError(f"drafter {self.name}: native code runs what `quantize` rounds; leave compile out")
        network = self.fresh(model) if self.weights is None else self.load(model, self.weights)
        if self.weights is not None:
            require_vocabulary(self.weights, target.vocab_size)
            warn_of_another(f"drafter {self.name}", self.weights, target)
        self._bound, self._session = (model, network), None
        self.spec, self.block, self.levels = self._plan.spec, self._plan.block, self._plan.levels
        model.request(taps := frozenset(self.spec.reads))
        self.taps = taps
        if self.head is not None:
            self.head.bind(model)
            if isinstance(own := getattr(self.head, "weights", None), str):
                warn_of_another("head", own, target)
        network.requires_grad_(not isinstance(self.head, Trainable))

    @property
    def module(self) -> nn.Module:
        """The network; with a head that has its own weights, that head alone. Empty before bind."""
        if isinstance(self.head, Trainable):
            return self.head.module
        return nn.Module() if self._bound is None else self.network

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors of `module`, for `weights`, or the head's `weights`, to load."""
        if isinstance(self.head, Trainable):
            self.head.save(folder)
        else:
            self.store(folder)
        record_target(folder, self.target)

    @property
    def target(self) -> NeuralTarget:
        """The target."""
        return self._both()[0]

    @property
    def network(self) -> NetworkT:
        """The network."""
        return self._both()[1]

    @property
    def decoding(self) -> NetworkT:
        """The network that drafts: with `quantize` on a CPU, a quantized copy, made again when weights change."""
        target, network = self._both()
        if self.quantize is None or not rounds(f"drafter {self.name}", self.quantize, target.device):
            return network
        return self._quantized.of(network, partial(self.round, quantization=self.quantize))

    def round(self, network: NetworkT, quantization: Quantization) -> NetworkT:
        """A quantized copy of the network; a family overrides it if not all matrices are linear layers."""
        return round_layers(network, quantization)

    @property
    def support(self) -> Tensor | None:
        """The tokens of its logits' columns, int64 [v]: the head's, or the network's own; None: the vocabulary."""
        if self._reader is not None:
            return None
        if self._known is not None and self.head is None:
            return torch.arange(self._known, device=self.target.device)
        return support_of(self.head if self.head is not None else self.network if self._bound else None)

    def fuse(self, features: Tensor) -> Tensor:
        """Fuses the taps' concatenated features into those paired with the tokens: [B, n, A D] -> [B, n, D]."""
        return self._plan.fuse(features)

    def unroll(
        self, features: Tensor, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Predicted:
        """The predictions along texts, [B, n, D], [B, n + K - 1]: see `FeatureDrafter.unroll`."""
        return self._plan.unroll(features, tokens, self.target.embed, positions, mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """Applies the head, or the target's LM head, to the network's outputs: [.., H] -> [.., V]."""
        hidden = hidden.contiguous()  # for strided rows with gradients, PyTorch would copy the weights for each
        if self._reader is not None:
            return self._reader(hidden)
        return self.target.head(hidden) if self.head is None else self.head(hidden)

    def read(self, predicted: Predicted) -> Tensor:
        """The logits of predictions, [B, n, K, v]: by the head, the network's own LM heads or the target's."""
        if self.head is None and predicted.read is not None:
            return predicted.read(predicted.hidden)[..., : self._known]
        return self.logits(predicted.hidden)

    def frozen_head(self, predicted: Predicted) -> Callable[[Tensor], Tensor] | None:
        """The LM head of predictions if none of its weights is trained, [.., H] -> [.., v]; None otherwise."""
        own = self.head is None and predicted.read is not None
        return None if own or self._reader is not None or isinstance(self.head, Trainable) else self.logits

    def reading(self, reader: Callable[[Tensor], Tensor]) -> Self:
        """A copy of this drafter with another function from its head's inputs to logits, [.., H] -> [.., v].

        A rollout uses it to train a head that learns something other than the logits of tokens.
        """
        twin = copy.copy(self)
        twin._reader = reader
        return twin

    def twin(self) -> Self:
        """A copy whose network shares the tensors, so that it can use them in another way."""
        target, network = self._both()
        shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
        drafter = copy.copy(self)
        drafter._bound, drafter._session = (target, copy.deepcopy(network, shared)), None
        drafter._quantized = QuantizedCopy()
        return drafter

    def alternatives(self) -> Mapping[str, Self]:
        """Copies with other interpretations of the weights, by the entries that config.json would then have.

        `specframe doctor` tries them. A family with switches that do not change the tensors' shapes returns twins.
        """
        return {}

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows, of at most `room` positions each."""
        self._session = self.session(slots, room)
        matrix = None if self._reader is not None else getattr(self.head, "matrix", None)
        self._search = self._searches.of(self._session, self.decoding, matrix, self.support, self.target)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the recipe's tree policy. Raises CompositionError without one."""
        if tree is None:
            raise CompositionError(f"drafter {self.name} needs a tree policy, such as fixed, dynamic or chain")
        return tree.grow(self.expand, root, context.with_search(self._search))

    @without_gradients
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits of the next levels below each frontier node, with the head's confidence if it has one."""
        predicted = self._running().expand(frontier)
        proposal = make_proposal(self.read(predicted), self.head, predicted.hidden)
        if predicted.confidence is not None:
            proposal = replace(proposal, confidence=predicted.confidence)
        if self.head is not None or self.support is None:
            return proposal
        return replace(proposal, support=self.support, vocab=self.target.vocab_size)

    @without_gradients
    def commit(self, committed: Committed) -> None:
        """Adds the committed pairs; rows that come with a prompt are new, and follow the others."""
        self._running().commit(committed)

    @without_gradients
    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._running().keep(rows)

    @property
    def _plan(self) -> DraftNetwork:
        return cast("DraftNetwork", self.network)

    def _identity(self, config: Any) -> dict[str, Any]:
        return {"format": self.name, **self.identity(config), "hidden_size": config.hidden_size}

    def _running(self) -> DraftSession:
        if self._session is None:
            self._both()
            raise CompositionError(
                f"drafter {self.name} was used before anything was committed: call open, then commit a prompt"
            )
        return self._session

    def _both(self) -> tuple[NeuralTarget, NetworkT]:
        if self._bound is None:
            raise CompositionError(f"drafter {self.name} was used before bind(target)")
        return self._bound
