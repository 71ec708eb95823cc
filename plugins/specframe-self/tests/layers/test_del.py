"""DEL finds the exit after which nothing happens, and its drafts are lossless."""

from __future__ import annotations

import pytest
import torch
from idle import target_with_idle

import specframe
import specframe.plugin
from specframe import CompositionError, InputError
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.plugin import Draw, LayerChoice
from specframe.testing import Emission, check_drafter, tiny_target
from specframe_self.layers.dynamic_exit import DEL
from specframe_self.layers.shadow import ShadowTokens

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10], [11, 12]]


def composed(target, drafter, temperature=0.0, verifier="match", batch=3):
    sampling = {"temperature": temperature, "max_new_tokens": 30}
    return specframe.compose(target=target, drafter=drafter, verifier=verifier, sampling=sampling, run={"batch": batch})


@pytest.fixture
def choices(monkeypatch):
    """Every exit and length that is chosen, as they come."""
    found, choose = [], ShadowTokens.choose

    def watched(self, depth):
        found.append(choose(self, depth))
        return found[-1]

    monkeypatch.setattr(ShadowTokens, "choose", watched)
    return found


@pytest.mark.parametrize("last", [1, 2, 4])
def test_it_leaves_after_the_last_layer_that_does_something(last, choices):
    pipeline = composed(target_with_idle(range(last, 6), layers=6), DEL(depth=4))
    pipeline.generate(PROMPTS)
    assert {choice for choice in choices[len(choices) // 2 :] if choice[1] == 4} == {(last, 4)}
    assert choices.count((last, 4)) > len(choices) / 2


def test_it_drafts_nothing_where_no_exit_is_right(choices):
    target = tiny_target(layers=3, vocab=64, size=16)
    with torch.no_grad():
        target.model.lm_head.weight[:, :] = target.model.lm_head.weight.flip(0)
    pipeline = composed(target, DEL(exits=[1]), temperature=1.0)
    pipeline.generate(PROMPTS)
    assert sum(length == 0 for _, length in choices) > len(choices) / 2


@pytest.mark.parametrize("options", [{}, {"exits": [1, 3], "draw": Draw.IID}, {"stopping": False, "decay": 1.0}])
def test_greedy_output_is_the_target_s(options):
    target = tiny_target(layers=4, vocab=64, size=16)
    wanted = composed(target, "none").generate(PROMPTS).tokens
    assert composed(target, DEL(**options)).generate(PROMPTS).tokens == wanted


def test_under_match_a_seed_gives_the_same_text_with_every_batch():
    target = tiny_target(layers=4, vocab=64, size=16)
    wanted = composed(target, "none", temperature=1.0).generate(PROMPTS).tokens
    for batch in (1, 3):
        assert composed(target, DEL(), temperature=1.0, batch=batch).generate(PROMPTS).tokens == wanted


@torch.no_grad()
def test_shadow_tokens_are_what_the_exits_draft():
    """At temperature 0 a draft of an exit, at the root, is the shadow token of the next cycle's first position."""
    target = tiny_target(layers=4, vocab=64, size=16)
    drafted: list[list[int]] = []
    matched: list[list[bool]] = []

    class Watched(DEL):
        def propose(self, root, tree, context):
            alone = specframe.plugin.TokenTree.root_only(root)
            node = torch.zeros_like(root)[:, None]
            each = [target.run_layers(LayerChoice.first(exit, 4), alone, node)["last"] for exit in (1, 2, 3)]
            drafted.append([int(target.head(last).argmax()) for last in each])
            return super().propose(root, tree, context)

        def commit(self, committed):
            before = None if committed.prompt is not None else self.shadow._sums.clone()
            super().commit(committed)
            if before is not None:
                new = self.shadow._sums - self.decay * before
                if float(new[0, 1, 0]) == pytest.approx(1.0):  # one position: the shares are of it
                    wanted = [token == int(committed.tokens[0, 0]) for token in drafted[-1]]
                    matched.append([bool(round(share)) for share in new[0, 0].tolist()] == wanted)

    composed(target, Watched(), batch=1).generate(PROMPTS)
    assert len(matched) > 20 and all(matched)


def target():
    return tiny_target(layers=3, vocab=3, seed=3)


@pytest.mark.full
def test_it_keeps_the_contract_of_drafters_and_the_distribution():
    check_drafter(lambda: DEL(depth=2).untrained(3), target=target)
    check_drafter(lambda: DEL(depth=1, draw=Draw.IID).untrained(3), target=target)


class Peeking(DEL):
    """Leaves out tokens that are improbable themselves, after they were drawn."""

    def _add(self, growth, logits, node, going, context):
        law = context.sampling.law(logits, growth.tree, node)
        token = context.random.categorical(law)
        kept = law[..., 0, :].gather(-1, token) > 0.3
        growth.add(token, node, self.draw, valid=kept, q_rows=torch.full_like(node, growth.record(law)))


def test_a_stop_that_looks_at_the_token_is_found():
    drafter, model = Peeking(depth=1, draw=Draw.IID).untrained(3), target()
    drafter.bind(model)
    parts = Parts(model, drafter, None, Recursive())
    emission = Emission("", lambda: parts, specframe.Sampling(temperature=1.0), 3, (0, 1, 2))
    assert emission.compare(budget=2_000).tv > 1e-3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exits": []}, "each once"),
        ({"exits": [2, 2]}, "each once"),
        ({"exits": [0]}, "at least 1"),
        ({"depth": 0}, "use `none`"),
        ({"decay": 0.0}, "above 0"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        DEL(**options)


def test_exits_that_the_target_does_not_have_are_refused():
    with pytest.raises(CompositionError, match="the target has 2 layers"):
        DEL(exits=[2]).bind(tiny_target())
    with pytest.raises(CompositionError, match="the target has 1 layers"):
        DEL().bind(tiny_target(layers=1))
    with pytest.raises(CompositionError, match="before bind"):
        DEL().shadow  # noqa: B018
