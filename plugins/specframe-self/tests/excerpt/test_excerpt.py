"""A drafter that reads an excerpt drafts as one whose prompt that is, and the output is the target's."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

import specframe
from specframe import CompositionError, InputError
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.plugin import Committed, Draw, Prompts, Verdict
from specframe.sampling.laws import Sampling
from specframe.testing import check_drafter
from specframe_self.excerpt.excerpt import Excerpt
from specframe_self.excerpt.selection import Bm25Pieces
from tests.components.sessions import CONTEXT

PROMPTS = [[1, 2, 0, 1, 2, 2, 0, 0, 1, 2, 1, 0, 2, 2, 1, 0], [0, 1, 2], [2, 1, 0, 1, 1, 2, 0, 2, 1, 1]]


def model(vocab: int = 3) -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(vocab, seed=7))


def excerpt(tokens: int = 6, chunk: int = 2, question: int = 2, vocab: int = 3) -> Excerpt:
    return Excerpt(drafter=model(vocab), select=Bm25Pieces(tokens=tokens, chunk=chunk, question=question))


class Recorded(ModelDrafter):
    """A model that keeps what is committed to it."""

    def commit(self, committed):
        self.seen = [*getattr(self, "seen", []), committed]
        super().commit(committed)


def recorded(prompts, **options):
    target, inner = TableTarget(vocab=3), Recorded.from_model(tiny_llama(3, seed=7))
    drafter = Excerpt(drafter=inner, select=Bm25Pieces(**options))
    specframe.compose(
        target=target,
        drafter=drafter,
        tree={"use": "chain", "depth": 2},
        verifier={"use": "match"},
        sampling={"temperature": 0.0, "max_new_tokens": 6},
        run={"batch": 3},
    ).generate(prompts)
    return inner.seen


@pytest.mark.full
def test_it_keeps_the_contract_of_a_drafter():
    check_drafter(lambda: excerpt())


def test_drafts_are_those_of_a_session_on_the_excerpt():
    """Rows of unlike prompts, side by side, then one less: equal trees to the model's own on the shortened prompts."""
    whole, short = excerpt(), model()
    target = TableTarget(vocab=3)
    for drafter in (whole, short):
        drafter.bind(target)
        drafter.open(3, 64)
    count = torch.tensor([len(prompt) for prompt in PROMPTS])
    tokens = torch.tensor([[*prompt, *[0] * (16 - len(prompt))] for prompt in PROMPTS])
    target.open(3, 64)
    tree, _ = target.admit(Prompts(tokens, count))
    first = torch.tensor([1, 0, 2])
    verdict = Verdict(path=tree.tokens[:, :0], length=torch.zeros_like(first), bonus=first)
    committed = target.commit(tree, verdict)
    excerpts = [whole._excerpt(prompt) for prompt in PROMPTS]
    assert [len(each) for each in excerpts] == [6, 3, 6] and excerpts[1] == PROMPTS[1]
    whole.commit(committed)
    short.commit(whole._admitted(committed, committed.prompt))
    policy, roots = Chain(depth=3, draw=Draw.TOP), committed.root
    for step in range(3):
        drafts = [drafter.propose(roots, policy, CONTEXT) for drafter in (whole, short)]
        assert torch.equal(drafts[0].tokens, drafts[1].tokens) and drafts[0].levels == 3
        if step == 1:
            for drafter in (whole, short):
                drafter.keep(torch.tensor([2, 0]))
            roots = roots[[2, 0]]
            continue
        after = later(roots)
        for drafter in (whole, short):
            drafter.commit(after)
        roots = after.root


def later(roots):
    tokens = torch.stack([(roots + 1) % 3, (roots + 2) % 3], 1)
    return Committed(tokens, torch.full_like(roots, 2), {}, tokens[:, 1])


def test_what_the_model_reads_is_the_excerpt_followed_by_the_first_token():
    first, *rest = recorded(PROMPTS[:1], tokens=6, chunk=2, question=2)
    [read] = first.prompt.tokens.tolist()
    assert len(read) == 6 and read[:2] == PROMPTS[0][:2] and read[-2:] == PROMPTS[0][-2:]
    assert first.tokens.tolist() == [[*read[1:], first.root.item()]] and first.count.tolist() == [6]
    assert all(cycle.prompt is None for cycle in rest)


def test_a_short_prompt_is_the_inner_drafter_s_own():
    [committed, *_] = recorded([PROMPTS[0]], tokens=16, question=2)
    assert committed.prompt.tokens.tolist() == [PROMPTS[0]]


@pytest.mark.parametrize("draw", [Draw.IID, Draw.WITHOUT_REPLACEMENT])
def test_the_output_keeps_the_target_s_distribution_after_a_cut_prompt(draw):
    def parts() -> Parts:
        target, drafter = TableTarget(vocab=3, order=2, seed=0), excerpt()
        drafter.bind(target)
        return Parts(target, drafter, Chain(depth=2, draw=draw), Recursive())

    emission = Emission("", parts, Sampling(temperature=1.0), 3, tuple(PROMPTS[0]))
    assert emission.compare().tv < 1e-9


def test_a_wrong_record_of_the_drafts_is_caught():
    """Negative control: the record of a drafter that reads all of the prompt does not fit drafts of the excerpt."""

    class Misreported(Excerpt):
        def propose(self, root, tree, context):
            draft = super().propose(root, tree, context)
            assert draft.q is not None
            return replace(draft, q=draft.q.roll(1, -1))

    def parts() -> Parts:
        target, drafter = (
            TableTarget(vocab=3, order=2, seed=0),
            Misreported(drafter=model(), select=Bm25Pieces(tokens=6, chunk=2, question=2)),
        )
        drafter.bind(target)
        return Parts(target, drafter, Chain(depth=2, draw=Draw.IID), Recursive())

    assert Emission("", parts, Sampling(temperature=1.0), 3, tuple(PROMPTS[0])).compare().tv > 1e-3


def test_a_question_that_nothing_fits_is_warned_of_once(caplog):
    drafter = excerpt(vocab=64)
    drafter.bind(TableTarget(vocab=64))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            drafter._excerpt([*range(10, 40), 1, 2])
    assert [record.message for record in caplog.records] == [
        "no piece of a prompt fits its question: its first and last pieces are read"
    ]


@pytest.mark.parametrize("options", [{"tokens": 128}, {"chunk": 0}, {"question": 0}])
def test_sizes_that_cannot_be_are_a_line(options):
    with pytest.raises(InputError, match="excerpt needs"):
        Bm25Pieces(**options)


def test_a_drafter_of_the_target_s_own_layers_is_refused():
    with pytest.raises(CompositionError, match="reads another prompt than the target"):
        Excerpt(drafter=OwnLayers(exit=1))


def test_an_excerpt_beyond_the_drafter_s_context_is_refused():
    with pytest.raises(CompositionError, match="leaves no room in the drafter's context of"):
        excerpt(tokens=1 << 20).bind(TableTarget(vocab=3))
