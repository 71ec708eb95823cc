"""The published trees, and the accuracies that one's own are made of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import medusa_fakes as fakes
import pytest
import torch

from specframe import InputError
from specframe.components.rollouts.teacher_forced import AllLevels
from specframe.components.trees.fixed import Fixed
from specframe.components.trees.optimal import expected_tau, optimal_product_shape
from specframe.components.trees.shape import Shape, parse
from specframe.plugin import PairSpec, Predicted, Student, Teacher
from specframe.recipes.recipe import Recipe
from specframe_medusa.accuracies import rank_accuracies
from specframe_medusa.medusa import Medusa
from specframe_medusa.shapes import PUBLISHED, published_shape

RECIPES = Path(__file__).parents[3] / "recipes" / "small"
LEVELS = {  # nodes per level, as counted in medusa_choices.py
    "mc_sim_7b_63": [10, 28, 23, 2],
    "vicuna_7b_stage1": [10, 32, 20, 1],
    "vicuna_7b_stage2": [10, 23, 23, 7],
    "vicuna_13b_stage1": [10, 29, 23, 1],
    "vicuna_13b_stage2": [10, 19, 25, 9],
    "vicuna_33b_stage1": [10, 34, 19],
    "vicuna_33b_stage2": [10, 24, 24, 5],
    "zephyr_stage2": [10, 27, 23, 3],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_trees_are_whole(name):
    paths = published_shape(name)
    tree = Fixed(paths=paths)  # which refuses orphans and repetitions
    assert tree.promise.nodes == 64
    count = Counter(path.count(".") + 1 for path in paths)
    assert [count[level] for level in sorted(count)] == LEVELS[name]
    assert max(int(rank) for path in paths for rank in path.split(".")) == 9
    cut = published_shape(name, depth=2)
    assert Fixed(paths=cut).shape.depth == 2 and len(cut) == sum(LEVELS[name][:2])


def test_an_unknown_tree_is_refused():
    with pytest.raises(InputError, match="mc_sim_7b_63"):
        published_shape("mc_sim")


@pytest.mark.parametrize("recipe", ["medusa.yaml", "hydra.yaml", "compositions/medusa-parallelspec.yaml"])
def test_the_recipes_grow_the_published_tree(recipe):
    paths = Recipe.read(RECIPES / recipe).data["tree"]["paths"]
    assert sorted(paths) == sorted(published_shape())


def test_rank_accuracies_are_counted_by_level():
    levels, vocab, ranks = 2, 4, 3
    target = torch.randn(2, 9, vocab)
    mask = torch.rand(2, 9) < 0.7

    class Guesser:
        module = torch.nn.Dropout()
        spec, block = PairSpec(imitates=None, feeds=False), 1

        def __init__(self):
            self.levels = levels
            self.outputs = []

        def save(self, folder): ...

        def fuse(self, features):
            return features

        def unroll(self, features, tokens, positions=None, mask=None):
            assert not self.module.training
            self.outputs.append(torch.randn(*features.shape[:2], levels, vocab))
            return Predicted(self.outputs[-1])

        def read(self, predicted):
            return predicted.hidden

    drafter = Guesser()
    teachers = [Teacher(torch.zeros(2, 9).long(), mask, {"last": target[..., :1]}, target) for _ in range(3)]
    found = rank_accuracies(drafter, AllLevels(), teachers, ranks=ranks)
    assert drafter.module.training
    for level in range(levels):
        hits, count = [0] * ranks, 0
        for output in drafter.outputs:
            for b in range(2):
                for origin in range(8 - level):
                    if mask[b, origin + level + 1]:
                        order = output[b, origin, level].argsort(descending=True).tolist()
                        place = order.index(int(target[b, origin + level + 1].argmax()))
                        hits = [h + (rank == place) for rank, h in enumerate(hits)]
                        count += 1
        assert found[level] == pytest.approx([h / count for h in hits])


def test_more_ranks_than_tokens_are_never_right():
    def rollout(drafter, teacher, progress):
        position = torch.tensor([[1, 2]])
        return Student(teacher.logits[:, 1:3], position, torch.ones(1, 2).bool(), torch.tensor([1, 1]))

    teacher = Teacher(torch.zeros(1, 4).long(), torch.ones(1, 4).bool(), {}, torch.randn(1, 4, 3))
    drafter = Medusa()
    assert rank_accuracies(drafter, rollout, [teacher], ranks=5) == [[1.0, 0.0, 0.0, 0.0, 0.0]]


def test_nothing_to_measure_is_an_error():
    with pytest.raises(InputError, match="nothing to measure"):
        rank_accuracies(Medusa(), AllLevels(), [])
    drafter, target = Medusa(), fakes.target()
    drafter.bind(target)
    silent = target.teach(torch.zeros(1, 6).long(), torch.zeros(1, 6).bool())
    with pytest.raises(InputError, match="nothing to measure"):
        rank_accuracies(drafter, AllLevels(), [silent])


def test_a_tree_of_the_measured_accuracies_promises_more_than_the_published_one():
    drafter, target = Medusa(heads=4), fakes.target()
    drafter.bind(target)
    chance = torch.Generator().manual_seed(0)
    tokens = torch.randint(fakes.VOCAB, (8, 40), generator=chance)
    accuracies = rank_accuracies(drafter, AllLevels(), [target.teach(tokens, torch.ones(8, 40).bool())])
    shape = optimal_product_shape(accuracies, 63)
    published = Shape([parse(path) for path in published_shape()])
    assert len(shape.paths) == 63
    assert expected_tau(shape, accuracies) > expected_tau(published, accuracies)
