"""Cascades draft what the reviewing drafter alone would, in fewer of its forward passes, and lose nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from cascades import GIVEN, Chains, cascade, counting, drafted, model, three

import specframe
from specframe import CompositionError, InputError
from specframe.cli.main import main
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.none import NoDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.drafters.recycling import Recycling
from specframe.components.drafters.suffix import Suffix
from specframe.components.targets.tiny import random_model, tiny_llama
from specframe.components.trees.fixed import Chain
from specframe.plugin import Draw
from specframe.testing import GivenDrafter, check_drafter
from specframe_falcon.drafter import Falcon
from specframe_models.nested.cascade import Cascade
from specframe_self.selections.chunks import KeyChunks
from specframe_self.selections.window import SinkWindow
from specframe_trees.ahead.ahead import Ahead
from specframe_trees.ahead.placed import Placed

DRAFTS = {
    "model": lambda: counting(8),
    "the same model": counting,
    "suffix": Suffix,
    "self": lambda: OwnLayers(exit=1),
    "three levels": lambda: Cascade(draft=Suffix(), review=counting(8), tokens=3, ask=2),
    "four levels": lambda: cascade(
        Cascade(draft=counting(9), review=counting(), tokens=3, ask=2), counting(), tokens=4
    ),
}


@pytest.mark.parametrize("draft", [name for name in DRAFTS if name != "self"])
@pytest.mark.parametrize("ask", [1, 2, 5])
def test_the_chain_is_the_one_that_the_review_alone_drafts(draft, ask):
    """In ragged batches; never in more forward passes."""
    review, alone = counting(), counting()
    found = drafted(Cascade(draft=DRAFTS[draft](), review=review, tokens=5, ask=ask))
    wanted = drafted(alone, Chain(depth=5))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.parent, other.parent)
        assert one.valid.all() and not one.draw.any() and one.q is None
    assert len(review.passes) <= len(alone.passes) == 10


def test_a_good_draft_saves_forward_passes_of_the_review():
    review = counting()
    drafted(Cascade(draft=counting(), review=review, tokens=6, ask=2))
    assert review.passes == 2 * [3, 3], "the root and two proposals, the added token and two, until there are six"


def test_a_good_draft_saves_forward_passes_of_every_level():
    """Each level's first pass reads the root with what the level below proposes."""
    middle, review = counting(), counting()
    inner = Cascade(draft=counting(), review=middle, tokens=3, ask=2)
    drafted(Cascade(draft=inner, review=review, tokens=4, ask=3))
    assert review.passes == 2 * [4] and middle.passes == 2 * [3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draw", [Draw.TOP, Draw.IID])
def test_without_proposals_it_is_its_review(draw, temperature):
    """The same draws from the same numbers, with the same distributions."""
    own = cascade(NoDrafter(), counting(), tokens=4, draw=draw)
    found, wanted = (
        drafted(own, temperature=temperature),
        drafted(counting(), Chain(depth=4, draw=draw), temperature=temperature),
    )
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert (one.q is None) == (other.q is None) == (draw is Draw.TOP)
        assert one.q is None or torch.allclose(one.q, other.q)


TOP = {
    "model": cascade,
    "suffix": lambda: cascade(Suffix(), tokens=4, ask=2),
    "three levels": three,
    "the target's layers": lambda: cascade(Suffix(), OwnLayers(exit=1), ask=2),
    "a KV selection": lambda: cascade(model(), OwnLayers(kv_selection=SinkWindow(sinks=1, recent=1)), ask=2),
    "chosen chunks": lambda: cascade(
        ModelDrafter.from_model(tiny_llama(3, seed=8), kv_selection=SinkWindow(sinks=1, recent=2)),
        OwnLayers(kv_selection=KeyChunks(budget=4, chunk=1, recent=1, every=1)),
        ask=2,
    ),
    "the target's layers below": lambda: cascade(OwnLayers(exit=1), ask=2),
}


@pytest.mark.parametrize("make", TOP.values(), ids=TOP)
def test_it_keeps_the_contract_of_drafters(make):
    check_drafter(make)


@pytest.mark.full
@pytest.mark.parametrize("tokens", [2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("rule", ["match", "recursive"])
def test_it_keeps_the_contract_of_drafters_with_draws(rule, tokens):
    """Every branch of two tokens; of three, there are too many under `match`."""
    check_drafter(partial(cascade, tokens=tokens, draw=Draw.IID, rule=rule))


def test_at_temperature_0_draws_are_the_best_tokens():
    """TriForce's code divides by 0 there."""
    for name in ("match", "recursive"):
        own = cascade(counting(8), counting(), tokens=4, ask=2, draw=Draw.IID, rule=name)
        found, wanted = drafted(own), drafted(counting(), Chain(depth=4))
        assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_recipe_of_three_levels_gives_the_target_s_text(temperature, tmp_path):
    """Under `match`, in a batch whose rows join and leave; with EAGLE at the bottom, too."""
    for name, seed, layers in (("target", 1, 3), ("small", 2, 1)):
        random_model(vocab=24, layers=layers, seed=seed).double().save_pretrained(tmp_path / name)
    small = {"use": "model", "model": str(tmp_path / "small"), "dtype": "float64"}
    own = {"use": "self", "exit": 2}
    for bottom in ("suffix", "eagle", small):
        inner = {"use": "cascade", "draft": bottom, "review": own, "tokens": 3, "ask": 2}
        for drafter in (
            inner,
            {"use": "cascade", "draft": inner, "review": {"use": "self", "skip": [1]}, "draw": "iid"},
        ):
            pipeline = specframe.compose(
                target={"use": "hf", "model": str(tmp_path / "target"), "dtype": "float64"},
                drafter=drafter,
                sampling={"temperature": temperature, "max_new_tokens": 12},
                run={"batch": 2},
            )
            prompts = [[1, 2, 0, 1, 2], [2], [0, 1, 7]]
            found = pipeline.generate(prompts)
            assert found.tokens == pipeline.plain().generate(prompts).tokens
            assert found.acceptance.drafted > 0


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("draw", ["top", "iid"])
def test_triforce_gives_the_target_s_text_and_reports_what_it_read(temperature, draw, tmp_path):
    """A small model on a window, the target on chunks; `run` shows the figures of both levels."""
    for name, seed, layers in (("target", 1, 3), ("small", 1, 1)):
        random_model(vocab=24, layers=layers, seed=seed).double().save_pretrained(tmp_path / name)
    small = {"use": "model", "model": str(tmp_path / "small"), "dtype": "float64"}
    chunks = {"use": "chunks", "budget": 7, "chunk": 2, "recent": 1, "every": 2}
    pipeline = specframe.compose(
        target={"use": "hf", "model": str(tmp_path / "target"), "dtype": "float64"},
        drafter={
            "use": "cascade",
            "tokens": 4,
            "ask": 2,
            "draw": draw,
            "draft": {**small, "kv_selection": {"use": "window", "sinks": 1, "recent": 4}},
            "review": {"use": "self", "kv_selection": chunks},
        },
        sampling={"temperature": temperature, "top_p": 0.9, "max_new_tokens": 16},
        run={"batch": 2},
    )
    prompts = [[1, 2, 0, 1, 2, 5, 6, 7, 1, 2, 3, 9, 8, 1, 2], [2], [0, 1, 7]]
    assert pipeline.parts.drafter.report() == {}
    found = pipeline.generate(prompts)
    assert found.tokens == pipeline.plain().generate(prompts).tokens
    report = pipeline.parts.drafter.report()
    review, shares = report["review"], [report[f"{level}'s KV selection"] for level in ("draft", "review")]
    assert 1 <= review["tokens a forward"] <= 3 and 0 <= review["accepted"] <= 1
    assert review["tokens a forward"] * review["forwards"] == pytest.approx(found.acceptance.drafted)
    for share, budget in zip(shares, (5, 7), strict=True):
        assert share["budget"] == budget >= share["seen"] and share["context"] > 10
        assert share["share"] == pytest.approx(share["seen"] / share["context"])


REFUSED = [
    ({"tokens": 2, "ask": 3}, InputError, "at most its tokens, got 3 of 2"),
    ({"ask": 0}, InputError, "an ask of at least 1"),
    ({"draw": Draw.WITHOUT_REPLACEMENT}, InputError, "drawn `top` or `iid`"),
    ({"review": Suffix()}, CompositionError, "Suffix builds its own trees"),
    ({"review": GivenDrafter(GIVEN)}, CompositionError, "several nodes of a path .* GivenDrafter cannot"),
    ({"draft": Recycling()}, CompositionError, "Recycling builds trees below the root"),
    ({"draft": Lookup()}, CompositionError, "Lookup builds trees"),
    ({"draft": Ahead(drafter=model())}, CompositionError, "stands alone"),
    ({"draft": Falcon()}, CompositionError, "one level a forward pass; Falcon proposes 2: set its `block` to 1"),
    ({"draft": Placed(drafter=Falcon(), device="cpu")}, CompositionError, "Placed proposes 2: set its `block` to 1"),
    (
        {"draft": ModelDrafter.from_model(tiny_llama(3, seed=7), masks=Masks(2, 1))},
        CompositionError,
        "no deeper than 3 levels",
    ),
]


@pytest.mark.parametrize(("options", "error", "words"), REFUSED)
def test_what_does_not_fit_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        cascade(**options)


def test_a_drafter_of_several_levels_a_forward_pass_is_refused():
    with pytest.raises(CompositionError, match="one level a forward pass"):
        cascade(GivenDrafter(GIVEN.expand(2, 2, 2)), Chains(GIVEN))


def test_a_command_refuses_in_one_line(tmp_path, capsys):
    """EAGLE as the review, and a drafter of another vocabulary below."""
    for name, vocab in (("target", 24), ("other", 30)):
        random_model(vocab=vocab).save_pretrained(tmp_path / name)
    other = f"{{use: model, model: {tmp_path / 'other'}}}"
    for parts, words in (
        ("draft: {use: suffix}, review: {use: eagle}", "several nodes of a path"),
        (f"draft: {other}, review: {{use: self, exit: 1}}", "vocabular"),
    ):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(
            f"specframe: 1\ntarget: {{use: hf, model: {tmp_path / 'target'}}}\ndrafter: {{use: cascade, {parts}}}\n"
            "verifier: {use: match}\n"
        )
        assert main(["run", str(recipe), "--prompt", "a"]) == 2
        assert words in capsys.readouterr().err


def test_its_small_forms_ask_every_level():
    assert cascade(tokens=9, ask=4).smaller().promise.nodes == 4
    small = three().smaller()
    assert (small.tokens, small.ask, small.draft.tokens, small.draft.ask) == (4, 2, 2, 1)
