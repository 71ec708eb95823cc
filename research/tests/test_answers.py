"""The answers that drafters are trained on are the target's own."""

import importlib
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.slow

PROMPTS = [[5, 6, 7, 8, 9, 3, 4], [11, 12], [9] * 4, [21, 22, 23], [30]]
ENDS = 2


@pytest.fixture
def answers(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "training"))
    return importlib.import_module("answers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 40}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3))
    path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(path)
    return path


def generated(folder, prompt, most):
    model = LlamaForCausalLM.from_pretrained(folder)
    given = torch.tensor([prompt])
    settings = {"do_sample": False, "eos_token_id": ENDS, "pad_token_id": 0}
    found = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=most, **settings)
    return found[0, len(prompt) :].tolist()


def test_greedy_answers_are_those_of_generate(answers, folder, monkeypatch):
    """Rows are padded, read a part at a time, and leave when they end: none changes another."""
    monkeypatch.setattr(answers, "PREFILL", 2)
    monkeypatch.setattr(answers, "COMPACT", 3)
    found = answers.answer(answers.Llama(folder, "cpu"), PROMPTS, [0.0] * len(PROMPTS), 24, ENDS)
    assert found == [generated(folder, prompt, 24) for prompt in PROMPTS]
    assert len({len(text) for text in found}) > 1  # some ended before the others


def test_sampled_answers_follow_the_models_distribution(answers, folder):
    torch.manual_seed(1)
    heat, count = 0.7, 4000
    found = answers.answer(answers.Llama(folder, "cpu"), [PROMPTS[0]] * count, [heat] * count, 1, ENDS)
    with torch.no_grad():
        logits = LlamaForCausalLM.from_pretrained(folder)(torch.tensor([PROMPTS[0]])).logits[0, -1]
    law = (logits / heat).softmax(-1)
    seen = torch.bincount(torch.tensor(found)[:, 0], minlength=len(law)) / count
    assert 0.5 * float((seen - law).abs().sum()) < 0.05


def test_batches_hold_every_question_that_fits_once(answers):
    prompts = [[1] * length for length in (3, answers.LONGEST + 1, 5, 4, 9, answers.LONGEST)]
    groups = list(answers.batches(prompts, 2, random.Random(0)))
    assert sorted(number for group in groups for number in group) == [0, 2, 3, 4, 5]
    assert [0, 3] in groups  # of similar length
    short = answers.batches(prompts, 2, random.Random(0), longest=4)
    assert sorted(number for group in short for number in group) == [0, 3]


def test_an_answer_that_shares_a_passage_with_a_benchmark_is_left_out(answers):
    text = " ".join(f"word{number}" for number in range(12))
    tokenizer = SimpleNamespace(decode=lambda tokens, skip_special_tokens: text)
    made = ({"messages": [{"role": "user", "content": "q"}], "source": "s"}, 0.7, [5, ENDS])
    kept = answers.finish(tokenizer, ENDS, set(), made)
    assert kept["messages"][-1] == {"role": "assistant", "content": text}
    assert kept["finished"] and kept["tokens"] == 2 and kept["temperature"] == 0.7
    assert answers.finish(tokenizer, ENDS, set(answers.shingles(text)), made) is None
