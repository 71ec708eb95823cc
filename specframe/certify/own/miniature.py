"""A recipe's own parts on a vocabulary small enough to enumerate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from specframe.certify.own.emission import Emission
from specframe.certify.own.tiny import tiny_llama, tiny_model
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.decoding.session import Parts
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.build import Part, Plan
from specframe.kernel.errors import SpecframeError
from specframe.kernel.interfaces import Drafter, Target, TreePolicy, Verifier
from specframe.kernel.options import read_options
from specframe.sampling.laws import Sampling

VOCAB = 3
LENGTH = 4
PROMPT = (0, 1, 2, 0, 1)
"""It repeats itself, so that retrieval drafters find something."""
EOS = 1


@dataclass(frozen=True)
class Miniature:
    """The recipe's drafter, tree policy and verifier, ready to be built over small targets."""

    drafter: Part
    tree: Part | None
    verifier: Part
    reduced: tuple[str, ...] = ()
    """What had to be made smaller, in words; empty if nothing but the vocabulary was."""
    length: int = LENGTH
    """How many tokens' joint law is watched."""

    @classmethod
    def of(cls, plan: Plan) -> Miniature:
        """The parts of a recipe: trained weights left out, other models replaced by a tiny random one."""
        return cls(_untrained(plan.parts["drafter"]), plan.parts.get("tree"), plan.parts["verifier"])

    def smaller(self) -> Miniature:
        """The same with a tree of two levels and two children a node, and fewer tokens to watch."""
        if self.tree is None:
            return self
        options = {name: _clamped(name, value) for name, value in self.tree.options.items()}
        changed = [f"{n} {self.tree.options[n]} -> {v}" for n, v in options.items() if v != self.tree.options[n]]
        tree = replace(self.tree, options=options)
        try:
            tree.build()
        except SpecframeError:
            return self
        return replace(self, tree=tree, reduced=tuple(changed), length=LENGTH - 1)

    def emission(
        self,
        name: str,
        sampling: Sampling,
        *,
        seed: int = 0,
        eos: int | None = None,
        vocab: int = VOCAB,
        broken: Callable[[Verifier], Verifier] | None = None,
    ) -> Emission:
        """One thing to enumerate. `broken` wraps the verifier, for negative controls.

        Target and drafter are built once: every batch of branches is a session, which starts afresh.
        """
        target, drafter = _bound(self.drafter, vocab, seed, eos)

        def parts() -> Parts:
            tree: TreePolicy | None = self.tree.build() if self.tree is not None else None
            verifier: Verifier = self.verifier.build()
            return Parts(target, drafter, tree, broken(verifier) if broken else verifier)

        ends = frozenset() if eos is None else frozenset({eos})
        return Emission(name, parts, sampling, self.length, tuple(t % vocab for t in PROMPT), ends)


def small_sampling(settings: SamplingSettings, vocab: int = VOCAB) -> Sampling:
    """The recipe's sampling, top_k brought down to what still cuts something off."""
    top_k = min(settings.top_k, vocab - 1)
    return replace(settings.law(), top_k=top_k)


def _untrained(part: Part) -> Part:
    options = {name: _untrained(value) if isinstance(value, Part) else value for name, value in part.options.items()}
    options |= {name: None for name in ("weights", "counts") if name in options}  # made for the real vocabulary
    if "weights" in options and "keep" in read_options(part.component):
        options["keep"] = VOCAB - 1  # a stored draft vocabulary: all tokens but one
    if "model" in options:
        options["model"] = str(tiny_model(VOCAB))
        options |= {name: value for name, value in (("dtype", "float64"), ("revision", None)) if name in options}
        options["dtype"] = "float64"
    return replace(part, options=options)


def _clamped(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return min(value, 4 if name == "nodes" else 2)
    if isinstance(value, list | tuple) and value and all(isinstance(item, int) for item in value):
        return type(value)(min(item, 2) for item in value[:2])
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return type(value)(item for item in value if _is_small_path(item))
    return value


def _is_small_path(path: str) -> bool:
    ranks = path.replace(",", ".").replace(" ", "").split(".")
    return len(ranks) <= 2 and all(rank.isdigit() and int(rank) < 2 for rank in ranks)


def _bound(part: Part, vocab: int, seed: int, eos: int | None) -> tuple[Target, Drafter]:
    """A table target, or a tiny random Llama in float64 where the drafter cannot live on a table; both bound."""
    drafter: Drafter = part.build()
    target: Target = TableTarget(vocab=vocab, order=2, seed=seed, eos=eos)
    try:
        drafter.bind(target)
    except SpecframeError:
        target, drafter = HFTarget.from_model(tiny_llama(vocab, seed)), part.build()
        drafter.bind(target)
    return target, drafter
