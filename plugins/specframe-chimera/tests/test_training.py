"""From texts to a drafter by `specframe train`: it learns, and the tau it reports is the tau that decoding has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import specframe
from specframe.cli.main import main
from specframe.components.rollouts.all_levels import AllLevels
from specframe.engine.training.validation import measure

VOCAB, PROMPT, NEW, HELD = 24, 3, 60, 48
RECIPE = """
specframe: 1
target: {{use: hf, model: {model}, dtype: float32}}
drafter: {{use: none}}
verifier: match
sampling: {{temperature: 0.0, max_new_tokens: {new}, ignore_eos: true}}
run: {{batch: 48}}
"""
TRAIN = """
tree: {{use: chain, depth: 3}}
loss:
  - {{use: cross_entropy, labels: text}}
  - {{use: feature_regression, distance: mse}}
train:
  {{data: [{data}], rollout: {{use: all_levels}}, out: {out}, steps: 30, batch: 12, length: 64, lr: 1.0e-2, warmup: 0,
    log_every: 10, validation: 0.1}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A random Llama that speaks in words w1, w2, ... and seldom repeats itself."""
    folder = tmp_path_factory.mktemp("model")
    words = {"</s>": 0, **{f"w{i}": i for i in range(1, VOCAB)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(model, tmp_path_factory) -> list[list[int]]:
    """What the target says, greedily, to random prompts: the last HELD texts are not trained on."""
    path = tmp_path_factory.mktemp("plain") / "recipe.yaml"
    path.write_text(RECIPE.format(model=model, new=NEW))
    chance = torch.Generator().manual_seed(3)
    prompts = torch.randint(1, VOCAB, (96 + HELD, PROMPT), generator=chance).tolist()
    said = specframe.load(path).generate(prompts).tokens
    return [prompt + tokens for prompt, tokens in zip(prompts, said, strict=True)]


def test_simulated_tau_is_what_decoding_has(model, texts, tmp_path):
    data, out, recipe = tmp_path / "texts.jsonl", tmp_path / "out", tmp_path / "recipe.yaml"
    lines = (" ".join(f"w{token}" if token else "</s>" for token in text) for text in texts[:-HELD])
    data.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    recipe.write_text(
        RECIPE.format(model=model, new=NEW).replace("{use: none}", "{use: chimera, heads: 3, cache: 100}")
        + TRAIN.format(data=data, out=out)
    )
    assert main(["train", str(recipe)]) == 0
    losses = json.loads((out / "train.json").read_text())["losses"]
    for name in ("loss", "cross_entropy", "feature_regression"):
        assert losses[-1][name] < 0.9 * losses[0][name], name

    pipeline = specframe.load(recipe, overrides=[f"drafter.weights={out}"])
    held = torch.tensor(texts[-HELD:])
    mask = torch.arange(held.shape[1]).expand_as(held) >= PROMPT
    teacher = pipeline.parts.target.teach(held, mask)
    simulated = measure(pipeline.parts.drafter, [teacher], [], AllLevels())
    result = pipeline.generate(held[:, :PROMPT].tolist())
    assert result.tokens == held[:, PROMPT:].tolist()
    tau = 1 + result.acceptance.accepted / result.acceptance.cycles
    assert tau > 1.1, "nothing was learned, so nothing is compared"
    assert simulated["tau"] == pytest.approx(tau, rel=0.03)
    assert 0 < pipeline.parts.drafter.lookups.hit_rate < 1
