"""DecoderLayer is the target's own layer; the masks against slow restatements."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel

from specframe.kernel.errors import CompositionError
from specframe.neural import DecoderLayer, SlotCache, block_causal, block_end

KINDS = ["llama", "mistral", "qwen2", "qwen3", "granite", "olmo2"]


def config(kind: str, **more):
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
        "max_position_embeddings": 64,
    }
    ends = {"pad_token_id": 7, "bos_token_id": 1, "eos_token_id": 2}
    return AutoConfig.for_model(kind, **sizes, **ends, **more)


def causal(length: int):
    return torch.ones(length, length, dtype=torch.bool).tril()[None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_the_layer_computes_what_the_target_s_layer_does(kind):
    original = config(kind)
    model = AutoModel.from_config(original, dtype=torch.float32).eval()
    layer = DecoderLayer(original)
    assert original.num_hidden_layers == 2 and original.vocab_size == 50, "the config stays untouched"
    layer.layer.load_state_dict(model.layers[1].state_dict())
    captured = []
    hook = model.layers[1].register_forward_hook(
        lambda _, args, kwargs, out: captured.append((args, kwargs, out)), with_kwargs=True
    )
    model(torch.randint(8, 50, (2, 9)), use_cache=False)
    hook.remove()
    args, kwargs, out = captured[0]
    x = args[0] if args else kwargs["hidden_states"]
    positions = torch.arange(9).expand(2, 9)
    expected = out[0] if isinstance(out, tuple) else out
    torch.testing.assert_close(layer(x, positions, None), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(x, positions, causal(9)), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_slot_cache_gives_the_same_as_one_forward(kind):
    layer = DecoderLayer(config(kind)).double().eval()
    x, positions = torch.randn(2, 7, 32, dtype=torch.float64), torch.arange(7).expand(2, 7)
    whole = layer(x, positions, causal(7))
    cache = SlotCache(1, 10)
    cache.aim(torch.arange(4).expand(2, 4), 4)
    first = layer(x[:, :4], positions[:, :4], causal(4), cache)
    cache.aim(torch.arange(4, 7).expand(2, 3), 7)
    second = layer(x[:, 4:], positions[:, 4:], causal(7)[:, :, 4:], cache)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)


def test_rotary_frequencies_survive_casts_and_stay_out_of_the_state():
    layer = DecoderLayer(config("llama"))
    positions = torch.arange(50).expand(1, 50)
    before = layer._rotary[0](torch.zeros(1), positions)
    layer.bfloat16().double()
    after = layer._rotary[0](torch.zeros(1), positions)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not [name for name in layer.state_dict() if "inv_freq" in name]
    assert not list(layer.buffers())


def test_eager_attention_takes_the_same_masks():
    plain = DecoderLayer(config("llama"))
    eager = DecoderLayer(config("llama"))
    eager.load_state_dict(plain.state_dict())
    eager.config._attn_implementation = "eager"
    eager._additive = True
    x, positions = torch.randn(2, 6, 32), torch.arange(6).expand(2, 6)
    mask = block_causal(6, 2).expand(2, 1, 6, 6)
    torch.testing.assert_close(plain(x, positions, mask), eager(x, positions, mask), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain(x, positions, None), eager(x, positions, None), rtol=1e-5, atol=1e-5)


def test_architectures_without_rotary_layers_are_refused():
    small = AutoConfig.for_model("gpt2", n_embd=32, n_layer=1, n_head=4, n_positions=16)
    with pytest.raises(CompositionError, match="'gpt2'"):
        DecoderLayer(small)


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_block_causal_mask(block):
    for length in range(1, 12):
        mask = block_causal(length, block)
        ends = block_end(length, block)
        for i in range(length):
            end = length - 1
            while end - block >= i:
                end -= block
            assert ends[i] == end
            for j in range(length):
                assert mask[0, 0, i, j] == (j <= end)
