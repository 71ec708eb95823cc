"""PARD: mask tokens after the text give several levels in one forward, as a plain forward over text and masks does."""

from __future__ import annotations

import pytest
import torch

from specframe import CompositionError, InputError
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.tiny import random_model
from specframe.testing import GivenSession, GrowingTree, check_drafter, tiny_target

VOCAB, MASK, MASKS = 11, 10, 3


def model():
    return random_model("llama", vocab=VOCAB, size=8, layers=2, seed=4).double()


def bound(masks: int = MASKS, **options: object) -> tuple[ModelDrafter, torch.nn.Module]:
    made = model()
    drafter = ModelDrafter.from_model(made, masks=Masks(masks, **{"token": MASK, **options}))
    drafter.bind(tiny_target(vocab=VOCAB))
    return drafter, made


@torch.no_grad()
def test_levels_are_those_of_a_plain_forward_over_text_and_masks() -> None:
    drafter, plain = bound()
    session = GivenSession.random(4, VOCAB, 8)
    drafter.open(4, 64)

    def compare() -> None:
        tree = GrowingTree(session.root, VOCAB)
        found = drafter.expand(tree.frontier([0])).logits
        assert found.shape == (len(session.tokens), 1, MASKS + 1, VOCAB)
        for row, tokens in enumerate(session.tokens):
            text = torch.cat(
                [torch.zeros(1, dtype=torch.int64), tokens, torch.full((MASKS,), MASK)]
            )  # prompts begin with 0
            wanted = plain(text[None]).logits[0, -MASKS - 1 :]
            torch.testing.assert_close(found[row, 0], wanted, rtol=1e-5, atol=1e-5)
        tree.descend(0, 1)
        assert torch.equal(drafter.expand(tree.frontier([0, 0])).logits[:, 1], found[:, 0])

    drafter.commit(session.admit([5, 1]))
    compare()
    drafter.commit(session.advance([1, 3]))
    compare()
    drafter.keep(session.keep([1, 0]))
    drafter.commit(session.advance([2, 1]))
    drafter.commit(session.advance([1, 4]))
    compare()


def test_it_keeps_the_contract_of_drafters() -> None:
    def make() -> ModelDrafter:
        return ModelDrafter.from_model(random_model("llama", vocab=3, size=8, layers=1, seed=7), masks=Masks(1, 2))

    check_drafter(make)


def test_its_small_form_has_as_many_masks() -> None:
    small = ModelDrafter(model="none/such", masks=2).untrained(3)
    small.bind(tiny_target(vocab=3))
    assert (small.masks.count, small.masks.token, small.promise.depth) == (2, 2, 3)


def test_a_mask_token_comes_from_the_model_s_config() -> None:
    made = model()
    made.config.pard_token = 9
    drafter = ModelDrafter.from_model(made, masks=Masks(2))
    drafter.bind(tiny_target(vocab=VOCAB))
    assert drafter.masks.token == 9


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="must not be negative"):
        ModelDrafter(model="none/such", masks=-1)
    with pytest.raises(CompositionError, match="give mask_token"):
        bound(token=None)
    with pytest.raises(CompositionError, match="mask_token is 11, and the drafting model has tokens 0 to 10"):
        bound(token=11)
