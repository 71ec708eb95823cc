"""Parts that are wrong where four tokens do not reach: deep in a tree, late in a text, in a fast path."""

import pytest

from specframe.certify.certify import certify_plan
from specframe.certify.compositions import shortcuts
from specframe.certify.compositions.guided import CYCLES, decode, forced, guide
from specframe.certify.compositions.shortcuts import check_shortcuts
from specframe.certify.compositions.small import SmallComposition
from specframe.cli.render.certificate import verdict
from specframe.components.targets.tiny import tiny_model
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.sampling.greedy import follow_argmax
from specframe.sampling.laws import Sampling
from tests.certify.recipes import COPIES, DRAWN, planned

BROKEN = '''
from dataclasses import replace

import torch

from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from tests.certify.broken_parts import CountsCycles, GreedyParent, sharpened


class EarlyBonus(GreedyParent, Match):
    """Greedily, the bonus is the target's token after the last accepted node's parent."""


class AfterFour(Match):
    """The bonus after four accepted nodes is a fair choice."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        law = laws.after(found.length * 0)
        fair = torch.ones_like(law) / law.shape[1]
        certain = torch.nn.functional.one_hot(found.bonus, law.shape[1]).to(law.dtype)
        bonus = random.categorical(torch.where((found.length >= 4)[:, None], fair, certain))
        return replace(found, bonus=bonus)


class Late(CountsCycles, Match):
    """From a session's fourth cycle on, the bonus is a fair choice."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        if self.cycles < 3:
            return found
        law = laws.after(found.length * 0)
        return replace(found, bonus=random.categorical(torch.ones_like(law) / law.shape[1]))


class Sharpened(Chain):
    """It records another distribution than it draws from, from the fourth level on."""

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        deep = torch.arange(tree.q.shape[1]) >= 3
        return replace(tree, q=torch.where(deep[:, None], sharpened(tree, torch.tensor([True])).q, tree.q))
'''

TEXT = "{use: model, model: FOLDER, dtype: float64}\ntree: {use: chain, depth: 4}"


def copies(folder, verifier="match", temperature=1.0):
    return planned(folder, COPIES, BROKEN, verifier=verifier, temperature=temperature)


def drawn(folder, tree="chain"):
    return planned(folder, DRAWN, BROKEN, tree=tree, depth=5, verifier="recursive", temperature=1.0)


def certified(composition):
    return certify_plan(composition, budget=8000, seeds=1)


def test_a_guided_text_is_drafted_by_the_real_rule_too(tmp_path):
    miniature = SmallComposition.of(copies(tmp_path))

    def make(broken=None):
        return miniature.emission("", Sampling(temperature=1.0), broken=broken)

    text = guide(make)
    again = decode(forced(make(), text.tokens, 0))
    assert again.tokens == text.tokens and again.counts == text.counts
    assert len(text.counts) == CYCLES + 1 and text.levels >= 4 and text.accepted >= 8
    # A period of one or two would make some wrong bonuses right by chance.
    assert all(text.tokens[period:] != text.tokens[:-period] for period in (1, 2))


def test_what_is_compared_stands_in_the_certificate(tmp_path):
    certificate = certified(copies(tmp_path, temperature=0.0))
    assert certificate.lossless and certificate.reach.levels >= 4 and certificate.reach.cycles >= CYCLES
    assert f"to level {certificate.reach.levels}, {certificate.reach.cycles} cycles" in verdict(certificate.as_dict())
    assert any("too early" in case.name for case in certificate.controls)


@pytest.mark.parametrize(
    "drafter",
    [
        "{use: lookup, length: 6}",
        *(pytest.param(drafter, marks=pytest.mark.full) for drafter in ("{use: suffix}", "{use: recycling}", TEXT)),
    ],
    ids=lambda drafter: drafter.partition(":")[2].split("}")[0].split(",")[0].strip(),
)
def test_a_greedy_shortcut_with_the_bonus_of_the_parent_is_refused(drafter, tmp_path):
    text = COPIES.replace("{use: lookup, length: 6}", drafter.replace("FOLDER", str(tiny_model(3))))
    broken = planned(tmp_path, text, BROKEN, verifier="./broken.py:EarlyBonus", temperature=0.0)
    certificate = certified(broken)
    assert not certificate.lossless and certificate.worst.comparison.tv > 0.1
    assert any("`verify` at temperature 0" in line for line in certificate.shortcuts)


@pytest.mark.parametrize("name", ["AfterFour", "Late"])
def test_a_rule_that_goes_wrong_deep_or_late_is_refused(tmp_path, name):
    certificate = certified(copies(tmp_path, f"./broken.py:{name}"))
    assert not certificate.exact


def test_four_tokens_do_not_show_what_a_guided_text_shows(tmp_path):
    miniature, sampling = SmallComposition.of(copies(tmp_path, "./broken.py:AfterFour")), Sampling(temperature=1.0)
    emission = miniature.emission("", sampling)
    assert emission.compare(budget=8000).tv < 1e-9
    text = guide(lambda broken: miniature.emission("", sampling, broken=broken))
    assert forced(emission, text.tokens[: text.deep], 2).compare(budget=8000).tv > 0.01


@pytest.mark.full
def test_a_tree_that_records_another_distribution_deep_down_is_refused(tmp_path):
    assert not certified(drawn(tmp_path, "./broken.py:Sharpened")).exact


def test_nothing_is_shown_of_a_drafter_whose_drafts_are_never_accepted(tmp_path):
    certificate = certified(copies(tmp_path))
    nothing = certificate.as_dict() | {"accepting": False, "lossless": False, "composed": False}
    assert certificate.accepting and "no drafted token was accepted" in verdict(nothing)


@pytest.mark.parametrize("verifier", [Match, Recursive, Block])
def test_the_shipped_rules_keep_to_themselves(verifier, tmp_path):
    assert check_shortcuts(verifier(), trees(tmp_path), 3) == {}


@pytest.mark.parametrize("level", [0, 2])
def test_a_session_that_accepts_a_child_unseen_is_named(level, tmp_path, monkeypatch):
    def unseen(tree, argmax, gaps=None):
        seen = argmax.clone()
        if tree.levels > level:
            seen[:, level] = tree.tokens[:, level + 1]
        return follow_argmax(tree, seen, gaps)

    monkeypatch.setattr(shortcuts, "follow_argmax", unseen)
    assert any("`follow_argmax`" in line for line in check_shortcuts(Match(), trees(tmp_path), 3))


def trees(folder):
    kept = []
    emission = SmallComposition.of(drawn(folder)).emission("", Sampling(temperature=1.0))
    decode(emission, lambda cycle: kept.append(cycle.draft))
    return kept
