"""A drafter on a device of its own: it drafts as next to the target, and what crosses is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from inspect import getattr_static
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.cli.main import main
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama, tiny_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import NeuralTarget, TreePolicy
from specframe.kernel.layers import LayeredTarget
from specframe.kernel.types import Committed, Context, Draw, TokenTree
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import check_drafter, check_plugin, tiny_target
from specframe_eagle.drafter import Eagle
from specframe_trees.adaptive import Adaptive
from specframe_trees.ahead import placed as module
from specframe_trees.ahead.ahead import Ahead
from specframe_trees.ahead.placed import Placed

WARM = Sampling(temperature=1.0)
HOME = torch.device("cpu")


def model() -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(3, seed=7))


def decoded(drafter: Any, tree: TreePolicy | None, verifier: Any, sampling: Sampling = WARM) -> list[list[int]]:
    """The new tokens of 24 prompts, four at a time."""
    target = TableTarget(vocab=3, order=2, seed=0)
    drafter.bind(target)
    parts = Parts(target, drafter, tree, verifier)
    prompts = [[(3 * i + j * j) % 3 for j in range(2 + i % 5)] for i in range(24)]
    requests = [Request(tokens=prompt, sampling=sampling, seed=i, max_new_tokens=9) for i, prompt in enumerate(prompts)]
    return [entry.tokens for entry in Session(parts, 4, 40 + parts.nodes).run(requests)]


class Crossings:
    """Every tensor that is carried is a copy, and noted by the line that carries it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[int, ...]] = []
        monkeypatch.setattr(module, "carry", self.carry)

    def carry(self, tensor: Tensor, device: torch.device) -> Tensor:
        assert device == HOME
        self.found.append(tuple(tensor.shape))
        return tensor.clone()


@pytest.mark.parametrize("make", [model, Eagle])
def test_conformance(make: Any) -> None:
    check_drafter(lambda: Placed(device="cpu", drafter=make()))


def test_conformance_around_a_drafter_that_drafts_ahead() -> None:
    check_drafter(lambda: Placed(device="cpu", drafter=Ahead(drafter=model(), window=2)))


COMPOSITIONS = [
    (lambda: Dynamic(depth=3, width=2, nodes=6), Match),
    (lambda: Chain(depth=2, draw=Draw.IID), Recursive),
    (lambda: Chain(depth=2, draw=Draw.WITHOUT_REPLACEMENT), Recursive),
]


