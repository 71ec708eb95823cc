"""In the whole loop: every tree policy grows on Falcon's blocks, and greedy output stays the target's."""

import pytest

from specframe import Sampling
from specframe.certify.compositions.emission import Emission
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.types import Draw
from specframe.testing import TREES, check_decoding, check_training, shake, tiny_target
from specframe_falcon.drafter import Falcon


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("block", [1, 2, 3])
def test_output_is_the_targets(tree: str, block: int) -> None:
    check_decoding(f"{{use: falcon, block: {block}}}", tree)


def test_output_of_two_layers_is_the_targets() -> None:
    check_decoding("{use: falcon, block: 2, layers: 2}", "{use: dynamic, depth: 4, width: 3, nodes: 10}")


@pytest.mark.parametrize(
    ("tree", "verifier"),
    [(lambda: Chain(depth=2), Match), (lambda: Fixed(widths=[2, 1], draw=Draw.WITHOUT_REPLACEMENT), Recursive)],
)
def test_output_of_two_layers_is_distributed_as_the_target_s(tree: object, verifier: type) -> None:
    target, drafter = tiny_target(vocab=3, layers=1), Falcon(block=2, layers=2)
    drafter.bind(target)
    shake(drafter.network, by=1.0)
    parts = Parts(target, drafter, tree(), verifier())
    assert Emission("", lambda: parts, Sampling(temperature=1.0), 3, (0, 2, 1)).compare(budget=200_000).tv < 1e-9


def test_two_layers_train_by_recipe() -> None:
    losses = "[{use: feature-regression, weight: 1.0}, {use: cross-entropy, weight: 0.1}]"
    check_training("{use: falcon, block: 2, layers: 2, dropout: 0}", losses, rollout="teacher-forced", steps=40)
