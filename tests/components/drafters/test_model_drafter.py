"""A model drafter with its cache against the same model reading every path from scratch."""

from __future__ import annotations

import random as pseudorandom

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Context, Draw, Frontier, Proposal, TokenTree
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import check_drafter
from tests.components.path_drafter import assert_sound, path
from tests.components.sessions import first, later

VOCAB = 40
POLICIES = [
    Chain(depth=4),
    Chain(depth=3, draw=Draw.IID),
    Fixed(paths=["0", "1", "2", "0.0", "0.1", "2.0", "2.0.0", "0.1.0"], draw=Draw.WITHOUT_REPLACEMENT),
    Dynamic(depth=4, width=3, nodes=5),
]


def tiny(kind: str, context: int = 128, vocab: int = VOCAB) -> nn.Module:
    """A tiny random model in float64."""
    sizes = {
        "llama": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": context,
        },
        "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": context},
    }
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    config = AutoConfig.for_model(kind, vocab_size=vocab, **sizes[kind], **special)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    for weights in model.parameters():
        weights.data.normal_(0, 0.3)
    return model


def literal(model: nn.Module, texts: list[list[int]]):
    """An expand that reads the whole text and path of every frontier node, one by one."""

    @torch.no_grad()
    def expand(frontier: Frontier) -> Proposal:
        rows = []
        for b, nodes in enumerate(frontier.nodes.tolist()):
            lines = [texts[b] + list(path(frontier.tree, b, n))[1:] for n in nodes]
            rows.append(torch.stack([model(torch.tensor([line])).logits[0, -1] for line in lines]))
        return Proposal(torch.stack(rows)[:, :, None])

    return expand


def same(mine: TokenTree, other: TokenTree) -> bool:
    """True for equal drafts, their recorded laws up to rounding."""
    equal = all(torch.equal(getattr(mine, f), getattr(other, f)) for f in ("tokens", "parent", "valid", "draw"))
    return equal and (mine.q is None or torch.allclose(mine.q, other.q, atol=1e-9))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{type(policy).__name__}-{policy.promise.nodes}")
def test_drafts_are_those_of_the_model_reading_from_scratch(kind: str, policy: Chain | Fixed | Dynamic) -> None:
    model = tiny(kind)
    dice = pseudorandom.Random(policy.promise.nodes)
    texts = [[dice.randrange(VOCAB) for _ in range(n)] for n in (2, 7, 4)]
    drafter = ModelDrafter.from_model(model)
    drafter.open(3, 64)
    drafter.commit(first([[1, 2, 3]]))  # an earlier session, to be forgotten
    drafter.propose(torch.tensor([3]), policy, Context(Sampling(), SeededRandom(0, 1).draft))
    drafter.open(3, 64)
    drafter.commit(first(texts))
    sampling = Sampling(temperature=0.8)
    mine, other = SeededRandom(4, 3), SeededRandom(4, 3)
    for cycle in range(7):
        mine.draft.advance()
        other.draft.advance()
        root = torch.tensor([text[-1] for text in texts])
        tree = drafter.propose(root, policy, Context(sampling, mine.draft))
        assert_sound(tree, tree.levels)
        assert same(tree, policy.grow(literal(model, texts), root, Context(sampling, other.draft)))
        committed = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 4))] for _ in texts]
        if dice.random() < 0.5:  # along a path of the draft, as a verifier would
            line = path(tree, 0, int(tree.depth[0].argmax()))
            committed[0] = [*line[1:], 5]
        drafter.commit(later(committed))
        texts = [text + more for text, more in zip(texts, committed, strict=True)]
        if cycle == 3:
            rows = torch.tensor([2, 0])
            drafter.keep(rows)
            mine.keep(rows)
            other.keep(rows)
            texts = [texts[2], texts[0]]


def test_proposing_twice_gives_the_same_draft() -> None:
    drafter = ModelDrafter.from_model(tiny("llama"))
    drafter.open(3, 64)
    drafter.commit(first([[1, 2, 3], [4, 5]]))
    drafts = [
        drafter.propose(torch.tensor([3, 5]), Dynamic(), Context(Sampling(), SeededRandom(0, 2).draft))
        for _ in range(2)
    ]
    assert same(*drafts)


def test_a_draft_costs_one_forward_a_level() -> None:
    model = tiny("llama")
    forwards: list[int] = []
    model.register_forward_pre_hook(lambda module, inputs: forwards.append(inputs[0].shape[1]))
    drafter = ModelDrafter.from_model(model)
    drafter.open(3, 64)
    drafter.commit(first([[1, 2, 3, 4, 5, 6, 7, 8, 9]]))
    drafter.propose(torch.tensor([9]), Chain(depth=3), Context(Sampling(), SeededRandom(0, 1).draft))
    assert forwards == [9, 1, 1]
    drafter.commit(later([[4, 6, 7]]))
    drafter.propose(torch.tensor([7]), Chain(depth=3), Context(Sampling(), SeededRandom(0, 1).draft))
    assert forwards[3:] == [3, 1, 1], "what was committed is read in the first forward"


