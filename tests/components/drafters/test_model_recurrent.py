"""A drafting model with recurrent layers against the same model reading every path from scratch."""

from __future__ import annotations

import random as pseudorandom
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.model_readings import RecurrentReading
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_hybrid, tiny_llama
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import TreePolicy
from specframe.kernel.types import Context, Draw, TokenTree
from specframe.neural.recurrent import RecurrentStates
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import check_drafter
from tests.components.drafters.test_model_drafter import literal
from tests.components.path_drafter import path
from tests.components.sessions import CONTEXT, first, later

VOCAB = 11
POLICIES: list[TreePolicy] = [
    Fixed(paths=["0", "1", "2", "0.0", "0.1", "2.0", "2.0.0", "0.1.0"], draw=Draw.WITHOUT_REPLACEMENT),
    Dynamic(depth=4, width=3, nodes=5),
]
WARM = Sampling(temperature=0.8)


def drafter(vocab: int = VOCAB) -> ModelDrafter:
    return ModelDrafter.from_model(tiny_hybrid(vocab, 7))


def same(mine: TokenTree, other: TokenTree) -> bool:
    """True for equal drafts, recorded laws up to the float32 norms of a hybrid."""
    equal = all(torch.equal(getattr(mine, part), getattr(other, part)) for part in ("tokens", "parent", "valid"))
    return equal and (mine.q is None or other.q is None or torch.allclose(mine.q, other.q, atol=1e-5))


def agreements(policy: TreePolicy, cycles: int = 3) -> list[bool]:
    """Compares drafts of ragged rows, of which some leave and one joins, with those of the model read from scratch."""
    dice = pseudorandom.Random(3)
    texts = [[dice.randrange(VOCAB) for _ in range(n)] for n in (2, 7, 4)]
    made, found = drafter(), []
    made.open(4, 64)
    made.commit(first([[1, 2, 3]]))  # an earlier session, to be forgotten
    made.propose(torch.tensor([3]), policy, CONTEXT)
    made.open(4, 64)
    made.commit(first(texts))
    for cycle in range(cycles):
        root = torch.tensor([text[-1] for text in texts])
        wanted, tree = (
            policy.grow(expand, root, Context(WARM, SeededRandom(cycle, len(texts)).draft))
            for expand in (literal(tiny_hybrid(VOCAB, 7), texts), made.expand)
        )
        found.append(same(tree, wanted))
        more = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 4))] for _ in texts]
        more[0] = [*path(tree, 0, int(tree.depth[0].argmax()))[1:], 5]  # along a path, as a verifier would
        made.commit(later(more))
        texts = [text + new for text, new in zip(texts, more, strict=True)]
        if cycle == 0:
            made.keep(torch.tensor([2, 0]))
            texts = [texts[2], texts[0], [3, 1, 4, 1, 5]]
            made.commit(first(texts[2:]))
    return found


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_drafts_are_those_of_the_model_reading_from_scratch(policy: TreePolicy) -> None:
    assert all(agreements(policy))


def takes_in_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves the windows on by drafted nodes, as if they were committed."""
    run = RecurrentReading.read_nodes

    def spoiled(self: RecurrentReading, tree: TokenTree, nodes: Tensor) -> Tensor:
        found = run(self, tree, nodes)
        self.rows.memory.commit([[0]] * len(nodes))
        return found

    monkeypatch.setattr(RecurrentReading, "read_nodes", spoiled)


def forgets_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states stay before the last token of a text of several."""
    commit = RecurrentStates.commit

    def spoiled(self: RecurrentStates, accepted: list[Sequence[int]]) -> None:
        commit(self, [path[:-1] or path for path in accepted])

    monkeypatch.setattr(RecurrentStates, "commit", spoiled)


@pytest.mark.parametrize("spoil", [takes_in_the_draft, forgets_the_newest])
def test_controls_states_of_another_text_are_found(spoil, monkeypatch) -> None:
    spoil(monkeypatch)
    assert not all(agreements(POLICIES[1]))


