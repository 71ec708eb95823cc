"""ParallelSpec's drafter: all levels of a draft from one forward, prompted by [MASK] tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specframe import CompositionError, Frontier, InputError, NeuralTarget, Proposal, Trainable, WeightsError
from specframe.neural import FeatureSession, checkpoint
from specframe_parallelspec.network import Network

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import Committed, Draw, Head, RandomSource, Sampling, Target, TokenTree, TreePolicy


class ParallelSpec:
    """The parallel drafter of Xiao et al. 2024 (ParallelSpec).

    A forward takes in what was committed since the last one and, behind it, K [MASK] tokens: the root's
    entry gives the law of the first level and [MASK] k that of level k + 1, so K + 1 levels cost one forward,
    whatever tokens are drawn there. The [MASK]s are not remembered. A deeper tree goes on from the drafted
    tokens, K + 1 levels at a time.

    With `features` it is EAGLE's drafter turned parallel (EAGLE-ParallelSpec): an entry is a token and the
    feature before it. Without, it reads tokens alone and stands for Medusa's heads (Medusa-ParallelSpec).

    Embedding and head are the target's, frozen and not saved. Without `weights` the network starts from the
    same random weights in every run.

    Args:
        masks: the paper's K: how many [MASK] tokens; a group has one more, and so many levels a forward.
        features: whether it reads the target's features beside the tokens.
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how its outputs become logits; none: the target's own head.
    """

    # Of tokens alone it drafts without features, but it may be trained on them: its outputs are the LM head's inputs.
    taps = frozenset({"last"})
    draws: frozenset[Draw] | None = None
    nodes: int | None = None

    def __init__(
        self, *, masks: int = 4, features: bool = True, weights: str | None = None, head: Head | None = None
    ) -> None:
        if masks < 1:
            raise InputError(f"parallelspec: masks must be at least 1, got {masks}; without any, use the drafter eagle")
        self.levels = masks + 1
        self.features = features
        self.weights = weights
        self._head = head
        self._target: NeuralTarget | None = None
        self._network: Network | None = None
        self._session: FeatureSession | None = None

    def bind(self, target: Target) -> None:
        """Builds the network after the target's own shape, and loads its weights.

        Raises CompositionError for a target without hidden states, WeightsError for weights that do not
        fit, all misfits listed.
        """
        if not isinstance(target, NeuralTarget):
            raise CompositionError(
                f"drafter parallelspec shares a neural target's embedding and LM head, and {type(target).__name__} "
                "has none; use the target hf, or a drafter such as lookup"
            )
        target.request(self.taps)
        network = Network.seeded(target.config, self.levels - 1, self.features)
        if self.weights is not None:
            self._check(checkpoint.read_config(self.weights), target.config)
            checkpoint.load(network, self.weights)
        if self._head is not None:
            self._head.bind(target)
        network.requires_grad_(not isinstance(self._head, Trainable))
        self._target = target
        self._network = network.to(target.device, target.dtype).eval()
        self._session = None

    @property
    def module(self) -> nn.Module:
        """The [MASK] tokens and the layer; with a trainable head, that head alone. Empty before bind."""
        if isinstance(self._head, Trainable):
            return self._head.module
        return nn.Module() if self._network is None else self._network

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, in bfloat16, for `weights` to load again.

        With a trainable head, that head is written, for its own `weights`.
        """
        target, network = self._bound()
        if isinstance(self._head, Trainable):
            self._head.save(folder)
            return
        shape = {name: getattr(target.config, name) for name in ("hidden_size", "model_type", "vocab_size")}
        checkpoint.save(network, self._options() | shape, folder, torch.bfloat16)

    def foretell(self, features: Tensor, tokens: Tensor) -> Tensor:
        """The features of all levels from every position of whole sequences, [B, n, D], [B, n] -> [B, n, K + 1, D].

        Entry i pairs (features_i, tokens_i = token i + 1); level k from there predicts feature i + k, and sees
        nothing of the future. Gradients reach the module and the features.
        """
        target, network = self._bound()
        predicted: Tensor = network(torch.cat([target.embed(tokens), features], -1))
        return predicted

    def logits(self, features: Tensor) -> Tensor:
        """The drafter's logits for predicted features: [.., D] -> [.., V]."""
        head = self._bound()[0].head if self._head is None else self._head
        return head(features)

    def propose(self, root: Tensor, tree: TreePolicy | None, sampling: Sampling, random: RandomSource) -> TokenTree:
        """A draft below root [B], grown by the recipe's tree policy. Raises CompositionError without one."""
        if tree is None:
            raise CompositionError("drafter parallelspec needs a tree policy, such as fixed, dynamic or chain")
        return tree.grow(self.expand, root, sampling, random)

    @torch.no_grad()
    def commit(self, news: Committed) -> None:
        """Takes in what was committed. News with a prompt starts a session afresh."""
        target, network = self._bound()
        if news.prompt is not None or self._session is None:
            self._session = FeatureSession(
                network.layer,
                network.recall,
                target.embed,
                len(news.count),
                block=self.levels,
                masks=network.mask,
            )
        self._session.commit(news)

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits of the next K + 1 levels below each frontier node, in one forward."""
        if self._session is None:
            raise CompositionError("drafter parallelspec was asked for a draft before anything was committed")
        features = self._bound()[1].norm(self._session.expand(frontier))  # [B, F, K + 1, D]
        return Proposal(self.logits(features))

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        if self._session is not None:
            self._session.keep(rows)

    def _bound(self) -> tuple[NeuralTarget, Network]:
        if self._target is None or self._network is None:
            raise CompositionError("drafter parallelspec was used before bind(target)")
        return self._target, self._network

    def _options(self) -> dict[str, Any]:
        return {"format": "parallelspec", "masks": self.levels - 1, "features": self.features}

    def _check(self, stored: dict[str, Any], config: Any) -> None:
        """Raises WeightsError, every contradiction listed, for a checkpoint of another kind or size."""
        wanted = self._options() | {"hidden_size": config.hidden_size, "vocab_size": config.vocab_size}
        problems = [
            f"  {name}: the checkpoint says {stored.get(name)!r}, needed is {value!r}"
            for name, value in wanted.items()
            if stored.get(name) != value
        ]
        if problems:
            raise WeightsError(f"the drafter in {self.weights} does not fit:\n" + "\n".join(problems))
