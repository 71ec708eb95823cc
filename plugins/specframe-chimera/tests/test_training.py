"""From texts to a drafter by `specframe train`: it learns, and the tau it reports is the tau that decoding has."""

from specframe.testing import check_training

LOSSES = "[{use: cross-entropy, labels: text}, {use: feature-regression, distance: mse}]"


def test_simulated_tau_is_what_decoding_has():
    pipeline = check_training("{use: chimera, heads: 3, cache: 100}", LOSSES)
    assert 0 < pipeline.parts.drafter.lookups.hit_rate < 1
