"""Targets that keep a part of a prompt's keys and values: what stays, what they compute, and who calls them lossy."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad

import specframe
from specframe import CompositionError, InputError
from specframe.certify.compositions.emission import Emission, distance
from specframe.certify.compositions.enumeration import enumerate_outcomes
from specframe.certify.guarantees import measure_distance
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.none import NoDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model, tiny_llama
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.requests import as_prompts
from specframe.decoding.session import Parts
from specframe.kernel.capabilities import is_approximate
from specframe.kernel.types import Draw
from specframe.plugin import ChosenSlots, LayerChoice, Prompts, TokenTree, Verdict
from specframe.sampling.laws import Sampling
from specframe_self.selections.chunks import KeyChunks
from specframe_self.selections.snapkv import SnapKV
from specframe_self.selections.speckv import SpecKV, most_probable
from specframe_self.selections.upper import UpperHalf
from specframe_self.selections.window import SinkWindow

VOCAB = 16
LONG = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(0)).tolist()
ROWS = [LONG, LONG[:5], LONG[::-1][:23]]
TEXT = torch.tensor([[3, 4, 5], [6, 7, 8], [9, 10, 11]])


def small_model(vocab: int = VOCAB) -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(vocab, seed=7))


def speckv(budget: int = 12) -> SpecKV:
    return SpecKV(budget=budget, lookahead=5, window=4, pool=3)


SELECTIONS = {
    "window": lambda: SinkWindow(sinks=2, recent=10),
    "snapkv": lambda: SnapKV(budget=12, window=4, pool=3),
    "chunks": lambda: KeyChunks(budget=12, chunk=2, recent=2, every=1),
    "speckv": speckv,
    "speckv by a small model": lambda: SpecKV(budget=12, lookahead=5, window=4, pool=3, drafter=small_model()),
}


def keeping(kv_selection, model=None) -> HFTarget:
    target = HFTarget.from_model(model or tiny_llama(VOCAB, seed=3))
    target.keep_part(kv_selection)
    return target


def recorded(kv_selection) -> list[torch.Tensor]:
    """A list that gets what the KV selection chooses, one new row after the other."""
    found, choose = [], kv_selection.choose

    def remember(memory):
        found.append(choose(memory).slots)
        return ChosenSlots(found[-1])

    kv_selection.choose = remember
    return found


@torch.no_grad()
def along(target: HFTarget, rows: list[list[int]], text: torch.Tensor) -> torch.Tensor:
    """The logits of a text after each prompt, its first token being the prompt's: [B, N, V]."""
    admit(target, rows, text[:, 0])
    order = torch.arange(text.shape[1]).expand_as(text)
    return target.score(
        TokenTree(text, order - 1, torch.ones_like(text, dtype=torch.bool), torch.zeros_like(text), levels=2)
    ).logits


def admit(target: HFTarget, rows: list[list[int]], first: torch.Tensor, room: int = 64) -> torch.Tensor:
    target.open(len(rows), room)
    tree, scores = target.admit(as_prompts(rows))
    target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros_like(first), first))
    return scores.logits


@torch.no_grad()
def on_chosen(target: HFTarget, rows: list[list[int]], text: torch.Tensor, slots: ChosenSlots) -> torch.Tensor:
    """Logits of a target that keeps all, by a pass on a KV selection: tokens see the chosen slots and the text."""
    admit(target, rows, text[:, 0])
    order = torch.arange(text.shape[1]).expand_as(text)
    chain = TokenTree(text, order - 1, torch.ones_like(text, dtype=torch.bool), torch.zeros_like(text), levels=2)
    return target.head(target.run_layers(LayerChoice.first(2, 2), chain, order, slots)["last"])


@pytest.mark.parametrize("kv_selection", [lambda: SinkWindow(sinks=2, recent=38), lambda: speckv(40)])
def test_a_budget_of_the_prompt_gives_the_full_target_s_logits_bit_for_bit(kv_selection):
    target = keeping(kv_selection())
    assert torch.equal(along(target, ROWS, TEXT), along(target.full(), ROWS, TEXT))


