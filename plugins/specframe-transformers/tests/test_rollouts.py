"""TRL's GRPO with rollouts of `specframe.decoder`: policy and drafter learn, and rollouts stay as they are."""

from functools import partial

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import specframe
from specframe import InputError, model_folder
from specframe.plugin import Acceptance

RECIPE = """
specframe: 1
target: {use: hf, model: zoo://talk-7m}
drafter: %s
tree: {use: chain, depth: 2}
verifier: {use: match}
"""
EAGLE = "{use: eagle, weights: zoo://eagle}"
ONLINE = f"{{use: online, every: 3, lr: 1.0e-3, rollout: {{use: teacher-forced}}, drafter: {EAGLE}}}"
STEPS = 3


def train_policy(folder, drafter):
    """Returns weights, rollouts and acceptance of the steps of a policy, and the drafter's file of updates."""
    trl, datasets = (pytest.importorskip(name, reason=f"{name} is not installed") for name in ("trl", "datasets"))
    from transformers import AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_folder("talk-7m"), dtype=torch.float32)
    (folder / "recipe.yaml").write_text(RECIPE % drafter)
    acceptance, texts = Acceptance(), []
    loop = specframe.decoder(folder / "recipe.yaml", watch=acceptance.add)
    model.generate = partial(model.generate, custom_generate=loop)

    def reward(completions, **rest):
        texts.append([turns[0]["content"] for turns in completions])
        return [float(len(text)) for text in texts[-1]]

    settings = trl.GRPOConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=12,
        learning_rate=1.0e-3,
        activation_checkpointing=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    rows = [{"prompt": [{"role": "user", "content": "Do you have any pets?"}]}] * 4
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model_folder("talk-7m")),
    )
    trainer.train()
    return model.state_dict(), texts, acceptance.settle()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of TRL and what it loads
def test_a_drafter_that_learns_leaves_the_policy_s_training_as_it_is(tmp_path):
    (fixed, learning) = (tmp_path / name for name in ("fixed", "learning"))
    fixed.mkdir(), learning.mkdir()
    before = AutoModelForCausalLM.from_pretrained(model_folder("talk-7m"), dtype=torch.float32).state_dict()
    weights, texts, acceptance = train_policy(fixed, EAGLE)
    again, same_texts, other = train_policy(learning, ONLINE[:-1] + f", out: '{learning / 'drafter'}'}}")
    assert texts == same_texts and len(texts) == STEPS
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    assert any(not torch.equal(value, before[name]) for name, value in weights.items())
    assert acceptance.cycles and other.cycles
    assert (learning / "drafter" / "online.json").exists()


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("tree: {use: chain, depth: 2}\n", "") % "{use: lookup}")
    return specframe.decoder(tmp_path / "recipe.yaml")


def test_a_model_without_dropout_decodes_in_training_mode(loop, model):
    call = {"max_new_tokens": 8, "do_sample": False}
    tokens = torch.tensor([[5, 6, 7, 5, 6]])
    wanted = model.eval().generate(tokens, **call)
    model.train()
    model.model.norm.eval()
    try:
        assert model.generate(tokens, **call, custom_generate=loop).tolist() == wanted.tolist()
        assert model.training and model.model.layers[0].training and not model.model.norm.training
    finally:
        model.eval()


def test_dropout_in_training_mode_is_one_line(loop, model):
    model.train()
    model.model.extra = nn.Dropout(0.1)
    try:
        with pytest.raises(InputError, match=r"training mode, in which model.extra changes its distribution") as caught:
            model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=8, do_sample=False, custom_generate=loop)
    finally:
        del model.model.extra
        model.eval()
    assert "\n" not in str(caught.value)
