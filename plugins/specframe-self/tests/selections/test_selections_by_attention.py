"""KV selections that look at queries and keys: what they choose, and that drafts on it are lossless."""

from __future__ import annotations

import pytest

import specframe
from specframe import InputError
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.types import Draw
from specframe.sampling.laws import Sampling
from specframe.testing import audit, check_drafter
from specframe_self.selections.chunks import KeyChunks
from specframe_self.selections.snapkv import SnapKV
from specframe_self.selections.speckv import SpecKV
from specframe_self.selections.verified import Verified

SELECTIONS = {
    "chunks": lambda: KeyChunks(budget=4, chunk=1, recent=1, every=1),
    "chunks now and then": lambda: KeyChunks(budget=7, chunk=2, recent=1, every=2),
    "snapkv": lambda: SnapKV(budget=3, window=1, pool=1),
    "snapkv of neighbours": lambda: SnapKV(budget=4, window=2, pool=3),
    "speckv": lambda: SpecKV(budget=3, lookahead=2, window=1, pool=1),
    "speckv of neighbours": lambda: SpecKV(budget=4, lookahead=1, window=2, pool=3),
    "verified": lambda: Verified(budget=3, chunk=1, recent=1),
    "verified chunks": lambda: Verified(budget=6, chunk=2, recent=2),
}
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2], [4], [5, 6, 7, 8], [9, 9], [2, 4, 6], [8]]


def tiny(vocab: int = 3, layers: int = 2, eos: int | None = None) -> HFTarget:
    return HFTarget.from_model(random_model(vocab=vocab, layers=layers, seed=5, eos=eos))


def emission(drafter: OwnLayers, verifier) -> Emission:
    target = tiny()
    drafter.bind(target)
    parts = Parts(target, drafter, Chain(depth=2, draw=Draw.IID), verifier)
    return Emission("", lambda: parts, Sampling(temperature=1.0), 3, (0, 1, 2, 0, 1))


@pytest.mark.sampled
@pytest.mark.parametrize("verifier", [Match, Recursive])
@pytest.mark.parametrize("kv_selection", SELECTIONS)
def test_every_text_has_the_probability_that_the_target_gives_it(kv_selection, verifier):
    found = emission(OwnLayers(kv_selection=SELECTIONS[kv_selection]()), verifier()).compare(budget=30_000)
    assert found.enumeration.exhausted and found.bound < 1e-9


@pytest.mark.sampled
@pytest.mark.parametrize("kv_selection", ["chunks", "snapkv", "speckv", "verified"])
def test_it_keeps_the_contract_of_drafters(kv_selection):
    check_drafter(lambda: OwnLayers(kv_selection=SELECTIONS[kv_selection]()), target=tiny)


def generated(drafter, batch: int):
    return specframe.compose(
        target=tiny(vocab=11, layers=3, eos=9),
        drafter=drafter,
        tree=None if drafter == "none" else {"use": "chain", "depth": 3},
        sampling={"max_new_tokens": 24},
        run={"batch": batch},
    ).generate(PROMPTS)


@pytest.mark.parametrize("kv_selection", SELECTIONS)
def test_greedy_texts_are_the_targets_while_rows_join_and_leave(kv_selection):
    found = generated(OwnLayers(kv_selection=SELECTIONS[kv_selection]()), batch=4)
    assert found.tokens == generated("none", batch=4).tokens
    assert found.acceptance.tau > 1
    assert found.acceptance == generated(OwnLayers(kv_selection=SELECTIONS[kv_selection]()), batch=4).acceptance


class Peeking(OwnLayers):
    """Drafts anew, on other chunks, where the first draft has a certain token."""

    def propose(self, root, tree, context):
        draft = super().propose(root, tree, context)
        if int(draft.tokens[0, 1]) != 0:
            return draft
        ranking = self.kv_selection._ranking
        ranking = getattr(ranking, "_ranking", ranking)  # of a prompt's tokens, or of chunks
        pieces, ranking._pieces = ranking._pieces, ranking._pieces.roll(1, -1)
        again = super().propose(root, tree, context)
        ranking._pieces = pieces
        return again


def test_a_kv_selection_that_looks_at_the_drafts_own_tokens_is_found():
    tree = Chain(depth=1, draw=Draw.IID)
    for kv_selection in ("chunks", "speckv", "verified"):
        assert not audit(
            lambda kv_selection=kv_selection: OwnLayers(kv_selection=SELECTIONS[kv_selection]()), tree, target=tiny
        ).findings
        assert audit(
            lambda kv_selection=kv_selection: Peeking(kv_selection=SELECTIONS[kv_selection]()), tree, target=tiny
        ).findings


@pytest.mark.parametrize(
    ("build_selection", "words"),
    [
        (lambda: KeyChunks(budget=95), "less than recent"),
        (lambda: KeyChunks(chunk=0), "at least 1, not 0"),
        (lambda: SnapKV(budget=32), "does not exceed the window"),
        (lambda: SnapKV(window=65), "1 to 64 queries"),
        (lambda: SnapKV(pool=4), "odd"),
        (lambda: SpecKV(budget=32), "does not exceed the window"),
        (lambda: SpecKV(lookahead=0), "at least 1 token, not 0"),
        (lambda: SpecKV(window=65), "speckv: the window has 1 to 64 queries"),
        (lambda: SpecKV(pool=2), "odd"),
        (lambda: OwnLayers(exit=1, kv_selection=SpecKV()), "leave out exit, skip and head"),
        (lambda: Verified(budget=79), r"less than recent \+ 2 \* chunk = 80"),
        (lambda: Verified(recent=0), "at least 1, not 8 and 0"),
    ],
)
def test_wrong_options_are_refused(build_selection, words):
    with pytest.raises(InputError, match=words):
        build_selection()
