"""Time and answers on questions over many passages: ``python research/analysis/long/approximate.py QUESTIONS LENGTH``.

QUESTIONS is Spec-Bench's question.jsonl, LENGTH the most tokens of a prompt: each question's passage stands at a random
place among others. `--part drafters` times drafters that read a part of the prompt, `targets` targets that do (SpecPC),
`margin` asks Spec-Bench's own questions with RAPID's acceptance. Times are of the processor, on one thread (set
OMP_NUM_THREADS=1): other programs on the machine lengthen them, but less than those of a clock. Exact drafters begin
with the keys and values that the target has of a prompt, so each is read once.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, median
from time import process_time
from typing import Any

import torch
from torch import Tensor

import specframe
from specframe import Pipeline
from specframe.certify.real import logits_along
from specframe.plugin import KnownPrefix, LayeredTarget
from specframe_self.excerpt.specpc import AttendedTokens

NEW, DRAFTED = 32, 48
"""New tokens of an answer, and of a timed draft."""
BUDGETS = (256, 512, 1024, 2048)
TARGET = {"use": "hf", "model": "zoo://smollm2-135m", "dtype": "bfloat16", "native": True}
COPY = {"use": "model", "model": "zoo://smollm2-135m", "quantize": "int4"}
FASTDRAFT = {"use": "model", "weights": "zoo://smollm2-135m-fastdraft"}
CHAIN = {"use": "chain", "depth": 4}
DRAFTERS: dict[str, dict[str, Any]] = {
    "plain": {"use": "none"},
    "window": {"use": "self", "kv_selection": {"use": "window", "sinks": 4, "recent": 1020}},
    "chunks": {"use": "self", "kv_selection": {"use": "chunks", "budget": 1024, "every": 16}},
    "excerpt, bm25": {"use": "excerpt", "tokens": 1024, "drafter": COPY},
    "excerpt, specpc by FastDraft": {
        "use": "excerpt",
        "tokens": 1024,
        "select": {"use": "specpc", "drafter": FASTDRAFT},
        "drafter": COPY,
    },
}


class Known(AttendedTokens):
    """The selection, with the scores of a prompt kept, and the time that the small model took for them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.known: dict[tuple[int, ...], tuple[Tensor, float]] = {}

    def _scores(self, prompt: Sequence[int]) -> Tensor:
        key = tuple(prompt)
        if key not in self.known:
            begin = process_time()
            self.known[key] = super()._scores(prompt), process_time() - begin
        return self.known[key][0]


def asked(file: Path) -> list[dict[str, Any]]:
    """The questions with passages: `text`, `question` and `answers`."""
    records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    found = []
    for record in records:
        if record["category"] == "rag":
            text, _, question = record["turns"][0].rpartition("\n")
            found.append({"text": text, "question": question, "answers": record["reference"][0]})
    return found


def long_prompts(file: Path, tokenizer: Any, length: int, count: int) -> Iterator[tuple[str, list[str]]]:
    """Yields prompts of almost `length` tokens, and the answers."""
    texts, dice = asked(file), Random(0)
    for own in dice.sample(range(len(texts)), count):
        others = dice.sample([other for other in range(len(texts)) if other != own], len(texts) - 1)
        passages = [texts[own]["text"]]
        total = len(tokenizer(passages[0])["input_ids"]) + 80
        for other in others:
            total += len(tokenizer(texts[other]["text"])["input_ids"])
            if total > length:
                break
            passages.append(texts[other]["text"])
        dice.shuffle(passages)
        yield "\n\n".join([*passages, texts[own]["question"]]), texts[own]["answers"]


def compose(target: Any, drafter: Any, verifier: Any = None, **sampling: Any) -> Pipeline:
    """A pipeline of chains on the target."""
    return specframe.compose(
        target=target,
        drafter=drafter,
        tree=None if drafter == {"use": "none"} else CHAIN | ({"draw": "iid"} if verifier else {}),
        verifier=verifier or {"use": "match"},
        sampling={"temperature": 0.0, "max_new_tokens": NEW} | sampling,
        run={"chat": True},
    )


def timed(pipeline: Pipeline, row: Sequence[int], prefix: KnownPrefix | None = None) -> dict[str, Any]:
    """The tokens of a prompt's answer, when the first one came, and seconds and accepted tokens of each cycle."""
    (request,) = pipeline.requests([row])
    request = replace(request, prefix=prefix)
    with torch.inference_mode(), pipeline.open([request]) as session:
        begin = process_time()
        (entry,) = session.admit([request])
        times, counts = [process_time()], [1]
        while session.live:
            before = len(entry.tokens)
            session.step()
            times.append(process_time())
            counts.append(len(entry.tokens) - before)
    cycles = [later - earlier for earlier, later in pairwise(times)]
    return {"tokens": list(entry.tokens), "first": times[0] - begin, "cycles": cycles, "counts": counts[1:]}


def is_right(pipeline: Pipeline, tokens: Sequence[int], answers: Sequence[str]) -> bool:
    """Returns whether an answer holds one of the reference answers."""
    text = pipeline.decode(tokens).lower()
    return any(answer.lower() in text for answer in answers)


