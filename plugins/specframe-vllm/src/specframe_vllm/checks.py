"""Checks of the recipe that vLLM's arguments name: parts and options that vLLM does not support are refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from specframe import CompositionError, InputError, WeightsError
from specframe.neural import checkpoint
from specframe.plugin import Chain, Drafter, Match, Plan, TreePolicy, read_plan

PROPOSER = "specframe_vllm.Proposer"
"""The `model` in `speculative_config` that stands for this package."""


@dataclass(frozen=True)
class Drafting:
    """A recipe's unbound drafter for chains of a given length."""

    plan: Plan
    drafter: Drafter
    tree: TreePolicy | None
    length: int

    @classmethod
    def read(cls, additional: Any, length: int) -> Drafting:
        """Reads the drafter of the recipe that `additional_config` names.

        Raises InputError if it names none, RecipeError for a bad recipe, CompositionError for parts that vLLM does not
        support.
        """
        given = additional.get("specframe") if isinstance(additional, Mapping) else None
        if not isinstance(given, Mapping) or not isinstance(given.get("recipe"), str):
            raise InputError('specframe-vllm needs additional_config={"specframe": {"recipe": FILE}}')
        if strange := sorted(map(str, given.keys() - {"recipe", "overrides"})):
            raise InputError(f"additional_config of specframe has recipe and overrides, and no {', '.join(strange)}")
        plan = read_plan(given["recipe"], list(given.get("overrides", ())))
        name, drafter = plan.parts["drafter"].entry.name, plan.parts["drafter"].build()
        if type(plan.verifier) is not Match:
            raise CompositionError(
                f"vLLM verifies by a rule of its own, which for these drafts is `match`: set verifier.use=match in "
                f"place of {plan.parts['verifier'].entry.name}"
            )
        promise, tree = drafter.promise, None
        if promise.complete and (promise.depth is None or promise.nodes > promise.depth + 1):
            raise CompositionError(
                f"vLLM verifies chains, and the trees that drafter {name} builds may branch: take options that make "
                "chains, such as recycling's ranks: 1, or a drafter that grows a tree policy"
            )
        if not promise.complete:
            if promise.depth is not None and promise.depth < length:
                raise CompositionError(
                    f"drafter {name} drafts no deeper than {promise.depth} levels: num_speculative_tokens is {length}"
                )
            tree = Chain(depth=length)
        return cls(plan, drafter, tree, length)

    @property
    def target(self) -> str | None:
        """The model in the recipe's target section."""
        model = self.plan.parts["target"].options.get("model")
        return None if model is None else str(model)

    def report_chain(self) -> None:
        """Logs a warning if the recipe has a tree, which becomes a chain."""
        if self.tree is not None and (grown := self.plan.parts["tree"].entry.name) != "chain":
            name = self.plan.parts["drafter"].entry.name
            logging.getLogger(__name__).warning(
                "vLLM verifies chains: drafter %s drafts a chain of %d in place of the recipe's tree, %s",
                *(name, self.length, grown),
            )

    def require_features(self, *, pipeline: int, prefix_caching: bool) -> None:
        """Raises CompositionError if vLLM would compute the features in another process, or not at all."""
        taps = ", ".join(sorted(self.drafter.taps))
        if taps and pipeline > 1:
            raise CompositionError(
                f"the drafter reads {taps} of the target, which pipeline parallelism leaves on other devices: use "
                "tensor parallelism"
            )
        if taps and prefix_caching:
            raise CompositionError(
                f"the drafter reads {taps} of every prompt token, and prefix caching leaves some unread: set "
                "enable_prefix_caching=False"
            )


def require_same_model(recipe: str | None, engine: str, model: nn.Module) -> None:
    """Raises CompositionError unless the recipe's target is the engine's model.

    Either the names are equal, or all norms that both have under one name are equal.
    """
    if recipe is None or recipe == engine:
        return
    try:
        folder = checkpoint.locate(recipe)
    except WeightsError:
        folder = None
    if folder is None or not (folder.resolve() == Path(engine).expanduser().resolve() or _same_norms(folder, model)):
        raise CompositionError(
            f"the recipe's target is {recipe}, and vLLM's model {engine} is another one: take the recipe of this "
            "model, or name it by the override target.model=..."
        )


def _same_norms(folder: Path, model: nn.Module) -> bool:
    """Returns whether a folder's norms, in bfloat16, equal the model's; False if they share no names."""
    own, found = dict(model.named_parameters()), False
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - no mapping
                if not name.endswith("norm.weight") or name not in own:
                    continue
                mine, theirs = own[name].detach(), stored.get_tensor(name)
                found = True
                if mine.shape != theirs.shape or not torch.equal(mine.cpu().bfloat16(), theirs.bfloat16()):
                    return False
    return found
