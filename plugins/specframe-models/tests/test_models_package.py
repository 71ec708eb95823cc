"""Tests of the package as a whole."""

from specframe.recipes.options import read_options
from specframe.testing.plugins import check_registration


def test_listing_it_imports_no_torch_and_its_parts_can_be_explained(registry):
    """Their contracts are checked at a small size elsewhere: `check_plugin` would take them as they come."""
    check_registration("specframe-models")
    parts = [entry.load() for entry in registry.entries if entry.package == "specframe-models"]
    assert len(parts) == 15 and all(part.__doc__ and read_options(part) for part in parts)