def read(pipeline: Pipeline, row: Sequence[int]) -> KnownPrefix:
    """The target's keys and values of a prompt, its last token excepted; prints how long reading it took."""
    (request,) = pipeline.requests([row], replace(pipeline.sampling, max_new_tokens=2))
    with torch.inference_mode(), pipeline.open([request]) as session:
        begin = process_time()
        session.admit([request])
        print(f"-- a prompt of {len(row)} tokens, read in {process_time() - begin:.2f} s", flush=True)
        target = pipeline.parts.target
        assert isinstance(target, LayeredTarget)
        count = len(row) - 1
        return KnownPrefix(tuple(row[:count]), target.memory().copy(0, count).clone(), {})


def compare_drafters(prompts: Sequence[tuple[str, list[str]]], target: Any) -> None:
    """Prints tau and time of exact drafters with equal budgets."""
    ways = {
        name: compose(target.full(), drafter, max_new_tokens=DRAFTED, ignore_eos=True)
        for name, drafter in DRAFTERS.items()
    }
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for prompt, _ in prompts:
        row = ways["plain"].encode(prompt)
        prefix = read(ways["plain"], row)
        texts = {}
        for name, way in ways.items():
            run = timed(way, row, None if name == "chunks" else prefix)  # chunks reads the queries of the prompt's end
            texts[name] = run["tokens"]
            later = run["cycles"][1:]
            run["once"] = run["cycles"][0] - median(later)  # a drafter reads its part in the first cycle,
            if name != "chunks":
                run["once"] += run["first"]  # and the selection's model the whole at the admission
            run["token"] = sum(later) / sum(run["counts"][1:])
            run["tau"] = mean(run["counts"])
            found[name].append(run)
        print({name: text == texts["plain"] for name, text in texts.items()}, flush=True)
        for name, runs in found.items():
            tau, token, once = (mean(run[key] for run in runs) for key in ("tau", "token", "once"))
            print(f"{name}: tau {tau:.2f}, {1000 * token:.1f} ms a token, {once:.2f} s once "
                  f"({len(runs)} prompts)", flush=True)  # fmt: skip


def compare_targets(prompts: Sequence[tuple[str, list[str]]], target: Any) -> None:
    """Prints times, agreement and right answers of targets that read a part of the prompt, and of the full one."""
    plain = compose(target, {"use": "none"})
    selections = {}
    for name, drafter in (("FastDraft", FASTDRAFT), ("the 4-bit copy", COPY)):
        part = compose(
            target.full(), {"use": "excerpt", "select": {"use": "specpc", "drafter": drafter}, "drafter": COPY}
        )
        small = part.parts.drafter.select.drafter
        selections[name] = Known(drafter=small)
        selections[name].bind(target)
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for prompt, answers in prompts:
        row = plain.encode(prompt)
        whole = timed(plain, row)
        text = whole["tokens"]
        found["plain"].append((whole["first"], mean(whole["cycles"]), 1.0, is_right(plain, text, answers)))
        for name, selection in selections.items():
            for budget in BUDGETS:
                short = target.full()
                short.prompt = selection.sized(budget)
                way = compose(short, {"use": "none"})
                short.prompt.choose(row)
                run = timed(way, row)
                once = run["first"] + selection.known[tuple(row)][1]
                best = logits_along(short, row, text)[0].argmax(-1).tolist()
                same = mean(mine == theirs for mine, theirs in zip(best, text, strict=True))
                right = is_right(way, run["tokens"], answers)
                found[f"{name}, {budget}"].append((once, mean(run["cycles"]), same, right))
        print(f"-- {len(found['plain'])} prompts, the last of {len(row)} tokens", flush=True)
        for name, runs in found.items():
            first, token, same, right = (mean(run[i] for run in runs) for i in range(4))
            print(f"{name}: first token {first:.2f} s, {1000 * token:.1f} ms a token, agreement {same:.2f}, "
                  f"right {right:.2f}", flush=True)  # fmt: skip


def compare_margins(prompts: Sequence[tuple[str, list[str]]], target: Any) -> None:
    """Prints how many of Spec-Bench's own questions are answered right with RAPID's acceptance, temperature 0.7."""
    drafter = {"use": "excerpt", "tokens": 512, "drafter": COPY}
    ways = {"plain": compose(target.full(), {"use": "none"}, temperature=0.7)}
    for margin in (0.1, 1.0):
        rule = {"use": "rapid", "margin": margin}
        ways[f"rapid, margin {margin:g}"] = compose(target.full(), drafter, rule, temperature=0.7)
    right: dict[str, list[bool]] = defaultdict(list)
    for prompt, answers in prompts:
        row = ways["plain"].encode(prompt)
        prefix = read(ways["plain"], row)
        for name, way in ways.items():
            right[name].append(is_right(way, timed(way, row, prefix)["tokens"], answers))
        print(len(right["plain"]), {name: sum(each) for name, each in right.items()}, flush=True)


def main() -> None:
    """Runs the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("length", type=int)
    parser.add_argument("--part", choices=["drafters", "targets", "margin"], required=True)
    parser.add_argument("--count", type=int, default=4, help="prompts (default: %(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    whole = compose(TARGET, {"use": "none"})
    if given.part == "margin":
        short = [(f"{each['text']}\n{each['question']}", each["answers"]) for each in asked(given.questions)]
        compare_margins(short[: given.count], whole.parts.target)
        return
    prompts = list(long_prompts(given.questions, whole.tokenizer, given.length, given.count))
    run = compare_drafters if given.part == "drafters" else compare_targets
    run(prompts, whole.parts.target)


if __name__ == "__main__":
    main()
