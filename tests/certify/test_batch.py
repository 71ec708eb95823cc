"""Verifiers, trees and drafters that mix the rows of a batch up are right for a row alone, and must be refused."""

from dataclasses import replace

import pytest
import torch

from specframe.certify.compositions.batch import BATCHES, Accompanied, RowsOfBatch
from specframe.components.targets.table import TableTarget
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.capabilities import Needs
from specframe.kernel.types import Context
from specframe.plugin import Draw, TokenTree, Verdict
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.testing import GivenDrafter

Q = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.3, 0.6, 0.1]], dtype=torch.float64)


class Rule:
    """The rule `recursive`, to be spoiled."""

    lossless, needs = True, Needs(exact=True)

    def verify(self, tree, laws, random):
        return Recursive().verify(tree, laws, random)


class CutToTheShortest(Rule):
    """All rows are cut to the shortest accepted path, with a fresh bonus."""

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        if not tree.levels:
            return found
        short = found.length.min()
        kept = torch.arange(tree.levels) < short
        end = torch.cat([torch.zeros(len(p), 1, dtype=torch.int64), found.path], 1)[:, short]
        sure = torch.nn.functional.one_hot(found.bonus, p.shape[-1]).to(p)
        law = torch.where((found.length > short)[:, None], p[torch.arange(len(p)), end], sure)
        return Verdict(found.path.where(kept, -1), found.length.clamp(max=short), random.categorical(law))


class FirstRowsLaws(Rule):
    """Row 0's laws verify every row."""

    def verify(self, tree, laws, random):
        p = laws.all
        return super().verify(tree, AllLaws(p[:1].expand_as(p)), random)


class MeanLaws(Rule):
    """A row is judged by the mean of its law and another's."""

    def verify(self, tree, laws, random):
        p = laws.all
        return super().verify(tree, AllLaws((p + p.roll(1, 0)) / 2), random)


class NextRowsBonus(Rule):
    """The bonus comes from the next row's law where a draft was refused."""

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        law = torch.where((found.length == 0)[:, None], p[:, 0].roll(1, 0), p[:, 0])
        bonus = random.categorical(law) if tree.levels else found.bonus
        return replace(found, bonus=torch.where(found.length == 0, bonus, found.bonus))


class NoTwins(Rule):
    """A row's draft is refused where it begins like another row's."""

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        if not tree.levels or len(p) == 1:
            return found
        refused = (tree.tokens[:, 1] == tree.tokens[:, 1].roll(1)) & (found.length > 0)
        bonus = random.categorical(p[:, 0]).where(refused, found.bonus)
        path = found.path.where(~refused[:, None], -1)
        return Verdict(path, found.length.where(~refused, 0), bonus)


class SharedDraws(Chain):
    """Every row records its own law and takes the first row's token."""

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        return replace(tree, tokens=torch.cat([root[:, None], tree.tokens[:1, 1:].expand(len(root), -1)], 1))


class NeighboursLaw(Chain):
    """Every row records the law of the row before it."""

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        return replace(tree, q=tree.q.roll(1, 0))


class ForgetsOrder(GivenDrafter):
    """Its rows stay where they were when one leaves: it drafts for another row's root."""

    def open(self, slots, room):
        self.roots = torch.zeros(0, dtype=torch.int64)

    def commit(self, committed):
        fresh = committed.prompt is not None
        self.roots = torch.cat([self.roots, committed.root]) if fresh else committed.root

    def propose(self, root, tree, context):
        drafted = tree.grow(self.expand, self.roots.roll(1), context)
        tokens = torch.cat([root[:, None], drafted.tokens[:, 1:].roll(1, 0)], 1)
        return replace(drafted, tokens=tokens)


def emission(
    verifier=Recursive, tree=Chain, drafter=GivenDrafter, temperature=1.0, length=3, batch=BATCHES[0]
) -> Accompanied:
    def parts() -> Parts:
        given = drafter(Q)
        return Parts(TableTarget(vocab=3), given, tree(depth=2, draw=Draw.IID), verifier())

    return Accompanied("", parts, Sampling(temperature=temperature), length, (0, 1, 2, 0, 1), batch=batch)


@pytest.mark.parametrize("verifier", [Match, Recursive])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_among_others_emits_the_targets_law(verifier, temperature):
    found = emission(verifier, temperature=temperature, length=2).compare()
    assert found.enumeration.exhausted and found.tv < 1e-12


@pytest.mark.parametrize(
    "broken",
    [
        {"verifier": FirstRowsLaws},
        {"verifier": NoTwins},
        {"tree": SharedDraws},
        # These take seconds, and the certificate refuses them in the quick tier, too.
        pytest.param({"verifier": CutToTheShortest}, marks=pytest.mark.full),
        pytest.param({"verifier": MeanLaws}, marks=pytest.mark.full),
        pytest.param({"verifier": NextRowsBonus}, marks=pytest.mark.full),
        pytest.param({"tree": NeighboursLaw}, marks=pytest.mark.full),
        pytest.param({"drafter": ForgetsOrder}, marks=pytest.mark.full),
    ],
    ids=lambda broken: next(iter(broken.values())).__name__,
)
def test_what_mixes_rows_up_is_caught(broken):
    found = (emission(**broken, length=2, batch=batch).compare(budget=250) for batch in BATCHES)
    assert any(each.tv > 0.005 for each in found)


def test_a_policy_that_looks_at_the_number_of_rows_is_fine():
    class Shared(Chain):
        """Drafts less when more rows are live."""

        def grow(self, expand, root, context: Context) -> TokenTree:
            return Chain(depth=max(1, 4 - len(root)), draw=Draw.IID).grow(expand, root, context)

    found = emission(tree=Shared, length=2).compare()
    assert found.enumeration.exhausted and found.tv < 1e-12


class WrongForTwo(Rule):
    """In a batch of exactly two rows, the bonus is a fair choice."""

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        if len(p) != 2 or not tree.levels:
            return found
        return replace(found, bonus=random.categorical(torch.full_like(p[:, 0], 1 / p.shape[-1])))


def test_what_is_wrong_for_exactly_two_rows_is_caught_with_one_other_row():
    def tv(batch, rows=4096):
        return emission(WrongForTwo, length=2, batch=batch).compare(budget=250, rows=rows).tv

    assert tv(RowsOfBatch.of_size(2, 0), rows=1) > 0.005 and tv(BATCHES[0]) < 1e-9


class StaysPut(ForgetsOrder):
    """Records the distributions of the rows' earlier places: after rows that stay, that changes nothing."""

    def propose(self, root, tree, context):
        drafted = tree.grow(self.expand, root, context)
        places = self.roots[: len(root)]
        return replace(drafted, q=self.expand_laws(places, drafted))

    def expand_laws(self, places, drafted):
        first = torch.as_tensor(Q)[places][:, None]  # [B, 1, V]
        return torch.cat([first, drafted.q[:, 1:]], 1)


@pytest.mark.full
def test_an_earlier_row_that_leaves_moves_the_watched_one():
    staying, leaving = (
        emission(drafter=StaysPut, length=3, batch=batch).compare(budget=250).tv for batch in BATCHES[::2]
    )
    assert leaving > 1e-3 and staying < 1e-9
