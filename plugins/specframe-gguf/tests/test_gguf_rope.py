"""Rotary embeddings: the scores of queries and keys are those of llama.cpp's formula over the stored tensors."""

import math

import gguf
import pytest
import torch

from specframe.components.targets.loading import load
from specframe.kernel.errors import InputError
from specframe_gguf.header import GGUFFile
from tests.small_gguf import HEADS, WIDTH, write_gguf

OPTIONS = {"dtype": "float32", "device": "cpu", "revision": None, "attention": None}
HEAD = WIDTH // HEADS
LENGTH = 40
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 64}


def rotations(keys, width):
    """The angles [L, width / 2] and the size of the rotations, as llama.cpp computes them, one by one."""
    kind, factor = keys.get("type", "linear"), keys.get("factor", keys.get("scale_linear", 1.0))
    scale = 1.0 if kind == "none" else 1 / factor
    base, size = 10000.0, 1.0
    mix = 1.0 if kind == "yarn" else 0.0

    def log_size(multiplier):
        return 1.0 if scale >= 1 else 0.1 * multiplier * math.log(1 / scale) + 1.0

    if mix:
        size = log_size(1.0) / (log_size(keys["yarn_log_multiplier"]) if "yarn_log_multiplier" in keys else 1.0)
    size *= keys.get("attn_factor", 1.0)
    original = keys.get("original_context_length", 128)

    def place(turns):
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(place(keys.get("yarn_beta_fast", 32.0))))
    high = min(width - 1, math.ceil(place(keys.get("yarn_beta_slow", 1.0))))
    angles = torch.zeros(LENGTH, width // 2)
    for position in range(LENGTH):
        for pair in range(width // 2):
            plain = position * base ** (-2 * pair / width)
            kept = (1 - min(1, max(0, (pair - low) / max(0.001, high - low)))) * mix
            angles[position, pair] = plain * scale * (1 - kept) + plain * kept
    return angles, size


def turn(states, keys, width, adjacent):
    """Rotates states [H, L, head]: neighbours where `adjacent`, else numbers that are half the width apart."""
    angles, size = rotations(keys, width)
    first = torch.arange(width // 2) * 2 if adjacent else torch.arange(width // 2)
    second = first + (1 if adjacent else width // 2)
    turned = states.clone()
    turned[..., first] = (states[..., first] * angles.cos() - states[..., second] * angles.sin()) * size
    turned[..., second] = (states[..., first] * angles.sin() + states[..., second] * angles.cos()) * size
    return turned


def wanted_scores(file, architecture, keys, width, inputs):
    stored = {t.name: torch.tensor(gguf.dequantize(t.data, t.tensor_type)) for t in gguf.GGUFReader(file).tensors}
    found = []
    for name in ("attn_q", "attn_k"):
        states = inputs @ stored[f"blk.0.{name}.weight"].T + stored.get(f"blk.0.{name}.bias", torch.zeros(()))
        states = states.view(LENGTH, HEADS, HEAD).transpose(0, 1)
        if (norm := stored.get(f"blk.0.{name}_norm.weight")) is not None:
            states = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-5) * norm
        found.append(turn(states, keys, width, architecture == "llama"))
    return found[0] @ found[1].transpose(1, 2)


def scores(file, inputs):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = load(str(file), **OPTIONS).model
    attention = model.layers[0].self_attn
    kinds = getattr(model.config, "layer_types", None) if "gemma3" in model.config.model_type else None
    rotary = model.rotary_emb(inputs[None], torch.arange(LENGTH)[None], *(kinds[:1] if kinds else ()))
    states = []
    for name in ("q", "k"):
        found = getattr(attention, f"{name}_proj")(inputs).view(LENGTH, HEADS, HEAD)
        if hasattr(attention, f"{name}_norm"):
            found = getattr(attention, f"{name}_norm")(found)
        states.append(found.transpose(0, 1)[None])
    query, key = apply_rotary_pos_emb(*states, *rotary)
    return (query @ key.transpose(2, 3))[0]


CASES = {
    "plain": {},
    "linear": {"type": "linear", "factor": 4.0},
    "a factor alone, which is linear": {"factor": 4.0},
    "the old name of the factor": {"scale_linear": 8.0},
    "none, whatever the factor is": {"type": "none", "factor": 4.0},
    "yarn": YARN,
    "yarn of the context": {"type": "yarn", "factor": 4.0},
    "yarn between other turns": YARN | {"yarn_beta_fast": 3.0, "yarn_beta_slow": 0.5},
    "yarn of another size": YARN | {"attn_factor": 0.7},
    "yarn with a log multiplier": YARN | {"yarn_log_multiplier": 0.5},
    "yarn with both": YARN | {"yarn_log_multiplier": 1.0, "attn_factor": 1.2, "yarn_beta_fast": 6.0},
    "half of a head": {"dimension_count": 8},
    "a part of a head, stretched": {"dimension_count": 12, "type": "linear", "factor": 2.0},
}


def metadata(architecture, keys):
    outer = {"scale_linear": "rope.scale_linear", "dimension_count": "rope.dimension_count"}
    return {f"{architecture}.{outer.get(name, f'rope.scaling.{name}')}": value for name, value in keys.items()}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_llama_cpp(case, architecture, tmp_path):
    keys = CASES[case]
    file = write_gguf(tmp_path / "small.gguf", architecture=architecture, metadata=metadata(architecture, keys))
    inputs = torch.randn(LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    wanted = wanted_scores(file, architecture, keys, keys.get("dimension_count", HEAD), inputs)
    torch.testing.assert_close(scores(file, inputs), wanted, rtol=1e-4, atol=1e-3)


def test_the_attention_factor_of_a_converted_config_is_the_size_of_the_rotations(tmp_path):
    keys = YARN | {"yarn_attn_factor": 1.3}
    rope = load(str(write_gguf(tmp_path / "small.gguf", metadata=metadata("llama", keys))), **OPTIONS).model.rotary_emb
    assert rope.attention_scaling == pytest.approx(1.3)


def test_layers_with_windows_are_not_stretched(tmp_path):
    keys = metadata("gemma3", {"type": "linear", "factor": 8.0})
    rope = load(str(write_gguf(tmp_path / "small.gguf", architecture="gemma3", metadata=keys)), **OPTIONS).config
    assert rope.rope_parameters["full_attention"]["factor"] == 8.0
    assert rope.rope_parameters["sliding_attention"]["rope_type"] == "default"


def test_a_head_without_a_stated_size_is_that_of_its_tensor(tmp_path):
    keys = {"qwen2.attention.key_length": None, "qwen2.rope.dimension_count": 8}
    file = write_gguf(tmp_path / "small.gguf", architecture="qwen2", metadata=keys)
    assert load(str(file), **OPTIONS).config.head_dim == HEAD


REFUSED = {
    "another kind": ({"type": "longrope"}, "scaled by 'longrope' is not read"),
    "linear of another size": ({"factor": 2.0, "attn_factor": 0.5}, "attn_factor 0.5"),
    "a mix of two": (YARN | {"yarn_ext_factor": 0.5}, "yarn_ext_factor 0.5"),
    "yarn of a part of a head": (YARN | {"dimension_count": 8}, "rotates 8 of the 16 numbers of a head, scaled by"),
    "more than a head": ({"dimension_count": 20}, "rotates 20 of the 16 numbers of a head, which cannot be"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_one_line(case, tmp_path):
    keys, message = REFUSED[case]
    file = write_gguf(tmp_path / "small.gguf", metadata=metadata("llama", keys))
    with pytest.raises(InputError, match=message) as caught:
        load(str(file), **OPTIONS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("head", "turned"), [(44, 30), (128, 96), (90, 26)])
def test_transformers_rotates_as_much_as_was_asked_for(head, turned, tmp_path):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from specframe_gguf.rope import rope_parameters

    keys = {"general.architecture": "llama", "llama.rope.dimension_count": turned}
    rope = rope_parameters(GGUFFile(tmp_path, keys, {}), head)
    config = LlamaConfig(head_dim=head, rope_parameters=rope)
    frequencies, _ = ROPE_INIT_FUNCTIONS["proportional"](config)
    plain = 10000.0 ** -(torch.arange(0, turned, 2) / turned)
    torch.testing.assert_close(frequencies, torch.cat([plain, torch.zeros((head - turned) // 2)]))
