"""A target around another one is an instance of the same protocols, on Python 3.12 and newer, too."""

from __future__ import annotations

import ast
from inspect import getattr_static
from typing import Any

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.inspect.recorder import RecordedTarget, Recorder
from specframe.kernel.capabilities import DelegatingTarget
from specframe.kernel.interfaces import NeuralTarget, Target, TextTarget, text_of
from specframe.kernel.layers import LayeredTarget
from specframe.kernel.types import Prompts, Scores, TokenTree, Verdict
from specframe.neural.heads import DivisibleTarget
from specframe.sampling.laws import Sampling
from tests.repo.repository import PLUGINS, ROOT, name, sources

PROTOCOLS = (NeuralTarget, LayeredTarget, DivisibleTarget)
DYNAMIC = {
    "BranchSource": "branches",
    "DelegatingTarget": "capabilities",
    "Generator": "patches",
    "Race": "exponential",
    "LazyTensor": "uniform",
}
"""The classes that answer for any name, by their modules: `DelegatingTarget`, and random numbers that refuse it."""


def members(protocol: type) -> set[str]:
    """The public names of a protocol and of those that it extends, which an instance must have."""
    annotated = {name for kind in protocol.__mro__ for name in vars(kind).get("__annotations__", {})}
    return {name for name in annotated | {*dir(protocol)} if not name.startswith("_")}


def lacking(made: Any, protocol: type) -> set[str]:
    """The members that isinstance does not find on Python 3.12."""
    return {member for member in members(protocol) if getattr_static(made, member, None) is None}


def table() -> Target:
    return TableTarget(vocab=5)


def neural() -> Target:
    return HFTarget.from_model(tiny_llama(11, 0))


@pytest.mark.parametrize("make", [table, neural])
@pytest.mark.parametrize("wrap", [DelegatingTarget, lambda target: RecordedTarget(target, Recorder(Sampling()))])
def test_it_is_an_instance_of_the_same_protocols(make: Any, wrap: Any) -> None:
    inner = make()
    around = wrap(inner)
    offered = [protocol for protocol in PROTOCOLS if isinstance(inner, protocol)]
    assert NeuralTarget in offered and (LayeredTarget in offered) == (make is neural)
    assert [protocol for protocol in PROTOCOLS if isinstance(around, protocol)] == offered
    assert not [lacking(around, protocol) for protocol in offered if lacking(around, protocol)]
    assert not [public for public in dir(inner) if public[0] != "_" and getattr_static(around, public, None) is None]


class Halved(DelegatingTarget):
    """Scores with half of the logits."""

    def score(self, tree: TokenTree) -> Scores:
        scores = self._target.score(tree)
        return Scores(scores.logits / 2, scores.features)


def test_greedy_scores_are_those_of_a_score_of_its_own() -> None:
    inner = neural()
    prompts = Prompts(torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    for around, factor in ((DelegatingTarget(inner), 1), (Halved(inner), 2)):
        assert hasattr(around, "choose")
        inner.open(1, 16)
        tree, scores = inner.admit(prompts)
        root = scores.logits[:, 0].argmax(-1)
        inner.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros_like(root), root))
        tree = TokenTree.root_only(root)
        assert torch.equal(factor * text_of(around).choose(tree).logits, inner.score(tree).logits)


def test_control_a_class_that_only_answers_for_any_name_is_none() -> None:
    class Around:
        def __init__(self, target: Target) -> None:
            self._target = target

        def __getattr__(self, name: str) -> Any:
            return getattr(self._target, name)

    around: Any = Around(neural())
    assert around.config is not None and lacking(around, NeuralTarget) == members(NeuralTarget)


def test_what_a_target_has_is_read_when_it_is_asked_for() -> None:
    inner: Any = table()
    around: Any = DelegatingTarget(inner)
    assert type(around).__name__ == "DelegatingTarget" and type(around) is type(DelegatingTarget(table()))
    inner.context = 77
    inner.late = "set later"
    assert around.context == 77 and around.late == "set later"
    around.context = 3
    assert around.context == 3 and inner.context == 77
    with pytest.raises(AttributeError, match="nothing_such"):
        around.nothing_such  # noqa: B018


def test_what_a_subclass_defines_is_its_own() -> None:
    class Short(DelegatingTarget):
        @property
        def context(self) -> int:
            return 2

    around: Any = Short(table())
    assert isinstance(around, Short) and around.context == 2 and around.vocab_size == 5


@pytest.mark.parametrize("make", [table, neural])
@pytest.mark.parametrize("wrap", [DelegatingTarget, lambda target: RecordedTarget(target, Recorder(Sampling()))])
def test_it_has_the_same_optional_members(make: Any, wrap: Any) -> None:
    inner = make()
    around = wrap(inner)
    optional = {name for name in vars(TextTarget) if name[0] != "_"}
    assert {"device", "choose", "read_ahead", "image_tokens", "require_inputs", "sibling"} < optional
    offered = {name for name in optional if hasattr(inner, name)}
    assert {name for name in optional if hasattr(around, name)} == offered
    assert (offered == optional) == (make is neural)


def test_no_other_class_answers_for_any_name() -> None:
    found = {}
    for path in (path for folder in (ROOT / "specframe", *PLUGINS) for path in sources(folder)):
        if "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), name(path))):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(inner, ast.FunctionDef) and inner.name in ("__getattr__", "__getattribute__")
                for inner in node.body
            ):
                found[node.name] = path.stem
    assert found == DYNAMIC
