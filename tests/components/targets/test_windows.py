"""Sliding windows and chunks: trees beyond them give token for token what the model's own greedy decoding gives."""

from __future__ import annotations

import pytest
import torch

from specframe.components.targets.forward.masks import AttentionView, mask_of
from specframe.components.targets.hf import HFTarget
from specframe.kernel.types import TokenTree
from specframe.neural.cache import SlotCache
from specframe.neural.slot_map import SlotMap
from specframe.testing import admitted
from tests.components.targets.models import HEADED, MODERN, PROMPTS, SHAPES, batch

COUNT = 30
WINDOW = 8
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"}
WINDOWED = {
    "cohere2": MODERN | {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "exaone4": MODERN | {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "gemma2": HEADED | {"sliding_window": WINDOW},
    "gemma3_text": HEADED | {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "gpt_oss": HEADED | EXPERTS | {"sliding_window": WINDOW},
    "llama4_text": HEADED
    | EXPERTS
    | {"attention_chunk_size": WINDOW, "no_rope_layer_interval": 2, "intermediate_size_mlp": 64},
    "mistral": MODERN | {"sliding_window": WINDOW},
    "mixtral": MODERN | EXPERTS | {"sliding_window": WINDOW},
    "olmo3": MODERN | {"sliding_window": WINDOW},
    "phi3": MODERN | {"sliding_window": WINDOW},
    "qwen2": MODERN | {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "smollm3": MODERN | {"sliding_window": WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 1, 0]},
    "starcoder2": MODERN | {"sliding_window": WINDOW},
}
LONG = ([*range(5, 24)], [11, 12, 13], [*range(21, 33)])
"""Prompts beyond the window, short of it, and beyond it."""


@pytest.mark.sampled
@pytest.mark.parametrize("family", sorted(WINDOWED))
@pytest.mark.parametrize("prompts", [PROMPTS, LONG], ids=["grows beyond", "starts beyond"])
def test_trees_beyond_a_window_equal_generate(family, prompts, build, continuation, decode):
    model = build_of(build, family, WINDOWED[family])
    expected = [continuation(model, prompt, COUNT) for prompt in prompts]
    found = decode(HFTarget.from_model(model), prompts, expected)
    assert [row[:COUNT] for row in found] == expected


@pytest.mark.parametrize("family", ["gemma2", "llama4_text", "mistral", "gpt_oss"])
def test_a_prompt_read_in_pieces_keeps_to_the_window(family, build):
    model = build_of(build, family, WINDOWED[family])
    whole, pieces = HFTarget.from_model(model), HFTarget.from_model(model)
    for target in (whole, pieces):
        target.open(1, 64)
    prompt = LONG[0]
    assert [pieces.read_ahead(prompt, 6) for _ in range(4)] == [6, 12, 18, 18]
    prompts = batch([prompt])
    found, wanted = pieces.admit(prompts)[1], whole.admit(prompts)[1]
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=1e-5)  # Gemma norms in float32


def build_of(build, family, changes):
    """A model of a family, in a shape that the other tests do not build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, family, changes)
        return build(family)


def test_the_window_decides(build):
    """The same weights without it give other scores, so the equality above depends on it."""
    model = build("mistral", sliding_window=WINDOW)
    _, near = admitted(HFTarget.from_model(model), batch(LONG), 4)
    wide = build("mistral", sliding_window=None)
    wide.load_state_dict(model.state_dict())
    _, far = admitted(HFTarget.from_model(wide), batch(LONG), 4)
    assert not torch.allclose(near.logits[0], far.logits[0])
    torch.testing.assert_close(near.logits[1], far.logits[1])


@pytest.mark.parametrize(
    ("view", "seen"),
    [
        (AttentionView(window=3), [[3, 4, 5], [4, 5, 6], [5, 6, 7], [6, 7, 8]]),
        (AttentionView(chunk=4), [[4, 5], [4, 5, 6], [4, 5, 6, 7], [8]]),
        (AttentionView(), [[*range(6)], [*range(7)], [*range(8)], [*range(9)]]),
    ],
)
def test_what_a_path_after_five_committed_tokens_sees(view, seen):
    rows = SlotMap(SlotCache(1, 32, 1), rooted=False)
    rows.join(torch.tensor([5]), [5])
    index = torch.arange(4)[None]
    tree = TokenTree(index + 1, index - 1, index >= 0, index * 0, levels=3)
    mask = mask_of(rows.tree(tree), 5 + tree.depth, view, torch.float32)
    assert [(row == 0).nonzero()[:, 0].tolist() for row in mask[0, 0]] == seen
