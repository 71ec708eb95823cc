"""A drafting model that reads texts and drafts on a part of them."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe import CompositionError
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters import model_readings
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model, tiny_hybrid, tiny_llama
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.types import Context, Draw
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import GivenSession, check_drafter, tiny_target
from specframe_self.selections.chunks import KeyChunks
from specframe_self.selections.window import SinkWindow

VOCAB = 24
WARM = Sampling(temperature=1.0)


def drafter(kv_selection=None, vocab: int = VOCAB) -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(vocab, seed=7), kv_selection=kv_selection)


def laws(own: ModelDrafter, counts, cycles: int = 3):
    """The chains of some cycles, with the distributions that they were drawn from."""
    own.bind(tiny_target(vocab=VOCAB))
    session = GivenSession.random(len(counts), VOCAB, 8)
    own.open(len(counts), 120)
    found = []
    for cycle in range(cycles):
        own.commit((session.advance if cycle else session.admit)(counts if not cycle else [1 + n % 3 for n in counts]))
        context = Context(WARM, SeededRandom(3, len(counts)).draft)
        found.append(own.propose(session.root, Chain(depth=3, draw=Draw.IID), context))
    return found


def test_a_kv_selection_of_everything_changes_nothing(monkeypatch):
    monkeypatch.setattr(model_readings, "PIECE", 4)
    counts = (21, 9, 2)
    seen, whole = laws(drafter(SinkWindow(sinks=0, recent=90)), counts), laws(drafter(), counts)
    for one, other in zip(seen, whole, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        torch.testing.assert_close(one.q, other.q)


@torch.no_grad()
@pytest.mark.parametrize("counts", [(21,), (21, 9, 2), (6, 30)])
def test_it_sees_what_a_slow_reading_shows_it(counts, monkeypatch):
    """A token sees the first one and the newest five before it; a node, those before the draft and its path."""
    monkeypatch.setattr(model_readings, "PIECE", 4)
    sinks, recent = 1, 5
    own = drafter(SinkWindow(sinks=sinks, recent=recent))
    draft = laws(own, counts, cycles=1)[0]
    model, text = own._reader.model, own._reading.text
    for row, end in enumerate(text.lengths):
        tokens = text.tokens[row, :end].tolist() + draft.tokens[row, 1:3].tolist()
        sees = torch.eye(len(tokens), dtype=torch.bool).tril()
        for place in range(len(tokens)):
            before = min(place, end)
            sees[place, [slot for slot in range(before) if slot < sinks or slot >= before - recent]] = True
            sees[place, before : place + 1] = True
        mask = torch.zeros(1, 1, *sees.shape, dtype=model.dtype).masked_fill(~sees, -torch.inf)
        logits = model(torch.tensor([tokens]), attention_mask=mask, use_cache=False).logits[0, end - 1 :]
        torch.testing.assert_close(draft.q[row, :3].double(), logits.double().softmax(-1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("window", [(0, 1), (1, 4)])
@pytest.mark.parametrize("tree", ["iid", "without replacement", "top"])
def test_every_text_has_the_probability_that_the_target_gives_it(window, tree):
    policy, verifier = {
        "iid": (Chain(depth=2, draw=Draw.IID), Recursive()),
        "without replacement": (Fixed(widths=[2], draw=Draw.WITHOUT_REPLACEMENT), Recursive()),
        "top": (Dynamic(depth=2, width=2, nodes=4), Match()),
    }[tree]
    target, own = HFTarget.from_model(tiny_llama(3, 0)), drafter(SinkWindow(sinks=window[0], recent=window[1]), 3)
    own.bind(target)
    parts = Parts(target, own, policy, verifier)
    found = Emission("", lambda: parts, WARM, 3, (0, 1, 2, 0, 1)).compare(budget=30_000)
    assert found.enumeration.exhausted and found.bound < 1e-9


def test_it_keeps_the_contract_of_drafters(monkeypatch):
    monkeypatch.setattr(model_readings, "PIECE", 3)
    check_drafter(lambda: drafter(SinkWindow(sinks=1, recent=2), 3))


def test_texts_are_the_targets_while_rows_join_and_leave(tmp_path):
    random_model(vocab=VOCAB, layers=2, seed=2).double().save_pretrained(tmp_path)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2], [4], [5, 6, 7, 8], [9, 9]]
    options = {
        "use": "model",
        "model": str(tmp_path),
        "dtype": "float64",
        "kv_selection": {"use": "window", "recent": 3},
    }
    pipeline = specframe.compose(
        target=HFTarget.from_model(random_model(vocab=VOCAB, layers=2, seed=2, eos=9)),
        drafter=options,
        tree={"use": "chain", "depth": 3},
        sampling={"max_new_tokens": 20, "temperature": 0.0},
        run={"batch": 2},
    )
    found = pipeline.generate(prompts)
    assert found.tokens == pipeline.plain().generate(prompts).tokens
    assert found.acceptance.tau > 1.5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: drafter(KeyChunks()), "follows from a text's length, .* KeyChunks chooses for each head"),
        (
            lambda: ModelDrafter.from_model(tiny_llama(VOCAB, seed=7), masks=Masks(2, 1), kv_selection=SinkWindow()),
            "leave out masks, or the KV selection",
        ),
        (lambda: drafter(SinkWindow()).bind(tiny_target(vocab=VOCAB)), "longer than the drafting model's context"),
        (lambda: drafter(SinkWindow(recent=2)).exit_after([1]), "together, KV selection or exits"),
        (
            lambda: ModelDrafter.from_model(tiny_hybrid(VOCAB, seed=7), kv_selection=SinkWindow(recent=2)).bind(
                tiny_target(vocab=VOCAB)
            ),
            "draft on a part of the text",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(CompositionError, match=words):
        make()
