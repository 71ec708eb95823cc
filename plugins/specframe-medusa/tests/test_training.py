"""From texts to a drafter by `specframe train`: it learns, and the tau it reports is the tau that decoding has."""

import pytest

from specframe.testing import check_training


@pytest.mark.parametrize(
    ("drafter", "labels"),
    [
        ("{use: medusa, heads: 3}", "text"),
        ("{use: hydra, heads: 3, layers: 2, prefix: true, dropout: 0.1}", "law"),
    ],
    ids=["medusa", "hydra-plus"],
)
def test_simulated_tau_is_what_decoding_has(drafter, labels):
    check_training(drafter, f"[{{use: cross-entropy, labels: {labels}, decay: 0.8, weight: 0.8}}]")