@pytest.mark.parametrize("kv_selection", SELECTIONS)
def test_it_is_the_model_on_what_was_chosen_row_by_row(kv_selection):
    """Rows of unlike lengths stand side by side, one of them within the budget; positions stay those of the text."""
    target = keeping(SELECTIONS[kv_selection]())
    chosen = recorded(target.keeps)
    found = along(target, ROWS, TEXT)
    last = chosen[1::2] if len(chosen) == 6 else chosen  # a KV selection that looks ahead chooses for that, too
    if kv_selection == "speckv by a small model":
        last = chosen
    assert len(last) == 3
    width = max(slots.shape[3] for slots in last)
    slots = torch.cat([pad(each, (0, width - each.shape[3]), value=-1) for each in last], 1)
    assert target.memory().counts == (slots[0, :, 0] >= 0).sum(-1).tolist() != [40, 5, 23]
    wanted = on_chosen(target.full(), ROWS, TEXT, ChosenSlots(slots))
    assert (found - wanted).abs().max() < 1e-9
    assert (found - along(target.full(), ROWS, TEXT)).abs().max() > 1e-4


@pytest.mark.parametrize("kv_selection", SELECTIONS)
def test_what_is_kept_of_a_row_follows_from_its_text_alone(kv_selection):
    """Neighbours, the session's room and earlier sessions change no bit of what stays; the lookahead leaves nothing."""
    target = keeping(SELECTIONS[kv_selection]())
    admit(target, ROWS, TEXT[:, 0])
    memory = target.memory()
    keys = [memory.keys[:, row, :, :count].clone() for row, count in enumerate(memory.counts)]
    for row, text in enumerate(ROWS):
        admit(target, [text], TEXT[row : row + 1, 0], room=len(text) + 1)
        assert torch.allclose(target.memory().keys[:, 0, :, : target.memory().counts[0]], keys[row], atol=1e-12)
    assert len(keys[0][0, 0]) == 12


def test_the_lookahead_is_dropped_again():
    """A text of the lookahead's very tokens is computed anew, from the positions after the prompt."""
    target = keeping(SpecKV(budget=39, lookahead=8, window=4, pool=3))
    admit(target, [LONG], torch.tensor([3]))
    memory = target.memory()
    assert memory.counts == [39] and target._running().rows.offset.tolist() == [1]
    assert not torch.equal(memory.keys[:, 0, :, 40:47], torch.zeros_like(memory.keys[:, 0, :, 40:47]))
    found = along(target, [LONG], TEXT[:1])
    with torch.no_grad():
        for block in target._running().cache._blocks:
            block[:, :, :, 39:] = torch.nan  # nothing after what is kept is read
    order = torch.arange(3)[None]
    again = TokenTree(TEXT[:1], order - 1, order >= 0, torch.zeros_like(order), levels=2)
    with torch.no_grad():
        state = target._running()
        state.cache._blocks[0][:, :, :, 39:] = 0
        assert torch.equal(target.score(again).logits, found)


def test_a_small_model_answers_with_its_most_probable_tokens():
    kv_selection = SpecKV(budget=12, lookahead=6, window=4, pool=3, drafter=small_model())
    kv_selection.bind(HFTarget.from_model(tiny_llama(VOCAB, seed=3)))
    reader = kv_selection.drafter.as_target()
    found = most_probable(reader, torch.tensor(LONG), torch.tensor(5), 6).tolist()
    text = [*LONG, 5]
    for _ in range(5):
        with torch.no_grad():
            text.append(int(reader.model(torch.tensor([text])).logits[0, -1].argmax()))
    assert found == text[40:]


