"""The prefix cache: ``python research/analysis/turns.py RECIPE`` asks conversations of two turns, with it and without.

It prints the median seconds from a turn to its first token, and whether all texts are equal. The engine of
`specframe serve` runs in this process; nothing goes over HTTP.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from threading import Event
from time import monotonic

import specframe
from specframe import Pipeline, Request, Sampling
from specframe_serve.engine import Engine
from specframe_serve.jobs import Job, Progress
from specframe_serve.settings import ServeSettings

TEXT = "The river rises in the hills, and the old road follows it through the villages. " * 70
TOKENS, ANSWER, CONVERSATIONS = 1000, 40, 3


def ask(engine: Engine, tokens: Sequence[int]) -> tuple[list[int], float]:
    """Return the answer to a prompt, and the seconds to its first token."""
    answer: list[int] = []
    came: list[float] = []
    done = Event()

    def deliver(progress: Progress) -> None:
        if progress.tokens:
            came.append(monotonic())
        answer.extend(progress.tokens)
        if progress.ended:
            done.set()

    start = monotonic()
    sampling = Sampling(temperature=0.8)
    engine.submit([Job(Request(tokens=tokens, max_new_tokens=ANSWER, seed=3, sampling=sampling), deliver)])
    done.wait()
    return answer, came[0] - start


def converse(pipeline: Pipeline, cache: int) -> list[list[int]]:
    """Return the answers of all turns with so many megabytes of cache, and print the median times."""
    tokenizer = pipeline.parts.target.tokenizer
    engine = Engine(pipeline, ServeSettings(name="turns", cache=cache))
    engine.start()
    ask(engine, tokenizer(TEXT)["input_ids"][:30])
    answers: list[list[int]] = []
    times: list[tuple[float, float]] = []
    for number in range(CONVERSATIONS):
        prompt = tokenizer(f"Story {number}: {TEXT}")["input_ids"][:TOKENS]
        first, before = ask(engine, prompt)
        second, after = ask(engine, prompt + first + tokenizer("\nAnd what came next, after the rain?\n")["input_ids"])
        answers += [first, second]
        times.append((before, after))
    engine.close()
    print(f"cache {cache}:", *(f"{median(turn):.3f} s" for turn in zip(*times, strict=True)), flush=True)
    return answers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    pipeline = specframe.load(parser.parse_args().recipe)
    print("equal texts:", converse(pipeline, 0) == converse(pipeline, 512))
