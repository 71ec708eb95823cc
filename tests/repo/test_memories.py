"""The measurement of what drafters without a model cost: it runs, small, and gives every figure."""


def test_every_part_is_measured(analysis):
    found = analysis("memories").measure(tokens=3_000, cycles=3)
    assert set(found) == {"lookup", "suffix", "recycling", "suffix-recycling", "lookahead", "logitspec", "store"}
    assert found["store"]["tokens"] == 3_000
    assert all(value > 0 for figures in found.values() for value in figures.values())
