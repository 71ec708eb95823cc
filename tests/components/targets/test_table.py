import pytest
import torch
from transformers import LlamaForCausalLM

from specframe.components.targets.table import TableTarget
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import NeuralTarget
from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.testing import admitted

PROMPTS = Prompts(tokens=torch.tensor([[1, 2, 3, 0], [3, 0, 0, 0], [2, 1, 1, 3]]), count=torch.tensor([3, 1, 4]))
TREE = TokenTree(
    tokens=torch.tensor([[9, 1, 2, 3, 0], [9, 0, 0, 1, 0], [9, 2, 2, 2, 2]]),
    parent=torch.tensor([[-1, 0, 1, 2, 0], [-1, 0, 0, 1, 0], [-1, 0, 1, 2, 3]]),
    valid=torch.tensor([[True] * 5, [True, True, True, True, False], [True] * 5]),
    draw=torch.zeros(3, 5, dtype=torch.int64),
    levels=4,
)


def rooted(tree, root):
    tokens = tree.tokens.clone()
    tokens[:, 0] = root
    return TokenTree(tokens, tree.parent, tree.valid, tree.draw, tree.levels)


def path_to(tree, row, node):
    tokens = []
    while node > 0:
        tokens.insert(0, int(tree.tokens[row, node]))
        node = int(tree.parent[row, node])
    return tokens


def after(target, text):
    return target.logits_after(torch.tensor([text]))[0]


def close(one, other):
    return torch.allclose(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_scores_and_committed_follow_the_table(order):
    target = TableTarget(order=order, seed=5)
    target.request(frozenset({"last"}))
    texts = [PROMPTS.tokens[b, : PROMPTS.count[b]].tolist() for b in range(3)]
    tree, scores = admitted(target, PROMPTS, 99)
    assert tree.tokens[:, 0].tolist() == [3, 3, 3]
    assert scores.logits.shape == (3, 1, 4)
    assert scores.features["last"].shape == (3, 4, 8)
    for b in range(3):
        assert close(scores.logits[b, 0], after(target, texts[b]))
    none = torch.zeros(3, dtype=torch.int64)
    verdict = Verdict(path=none.new_zeros(3, 0), length=none, bonus=torch.tensor([0, 1, 2]))
    committed = target.commit(tree, verdict)
    assert committed.prompt is PROMPTS
    verify_committed(target, committed, texts, [[0], [1], [2]], first=True)

    tree = rooted(TREE, committed.root)
    scores = target.score(tree)
    for b in range(3):
        for node in range(5):
            if tree.valid[b, node]:
                assert close(scores.logits[b, node], after(target, texts[b] + path_to(tree, b, node)))
    path = torch.tensor([[1, 2, 3, -1], [-1, -1, -1, -1], [1, -1, -1, -1]])
    verdict = Verdict(path=path, length=torch.tensor([3, 0, 1]), bonus=torch.tensor([3, 2, 1]))
    committed = target.commit(tree, verdict)
    assert committed.prompt is None
    verify_committed(target, committed, texts, [[1, 2, 3, 3], [2], [2, 1]])

    target.keep(torch.tensor([2, 0]))
    texts = [texts[2], texts[0]]
    assert close(
        target.score(TokenTree.root_only(torch.tensor([1, 3]))).logits[:, 0],
        torch.stack([after(target, t) for t in texts]),
    )


def verify_committed(target, committed, texts, emitted, first=False):
    """Every committed token is paired with the feature of the token before it; extends the texts."""
    for b, fresh in enumerate(emitted):
        start = 1 if first else len(texts[b])
        texts[b] += fresh
        count = int(committed.count[b])
        assert committed.tokens[b, :count].tolist() == texts[b][start:]
        assert not committed.tokens[b, count:].any()
        assert committed.root[b] == texts[b][-1]
        for i in range(count):
            assert close(target.head(committed.features["last"][b, i]), after(target, texts[b][: start + i]))


def test_teach_gives_what_scoring_gives():
    target = TableTarget(vocab=6, order=3, seed=1)
    tokens, mask = torch.tensor([[5, 4, 0, 1, 2]]), torch.ones(1, 5).bool()
    teacher = target.teach(tokens, mask)
    assert torch.equal(target.head(teacher.features["last"]), teacher.logits)
    for i in range(5):
        assert close(teacher.logits[0, i], after(target, tokens[0, : i + 1].tolist()))


def test_laws_are_asymmetric_with_near_ties():
    target = TableTarget(seed=2)
    contexts = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    best = target.logits_after(contexts).topk(2)[0]
    gaps = best[:, 0] - best[:, 1]
    assert gaps.min() > 1e-4
    assert (gaps < 2e-3).any()
    assert (gaps > 0.1).any()
    laws = target.logits_after(contexts).softmax(-1)
    assert len({tuple(law) for law in laws.tolist()}) == 16
    assert not close(TableTarget(seed=3).logits_after(contexts), target.logits_after(contexts))
    assert torch.equal(TableTarget(seed=2).logits_after(contexts), target.logits_after(contexts))
    sharp = TableTarget(seed=2, sharpness=3.0).logits_after(contexts)
    assert sharp.abs().max() > 2 * target.logits_after(contexts).abs().max()


def test_only_what_was_asked_for_is_handed_out():
    target = TableTarget()
    _, scores = admitted(target, PROMPTS, 9)
    assert scores.features == {}
    with pytest.raises(InputError, match="'last'"):
        target.request(frozenset({"layers.3"}))


def test_feature_drafters_find_what_they_share():
    target = TableTarget(vocab=5, hidden=12, eos=4)
    assert isinstance(target, NeuralTarget)
    assert target.embed(torch.tensor([[0, 4]])).shape == (1, 2, 12)
    model = LlamaForCausalLM(target.config)
    assert model.model.embed_tokens.weight.shape == (5, 12)
    assert target.config.eos_token_id == 4
    feature = torch.zeros(12, dtype=torch.float64, requires_grad=True)
    target.head(feature)[0].backward()
    assert feature.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"vocab": 1}, "vocab"),
        ({"order": 0}, "order"),
        ({"vocab": 64, "order": 9}, "order"),
        ({"hidden": 3}, "hidden"),
        ({"eos": 4}, "eos"),
    ],
)
def test_settings_that_make_no_table_are_refused(options, word):
    with pytest.raises(InputError, match=word):
        TableTarget(**options)
