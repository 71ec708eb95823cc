"""Kangaroo's drafter: the target's first layers, and an adapter that replaces the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specframe import CompositionError, InputError
from specframe.neural import DraftSession, NeuralDrafter, neural_target
from specframe.plugin import Frontier, LayerChoice, LayeredTarget, Promise
from specframe_self.kangaroo.network import Adapter
from specframe_self.kangaroo.session import Exits

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Head, NeuralTarget, Target


class Kangaroo(NeuralDrafter[Adapter]):
    """The target's first layers with a trained adapter, whose output the target's LM head reads (Liu et al. 2024).

    The layers before the exit run once over every node, and verification resumes above them. The adapter is one
    attention of the target's type and two norms, with its own keys and values for the committed text. The exit's
    features of draft nodes are the target's own, so it is as accurate at deep levels as in training.

    The paper's second exit, which stops after an uncertain token, is the tree `threshold` with `least`.

    Args:
        exit: number of the target's layers that run before the adapter, from the first on (the paper: 2 of 32, 3 of
            40).
        weights: a trained adapter's folder, `zoo://name` or Hub name; none: untrained.
        head: how the adapter's outputs become logits; none: the target's LM head.
    """

    name = "kangaroo"
    promise = Promise(uses_target_layers=True)

    def __init__(self, *, exit: int, weights: str | None = None, head: Head | None = None) -> None:
        if exit < 1:
            raise InputError(f"kangaroo: exit must leave at least 1 layer, not {exit}")
        super().__init__(weights=weights, head=head)
        self.exit = exit
        self.taps = frozenset({f"layer.{exit - 1}"})
        self._layers: tuple[LayeredTarget, LayerChoice] | None = None

    def untrained(self, vocab: int) -> Kangaroo:
        """Returns an unbound copy without weights, for a target of two layers, the first of which drafts."""
        small = super().untrained(vocab)
        small.exit, small.taps, small._layers = 1, frozenset({"layer.0"}), None
        return small

    def build(self, target: NeuralTarget) -> Adapter:
        """Returns a new adapter for the target."""
        return Adapter(target.config, self.exit)

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the checkpoint fields that must match: the exit, and the target's type and depth."""
        return {"exit": self.exit, "model_type": config.model_type, "target_layers": config.num_hidden_layers}

    def bind(self, target: Target) -> None:
        """Shares the target's first layers, and builds or loads the adapter.

        Raises CompositionError for a target that cannot run some of its layers, or has too few; WeightsError for
        weights that do not fit, with all mismatches.
        """
        model = neural_target(target, self.name)
        if not isinstance(model, LayeredTarget):
            raise CompositionError(
                "drafter kangaroo takes layers from a target that is a transformers model: use the target hf"
            )
        layers = model.config.num_hidden_layers
        if self.exit >= layers:
            raise CompositionError(
                f"kangaroo: the target has {layers} layers; leave before the last, not after {self.exit}"
            )
        chosen = LayerChoice.first(self.exit, layers)
        model.check_layers(chosen)
        super().bind(target)
        self._layers = model, chosen

    def session(self, slots: int, room: int) -> DraftSession:
        """Returns an empty session for at most `slots` rows of at most `room` positions each."""
        if self._layers is None:
            raise CompositionError("drafter kangaroo was used before bind(target)")
        target, chosen = self._layers
        tap = f"layer.{self.exit - 1}"

        def exits(frontier: Frontier) -> Tensor:
            return target.run_layers(chosen, frontier.tree, frontier.nodes)[tap]

        return Exits(self.network, exits, slots, room=room)
