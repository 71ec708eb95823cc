"""The measurement of what drafters without a model cost: it runs, small, and gives every figure."""

import pytest

pytestmark = pytest.mark.slow

DRAFTERS = {"lookup", "suffix", "recycling", "suffix-recycling", "lookahead", "logitspec"}


def test_every_part_is_measured(analysis):
    found = dict(analysis("memories").measure(tokens=3_000, cycles=3))
    assert set(found) == DRAFTERS | {"store, built", "store, remembered"}
    for name in ("store, built", "store, remembered"):
        assert found[name]["tokens"] == 3_003, "the ends of three texts count"
    assert found["store, remembered"]["arrays"] == 1, "small arrays are merged"
    zero = {(name, key) for name, figures in found.items() for key, value in figures.items() if value <= 0}
    assert zero <= {("store, built", "build_mib")}, "so small a store may need no more memory than there was"