def test_rows_that_are_rewound_read_their_texts_again() -> None:
    """By unlike numbers of tokens, one of them by none."""
    rewound, fresh = drafter(), drafter()
    for each, texts in ((rewound, [[1, 2, 3, 4, 5], [6, 7, 8]]), (fresh, [[1, 2, 9], [6, 7, 8, 3]])):
        each.open(2, 64)
        each.commit(first(texts))
    rewound.propose(torch.tensor([5, 8]), POLICIES[1], CONTEXT)
    rewound.rewind(torch.tensor([2, 3]))
    rewound.commit(later([[9], [3]]))
    root = torch.tensor([9, 3])
    one, other = (each.propose(root, POLICIES[1], CONTEXT) for each in (rewound, fresh))
    assert same(one, other)


def test_a_draft_costs_one_forward_a_level() -> None:
    made, widths = drafter(), []
    made.open(1, 64)
    made.commit(first([[1, 2, 3, 4]]))
    reading = made._reading
    run = reading.run
    reading.run = lambda part, asked, forward=None: widths.append(asked.tokens.shape[1]) or run(part, asked)
    made.propose(torch.tensor([4]), Chain(depth=3), CONTEXT)
    made.propose(torch.tensor([4]), Chain(depth=3), CONTEXT)
    assert widths == [1, 1, 2, 1, 2], "a second draft knows what follows the root"


@pytest.mark.parametrize(("vocab", "length"), [(2, 3), (3, 2), pytest.param(3, 3, marks=pytest.mark.slow)])
def test_the_law_of_its_drafts(vocab: int, length: int) -> None:
    """A whole draft that is accepted with its bonus, and three tokens to draw from; both at once take ten minutes."""

    def parts() -> Parts:
        made, target = drafter(vocab), TableTarget(vocab=vocab, order=2, seed=0)
        made.bind(target)
        return Parts(target, made, Fixed(widths=[2, 1], draw=Draw.WITHOUT_REPLACEMENT), Recursive())

    found = Emission("", parts, Sampling(temperature=1.0), length, (0, 1, vocab - 1, 0, 1)).compare(budget=20_000)
    assert found.enumeration.exhausted and found.tv < 1e-9


@pytest.mark.full
def test_conformance() -> None:
    check_drafter(lambda: drafter(3), lambda: Fixed(widths=[2, 1], draw=Draw.TOP))


def test_a_fresh_hybrid_has_its_first_layers_from_mamba() -> None:
    target = HFTarget.from_model(tiny_llama(VOCAB, 0))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mamba_layers": 1}
    made, again = (ModelDrafter(fresh=sizes) for _ in range(2))
    for each in (made, again):
        each.bind(target)
    config = made._reader.config
    assert config.layers_block_type == ["linear_attention", "attention"] or config.attn_layer_indices == [1]
    weights = [dict(each.module.named_parameters()) for each in (made, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    steps = torch.nn.functional.softplus(weights[0]["model.layers.0.mamba.dt_bias"])
    assert ((steps > 9e-4) & (steps < 0.11)).all()
    read = made.read_text(torch.tensor([[1, 2, 3]]))
    read.sum().backward()
    assert read.shape == (1, 3, VOCAB)
    assert isinstance(made.untrained(3)._reader.config, type(config)), "its certificate drafts with a hybrid, too"


def test_what_is_refused_in_one_sentence() -> None:
    target = HFTarget.from_model(tiny_llama(VOCAB, 0))
    with pytest.raises(InputError, match="mamba_layers must be fewer than the 2 layers"):
        ModelDrafter(fresh={"mamba_layers": 2})
    with pytest.raises(CompositionError, match="bamba cannot draft with masks, or with layers together: its recurrent"):
        drafter().read_together(2).bind(target)
    with pytest.raises(CompositionError, match="bamba cannot draft with masks"):
        ModelDrafter.from_model(tiny_hybrid(VOCAB, 7), masks=Masks(2, 0)).bind(target)
    with pytest.raises(CompositionError, match="bamba cannot draft with some of its layers: its recurrent layers"):
        drafter().exit_after([1])
