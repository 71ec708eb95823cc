"""Tiny random models, and a greedy tree decoder that uses nothing but a Target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from specframe.kernel.types import Committed
from specframe.testing import admitted
from tests.components.targets.models import SHAPES, VOCABULARY, accept, batch, random_tree


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def build() -> Callable[..., Any]:
    """A tiny random float64 model of a family, large enough in its weights to have clear argmaxes."""

    def make(family: str, **changes: Any) -> nn.Module:
        special = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
        config = CONFIG_MAPPING[family](**(SHAPES[family] | special | changes))
        model = AutoModelForCausalLM.from_config(config).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.25)
        return model

    return make


@pytest.fixture
def continuation() -> Callable[[Any, list[int], int], list[int]]:
    """The continuation of a prompt by transformers' own greedy decoding."""

    def generate(model: Any, prompt: list[int], count: int) -> list[int]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        return out[0, len(prompt) :].tolist()

    return generate


@pytest.fixture
def decode() -> Callable[..., list[list[int]]]:
    """Greedy tree decoding: the tokens of every row; `seen` gets (rows, committed) after each commit."""

    def run(
        target: Any,
        prompts: Any,
        futures: list[list[int]],
        *,
        nodes: int = 7,
        seen: list[tuple[list[int], Committed]] | None = None,
        drop: dict[int, list[int]] | None = None,
    ) -> list[list[int]]:
        noise = torch.Generator().manual_seed(7)
        out: list[list[int]] = [[] for _ in prompts]
        rows = list(range(len(prompts)))
        tree, scores = admitted(target, batch(prompts), len(futures[0]) + 3 * nodes)
        cycle = 0
        while True:
            verdict = accept(tree, scores.logits)
            committed = target.commit(tree, verdict)
            if seen is not None:
                seen.append((list(rows), committed))
            for place, row in enumerate(rows):
                count = int(committed.count[place])
                new = committed.tokens[place, :count].tolist()
                out[row] += new[-1:] if committed.prompt is not None else new
            root = committed.root
            if order := (drop or {}).get(cycle):
                chosen = torch.tensor(order)
                target.keep(chosen)
                rows, root = [rows[place] for place in order], root[chosen]
            cycle += 1
            if all(len(out[row]) >= len(futures[row]) for row in rows):
                return out
            tree = random_tree(root, [futures[row][len(out[row]) :] for row in rows], nodes, noise)
            scores = target.score(tree)

    return run
