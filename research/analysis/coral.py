"""The analyses of CORAL's paper on the embedded target: ``python research/analysis/coral.py``.

Figure 6 (acceptance by position), Table 6 (InfoNCE between the steps of a training), Table 4's side of cost (what a
router reads) and Figure 2 (the LM head's share of a drafter's latency). Numbers go to coral.json, figures to SVG, and
both into the tables of docs/explanation/coral-analysis.md. Only the last analysis is about time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from coral_page import DRAFTERS, HIDDEN, STEPS, VOCABULARIES, show
from sample import choose, command, interval, keep, open_recipe, prompts
from torch import nn
from transformers import LlamaConfig

from specframe import Pipeline
from specframe.bench.contest.weights import weigh
from specframe.components.rollouts.multi_step import MultiStep
from specframe.files.provenance import describe_hardware
from specframe.neural import DecoderLayer, SlotCache, neural_target
from specframe.plugin import Cycle, NeuralTarget, Student, Teacher, Trainable
from specframe_coral.steps import step_distances

HERE = Path(__file__).resolve().parent
NUMBERS = HERE / "coral.json"
TREES = {"chain": ["tree={use: chain, depth: 5}"], "recipe": []}
"""The overrides for either tree: a chain, where one position has one token, and the recipes' own."""
ACTIVE = (1, 2, 3, 4, 6, 8, 16)
WEIGHED = 8
"""Prompts whose first cycles are weighed."""
PAST = 128
"""Cached positions that the drafter's layer attends to."""

Lengths = list[list[int]]
"""Accepted tokens, cycle by cycle, of each prompt."""


def measure_acceptance(limit: int, tokens: int) -> dict[str, Any]:
    """Figure 6: the share of n-th tokens accepted among those whose predecessors were, and tau, with 95 % intervals."""
    figures: dict[str, Any] = {}
    for name in DRAFTERS:
        for tree, overrides in TREES.items():
            pipeline = open_recipe(name, overrides)
            _, lengths = follow(pipeline, prompts(pipeline, limit), tokens)
            figures.setdefault(tree, {})[name] = {
                "tau": interval(lengths, find_tau),
                "alpha": [interval(lengths, partial(find_alpha, position=n)) for n in range(1, 6)],
                "asked": [sum(length >= n for row in lengths for length in row) for n in range(5)],
            }
    return figures


def measure_distances(limit: int, tokens: int) -> dict[str, Any]:
    """Table 6: InfoNCE between the features of 4 steps, and with the target's, over the target's own answers."""
    figures: dict[str, Any] = {}
    for name in DRAFTERS:
        pipeline = open_recipe(name)
        rows = prompts(pipeline, limit)
        answers, _ = follow(pipeline, rows, tokens)
        teacher = teach(pipeline, rows, answers)
        with torch.no_grad():
            student = MultiStep(steps=STEPS, noise=0.0)(trained(pipeline), teacher, 1.0)
        distances = step_distances(with_truth(student, teacher))  # [1 + steps, 1 + steps]
        figures[name] = distances.tolist()
        figures["positions"] = int((student.mask & (student.level == STEPS)).sum())
    return figures


def measure_router(limit: int, tokens: int) -> list[dict[str, Any]]:
    """Table 4's N = 16: tau under either law, and how many of the LM head's rows a forward reads, by active groups."""
    whole = open_recipe("coral")
    rows = prompts(whole, limit)
    target = target_of(whole)
    size, vocab = target.config.hidden_size, target.vocab_size
    plain = statistics.mean(weigh(whole, row)["drafter"] for row in rows[:WEIGHED])

    def find(pipeline: Pipeline) -> list[float]:
        return interval(follow(pipeline, rows, tokens)[1], find_tau)

    figures: list[dict[str, Any]] = [
        {"active": None, "factored": None, "restricted": find(whole), "rows": 1.0, "weights": plain}
    ]
    for active in ACTIVE:
        pipeline = open_recipe("coral-router", [f"drafter.head.active={active}"])
        restricted = open_recipe("coral-router", [f"drafter.head.active={active}", "drafter.head.law=restricted"])
        weights = statistics.mean(weigh(pipeline, row)["drafter"] for row in rows[:WEIGHED])
        router = sum(weight.numel() for weight in trained(pipeline).module.parameters())
        read = 1 - (plain + router - weights) / (vocab * size)
        taus = {"factored": find(pipeline), "restricted": find(restricted)}
        figures.append({"active": active, **taus, "rows": read, "weights": weights})
    return figures


