"""GRPO whose rollouts are drafted: ``python research/training/rollouts.py RESULTS``, with `pip install trl`.

The policy is talk-7m; a completion's reward is the share of its words that begin with an s. Both drafters of `DRAFTERS`
see the very rollouts of each other, since the verifier is `match`: RESULTS gets tau and the mean reward of every step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import specframe
from specframe.plugin import Acceptance, Cycle

DRAFTERS = {
    "as it was": "{use: eagle, weights: zoo://eagle}",
    "learning online": "{use: online, every: 6, steps: 2, lr: 1.0e-3, rollout: {use: teacher-forced}, "
    "drafter: {use: eagle, weights: zoo://eagle}}",
}
RECIPE = """
specframe: 1
target: {use: hf, model: zoo://talk-7m}
drafter: %s
tree: {use: dynamic, depth: 3, width: 3, nodes: 9}
verifier: {use: match}
"""
PROMPTS = [
    "What do you like to do on a rainy day?",
    "Can you tell me about a film you saw lately?",
    "Where did you go last summer?",
    "What is your favourite food?",
    "Do you have any pets?",
    "What kind of music do you like?",
    "How was your day at work?",
    "Do you like to read books?",
]


class Figures:
    """Tau and reward of every step: `watch` is called with cycles, `reward` with a step's completions."""

    def __init__(self) -> None:
        self.tau: list[float] = []
        self.rewards: list[float] = []
        self._acceptance = Acceptance()

    def watch(self, cycle: Cycle) -> None:
        """Notes a cycle."""
        self._acceptance.add(cycle)

    def reward(self, completions: Sequence[Any], **rest: object) -> list[float]:
        """Returns a reward for each of a step's completions, and ends the step's counts."""
        texts = [turns[0]["content"].lower().split() for turns in completions]
        rewards = [sum(word.startswith("s") for word in text) / max(len(text), 1) for text in texts]
        self.rewards.append(sum(rewards) / len(rewards))
        self.tau.append(self._acceptance.settle().tau)
        self._acceptance = Acceptance()
        return rewards


def train_policy(drafter: str, steps: int, folder: Path) -> Figures:
    """Returns the figures of a training of the policy from its published weights on."""
    model = AutoModelForCausalLM.from_pretrained(specframe.model_folder("talk-7m"), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(specframe.model_folder("talk-7m"))
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE % drafter, encoding="utf-8")
    figures = Figures()
    loop = specframe.decoder(recipe, watch=figures.watch)
    model.generate = partial(model.generate, custom_generate=loop)
    rows = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]
    settings = GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=32,
        learning_rate=2.0e-4,
        lr_scheduler_type="constant",
        activation_checkpointing=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=figures.reward,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    return figures


def main() -> None:
    """Trains the policy with each drafter, and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for name, drafter in DRAFTERS.items():
        with TemporaryDirectory() as folder:
            figures = train_policy(drafter, arguments.steps, Path(folder))
        found[name] = {"tau": figures.tau, "reward": figures.rewards}
    arguments.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
