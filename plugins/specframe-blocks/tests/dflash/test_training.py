"""From texts to weights to decoding, with the tau that validation simulates."""

from __future__ import annotations

import pytest

from specframe.testing import check_training


@pytest.mark.parametrize("options", ["", ", causal: true, from_anchor: true"])
def test_dflash_learns_and_decodes_as_validation_simulates(options: str) -> None:
    drafter = f"{{use: dflash, block_size: 4, layers: 2, taps: [0, 1]{options}}}"
    levels = 4 if "anchor" in options else 3
    check_training(drafter, "[{use: cross-entropy, decay: 0.8}]", rollout="anchored-blocks", levels=levels, steps=60)


@pytest.mark.parametrize("markov", ["vanilla", "rnn"])
def test_dspark_learns_and_decodes_as_validation_simulates(markov: str) -> None:
    drafter = f"{{use: dspark, block_size: 4, layers: 2, taps: [0, 1], rank: 8, markov: {markov}}}"
    losses = (
        "[{use: cross-entropy, weight: 0.1}, {use: tv, weight: 1.8}, {use: acceptance, draw: iid, temperature: 1.0}]"
    )
    check_training(drafter, losses, rollout="anchored-blocks", levels=4, steps=60)
