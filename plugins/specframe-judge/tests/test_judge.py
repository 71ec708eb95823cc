"""A judge follows a planted bit wherever rows and trees lead; at threshold 1 it is `match`."""

from __future__ import annotations

import pytest
import torch
from judge_fakes import NAME, VOCAB, PlantedTarget, stored

import specframe
from specframe import CompositionError, InputError, WeightsError
from specframe.plugin import AllLaws, SeededRandom, TargetIdentity, TokenTree
from specframe.testing import GivenDrafter, check_plugin
from specframe_judge.head import read, require_both
from specframe_judge.judge import Judge
from specframe_judge.surprise import Surprise

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 0, 1], [2], [3, 3]]
TREES = {"chain": {"use": "chain", "depth": 3}, "dynamic": {"use": "dynamic", "depth": 3, "width": 2, "nodes": 8}}


def composed(verifier, tree="dynamic", temperature=0.0, batch=3, target=None):
    law = torch.rand(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return specframe.compose(
        target=target or PlantedTarget(),
        drafter=GivenDrafter(law / law.sum(-1, keepdim=True)),
        tree=TREES[tree],
        verifier=verifier,
        sampling={"temperature": temperature, "max_new_tokens": 12},
        run={"batch": batch, "seed": 3},
    )


def tokens(verifier, **given):
    return composed(verifier, **given).generate(PROMPTS).tokens


@pytest.mark.parametrize("tree", TREES)
def test_it_follows_a_planted_bit_in_trees_and_batches_and_after_rows_leave(tree, tmp_path):
    pipeline, seen = composed(Judge(weights=stored(tmp_path)), tree), {"odd": 0, "even": 0, "left": 0}

    def watch(cycle):
        rows = range(len(cycle.verdict.length))
        seen["left"] += len(rows) < 3
        for row in rows if cycle.draft.levels else ():
            own, drafted = cycle.scores.logits[row].argmax(-1), cycle.draft
            at = 0
            for node in cycle.verdict.path[row].tolist():
                children = [c for c in range(1, drafted.tokens.shape[1]) if drafted.parent[row, c] == at]
                children = [c for c in children if drafted.valid[row, c]]
                right = [c for c in children if drafted.tokens[row, c] == own[at]]
                even = [c for c in children if drafted.tokens[row, c] % 2 == 0]
                even.sort(key=lambda c: -float(cycle.scores.logits[row, at, drafted.tokens[row, c]]))
                assert node == next(iter([*right, *even]), -1)
                if node < 0:
                    seen["odd"] += bool(children)
                    break
                seen["even"] += node not in right
                at = node
            assert cycle.verdict.bonus[row] == own[at]

    requests = pipeline.requests(PROMPTS)
    with pipeline.open(requests) as session:
        session.run(requests, watch)
    assert all(count > 2 for count in seen.values()), seen


def test_a_row_s_text_is_its_own_whatever_the_batch(tmp_path):
    judge = Judge(weights=stored(tmp_path))
    assert tokens(judge, batch=1) == tokens(judge, batch=2) == tokens(judge, batch=5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", TREES)
def test_threshold_1_and_limit_0_are_match_token_for_token(tree, temperature, tmp_path):
    given = {"tree": tree, "temperature": temperature}
    wanted = tokens("match", **given)
    assert tokens(Judge(weights=stored(tmp_path), threshold=1.0), **given) == wanted
    assert tokens(Surprise(limit=0.0), **given) == wanted
    # What accepts more must differ, or the comparison shows nothing.
    assert tokens(Judge(weights=stored(tmp_path), threshold=0.5), **given) != wanted
    assert tokens(Surprise(limit=3.0), **given) != wanted


def test_surprise_accepts_below_its_limit_the_likeliest_first_and_own_tokens_always():
    p = torch.tensor([[[0.5, 0.3, 0.15, 0.05]]]).expand(1, 4, 4).double()
    tree = TokenTree(
        torch.tensor([[0, 3, 2, 1]]),
        torch.tensor([[-1, 0, 0, 0]]),
        torch.ones(1, 4).bool(),
        torch.zeros(1, 4).long(),
        1,
    )
    sure = torch.zeros_like(p)
    sure[..., 0] = 1.0

    class Law(AllLaws):
        """Laws of temperature 0, with the logits of temperature 1."""

        def logits(self, nodes):
            return p[:, 0].log()

    def path(limit):
        return Surprise(limit=limit).verify(tree, Law(sure), SeededRandom(0, 1).position).path.tolist()

    assert path(1.1) == [[-1]]  # -log .3 = 1.204, -log .15 = 1.897
    assert path(1.3) == path(2.0) == path(9.0) == [[3]]
    tree.tokens[0, 1] = 0
    assert path(9.0) == [[1]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target": TargetIdentity("made-up/other", "else")}, "mined with the target made-up/other"),
        ({"width": 3}, "width 3"),
        ({"harmful": 0}, "labels of both kinds"),
        ({"tap": "layer.1"}, "reads the tap 'layer.1'"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_in_one_line(given, words, tmp_path):
    with pytest.raises(WeightsError, match=words) as caught:
        composed(Judge(weights=stored(tmp_path, **given)))
    assert "\n" not in str(caught.value)


def test_bad_options_are_refused():
    with pytest.raises(InputError, match="needs `weights`"):
        composed(Judge())
    with pytest.raises(InputError, match="between 0 and 1"):
        Judge(threshold=1.5)
    with pytest.raises(InputError, match="at least 0"):
        Surprise(limit=-1.0)
    with pytest.raises(WeightsError, match="3 harmless and 0 harmful"):
        require_both(3, 0)


def test_a_target_without_the_feature_is_refused(tmp_path):
    with pytest.raises(CompositionError, match="the verifier Judge reads features of the target") as caught:
        composed(Judge(weights=stored(tmp_path, tap="layer.1"), tap="layer.1"))
    assert "\n" not in str(caught.value)


def test_a_copy_of_the_target_under_the_same_name_is_accepted(tmp_path):
    same = TargetIdentity(NAME.name, "rounded")
    assert tokens(Judge(weights=stored(tmp_path, target=same)))


class Named:
    """A target that has nothing but a name."""

    def __init__(self, name):
        self.name = name

    def identify(self):
        return TargetIdentity(self.name, "any")


def test_the_shipped_head_is_qwen_s_alone():
    head = read("zoo://judge", Named("Qwen/Qwen2.5-Coder-0.5B-Instruct"), "last")
    step = head.scale * head.weight.sign()
    assert head(head.mean - step) < 0.1 < 0.9 < head(head.mean + step)
    with pytest.raises(WeightsError, match="mined with the target Qwen/"):
        read("zoo://judge", Named("Qwen/Qwen2.5-0.5B"), "last")


def test_the_package_keeps_the_contract_of_plugins():
    check_plugin("specframe-judge")
