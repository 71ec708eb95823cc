"""The conformance kit: ours passes, and what is broken does not."""

from dataclasses import replace

import pytest
import torch

from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.none import NoDrafter
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.targets.tiny import tiny_llama
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.kernel.capabilities import Needs, Promise
from specframe.kernel.types import Draw, Frontier, TokenTree, Verdict
from specframe.recipes.discovery import discover
from specframe.testing import audit, check_drafter, check_loss, check_plugin, check_tree, check_verifier
from specframe.testing.plugins import check_entry, check_registration
from tests.certify.traps import drafts, rules
from tests.certify.traps.instances import WOR, Drafts, Rejection

TREES = [
    lambda: Chain(depth=2, draw=Draw.IID),
    lambda: Fixed(widths=[2, 1], draw=WOR),
    lambda: Fixed(paths=["0", "1", "0.0", "0.0.0"]),
    lambda: Dynamic(depth=2, width=2, nodes=4),
]
DRAFTERS = [NoDrafter, Lookup, lambda: ModelDrafter.from_model(tiny_llama(3, 7))]


@pytest.mark.sampled
@pytest.mark.parametrize("make", [Match, Recursive, Rejection])
def test_verifiers_that_keep_the_contract(make):
    check_verifier(make)


@pytest.mark.parametrize("make", TREES)
def test_trees_that_keep_the_contract(make):
    check_tree(make)


@pytest.mark.parametrize("make", DRAFTERS)
def test_drafters_that_keep_the_contract(make):
    check_drafter(make)


def test_a_loss_that_keeps_the_contract():
    check_loss(CrossEntropy)


def test_a_package_that_keeps_the_contract():
    check_plugin("specframe-falcon")


def test_the_built_in_components_keep_the_contract():
    """Trees and verifiers have checks of their own, at sizes that can be enumerated in seconds."""
    check_registration("specframe")
    for entry in discover().entries:
        if entry.package == "specframe" and entry.kind not in ("model", "tree", "verifier"):
            check_entry(entry)


@pytest.mark.parametrize(
    "make",
    [
        rules.CorrectionFromTarget,
        rules.CorrectionWithout,
        rules.LastResidual,
        rules.BonusElsewhere,
        rules.DropsCorrection,
        rules.ResidualFromTest,
        rules.OneCoinPerNode,
    ],
    ids=lambda make: make.__name__,
)
def test_broken_verifiers_fail(make):
    class Deep(make):
        needs = Needs(frozenset({Draw.IID, WOR}))

    with pytest.raises(AssertionError, match=r"not lossless|padded"):
        check_verifier(Deep)


class AllColumns(Recursive):
    """A verifier that takes the columns of recorded laws for the vocabulary."""

    def verify(self, tree, laws, random):
        """The verdict on the tree without its support."""
        return super().verify(replace(tree, support=None), laws, random)


def test_a_verifier_that_misreads_a_support_fails():
    with pytest.raises(AssertionError, match=r"recorded over a support: read them by `TokenTree\.whole`"):
        check_verifier(AllColumns)


class Leaky(Recursive):
    """A row's bonus depends on its neighbours."""

    def verify(self, tree, laws, random):
        verdict = super().verify(tree, laws, random)
        return Verdict(verdict.path, verdict.length, torch.where(verdict.length > 0, verdict.bonus[0], verdict.bonus))


class Unpadded(Recursive):
    """Path columns beyond the accepted ones hold rubbish."""

    def verify(self, tree, laws, random):
        verdict = super().verify(tree, laws, random)
        return Verdict(verdict.path.clamp(min=0), verdict.length, verdict.bonus)


@pytest.mark.parametrize(("make", "message"), [(Leaky, "neighbours|impossible"), (Unpadded, "-1")])
def test_careless_verifiers_fail(make, message):
    with pytest.raises(AssertionError, match=message):
        check_verifier(make)


