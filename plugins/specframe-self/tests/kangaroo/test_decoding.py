"""In the whole loop: output stays the target's, its law too, and the verification above the exit is a whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kangaroo_fakes as fakes
import pytest
import torch

import specframe
from specframe import Sampling
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Fixed
from specframe.plugin import Context, Draw, Prompts, SeededRandom, TreePolicy, Verdict
from specframe.testing import check_drafter, shake
from specframe_models.specdecpp.threshold import Threshold
from specframe_self.kangaroo.drafter import Kangaroo

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8], [2, 9], [10], [3, 3]]
SECOND_EXIT = {"use": "threshold", "depth": 6, "threshold": 1.0, "least": 0.3}
POLICIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "chain": ({"use": "chain", "depth": 3}, ["match"]),
    "sampled chain": ({"use": "chain", "depth": 3, "draw": "iid"}, ["match", "recursive"]),
    "second exit": (SECOND_EXIT, ["match"]),
    "sampled second exit": (SECOND_EXIT | {"draw": "iid"}, ["match", "recursive"]),
    "dynamic": ({"use": "dynamic", "depth": 4, "width": 3, "nodes": 9}, ["match"]),
    "sampled tree": ({"use": "fixed", "widths": [2, 2, 1], "draw": "without_replacement"}, ["match", "recursive"]),
}


def bound(target: HFTarget, **options: Any) -> Kangaroo:
    """A drafter whose weights are random, unlike a fresh one's."""
    drafter = Kangaroo(**options)
    drafter.bind(target)
    shake(drafter.module)
    return drafter


class Shaken(Kangaroo):
    """A drafter with random weights, at any target."""

    def bind(self, target: Any) -> None:
        super().bind(target)
        shake(self.module)


@pytest.mark.parametrize(
    ("tree", "verifier"), [(tree, rule) for tree, (_, rules) in POLICIES.items() for rule in rules]
)
def test_greedy_text_is_the_target_s_at_batch_4(tree: str, verifier: str) -> None:
    """Six prompts in four rows: some leave and others join while the rest go on."""
    results = []
    for drafter in (Shaken(exit=2), "none"):
        pipeline = specframe.compose(
            target=fakes.target(),
            drafter=drafter,
            tree=None if drafter == "none" else POLICIES[tree][0],
            verifier=verifier,
            sampling={"temperature": 0.0, "max_new_tokens": 12},
            run={"batch": 4},
        )
        results.append(pipeline.generate(PROMPTS))
    assert results[0].tokens == results[1].tokens
    assert results[0].acceptance.drafted > 0


TREES: dict[str, Callable[[], TreePolicy] | None] = {
    "chains": None,
    "dynamic": lambda: Dynamic(depth=2, width=2, nodes=4),
    "siblings": lambda: Fixed(widths=[2, 1], draw=Draw.WITHOUT_REPLACEMENT),
    "second exit": lambda: Threshold(depth=2, threshold=1.0, least=0.5, draw=Draw.IID),
}


@pytest.mark.sampled
@pytest.mark.parametrize("tree", TREES)
def test_it_keeps_the_contract_of_drafters(tree: str) -> None:
    """Recorded laws audited, and the law of the output enumerated with `match` and `recursive`, among the rest."""
    check_drafter(
        lambda: Shaken(exit=1),
        TREES[tree],
        target=lambda: HFTarget.from_model(random_model(vocab=3, layers=2, seed=3)),
    )


def admitted(target: HFTarget, drafter: Kangaroo | None) -> torch.Tensor:
    """The roots [B] of a session of three prompts."""
    target.open(3, 64)
    count = torch.tensor([3, 1, 4])
    tokens = torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 7, 8]])
    tree, scores = target.admit(Prompts(tokens, count))
    verdict = Verdict(tree.tokens[:, :0], torch.zeros(3, dtype=torch.int64), scores.logits[:, 0].argmax(-1))
    committed = target.commit(tree, verdict)
    if drafter is not None:
        drafter.open(3, 64)
        drafter.commit(committed)
    return committed.root


GROWN = {"fixed": Fixed(widths=[2, 2, 1]), "pruned": Dynamic(depth=4, width=3, nodes=7)}


def verify(target: HFTarget, fresh: HFTarget, policy: TreePolicy, close: float) -> list[list[int]]:
    """Compares three cycles, in which drafted nodes are accepted, with those of a target that does not draft.

    Later cycles read the keys and values that earlier ones left. Returned is, for every cycle, over how many nodes of
    a row each layer ran in the verification.
    """
    drafter = bound(target, exit=2)
    fresh.request(frozenset({"layer.1"}))
    root = admitted(target, drafter)
    assert torch.equal(root, admitted(fresh, None))
    context = Context(Sampling(temperature=0.0), SeededRandom(1, 3).draft)
    ran = []
    for _ in range(3):
        tree = drafter.propose(root, policy, context)
        with counting(target) as counts:
            scores, wanted = target.score(tree), fresh.score(tree)
        ran.append(counts)
        found = {"logits": scores.logits, **scores.features}
        assert scores.features.keys() == wanted.features.keys()
        for name, values in {"logits": wanted.logits, **wanted.features}.items():
            if close:
                torch.testing.assert_close(found[name], values, rtol=close, atol=close)
            else:
                assert torch.equal(found[name], values), name
        path = torch.tensor([[1, -1], [-1, -1], [1, -1]])
        verdict = Verdict(path, torch.tensor([1, 0, 1]), scores.logits[:, 0].argmax(-1))
        drafter.commit(target.commit(tree, verdict))
        fresh.commit(tree, verdict)
        root = verdict.bonus
    return ran


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("policy", GROWN)
@torch.no_grad()
def test_the_verification_above_the_exit_is_a_fresh_one(policy: str, dtype: torch.dtype) -> None:
    close = 1e-9 if dtype == torch.float64 else 2e-4
    for counts in verify(fakes.target(dtype=dtype), fakes.target(dtype=dtype), GROWN[policy], close):
        nodes = counts[2]
        assert counts[0] == counts[1] < nodes == counts[3], "the first layers run over what was not drafted from"
        assert policy != "fixed" or (nodes, counts[0]) == (11, 4)


@torch.no_grad()
def test_with_the_kernels_it_is_the_same_bit_by_bit(tmp_path: Path) -> None:
    random_model(vocab=fakes.VOCAB, size=64, layers=4, seed=5).float().save_pretrained(tmp_path)
    target = HFTarget(model=str(tmp_path), dtype="float32", quantize="int8")
    for policy in GROWN.values():
        verify(target, target.sibling(), policy, close=0)


@contextmanager
def counting(target: HFTarget) -> Iterator[list[int]]:
    """Over how many nodes of a row each layer runs within the block."""
    layers: Any = target.model.model.layers
    counts = [0] * len(layers)

    def count(module: Any, inputs: Any, named: Any) -> None:
        counts[module.layer_idx] += named["hidden_states"].shape[1]

    handles = [layer.self_attn.register_forward_pre_hook(count, with_kwargs=True) for layer in layers]
    yield counts
    for handle in handles:
        handle.remove()