@torch.inference_mode()
def measure_latency(repeats: int = 15) -> list[dict[str, Any]]:
    """Figure 2: what the LM head takes of a forward of one token, for EAGLE's network in Llama 3's proportions."""
    figures = []
    for hidden in HIDDEN:
        config = LlamaConfig(
            hidden_size=hidden,
            intermediate_size=7 * hidden // 2,
            num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 256,
        )
        fuse, layer = nn.Linear(2 * hidden, hidden), DecoderLayer(config)
        cache = SlotCache(1, 0)
        cache.grow(PAST + 1)
        pair, past = torch.randn(1, 1, 2 * hidden), torch.arange(PAST)[None]
        cache.aim(0, PAST)
        layer(torch.randn(1, PAST, hidden), past, torch.ones(1, 1, PAST, PAST, dtype=torch.bool).tril(), cache)
        sees = torch.ones(1, 1, 1, PAST + 1, dtype=torch.bool)
        body = sum(weight.numel() for part in (fuse, layer) for weight in part.parameters())
        heads = torch.full((max(VOCABULARIES), hidden), 0.01)
        for vocab in VOCABULARIES:
            head = heads[:vocab]
            times = []
            for _ in range(repeats + 2):
                start = time.perf_counter()
                cache.aim(PAST, PAST + 1)
                feature = layer(fuse(pair), torch.tensor([[PAST]]), sees, cache)
                middle = time.perf_counter()
                nn.functional.linear(feature, head)
                times.append((middle - start, time.perf_counter() - middle))
            inside, outside = (statistics.median(part) for part in zip(*times[2:], strict=True))
            figures.append(
                {
                    "hidden": hidden,
                    "vocabulary": vocab,
                    "layer_seconds": inside,
                    "head_seconds": outside,
                    "share": outside / (inside + outside),
                    "share_of_weights": head.numel() / (head.numel() + body),
                }
            )
    return figures


def target_of(pipeline: Pipeline) -> NeuralTarget:
    """The recipe's target, a neural one."""
    return neural_target(pipeline.parts.target, "of this analysis")


def trained(pipeline: Pipeline) -> Trainable:
    """The recipe's drafter, one that was trained; with a router its module is the router."""
    assert isinstance(pipeline.parts.drafter, Trainable)
    return pipeline.parts.drafter


def follow(pipeline: Pipeline, rows: list[list[int]], tokens: int) -> tuple[list[list[int]], Lengths]:
    """The greedy answers, and the accepted tokens of every cycle as the verifier judged it."""
    settings = replace(pipeline.sampling, max_new_tokens=tokens, temperature=0.0)
    requests = pipeline.requests(rows, settings, seed=0)
    lengths: Lengths = [[] for _ in rows]
    with pipeline.open(requests, slots=len(rows)) as session:

        def collect(cycle: Cycle) -> None:
            for row, length in zip(session.numbers, cycle.verdict.length.tolist(), strict=True):
                lengths[row].append(length)

        entries = session.run(requests, collect)
    return [entry.tokens for entry in entries], lengths


def teach(pipeline: Pipeline, rows: Sequence[list[int]], answers: Sequence[list[int]]) -> Teacher:
    """The target's outputs for prompts and answers; only the answers count."""
    texts = [row + answer for row, answer in zip(rows, answers, strict=True)]
    longest = max(map(len, texts))
    tokens = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    place = torch.arange(longest)
    starts = torch.tensor([[len(row)] for row in rows])
    ends = torch.tensor([[len(text)] for text in texts])
    return target_of(pipeline).teach(tokens, (place >= starts - 1) & (place < ends - 1))


def with_truth(student: Student, teacher: Teacher) -> Student:
    """The student with one step more before the others: the target's own features, of step 1's positions."""
    first = student.level == 1
    rows = torch.arange(len(student.mask))[:, None]
    truth = teacher.features["last"][rows, student.position[:, first]]
    assert student.features is not None
    return replace(
        student,
        position=torch.cat([student.position[:, first], student.position], 1),
        mask=torch.cat([student.mask[:, first], student.mask], 1),
        level=torch.cat([student.level[first], student.level + 1]),
        features=torch.cat([truth, student.features], 1),
    )


def find_tau(lengths: Sequence[Sequence[int]]) -> float:
    """Tokens per cycle, the bonus included."""
    return 1 + statistics.mean(length for row in lengths for length in row)


def find_alpha(lengths: Sequence[Sequence[int]], position: int) -> float:
    """The share of cycles that accepted the position's token, among those that had come so far."""
    every = [length for row in lengths for length in row]
    return sum(length >= position for length in every) / max(1, sum(length >= position - 1 for length in every))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is asked for; what was measured before stays."""
    options = choose(command(__doc__, tokens=96), ("acceptance", "distances", "router", "latency"), arguments)
    numbers: dict[str, Any] = {}
    for name in options.analyses:
        print(f"{name} ...", flush=True)
        if name == "latency":
            numbers |= {"latency": measure_latency(), "hardware": describe_hardware()}
        else:
            measure = {"acceptance": measure_acceptance, "distances": measure_distances, "router": measure_router}[name]
            numbers[name] = measure(options.limit, options.tokens)
    show(keep(NUMBERS, numbers))


if __name__ == "__main__":
    main()