class Changed:
    """A sampled chain whose tree is changed after the fact."""

    def __init__(self, change, nodes=3, depth=2, ask=None):
        self.inner, self.change, self.ask = Chain(depth=2, draw=Draw.IID), change, ask
        self.promise = Promise(frozenset({Draw.IID}), nodes, depth)

    def grow(self, expand, root, context):
        tree = self.inner.grow(expand, root, context)
        if self.ask is not None:
            expand(Frontier(tree, torch.full_like(root, self.ask)[:, None]))
        return self.change(tree)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Changed(lambda t: t, nodes=2), "declared"),
        (lambda: Changed(lambda t: t, depth=1), "deeper than `depth`"),
        (lambda: Changed(lambda t: replace(t, q=None)), "need q"),
        (lambda: Changed(lambda t: replace(t, draw=torch.full_like(t.draw, 2))), "drawn without_replacement"),
        (lambda: Changed(lambda t: replace(t, levels=1)), "levels is 1"),
        (lambda: Changed(lambda t: replace(t, parent=t.parent.roll(-1, 1))), "root"),
        (lambda: Changed(lambda t: replace(t, tokens=t.tokens + 3)), "vocabulary"),
        (lambda: Changed(lambda t: replace(t, q=t.q * 2)), "no distribution"),
        (lambda: Changed(lambda t: replace(t, q=t.q.flip(2))), "recorded distribution is wrong: slot 1 below"),
        (lambda: Changed(lambda t: replace(t, tokens=t.tokens[:1].expand_as(t.tokens))), "neighbours"),
        (lambda: Changed(lambda t: t, ask=0), "levels below"),
    ],
)
def test_broken_trees_fail(make, message):
    with pytest.raises(AssertionError, match=message):
        check_tree(make)


def test_an_inexact_tree_fails_unless_it_declares_it():
    from tests.certify.traps.drafts import Reranked

    with pytest.raises(AssertionError, match="recorded distribution is wrong"):
        check_tree(lambda: Reranked(3))

    class Modest(Reranked):
        def __init__(self, keep):
            super().__init__(keep)
            self.promise = replace(self.promise, exact=False)

    check_tree(lambda: Modest(3))


class Forgets(Lookup):
    """Knows the text for one draft only."""

    drafted = False

    def propose(self, root, tree, context):
        if self.drafted:
            return TokenTree.root_only(root)
        self.drafted = True
        return super().propose(root, tree, context)

    def commit(self, committed):
        self.drafted = False
        super().commit(committed)


class Stays(Lookup):
    """Keeps its rows where they were."""

    def keep(self, rows):
        self._text.keep(torch.arange(len(rows)))


class Carries(Lookup):
    """A new session goes on with the last one's text."""

    earlier = None

    def open(self, slots, room):
        if len(self._text.count):
            self.earlier = self._text
        super().open(slots, room)

    def commit(self, committed):
        super().commit(committed)
        if committed.prompt is not None and self.earlier is not None and len(self.earlier.count):
            rows = len(committed.root)
            self.earlier.keep(torch.arange(rows) % len(self.earlier.count))
            self._text, self.earlier = self.earlier, None
            super().commit(replace(committed, prompt=None))


class Keeps(ModelDrafter):
    """Its layers keep what they read of tokens that were rewound."""

    @classmethod
    def make(cls) -> ModelDrafter:
        return cls.from_model(tiny_llama(3, seed=7))

    def rewind(self, count):
        self._reading.text.rewind(count)


def test_a_drafter_that_keeps_what_was_rewound_fails():
    with pytest.raises(AssertionError, match="rewound and committed again"):
        check_drafter(Keeps.make)


@pytest.mark.parametrize(
    ("make", "message"), [(Forgets, "drafting twice"), (Stays, "neighbours"), (Carries, "state of its own|session")]
)
def test_drafters_with_a_faulty_memory_fail(make, message):
    with pytest.raises(AssertionError, match=message):
        check_drafter(make)


def test_a_lying_drafter_is_named():
    def make():
        return Drafts(drafts.wor_sorted_by_id, torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64))

    found = audit(make)
    assert not found.passed and found.findings[0].slot.startswith("slot")
    with pytest.raises(AssertionError, match=r"recorded distribution is wrong: slot \d below the root"):
        check_drafter(make)


def mean_of_everything(student, teacher):
    return student.logits.logsumexp(-1).mean()


def sum_over_the_batch(student, teacher):
    return (student.logits.logsumexp(-1) * student.mask).sum()


def divided_by_nothing(student, teacher):
    return (student.logits.logsumexp(-1) * student.mask).sum() / student.mask.sum()


def mixed_rows(student, teacher):
    value = (student.logits.logsumexp(-1) * student.mask).sum() / student.mask.sum().clamp(min=1)
    return value + student.logits[0, 0, 0] * student.logits[-1, 1, 0]


def cut_gradient(student, teacher):
    value = (student.logits.detach().logsumexp(-1) * student.mask).sum() / student.mask.sum().clamp(min=1)
    return value + 0 * student.logits.sum()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (mean_of_everything, "masked"),
        (sum_over_the_batch, "leak"),
        (divided_by_nothing, "not finite"),
        (mixed_rows, "leak|gradient|masked"),
        (cut_gradient, "gradient"),
    ],
)
def test_broken_losses_fail(loss, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(lambda: loss)


def test_a_package_that_is_not_there_fails():
    with pytest.raises(AssertionError, match="registers nothing"):
        check_plugin("specframe-nowhere")
