"""Decoding gives what training gave: every draft forward equals one literal forward over the whole sequence."""

from __future__ import annotations

import eagle_reference as reference
import eagle_texts as texts
import pytest
import torch

from specframe.testing import GivenSession, GrowingTree, check_plugin, check_proposals, random_teacher

CLOSE = 1e-5
"""Weights are float64, but norms and rotary angles are float32 in transformers."""


@pytest.mark.parametrize(("kind", "options"), texts.NETWORKS)
def test_unroll_is_the_literal_forward(kind: str, options: dict[str, bool]) -> None:
    drafter = texts.bound(kind, **options)
    teacher = random_teacher(texts.target(kind), 2, 8)
    features, tokens = teacher.features["last"][:, :-1], teacher.tokens[:, 1:]
    with torch.no_grad():
        predicted = drafter.unroll(features, tokens)
        for row in range(2):
            for end in range(1, 8):
                literal = reference.prediction(drafter, features[row, :end], tokens[row, :end])
                size = features.shape[-1]
                for found, want in ((predicted.hidden, literal[:size]), (predicted.features, literal[-size:])):
                    torch.testing.assert_close(found[row, end - 1, 0], want, rtol=CLOSE, atol=CLOSE)


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "options"), [*texts.NETWORKS, ("llama", {"bias": False})])
def test_proposals_are_the_literal_forwards(kind: str, options: dict[str, bool]) -> None:
    drafter = texts.bound(kind, **options)

    def sessions(rows: int) -> GivenSession:
        return GivenSession.of(random_teacher(texts.target(kind), rows, 30))

    check_proposals(drafter, sessions, reference.literal(drafter))


@pytest.mark.parametrize("options", [{}, texts.FSPAD, texts.DOVETAIL])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_other_precisions(dtype: torch.dtype, close: float, options: dict[str, bool]) -> None:
    drafter, rows = (
        texts.bound(dtype=dtype, **options),
        GivenSession.of(random_teacher(texts.target(dtype=dtype), 2, 20)),
    )
    for cycle, counts in enumerate([[5, 3], [1, 2]]):
        if cycle == 0:
            drafter.open(8, 64)
        drafter.commit((rows.advance if cycle else rows.admit)(counts))
    tree = GrowingTree(rows.root, texts.VOCAB)
    drafter.expand(tree.frontier([0]))
    ours = drafter.expand(tree.frontier([tree.add(0)])).logits[:, 0, 0]
    assert ours.dtype == dtype
    for row in range(2):
        features, tokens = rows.features[row], rows.tokens[row]
        with torch.no_grad():
            predicted = drafter.unroll(features[None], tokens[None]).features[0, -1]
            features = torch.cat([features, predicted])
            whole = drafter.unroll(features[None], torch.cat([tokens, tree.tokens[row, 1:]])[None])
            wanted = drafter.read(whole)[0, -1, 0]
        assert (ours[row] - wanted).norm() < close * wanted.norm()


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-eagle")