def test_rows_near_the_end_of_the_context_draft_nothing() -> None:
    model = tiny("gpt2", context=16)
    drafter = ModelDrafter.from_model(model)
    policy = Chain(depth=3)
    texts = [[1, 2, 3], list(range(1, 14)), list(range(1, 13))]
    drafter.open(3, 64)
    drafter.commit(first(texts))
    root = torch.tensor([3, 13, 12])
    tree = drafter.propose(root, policy, Context(Sampling(), SeededRandom(0, 3).draft))
    assert tree.valid.sum(1).tolist() == [4, 1, 4]
    full = policy.grow(
        literal(model, [texts[0], texts[2]]), root[[0, 2]], Context(Sampling(), SeededRandom(0, 2).draft)
    )
    assert torch.equal(tree.tokens[[0, 2]], full.tokens)
    drafter.commit(later([[1] * 20, [1] * 2, [1]]))
    tree = drafter.propose(torch.tensor([1, 1, 1]), policy, Context(Sampling(), SeededRandom(0, 3).draft))
    assert tree.levels == 0 and tree.tokens.tolist() == [[1]] * 3


class Words:
    def __init__(self, *words: str) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}


def test_another_vocabulary_is_refused() -> None:
    drafter = ModelDrafter.from_model(tiny("llama"), Words("a", "b"))
    drafter.bind(HFTarget.from_model(tiny("gpt2")))
    drafter.bind(HFTarget.from_model(tiny("gpt2"), Words("a", "b")))
    with pytest.raises(CompositionError, match="40 tokens and the target 41, and without the tokenizers of both"):
        drafter.bind(HFTarget.from_model(tiny("gpt2", vocab=41)))
    with pytest.raises(CompositionError, match="2 of 2 numbers to other tokens than the target's"):
        drafter.bind(HFTarget.from_model(tiny("gpt2"), Words("b", "a")))


NUMBERS = tuple(map(str, range(20)))


@pytest.mark.parametrize(
    ("mine", "theirs", "support"),
    [
        ((12, *NUMBERS[:11]), (16, *NUMBERS[:11]), range(12)),  # the target's is padded further
        ((16, *NUMBERS[:11]), (12, *NUMBERS[:11]), None),
        ((16, *NUMBERS[:11]), (12, *NUMBERS[:11], "pad"), None),  # which the other has no token at
        ((12, *NUMBERS[:11], "end"), (12, *NUMBERS[:11], "pad"), range(11)),
    ],
)
def test_tokens_that_both_have_in_the_same_places_are_proposed(mine, theirs, support) -> None:
    drafter = ModelDrafter.from_model(tiny("llama", vocab=mine[0]), Words(*mine[1:]))
    drafter.bind(HFTarget.from_model(tiny("gpt2", vocab=theirs[0]), Words(*theirs[1:])))
    drafter.open(1, 64)
    text = [1, 2, theirs[0] - 1, 3]
    drafter.commit(first([text]))
    tree = TokenTree.root_only(torch.tensor([3]))
    found = drafter.expand(Frontier(tree, torch.tensor([[0]])))
    read = torch.tensor([[min(token, mine[0] - 1) for token in text]])
    wanted = drafter.read_text(read)[0, -1, : theirs[0] if support is None else len(support)]
    torch.testing.assert_close(found.logits[0, 0, 0], wanted)
    assert (found.support is None and support is None) or found.support.tolist() == list(support)
    assert support is None or found.vocab == theirs[0]
    with pytest.raises(CompositionError, match="cannot be trained on it: train it on a target of its own vocabulary"):
        _ = drafter.module


@pytest.mark.parametrize("mine", [2, 5])
def test_a_drafter_of_fewer_or_more_tokens_keeps_the_drafters_contract(mine) -> None:
    """The distribution of all output, too, enumerated: q is over the tokens that both have."""

    def target() -> HFTarget:
        return HFTarget.from_model(random_model(vocab=3, seed=4), Words("0"))

    def make() -> ModelDrafter:
        return ModelDrafter.from_model(random_model(vocab=mine, seed=5), Words("0"))

    check_drafter(make, target=target)


def test_layers_left_early_propose_shared_tokens_too() -> None:
    drafter = ModelDrafter.from_model(tiny("llama", vocab=12), Words("0"))
    drafter.bind(HFTarget.from_model(tiny("gpt2", vocab=16), Words("0")))
    drafter.exit_after([1])
    drafter.open(1, 64)
    drafter.commit(first([[1, 2]]))
    frontier = Frontier(TokenTree.root_only(torch.tensor([2])), torch.tensor([[0]]))
    for depth in (1, 2):
        assert drafter.expand_to(frontier, depth).support.tolist() == list(range(12))


def test_needs_a_tree_policy() -> None:
    drafter = ModelDrafter.from_model(tiny("llama"))
    drafter.open(3, 64)
    drafter.commit(first([[1, 2]]))
    with pytest.raises(CompositionError, match="chain"):
        drafter.propose(torch.tensor([2]), None, Context(Sampling(), SeededRandom(0, 1).draft))
