"""The package keeps its contracts, and drafters of several levels grow a search's tree in the whole loop."""

import pytest

from specframe.testing import check_decoding, check_plugin

DRAFTERS = [
    *(f"falcon, block: {block}" for block in (1, 2, 3)),
    "chimera",
    "chimera, residual: false, cache: 2, ngram: 2",
    "medusa",
    "hydra",
    "hydra, prefix: true, layers: 2",
    *(f"parallelspec, {options}" for options in ("masks: 1", "masks: 2, features: false", "masks: 4")),
]


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-trees")


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_the_targets(drafter: str) -> None:
    check_decoding(f"{{use: {drafter}}}", "{use: dyspec, depth: 3, width: 2, nodes: 6}")