@pytest.mark.parametrize(("tree", "verifier"), COMPOSITIONS)
@pytest.mark.parametrize("make", [model, Eagle])
def test_tokens_are_those_of_the_drafter_next_to_the_target(
    tree: Any, verifier: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = decoded(make(), tree(), verifier())
    crossings = Crossings(monkeypatch)
    assert decoded(Placed(device="cpu", drafter=make()), tree(), verifier()) == near
    assert crossings.found


def test_cycles_cross_to_a_drafter_that_drafts_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    near = decoded(Ahead(drafter=model(), window=2), None, Match())
    Crossings(monkeypatch)
    assert decoded(Placed(device="cpu", drafter=Ahead(drafter=model(), window=2)), None, Match()) == near


@pytest.mark.parametrize("target", [TableTarget(vocab=3), tiny_target("llama", vocab=11)])
def test_the_seen_target_is_all_that_the_target_is(target: Any) -> None:
    """Its names stand where isinstance looks for them on Python 3.12, which does not call `__getattr__`."""
    seen = module.seen_from(target, HOME)
    assert isinstance(seen, module.SeenNeural) and isinstance(seen, NeuralTarget)
    assert isinstance(seen, LayeredTarget) == isinstance(target, LayeredTarget)
    assert not [public for public in dir(target) if public[0] != "_" and getattr_static(seen, public, None) is None]


def test_one_commit_one_root_and_one_tree_cross_in_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No level of a draft crosses, and no logits."""
    cycles: Counter[str] = Counter()
    crossings = Crossings(monkeypatch)

    class Counting(Placed):
        def propose(self, root: Tensor, tree: TreePolicy | None, context: Any) -> TokenTree:
            cycles["cycles"] += 1
            return super().propose(root, tree, context)

        def commit(self, committed: Committed) -> None:
            cycles["prompts"] += committed.prompt is not None
            super().commit(committed)

    decoded(Counting(device="cpu", drafter=Eagle()), Dynamic(depth=3, width=2, nodes=6), Match(), Sampling())
    kept = sum(len(shape) == 1 and shape[0] < 4 for shape in crossings.found)
    whole = len(crossings.found)
    # a root, a tree's four tensors; a commit's tokens, count, root and one feature; two more of a prompt
    assert whole <= 9 * cycles["cycles"] + 6 * cycles["prompts"] + kept
    assert max(shape[-1] for shape in crossings.found) < 64


class After(Placed):
    """The tokens of a commit arrive with the features of the one before: a copy that is read too early."""

    late: dict[str, Tensor] | None = None

    def commit(self, committed: Committed) -> None:
        newest = {tap: features[:, -1:].clone() for tap, features in committed.features.items()}
        if committed.prompt is None and self.late is not None:
            old = {tap: self.late[tap].expand_as(features) for tap, features in committed.features.items()}
            committed = replace(committed, features=old)
        self.late = newest
        super().commit(committed)

    def keep(self, rows: Tensor) -> None:
        if self.late is not None:
            self.late = {tap: features[rows] for tap, features in self.late.items()}
        super().keep(rows)


def test_control_features_of_the_cycle_before() -> None:
    """The drafts are others then; those of `placed` are the same as without it."""

    def drafts(drafter: Any) -> list[list[int]]:
        target = tiny_target("llama", vocab=11)
        drafter.bind(target)
        inner = drafter.drafter if isinstance(drafter, Placed) else drafter
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in inner.module.parameters():
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(weight))))
        found: list[list[int]] = []
        parts = Parts(target, drafter, Chain(depth=3), Match())
        request = Request(tokens=[1, 4, 2], sampling=Sampling(), max_new_tokens=12)
        Session(parts, 1, 40).run([request], lambda cycle: found.append(cycle.draft.tokens[0].tolist()))
        return found

    near = drafts(Eagle())
    assert drafts(Placed(device="cpu", drafter=Eagle())) == near
    assert drafts(After(device="cpu", drafter=Eagle())) != near


def test_embedding_and_head_are_copies_with_the_same_numbers() -> None:
    target = tiny_target("llama", vocab=11)
    seen = module.seen_from(target, HOME)
    tokens, features = torch.arange(11), torch.randn(3, 8, dtype=torch.float64)
    assert torch.equal(seen.embed(tokens), target.embed(tokens))
    torch.testing.assert_close(seen.head(features), target.head(features))
    torch.testing.assert_close(seen.head_for(tokens[:4])(features), target.head(features)[:, :4])
    before = target.head(features)
    with torch.no_grad():
        for weight in target.model.parameters():
            weight.zero_()
    torch.testing.assert_close(seen.head(features), before)
    assert seen.embed(tokens).any() and seen.vocab_size == 11


def test_a_model_without_a_device_follows() -> None:
    drafter = Placed(device="cpu", drafter=ModelDrafter(model=str(tiny_model(11)), dtype="float64"))
    drafter.bind(tiny_target("llama", vocab=11))
    assert drafter.places == (HOME, HOME)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Placed(device="cpu", drafter=OwnLayers(exit=1)), CompositionError, "cannot run the target's layers"),
        (lambda: Ahead(drafter=Placed(device="cpu", drafter=model())), CompositionError, "`placed` around `ahead`"),
    ],
)
def test_what_does_not_go_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(("device", "message"), [("cuda:77", "CUDA devices"), ("gpu", "is no device")])
def test_a_device_that_there_is_not(device: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Placed(device=device, drafter=model()).bind(TableTarget(vocab=3))


def test_a_device_that_there_is_not_is_one_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "placed.yaml"
    path.write_text(
        "specframe: 1\ntarget: {use: table, vocab: 5}\n"
        "drafter: {use: placed, device: 'cuda:77', drafter: {use: lookup}}\nverifier: match\nrun: {prompts: ['a']}\n"
    )
    assert main(["certify", str(path), "--exact-only"]) == 0, "a certificate needs no device"
    capsys.readouterr()
    assert main(["run", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_policy_that_observes_stays_with_the_target() -> None:
    drafter = Placed(device="cpu", drafter=model())
    drafter.bind(TableTarget(vocab=3))
    drafter._sides = HOME, torch.device("meta")
    with pytest.raises(CompositionError, match="observes cycles on the target's device"):
        context = Context(Sampling(temperature=0.0), SeededRandom(0, 1).draft)
        drafter.propose(torch.zeros(1, dtype=torch.int64), Adaptive(depth=1, costs=[1.0, 1.1]), context)


def test_it_observes_as_little_as_its_drafter() -> None:
    drafter = Placed(device="cpu", drafter=Lookup())
    assert drafter.promise == Lookup().promise and drafter.taps == frozenset()


def test_the_package_keeps_the_contract_of_plugins() -> None:
    check_plugin("specframe-trees")


@pytest.mark.gpu
@pytest.mark.parametrize("make", [lambda: ModelDrafter.from_model(tiny_llama(3, seed=7).cuda()), Eagle])
def test_a_drafter_on_a_gpu_and_a_target_on_a_cpu(make: Any) -> None:
    def tree() -> TreePolicy:
        return Dynamic(depth=3, width=2, nodes=6)

    near = decoded(Eagle() if make is Eagle else model(), tree(), Match(), Sampling())
    assert decoded(Placed(device="cuda:0", drafter=make()), tree(), Match(), Sampling()) == near


@pytest.mark.gpu
def test_a_drafter_that_drafts_ahead_on_a_gpu() -> None:
    near = decoded(Ahead(drafter=model(), window=2), None, Match())
    far = Ahead(drafter=ModelDrafter.from_model(tiny_llama(3, seed=7).cuda()), window=2)
    assert decoded(Placed(device="cuda:0", drafter=far), None, Match()) == near
