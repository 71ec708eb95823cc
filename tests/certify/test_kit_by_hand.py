"""The kit's checks by hand and by recipe: ours pass, and what is broken does not."""

from dataclasses import replace

import pytest
import torch

from specframe.components.heads import FullHead, Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import random_model
from specframe.kernel.errors import SpecframeError
from specframe.testing import (
    GivenSession,
    GrowingTree,
    check_decoding,
    check_head,
    check_target,
    check_training,
    literal_layer,
    shake,
    tiny_target,
)


@pytest.mark.parametrize("make", [lambda: TableTarget(vocab=5), tiny_target], ids=["table", "hf"])
def test_targets_that_keep_the_contract(make):
    check_target(make)


class Deaf(TableTarget):
    """Scores every node by its own token and the one before the root, whatever stands between."""

    def score(self, tree):
        return super().score(replace(tree, parent=torch.where(tree.parent > 0, 0, tree.parent)))


class Early(TableTarget):
    """Gives every token the feature that is its own, not that of the one before it."""

    def commit(self, tree, verdict):
        committed = super().commit(tree, verdict)
        return replace(committed, features={tap: feature.roll(-1, 1) for tap, feature in committed.features.items()})


class Crossed(TableTarget):
    """Mixes up the rows that stay."""

    def keep(self, rows):
        super().keep(rows.flip(0))


class Obliging(TableTarget):
    """Has every tap."""

    def request(self, taps):
        super().request(taps & {"last"})


class Foreign(HFTarget):
    """Shares a head that is not the one it decodes with."""

    def head(self, features):
        return super().head(2 * features)


BROKEN = {
    Deaf: "logits of node",
    Early: "the feature with each committed token",
    Crossed: "of row",
    Obliging: "must be refused",
    Foreign: "the head's logits",
}


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_broken_targets_fail(make):
    with pytest.raises(AssertionError, match=BROKEN[make]):
        check_target(make if make is not Foreign else lambda: Foreign.from_model(random_model(vocab=5)))


@pytest.mark.parametrize("make", [FullHead, lambda: Trimmed(keep=4)], ids=["full", "trimmed"])
def test_heads_that_keep_the_contract(make):
    check_head(make)


class Leaky(FullHead):
    """Looks at the whole batch."""

    def __call__(self, features):
        return super().__call__(features - features.mean())


class Chancy(FullHead):
    """Is another one every time."""

    def bind(self, target):
        super().bind(target)
        self.noise = torch.rand(())


class Closed(FullHead):
    """Stops gradients."""

    def __call__(self, features):
        return super().__call__(features.detach()) + 0 * features.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("make", "words"), [(Leaky, "depends on another"), (Chancy, "generator"), (Closed, "no gradient")]
)
def test_broken_heads_fail(make, words):
    with pytest.raises(AssertionError, match=words):
        check_head(make)


def test_a_sessions_rows_are_their_own_and_end():
    together, alone = GivenSession.random(3, 11, 4), GivenSession.random(3, 11, 4)
    first, _ = together.admit([2, 5, 3], padding=1), alone.admit([1, 1, 1])
    assert alone.keep([2]).tolist() == [2]
    later = alone.advance([2])
    assert first.tokens.shape == (3, 6) and first.count.tolist() == [2, 5, 3]
    assert first.prompt is not None and later.prompt is None
    assert torch.equal(together.features[2], alone.features[0]) and torch.equal(together.tokens[2], alone.tokens[0])
    assert first.root.tolist() == together.root.tolist() == [row[-1] for row in together.tokens]
    assert torch.equal(first.features["last"][0, :2], together.features[0])
    assert bool((first.features["last"][0, 2:] == 7).all()), "padding is nonsense"
    assert torch.equal(together.advance([1, 1, 1]).tokens[0], together.tokens[0][-1:])
    with pytest.raises(ValueError, match="row 0 has 100 pairs"):
        together.advance([98, 1, 1])


def test_a_tree_grows_below_its_root():
    tree = GrowingTree(torch.tensor([4, 2]), 11)
    end = tree.descend(tree.add(0, torch.tensor([7, 8])), 2)
    assert tree.parents == [-1, 0, 1, 1, 3, 3] and tree.path(end) == [1, 3, 5]
    frontier = tree.frontier([0, end])
    assert frontier.tree.levels == 3 and frontier.nodes.tolist() == [[0, 5]] * 2
    assert frontier.tree.tokens[:, :2].tolist() == [[4, 7], [2, 8]]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_literal_layer_is_transformers_own(kind):
    model = random_model(kind, vocab=11)
    shake(model)
    calls = []
    model.model.layers[1].register_forward_hook(
        lambda _, args, kwargs, out: calls.append((args[0] if args else kwargs["hidden_states"], out)),
        with_kwargs=True,
    )
    model(torch.randint(11, (1, 6)), use_cache=False)
    inputs, out = calls[0]
    out = out[0] if isinstance(out, tuple) else out
    weights, seen = dict(model.model.layers[1].named_parameters()), list(inputs[0])
    literal = torch.stack([literal_layer(weights, model.config, x, i, seen[: i + 1]) for i, x in enumerate(seen)])
    torch.testing.assert_close(literal, out.view_as(literal), rtol=1e-6, atol=1e-6)


def test_output_that_is_not_the_targets_is_caught(monkeypatch):
    check_decoding("{use: lookup}", "null")
    score = TableTarget.score

    def confused(target, tree):
        scores = score(target, tree)
        return replace(scores, logits=scores.logits.roll(tree.levels, -1))

    monkeypatch.setattr(TableTarget, "score", confused)
    with pytest.raises(AssertionError, match="differs from plain decoding"):
        check_decoding("{use: falcon}", "{use: chain, depth: 3}")
    monkeypatch.undo()
    with pytest.raises(SpecframeError, match="at most 2 deep"):
        check_decoding("{use: medusa, heads: 2}", "{use: chain, depth: 3}")


def test_a_drafter_that_learns_nothing_is_caught(monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="has not fallen"):
        check_training("{use: medusa, heads: 3}", "[{use: cross-entropy, labels: text}]")
