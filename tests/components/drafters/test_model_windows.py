"""A drafting model whose layers see a window or a chunk: in drafts, after some layers, in training, and its tau."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from specframe import compose
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.model_training import read_rows
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain
from specframe.kernel.types import Context, Drafts, Draw
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from tests.components.drafters.test_exits import Leaving
from tests.components.drafters.test_model_drafter import literal, same
from tests.components.sessions import first, later
from tests.components.targets.models import VOCABULARY
from tests.components.targets.test_windows import WINDOWED

KINDS = ["gemma3_text", "llama4_text", "mistral", "phi3", "qwen2"]
TEXTS = [[*range(5, 24)], [11, 12, 13], [*range(21, 30)]]
"""Beyond the window, short of it, and just beyond it."""
CLOSE = {"atol": 1e-5, "rtol": 1e-4}  # Gemma norms in float32


@lru_cache
def windowed(kind):
    """A random model in float64 whose window, or chunk, is 8 positions."""
    special = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**WINDOWED[kind], **special)).double().eval()
    for weights in model.parameters():
        weights.data.normal_(0, 0.25)
    return model


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "policy",
    [Chain(depth=4), Chain(depth=3, draw=Draw.IID), Dynamic(depth=3, width=3, nodes=5)],
    ids=["chain", "sampled", "dynamic"],
)
def test_drafts_beyond_a_window_are_those_of_the_model_reading_from_scratch(kind, policy):
    model, texts = windowed(kind), TEXTS
    drafter = ModelDrafter.from_model(model)
    drafter.open(3, 64)
    drafter.commit(first(texts))
    for more in ([[4, 5], [6], [7, 8, 9]], [[1], [2], [3]], [[30] * 5, [31, 32], [33]]):
        root = torch.tensor([text[-1] for text in texts])
        tree = drafter.propose(root, policy, Context(Sampling(temperature=0.8), SeededRandom(4, 3).draft))
        wanted = policy.grow(literal(model, texts), root, Context(Sampling(temperature=0.8), SeededRandom(4, 3).draft))
        assert same(tree, wanted)
        drafter.commit(later(more))
        texts = [text + tail for text, tail in zip(texts, more, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_as_its_own_drafter_has_all_drafts_accepted(kind):
    model = windowed(kind)
    pipeline = compose(target=model, drafter=ModelDrafter.from_model(model), tree={"use": "chain", "depth": 4})
    generated = pipeline.generate([TEXTS[0][:6]], max_new_tokens=41)
    assert generated.acceptance.tau == pytest.approx(5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_that_reads_one_token_keeps_to_its_window(kind):
    model, text = windowed(kind), TEXTS[0]
    drafter = ModelDrafter.from_model(model)
    drafter.open(1, 64)
    drafter.commit(first([text]))
    for token in (4, 5):
        context = Context(Sampling(), SeededRandom(0, 1).draft)
        tree = drafter.propose(torch.tensor([text[-1]]), Chain(depth=1), context)
        assert int(tree.tokens[0, 1]) == int(model(torch.tensor([text])).logits[0, -1].argmax())
        drafter.commit(later([[token]]))
        text = [*text, token]


@pytest.mark.parametrize("kind", ["gemma3_text", "mistral"])
def test_layers_that_are_left_early_and_read_on_keep_to_the_window(kind):
    model = windowed(kind)
    drafter = ModelDrafter.from_model(model)
    drafter.exit_after([1])
    leaving = Leaving(drafter, [3])
    drafter.open(3, 64)
    drafter.commit(first(TEXTS))
    root, context = torch.tensor([text[-1] for text in TEXTS]), Context(Sampling(), SeededRandom(0, 3).draft)
    policy = Dynamic(depth=3, width=2, nodes=5)
    assert same(policy.grow(leaving.expand, root, context), policy.grow(literal(model, TEXTS), root, context))


@pytest.mark.parametrize("kind", KINDS)
def test_training_reads_drafts_and_mask_rows_within_the_window(kind):
    model, text = windowed(kind), [*range(5, 25)]
    drafts = torch.tensor([[*text, 30, 31, 32, 33]])  # two levels of two drafts
    found = ModelDrafter.from_model(model).read_text(drafts, Drafts(20, torch.tensor([[12, 17]]), 2))
    alone = model(torch.tensor([[*text[:13], 30, 32]])).logits
    torch.testing.assert_close(found[0, [20, 22]], alone[0, -2:], **CLOSE)
    places, depth = torch.tensor([[12, 17, 12]]), torch.tensor([1, 1, 2])
    rows = read_rows(model, torch.tensor([text]), 9, places, depth, torch.ones(1, 3, dtype=torch.bool))
    alone = model(torch.tensor([[*text[:13], 9, 9]])).logits
    torch.testing.assert_close(rows[0, [20, 22]], alone[0, -2:], **CLOSE)
