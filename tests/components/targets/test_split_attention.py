"""Split attention of transformers' passes over trees: the same logits, and masks of the tree alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specframe.components.targets.forward import split_attention
from specframe.components.targets.hf import HFTarget
from specframe.decoding.requests import as_prompts
from specframe.kernel.types import TokenTree, Verdict
from specframe.testing import tiny_target

VOCAB, SIZE = 17, 16
EVEN = [[3, 5, 7, 9, 2, 4, 6], [8, 1, 2, 3, 4, 5, 6]]
RAGGED = [[3, 5, 7, 9, 2, 4, 6], [8, 1]]
TREE = TokenTree(
    tokens=torch.tensor([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 0]]),
    parent=torch.tensor([[-1, 0, 0, 1, 1, 3], [-1, 0, 1, 2, 0, -1]]),
    valid=torch.tensor([[True] * 6, [True] * 5 + [False]]),
    draw=torch.zeros(2, 6, dtype=torch.int64),
    levels=3,
)


def target(kind: str, dtype: torch.dtype = torch.float64) -> HFTarget:
    return HFTarget.from_model(tiny_target(kind, vocab=VOCAB, size=SIZE, layers=2, dtype=dtype).model)


@torch.no_grad()
def scored(model: HFTarget, rows: list[list[int]], tree: TokenTree = TREE) -> torch.Tensor:
    """The logits of a tree after prompts: twice, as the first pass is computed both ways."""
    found = []
    for _ in range(2):
        model.open(len(rows), 64)
        root, _ = model.admit(as_prompts(rows))
        zero = torch.zeros(len(rows), dtype=torch.int64)
        model.commit(root, Verdict(root.tokens[:, :0], zero, tree.tokens[:, 0]))
        found.append(model.score(tree).logits)
    assert torch.allclose(found[0], found[1], atol=1e-12, rtol=0) or found[0].dtype != torch.float64
    return found[1]


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Every prefix counts as long; the shapes of the masks that attention functions were given."""
    monkeypatch.setattr(split_attention, "LONG", 2)
    seen: list[tuple[int, ...]] = []
    inner = split_attention.SplitMasks.attend

    def attend(self: split_attention.SplitMasks, *given: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(self.tree.shape))
        return inner(self, *given)

    monkeypatch.setattr(split_attention.SplitMasks, "attend", attend)
    return seen


@pytest.mark.parametrize("rows", [EVEN, RAGGED], ids=["even", "ragged"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "phi3", "olmo2"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_the_logits_are_those_of_one_mask(kind, rows, dtype, most, widths, monkeypatch):
    model = target(kind, dtype)
    widths.clear()  # of the trial of a new kind
    found = scored(model, rows)
    assert model.forward._splits is True and set(widths) == {(2, 1, 6, 6)}
    monkeypatch.setattr(split_attention, "LONG", 10**9)
    wanted = scored(model, rows)
    assert (found - wanted)[TREE.valid].abs().max() < most * wanted.abs().max()


def test_a_single_node_after_rows_of_unlike_lengths(widths, monkeypatch):
    model, root = target("llama"), TokenTree.root_only(torch.tensor([1, 6]))
    widths.clear()
    found = scored(model, RAGGED, root)
    assert set(widths) == {(2, 1, 1, 1)}
    monkeypatch.setattr(split_attention, "LONG", 10**9)
    torch.testing.assert_close(found, scored(model, RAGGED, root), rtol=0, atol=1e-12)


def test_a_layer_that_bends_its_logits_gets_one_mask():
    """Attention with sinks or capped logits is no sum of parts: the model's own function computes it."""
    given = []

    def own(module, query, key, value, mask, **options):
        given.append(mask)
        return query.transpose(1, 2), None

    AttentionInterface.register("specframe_test_bent", own)
    tree = torch.zeros(2, 1, 6, 6).masked_fill_(~torch.ones(6, 6, dtype=torch.bool).tril(), -torch.inf)
    prefix = torch.zeros(2, 1, 1, 7)
    prefix[1, ..., 2:] = -torch.inf
    layer = nn.Linear(1, 1)
    layer.config = SimpleNamespace(_attn_implementation="specframe_test_bent")
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 13, 8)
    with split_attention.split_attention([layer], split_attention.SplitMasks(tree, prefix)):
        function = ALL_ATTENTION_FUNCTIONS[layer.config._attn_implementation_internal]
        function(layer, query, key, key, tree, scaling=0.5, s_aux=torch.zeros(4))
        found, _ = function(layer, query, key, key, tree, scaling=0.5, s_aux=None)
    (mask,) = given
    assert mask.shape == (2, 1, 6, 13) and torch.equal(mask[..., 7:], tree)
    assert torch.equal(mask[..., :7], prefix.expand(-1, -1, 6, -1))
    wanted = scaled_dot_product_attention(query, key, key, attn_mask=mask, scale=0.5, enable_gqa=True)
    torch.testing.assert_close(found.transpose(1, 2), wanted)


def test_a_model_that_computes_something_else_in_parts_keeps_its_own_attention(monkeypatch):
    """Negative control: parts that are added without their weights are found in the first pass, and never used."""
    monkeypatch.setattr(split_attention, "LONG", 2)
    part = split_attention._part
    monkeypatch.setattr(
        split_attention, "_part", lambda *given: ((found := part(*given))[0], torch.zeros_like(found[1]))
    )
    model = target("llama")
    found = scored(model, RAGGED)
    assert model.forward._splits is False
    monkeypatch.setattr(split_attention, "LONG", 10**9)
    torch.testing.assert_close(found, scored(model, RAGGED), rtol=0, atol=1e-12)


def test_a_short_prefix_is_seen_by_one_mask(monkeypatch):
    monkeypatch.setattr(
        split_attention.SplitMasks, "attend", lambda *_: pytest.fail("a prefix of seven tokens is short")
    )
    scored(target("llama"), EVEN)
