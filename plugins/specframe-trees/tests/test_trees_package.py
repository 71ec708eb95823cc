"""The package is listed at once, and drafters of several levels grow a search's tree in the whole loop."""

import pytest

from specframe.recipes.options import read_options
from specframe.recipes.registry import Registry
from specframe.testing import check_decoding
from specframe.testing.plugins import check_registration

DRAFTERS = [
    *(f"falcon, block: {block}" for block in (1, 2, 3)),
    "chimera",
    "chimera, residual: false, cache: 2, ngram: 2",
    "medusa",
    "hydra",
    "hydra, prefix: true, layers: 2",
    *(f"parallelspec, {options}" for options in ("masks: 1", "masks: 2, features: false", "masks: 4")),
]


def test_listing_it_imports_no_torch_and_its_parts_can_be_explained(registry: Registry) -> None:
    """Their contracts are checked at a small size elsewhere: `check_plugin` would take them as they come."""
    check_registration("specframe-trees")
    parts = [entry.load() for entry in registry.entries if entry.package == "specframe-trees"]
    assert len(parts) == 10 and all(part.__doc__ and read_options(part) for part in parts)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_the_targets(drafter: str) -> None:
    check_decoding(f"{{use: {drafter}}}", "{use: dyspec, depth: 3, width: 2, nodes: 6}")