def test_rows_join_and_leave_and_drafts_keep_the_approximate_target_s_text():
    for drafter in (
        {"use": "lookup"},
        {"use": "self", "exit": 1},
        {"use": "self", "kv_selection": {"use": "window", "recent": 3}},
    ):
        pipeline = specframe.compose(
            target=keeping(speckv()),
            drafter=drafter,
            tree=None if drafter["use"] == "lookup" else {"use": "chain", "depth": 2},
            sampling={"temperature": 0.0, "max_new_tokens": 9},
            run={"batch": 2},
        )
        plain = pipeline.plain()
        assert not pipeline.lossless and not plain.lossless
        assert pipeline.generate(ROWS).tokens == plain.generate(ROWS).tokens


def law_of(target: HFTarget, drafter, tree, verifier) -> dict[tuple[int, ...], float]:
    """The probability of every text of three tokens at temperature 1, by the real loop along every branch."""
    drafter.bind(target)
    parts = Parts(target, drafter, tree, verifier)
    emission = Emission("", lambda: parts, Sampling(temperature=1.0), 3, (0, 1, 2, 0, 1))
    with torch.inference_mode():
        found = enumerate_outcomes(emission.program, budget=30_000, rows=4096)
    assert found.exhausted
    return found.law


@pytest.mark.sampled
@pytest.mark.parametrize("verifier", [Match, Recursive])
@pytest.mark.parametrize("drafter", [Lookup, lambda: OwnLayers(exit=1)])
def test_every_text_has_the_probability_that_this_target_s_plain_decoding_gives_it(drafter, verifier):
    target = keeping(SpecKV(budget=3, lookahead=2, window=1, pool=1), random_model(vocab=3, layers=2, seed=5))
    wanted = law_of(target, NoDrafter(), None, Match())
    tree = None if drafter is Lookup else Chain(depth=2, draw=Draw.IID)
    assert len(wanted) == 27 and distance(wanted, law_of(target, drafter(), tree, verifier())) < 1e-9
    assert distance(wanted, law_of(target.full(), NoDrafter(), None, Match())) > 1e-3


@pytest.mark.sampled
def test_a_choice_that_is_made_anew_in_every_cycle_is_found_to_change_the_distribution():
    """Negative control: what is kept may follow from the prompt, not from how the text was cut into cycles."""

    class Restless(HFTarget):
        def commit(self, tree, verdict):
            committed = super().commit(tree, verdict)
            rows = self._running().rows
            if committed.prompt is None and min(rows.counts) > 2:
                rows.shorten(0, torch.arange(2) + (rows.count - 2)[None, :, None, None])
            return committed

    target = Restless.from_model(random_model(vocab=3, layers=2, seed=5))
    wanted = law_of(target, NoDrafter(), None, Match())
    assert distance(wanted, law_of(target, OwnLayers(exit=1), Chain(depth=2, draw=Draw.IID), Match())) > 1e-3


def test_siblings_are_approximate_the_full_one_is_not_and_a_picture_is_not_cut():
    target = keeping(speckv())
    assert is_approximate(target) and is_approximate(target.sibling()) and not is_approximate(target.full())
    target.open(1, 64)
    whole = as_prompts([LONG])
    with pytest.raises(InputError, match="a prompt with an image is read whole"):
        target.admit(Prompts(whole.tokens, whole.count, inputs={"pixel_values": torch.zeros(1)}))


def test_the_distance_is_none_of_a_budget_of_the_prompt_and_some_of_a_smaller_one():
    found = []
    for budget in (len(LONG), 12):
        pipeline = specframe.compose(target=keeping(speckv(budget)), drafter={"use": "lookup"})
        found.append(measure_distance(pipeline, pipeline.parts.target, ROWS))
    assert found[0].mean_tv == 0 and found[0].agreement == 1 and found[0].same_texts == 3 and not found[0].shortened
    assert 0 < found[1].mean_tv <= found[1].largest_tv <= 1 and found[1].shortened == 2


def test_a_model_with_windows_or_recurrent_layers_keeps_everything():
    from specframe.components.targets.tiny import tiny_hybrid

    with pytest.raises(CompositionError, match="cannot keep a part of a prompt's keys and values"):
        keeping(speckv(), tiny_hybrid(VOCAB, seed=3))
    with pytest.raises(CompositionError, match="in int8"):
        keeping(UpperHalf())
