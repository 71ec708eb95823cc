"""Keys and values in split int8, the newest tokens in whole numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.layers import ChosenSlots, LayerChoice
from specframe.kernel.types import TokenTree, Verdict
from specframe.neural.split_int8 import RECENT, SPAN
from tests.components.targets.models import VOCABULARY, accept, batch, random_tree
from tests.components.targets.quantized.test_target import BROAD

NOISE = torch.Generator().manual_seed(1)
LENGTHS = (188, 3, 66, 310)
TEXTS = [torch.randint(1, VOCABULARY, (length,), generator=NOISE).tolist() for length in LENGTHS]
ALL = LayerChoice.first(3, 3)


@pytest.fixture
def model(build):
    return build("llama", **(BROAD | {"head_dim": 32})).float()


def native(model, cache: str | None = "int8") -> HFTarget:
    target = HFTarget.from_model(model)
    target.cache = cache
    target._take_native()
    return target


def read(target: HFTarget, text) -> torch.Tensor:
    target.open(1, 500)
    return target.admit(batch([text]))[1].logits[0, 0]


def begun(target: HFTarget, texts=TEXTS, slots: int = 5):
    """A session of the texts; their roots."""
    target.open(slots, 500)
    tree, scores = target.admit(batch(texts))
    return target.commit(tree, accept(tree, scores.logits)).root


def grown(texts, tree, verdict):
    """The texts after an accepted path, the new root left out."""
    return [
        [*text, int(tree.tokens[row, 0]), *(int(tree.tokens[row, node]) for node in path if node >= 0)]
        for row, (text, path) in enumerate(zip(texts, verdict.path.tolist(), strict=True))
    ]


@torch.no_grad()
def test_a_node_has_the_bits_of_its_text_token_by_token(model):
    """In ragged batches, across the ends of spans, while rows leave and join, and storage grows."""
    target, alone = native(model), native(model)
    root, texts = begun(target), list(TEXTS)
    for cycle in range(6):
        tree = random_tree(root, [[1, 2, 3]] * len(texts), 12, NOISE)
        scores = target.score(tree)
        for row, text in enumerate(texts):
            for node in (0, 5, 11):
                path = tree.ancestors[row, node].nonzero()[:, 0]
                wanted = read(alone, [*text, *tree.tokens[row, path].tolist()])
                assert torch.equal(scores.logits[row, node], wanted), (cycle, row, node)
        verdict = accept(tree, scores.logits)
        root, texts = target.commit(tree, verdict).root, grown(texts, tree, verdict)
        if cycle == 2:
            rows = torch.tensor([3, 0, 2])
            target.keep(rows)
            root, texts = root[rows], [texts[row] for row in rows.tolist()]
        if cycle == 3:
            first, scores = target.admit(batch([TEXTS[2]]))
            root = torch.cat([root, target.commit(first, accept(first, scores.logits)).root])
            texts.append(TEXTS[2])


@torch.no_grad()
def test_a_chain_has_the_bits_of_single_tokens_over_the_ends_of_spans(model):
    target, single = native(model), native(model)
    for one in (target, single):
        root = begun(one, [TEXTS[0]], 1)
    chain = [*root.tolist(), *torch.randint(1, VOCABULARY, (70,), generator=NOISE).tolist()]
    tree = TokenTree.root_only(root)
    for start in range(0, 70, 35):
        part = torch.tensor([chain[start : start + 35]])
        order = torch.arange(35)[None]
        nodes = replace(tree, tokens=part, parent=order - 1, valid=part > 0, draw=torch.zeros_like(part), levels=34)
        wanted = target.score(nodes).logits[0]
        target.commit(nodes, Verdict(order[:, 1:], torch.tensor([34]), torch.tensor([chain[start + 35]])))
        for step in range(35):
            alone = TokenTree.root_only(part[:, step])
            assert torch.equal(single.score(alone).logits[0, 0], wanted[step]), (start, step)
            empty = Verdict(part[:, :0], torch.tensor([0]), torch.tensor([chain[start + step + 1]]))
            single.commit(alone, empty)


@torch.no_grad()
def test_a_prompt_read_ahead_has_the_bits_of_one_read_at_once(model):
    target, alone = native(model), native(model)
    target.open(3, 500)
    while target.read_ahead(TEXTS[3], 50) < len(TEXTS[3]) - 1:
        pass
    assert torch.equal(target.admit(batch([TEXTS[3]]))[1].logits[0, 0], read(alone, TEXTS[3]))


@torch.no_grad()
def test_its_law_is_near_that_of_exact_keys_and_takes_a_third_of_the_memory(model):
    target = native(model)
    found, wanted = read(target, TEXTS[3]), read(native(model, None), TEXTS[3])
    assert 0 < (found - wanted).norm() < 5e-2 * wanted.norm()
    stored = target._state.cache.stored
    slots, heads, size = target._state.cache.capacity, stored.recent.shape[2], stored.recent.shape[4]
    held = stored.codes.nbytes + stored.key_scales.nbytes + stored.value_scales.nbytes
    assert held / slots <= 0.32 * 2 * 3 * heads * size * 4
    assert stored.recent.shape[3] >= RECENT == 2 * SPAN
    assert torch.equal(read(target, TEXTS[1]), read(native(model, None), TEXTS[1])), "what is newest is whole"


@torch.no_grad()
def test_the_upper_plane_alone_is_a_coarser_copy(model):
    target, alone = native(model), native(model)
    root = begun(target, [TEXTS[3]], 1)
    tree = random_tree(root, [[1, 2, 3]], 6, NOISE)
    wanted = read(alone, [*TEXTS[3], *root.tolist()])
    assert torch.equal(target.score(tree).logits[0, 0], wanted)
    chosen = ChosenSlots(torch.arange(len(TEXTS[3]))[None, None, None], upper=True)
    nodes = torch.tensor([[0]])
    rough = target.run_layers(ALL, tree, nodes, chosen)["last"]
    exact = target.run_layers(ALL, tree, nodes, replace(chosen, upper=False))["last"]
    assert torch.equal(target.head(exact)[0, 0], wanted)
    error = (target.head(rough)[0, 0] - wanted).norm() / wanted.norm()
    assert 1e-2 < error < 0.7


@torch.no_grad()
def test_what_a_draft_writes_is_scratch(model):
    target, fresh = native(model), native(model)
    root = begun(target)
    begun(fresh)
    for cycle in range(4):
        tree = random_tree(root, [[1, 2, 3]] * 4, 9, NOISE)
        every = torch.arange(310).expand(4, -1)
        slots = every.masked_fill(every >= target.memory().count[:, None], -1)[None, :, None]
        for upper in (True, False):
            target.run_layers(ALL, tree, torch.arange(9).expand(4, -1), ChosenSlots(slots, upper))
        scores, wanted = target.score(tree), fresh.score(tree)
        assert torch.equal(scores.logits, wanted.logits), cycle
        verdict = accept(tree, scores.logits)
        root = target.commit(tree, verdict).root
        fresh.commit(tree, verdict)


def test_what_does_not_go_with_it_is_one_line(model, build):
    target = native(model)
    begun(target, [TEXTS[0]], 1)
    with pytest.raises(CompositionError, match="leave out `exit` and `skip`"):
        target.check_layers(LayerChoice.first(2, 3))
    with pytest.raises(CompositionError, match="are not shown: take a KV selection that reads none"):
        target.memory().copy(0, 10)
    with pytest.raises(CompositionError, match="its heads have 16 numbers, which 32 does not divide"):
        native(build("llama", **BROAD).float())
    tree = random_tree(torch.tensor([1]), [[1]], 2, NOISE)
    chain = torch.arange(80)[None]
    deep = replace(tree, tokens=chain, parent=chain - 1, valid=chain >= 0, draw=torch.zeros_like(chain), levels=79)
    with pytest.raises(InputError, match="at most 64 levels"):
        target.score(deep)
