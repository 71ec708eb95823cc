"""A GGUF file's config, weights and blocks, next to transformers' own reading of it."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.loading import load
from specframe.kernel.errors import InputError
from specframe.neural.layer import complete_config
from specframe_gguf.header import GGUFFile
from specframe_gguf.model import ARCHITECTURES, read_config
from tests.small_gguf import VOCABULARY, WIDTH, write_gguf

OPTIONS = {"dtype": "float32", "device": "cpu", "revision": None, "attention": None}
LIKE = (
    "vocab_size max_position_embeddings hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads tie_word_embeddings eos_token_id bos_token_id"
)


def read(path):
    return load(str(path), **OPTIONS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_those_that_transformers_reads(architecture, tmp_path):
    file = write_gguf(tmp_path / "small.gguf", architecture=architecture, blocks="Q5_1")
    found = read(file)
    wanted = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, config=found.config, quantization_config=GgufConfig(dequantize=True)
    )
    assert found.state_dict().keys() == wanted.state_dict().keys()
    for name, weight in wanted.state_dict().items():
        assert torch.equal(found.state_dict()[name], weight), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_config_is_the_one_that_transformers_reads(architecture, tmp_path):
    file = write_gguf(tmp_path / "small.gguf", architecture=architecture, context=256)
    found = read_config(GGUFFile.read(file))
    wanted = AutoConfig.from_pretrained(tmp_path, gguf_file=file.name)
    assert type(complete_config(found)) is type(wanted)
    for name in LIKE.split():
        assert getattr(found, name) == getattr(wanted, name), name
    assert found.rms_norm_eps == pytest.approx(wanted.rms_norm_eps)
    assert found.rope_parameters == wanted.rope_parameters


def test_an_lm_head_next_to_the_embedding_is_kept(tmp_path):
    head = np.random.default_rng(1).normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    model = read(write_gguf(tmp_path / "small.gguf", architecture="qwen2", tensors={"output.weight": head}))
    assert torch.equal(model.lm_head.weight, torch.from_numpy(head))
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_every_token_that_ends_a_turn_ends_a_text(tmp_path):
    file = write_gguf(tmp_path / "small.gguf", metadata={"tokenizer.ggml.eot_token_id": 7})
    assert HFTarget(model=str(file), device="cpu").ends == {7, VOCABULARY - 1}


def test_a_stretched_rotary_embedding_is_taken_over(tmp_path):
    scaling = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    rope = read(write_gguf(tmp_path / "small.gguf", metadata=scaling)).config.rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("yarn", 4.0, 32)


def divisors(factor, size=WIDTH // 4):
    """Llama 3's divisors of the rotary frequencies, as its authors compute them, one by one."""
    found = []
    for place in range(size):
        wave = 2 * math.pi * 10000.0 ** (place / size)
        smooth = min(max((8192 / wave - 1) / 3, 0), 1)
        found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found)


def test_llama_3s_scaling_is_found_in_the_divisors_that_a_file_holds(tmp_path):
    file = write_gguf(tmp_path / "small.gguf", tensors={"rope_freqs.weight": divisors(8.0, 8)})
    found = GGUFFile.read(file)
    if divisors(8.0, 8).max() == 1.0:
        pytest.fail("no frequency of so small a model is scaled")
    config = read_config(found)
    assert config.rope_parameters["rope_type"] == "llama3"
    frequencies = read(file).model.rotary_emb.inv_freq
    plain = 10000.0 ** -(torch.arange(8) / 8)
    torch.testing.assert_close(
        frequencies, plain / torch.from_numpy(divisors(config.rope_parameters["factor"], 8)).float()
    )


CASES = {
    "blocks of another type": ({"blocks": "TQ2_0"}, "in blocks of the type TQ2_0; F32, F16, .* are read"),
    "a tensor without a place": (
        {"tensors": {"blk.1.ffn_gate_exps.weight": np.zeros((4, 4))}},
        "holds blk.1.ffn_gate_exps.weight, which has no place in a llama model",
    ),
    "fewer layers than the metadata has": (
        {"metadata": {"llama.block_count": 3}},
        r"lacks \d+ tensors of the model, such as model.layers.2",
    ),
    "another shape": (
        {"tensors": {"output.weight": np.zeros((VOCABULARY, WIDTH // 2))}},
        "holds output.weight in the shape .* not .* as by its metadata",
    ),
    "another scaling": (
        {"tensors": {"rope_freqs.weight": np.linspace(1, 5, 8)}},
        "in another way than Llama 3 does",
    ),
    "an unknown scaling": ({"metadata": {"llama.rope.scaling.type": "longrope"}}, "scaled by 'longrope' is not read"),
    "a template that cannot be parsed": (
        {"template": "{% for m in messages %}\n{{ m.content "},
        "chat template of .* cannot be parsed: line 2: ",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_is_not_read_is_one_line_before_its_weights(case, tmp_path, monkeypatch):
    options, message = CASES[case]
    blocks = {"blocks": "F32"} if options.get("blocks") else {}
    file = write_gguf(tmp_path / "bad.gguf", **options | blocks)
    if blocks:  # a type that is known and not read: its number in place of that of F32
        monkeypatch.setattr("specframe_gguf.header.TYPE_NAMES", {0: options["blocks"], 8: "Q8_0"})
    monkeypatch.setattr("specframe_gguf.model.StoredModel.weights", lambda *_: pytest.fail("read"))
    with pytest.raises(InputError, match=message) as caught:
        read(file)
    assert "\n" not in str(caught.value)
