"""A target and a drafting model read drafts after texts as they read each of them by itself, beyond windows, too."""

from __future__ import annotations

import pytest
import torch

import specframe
import specframe.plugin
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import random_model
from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Drafts
from specframe.neural import draft_positions, visible_drafts
from tests.components.targets.models import HEADED, MODERN, SHAPES

WINDOW = 6
FAMILIES = {
    "llama": {},
    "gpt2": {},
    "gpt_neox": {},
    "mistral": MODERN | {"sliding_window": WINDOW},
    "gemma3_text": HEADED | {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "gemma2": HEADED | {"sliding_window": WINDOW},
    "olmo3": MODERN | {"sliding_window": WINDOW},
}
LENGTH, LEVELS = 14, 3
DRAFTS = Drafts(LENGTH, torch.tensor([[3, 12, 7], [1, 1, 13]]), LEVELS)


def laid(vocab: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(1, vocab, (2, LENGTH + DRAFTS.count))


def chains(tokens: torch.Tensor):
    """Each draft after its text alone, with where its root and tokens stand."""
    for row, roots in enumerate(DRAFTS.roots.tolist()):
        for k, root in enumerate(roots):
            places = [root, *(LENGTH + level * len(roots) + k for level in range(LEVELS))]
            yield row, places, torch.cat([tokens[row, : root + 1], tokens[row, places[1:]]])[None]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_target_reads_drafts_as_each_by_itself(family, build) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, family, SHAPES.get(family, {}) | FAMILIES[family])
        model = build(family)
    target = HFTarget.from_model(model)
    target.request(frozenset({"last", "layer.0"}))
    tokens = laid(target.vocab_size)
    found = target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool), DRAFTS)
    assert found.drafts is DRAFTS and found.logits.shape[1] == LENGTH + DRAFTS.count
    text = target.teach(tokens[:, :LENGTH], torch.ones(2, LENGTH, dtype=torch.bool))
    close = {"rtol": 1e-4, "atol": 1e-5}  # some norms compute in float32
    torch.testing.assert_close(found.logits[:, :LENGTH], text.logits, **close)
    for row, places, alone in chains(tokens):
        wanted = target.teach(alone, torch.ones_like(alone, dtype=torch.bool))
        root = places[0]
        torch.testing.assert_close(found.logits[row, places], wanted.logits[0, root:], **close)
        for tap, values in wanted.features.items():
            torch.testing.assert_close(found.features[tap][row, places], values[0, root:], **close)


def test_a_drafting_model_does_so_too_and_gradients_reach_it() -> None:
    drafter = ModelDrafter.from_model(random_model(vocab=11, layers=2, seed=4))
    tokens = laid(11)
    found = drafter.read_text(tokens, DRAFTS)
    torch.testing.assert_close(found[:, :LENGTH], drafter.read_text(tokens[:, :LENGTH]))
    for row, places, alone in chains(tokens):
        torch.testing.assert_close(found[row, places], drafter.read_text(alone)[0, places[0] :])
    weights = list(drafter.module.parameters())
    assert all(bool(slope.any()) for slope in torch.autograd.grad(found[:, -1].sum(), weights))


def test_beyond_the_context_positions_end() -> None:
    model = random_model(vocab=11, layers=1, seed=4)
    model.config.max_position_embeddings = LENGTH
    target = HFTarget.from_model(model)
    tokens = laid(11)
    assert target.context == LENGTH
    assert target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool), DRAFTS).logits.isfinite().all()
    assert ModelDrafter.from_model(model).read_text(tokens, DRAFTS).isfinite().all()


def test_who_sees_whom() -> None:
    """Written out, token by token."""
    seen, positions = visible_drafts(DRAFTS), draft_positions(DRAFTS)
    count = DRAFTS.roots.shape[1]
    for row, roots in enumerate(DRAFTS.roots.tolist()):
        for one in range(LENGTH + DRAFTS.count):
            level, k = divmod(one - LENGTH, count)
            assert int(positions[row, one]) == (one if one < LENGTH else roots[k] + level + 1)
            for other in range(LENGTH + DRAFTS.count):
                above, chain = divmod(other - LENGTH, count)
                if other < LENGTH:
                    wanted = other <= (one if one < LENGTH else roots[k])
                else:
                    wanted = one >= LENGTH and chain == k and above <= level
                assert bool(seen[row, one, other]) is wanted


def test_a_table_refuses_drafts() -> None:
    with pytest.raises(CompositionError, match="use the target 'hf'"):
        TableTarget(vocab=11).teach(laid(11), torch.ones(2, LENGTH + DRAFTS.count, dtype=torch.bool), DRAFTS)
    assert specframe.plugin.Drafts is Drafts
