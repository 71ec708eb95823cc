"""Drafts on a part of the committed tokens are lossless, whichever tokens they see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import specframe
from specframe import CompositionError, InputError
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.types import Draw
from specframe.neural.slot_map import SlotMap
from specframe.sampling.laws import Sampling
from specframe.testing import audit, check_drafter
from specframe_self.selections.window import SinkWindow

PROMPT = (0, 1, 2, 0, 1)
SELECTIONS = {
    "window of 1": lambda: SinkWindow(sinks=0, recent=1),
    "window of 2": lambda: SinkWindow(sinks=1, recent=1),
    "window of 4": lambda: SinkWindow(sinks=1, recent=3),
}
TREES = {
    "chain": (Recursive, lambda: Chain(depth=2, draw=Draw.IID)),
    "fixed": (Recursive, lambda: Fixed(widths=[2], draw=Draw.WITHOUT_REPLACEMENT)),
    "top": (Match, lambda: Dynamic(depth=2, width=2, nodes=4)),
    "matched chain": (Match, lambda: Chain(depth=2, draw=Draw.IID)),
}


def tiny(vocab: int = 3, layers: int = 2, eos: int | None = None) -> HFTarget:
    return HFTarget.from_model(random_model(vocab=vocab, layers=layers, seed=5, eos=eos))


def emission(drafter: OwnLayers, tree, verifier, temperature: float = 1.0) -> Emission:
    target = tiny()
    drafter.bind(target)
    parts = Parts(target, drafter, tree, verifier)
    return Emission("", lambda: parts, Sampling(temperature=temperature), 3, PROMPT)


@pytest.mark.sampled
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kv_selection", SELECTIONS)
def test_every_text_has_the_probability_that_the_target_gives_it(kv_selection, tree, temperature):
    verifier, policy = TREES[tree]
    found = emission(OwnLayers(kv_selection=SELECTIONS[kv_selection]()), policy(), verifier(), temperature).compare(
        budget=30_000
    )
    assert found.enumeration.exhausted and found.bound < 1e-9


@pytest.mark.sampled
@pytest.mark.parametrize("kv_selection", SELECTIONS)
def test_it_keeps_the_contract_of_drafters(kv_selection):
    check_drafter(lambda: OwnLayers(kv_selection=SELECTIONS[kv_selection]()), target=tiny)


PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2], [4], [5, 6, 7, 8], [9, 9], [2, 4, 6], [8]]


def composed(drafter, batch: int, tokens: int = 24):
    tree = None if drafter == "none" else {"use": "chain", "depth": 3}
    return specframe.compose(
        target=tiny(vocab=11, layers=3, eos=9),
        drafter=drafter,
        tree=tree,
        sampling={"max_new_tokens": tokens},
        run={"batch": batch},
    )


def generated(drafter, batch: int, prompts=PROMPTS, tokens: int = 24):
    return composed(drafter, batch, tokens).generate(prompts)


@pytest.mark.parametrize("options", [{}, {"skip": [1]}, {"skip": {"mlp": [0]}}, {"exit": 2}], ids=str)
@pytest.mark.parametrize("kv_selection", SELECTIONS)
def test_greedy_texts_are_the_targets_while_rows_join_and_leave(kv_selection, options):
    found = generated(OwnLayers(kv_selection=SELECTIONS[kv_selection](), **options), batch=4)
    assert found.tokens == generated("none", batch=4).tokens == generated("none", batch=1).tokens
    assert found.acceptance.tau > 1 and len(set(map(len, found.tokens))) > 1


@pytest.mark.parametrize("batch", [1, 4])
def test_greedy_texts_of_a_long_prompt_are_the_targets(batch):
    noise = torch.Generator().manual_seed(2)
    prompts = [torch.randint(4, 11, (length,), generator=noise).tolist() for length in (90, 70, 85, 60)]
    found = generated(OwnLayers(kv_selection=SinkWindow(sinks=2, recent=6)), batch, prompts, tokens=30)
    assert found.tokens == generated("none", batch, prompts, tokens=30).tokens
    assert found.acceptance.tau > 1


def test_a_draft_that_writes_into_committed_slots_is_found(monkeypatch):
    right = SlotMap.chosen

    def over(rows, tree, nodes, slots):
        visibility = right(rows, tree, nodes, slots)
        return replace(visibility, slots=visibility.slots - rows.base)

    target, window = tiny(), SinkWindow(sinks=1, recent=2)
    wanted = generated("none", batch=2).tokens
    pipeline, law = (
        composed(OwnLayers(kv_selection=window), batch=2),
        emission(OwnLayers(kv_selection=window), *drawn()),
    )
    assert pipeline.generate(PROMPTS).tokens == wanted
    assert law.compare(budget=30_000).bound < 1e-9
    monkeypatch.setattr(SlotMap, "chosen", over)
    assert pipeline.generate(PROMPTS).tokens != wanted
    assert law.compare(budget=30_000).tv > 1e-3
    with pytest.raises(CompositionError, match="differ from drafts without a `kv_selection`"):
        OwnLayers(kv_selection=window).bind(target)


def drawn():
    return Chain(depth=2, draw=Draw.IID), Recursive()


class Peeking(OwnLayers):
    """Drafts anew, with another KV selection, where the first draft has a certain token."""

    def propose(self, root, tree, context):
        draft = super().propose(root, tree, context)
        whole, self.kv_selection = self.kv_selection, SinkWindow(sinks=0, recent=1)
        again = super().propose(root, tree, context)
        self.kv_selection = whole
        return again if int(draft.tokens[0, 1]) == 0 else draft


@pytest.mark.full
def test_a_kv_selection_that_looks_at_the_drafts_own_tokens_is_found():
    tree = Chain(depth=1, draw=Draw.IID)
    assert not audit(lambda: OwnLayers(kv_selection=SinkWindow(sinks=1, recent=3)), tree, target=tiny).findings
    assert audit(lambda: Peeking(kv_selection=SinkWindow(sinks=1, recent=3)), tree, target=tiny).findings
    found = emission(Peeking(kv_selection=SinkWindow(sinks=1, recent=3)), tree, Recursive())
    assert found.compare(budget=2_000).tv > 1e-3


@pytest.mark.parametrize(("sinks", "recent"), [(-1, 4), (4, 0), (0, 0)])
def test_wrong_windows_are_refused(sinks, recent):
    with pytest.raises(InputError, match="window: sinks is at least 0 and recent at least 1"):
        SinkWindow(sinks=sinks, recent=recent)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda: TableTarget(vocab=3), "such as `hf`"),
        (tiny, "longer than the target's context of 128"),
        (lambda: HFTarget.from_model(sliding()), "sees the last 16 alone"),
    ],
)
def test_targets_that_cannot_be_seen_in_part_are_refused(target, words):
    with pytest.raises(CompositionError, match=words):
        OwnLayers(kv_selection=SinkWindow(sinks=4, recent=508)).bind(target())


def sliding():
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=16,
        max_position_embeddings=64,
    )
    return MistralForCausalLM(config).eval()


def test_a_certificate_sees_few_tokens():
    small = OwnLayers(kv_selection=SinkWindow(sinks=4, recent=508), skip=[3]).untrained(3)
    assert small.kv_selection.budget == 2 and small.skip == {"attention": [0], "mlp": [0]}
