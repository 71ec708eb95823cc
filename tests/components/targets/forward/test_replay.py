"""Some layers over tokens that were processed before, and what an early exit reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from specframe.components.targets.forward import transformers as passes_of_models
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.shared_head import Sharing
from specframe.kernel.errors import CompositionError
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree
from tests.components.targets.models import PROMPTS, SHAPES, accept, batch, random_tree
from tests.components.targets.test_layers import BROAD

WINDOW = 4
CHOICES = [LayerChoice.first(2, 3), LayerChoice.without(3, [1], []), LayerChoice.without(3, [0, 2], [1])]


def decoded(target: HFTarget, cycles: int = 3) -> list[list[int]]:
    """Lets a session of ragged rows run for some cycles; the processed tokens of every row."""
    noise = torch.Generator().manual_seed(5)
    target.open(3, 64)
    texts = [list(prompt) for prompt in PROMPTS]
    root: list[int] = []
    tree, scores = target.admit(batch(PROMPTS))
    for cycle in range(cycles + 1):
        verdict = accept(tree, scores.logits)
        committed = target.commit(tree, verdict)
        for row, text in enumerate(texts):
            if cycle:
                text += [root[row], *committed.tokens[row, : int(committed.count[row]) - 1].tolist()]
        root = committed.root.tolist()
        tree = random_tree(committed.root, [[1, 2, 3]] * 3, 6, noise)
        scores = target.score(tree) if cycle < cycles else scores
    return texts


def literal(model, text: list[int], chosen: LayerChoice) -> Tensor:
    """`last` of the window, token by token: drafted after the text that ends before the window, [W, D]."""
    target = HFTarget.from_model(model)
    target.open(1, 64)
    before, window = text[:-WINDOW], torch.tensor([text[-WINDOW:]])
    tree, scores = target.admit(batch([before]))
    target.commit(tree, accept(tree, scores.logits))
    found = []
    for count in range(1, WINDOW + 1):
        parent = torch.arange(count)[None] - 1
        seen = TokenTree(
            window[:, :count], parent, torch.ones(1, count, dtype=torch.bool), torch.zeros_like(parent), count - 1
        )
        found.append(target.run_layers(chosen, seen, torch.tensor([[count - 1]]))["last"][0, 0])
    return torch.stack(found)


@pytest.fixture
def exact_softmax(monkeypatch):
    """The softmax of eager attention in the model's own precision; float32's rounds by how many keys there are."""
    plain = nn.functional.softmax
    monkeypatch.setattr(nn.functional, "softmax", lambda values, dim=-1, dtype=None: plain(values, dim=dim))


@pytest.mark.sampled
@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("chosen", CHOICES, ids=["exit", "attention", "both"])
@pytest.mark.parametrize("family", SHAPES)
@torch.no_grad()
def test_a_replay_is_a_draft_after_the_earlier_text(family, chosen, build):
    if family == "opt" and chosen == CHOICES[2]:
        pytest.skip("a layer of OPT has no module that is its MLP")
    model = build(family).double()
    target = HFTarget.from_model(model)
    texts = decoded(target)
    tokens = torch.tensor([text[-WINDOW:] for text in texts])
    found = target.replay_layers(chosen, tokens)
    for row, text in enumerate(texts):
        torch.testing.assert_close(found[row], literal(model, text, chosen), rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_a_replay_sees_no_farther_than_a_window(build):
    model = build("mistral", sliding_window=5).double()
    target = HFTarget.from_model(model)
    texts = decoded(target)
    found = target.replay_layers(CHOICES[1], torch.tensor([text[-WINDOW:] for text in texts]))
    for row, text in enumerate(texts):
        torch.testing.assert_close(found[row], literal(model, text, CHOICES[1]), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("native", [False, True])
@torch.no_grad()
def test_a_replay_leaves_no_trace(native, build):
    replayed = HFTarget.from_model(build("llama", **BROAD).bfloat16())
    if native:
        replayed._take_native()
    other = replayed.sibling()
    texts = decoded(replayed)
    assert decoded(other) == texts
    for chosen in CHOICES:
        replayed.replay_layers(chosen, torch.tensor([text[-WINDOW:] for text in texts]))
    tree = random_tree(torch.tensor([3, 4, 5]), [[1, 2, 3]] * 3, 6, torch.Generator().manual_seed(1))
    found, wanted = replayed.score(tree), other.score(tree)
    assert torch.equal(found.logits[tree.valid], wanted.logits[tree.valid])


@torch.no_grad()
def test_native_code_replays_what_transformers_layers_replay(build):
    model = build("llama", **BROAD).bfloat16()
    target, slow = HFTarget.from_model(model), HFTarget.from_model(model)
    target._take_native()
    tokens = torch.tensor([text[-WINDOW:] for text in decoded(slow)])
    decoded(target)
    found, wanted = (one.replay_layers(CHOICES[1], tokens).float() for one in (target, slow))
    assert (found - wanted).norm() < 2e-2 * wanted.norm()


@torch.no_grad()
def test_a_row_that_is_too_short_spoils_nothing(build):
    target = HFTarget.from_model(build("gpt2").double())
    texts = decoded(target, cycles=1)
    width = max(map(len, texts))
    tokens = torch.tensor([[0] * (width - len(text)) + text for text in texts])
    found = target.replay_layers(CHOICES[0], tokens)
    assert found.isfinite().all()


@pytest.mark.parametrize("family", SHAPES)
@torch.no_grad()
def test_an_exit_reads_the_final_norm_of_its_layer(family, build):
    target = HFTarget.from_model(build(family).double())
    target.request(frozenset({"last", "layer.0", "layer.1", "layer.2"}))
    target.open(3, 64)
    tree, scores = target.admit(batch(PROMPTS))
    committed = target.commit(tree, accept(tree, scores.logits))
    tree = TokenTree.root_only(committed.root)
    features = target.score(tree).features
    torch.testing.assert_close(target.norm(features["layer.2"]), features["last"])
    for exit in (1, 2):
        drafted = target.run_layers(LayerChoice.first(exit, 3), tree, torch.zeros_like(tree.tokens))
        torch.testing.assert_close(target.norm(features[f"layer.{exit - 1}"]), drafted["last"])


def test_a_decoder_with_an_unknown_ending_is_refused(build):
    model = build("llama")
    assert HFTarget.from_model(model).norm(torch.ones(1, 32)).shape == (1, 32)
    forward = model.model.forward

    def doubled(*given, **named):
        output = forward(*given, **named)
        output.last_hidden_state = output.last_hidden_state * 2
        return output

    model.model.forward = doubled
    shared = Sharing(model, model.config, model.model, model.model.layers, model.get_output_embeddings())
    with pytest.raises(CompositionError, match="llama does something after its last layer"):
        shared.norm(torch.ones(1, 32))


@torch.no_grad()
def test_a_search_keeps_few_models_at_hand(build, monkeypatch):
    monkeypatch.setattr(passes_of_models, "KEPT", 2)
    target = HFTarget.from_model(build("llama").double())
    tokens = torch.tensor([text[-WINDOW:] for text in decoded(target)])
    first = target.replay_layers(CHOICES[0], tokens)
    for chosen in CHOICES:
        target.replay_layers(chosen, tokens)
    assert len(target.parts.eager._subsets) == 2
    assert torch.equal(target.replay_layers(CHOICES[0], tokens), first)
