"""Batches of drawn pictures with their questions as tokens, made by worker processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from pictures import Question, Scene, ask, caption
from torch.utils.data import DataLoader, Dataset

PATCH, PARTS = 8, 64
MARK = "<image>"
PADDING, WIDTH = 2, 32
"""The token after a row's end, and what its width is a multiple of, so that shapes repeat."""
HELD_OUT = 10**9
"""The first seed of held-out pictures; a training picture's seed is its number."""
Arrays = dict[str, np.ndarray]


class Writer:
    """Writes conversations as tokens; a text that comes again is tokenized once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._tokens = lru_cache(100_000)(self._tokenize)

    def _tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def _special(self) -> list[int]:
        names = ["<|bos|>", "<|user|>", "<|assistant|>", "<|end|>", MARK]
        found: list[int] = self.tokenizer.convert_tokens_to_ids(names)
        return found

    def write(self, turns: Sequence[Question]) -> tuple[list[int], list[int]]:
        """Return a conversation's tokens after an image, and its labels: the answers, -100 elsewhere."""
        start, user, assistant, end, mark = self._special
        tokens, labels = [start, user, *[mark] * PARTS], [-100] * (PARTS + 2)
        for number, turn in enumerate(turns):
            asked = [*([user] if number else []), *self._tokens(turn.text), assistant]
            answer = [*self._tokens(turn.answer), end]
            tokens += asked + answer
            labels += [-100] * len(asked) + answer
        return tokens, labels


def draw(scenes: Sequence[Scene]) -> np.ndarray:
    """Return the pictures, [B, SIZE, SIZE, 3] of bytes."""
    return np.stack([np.asarray(scene.draw()) for scene in scenes])


def stack(rows: Sequence[tuple[list[int], list[int]]], scenes: Sequence[Scene]) -> Arrays:
    """Return rows as one batch: tokens [B, W], and of each answer's token the place that predicts it, in all rows."""
    width = -(-max(len(tokens) for tokens, _ in rows) // WIDTH) * WIDTH
    ids = np.full((len(rows), width), PADDING)
    labels = np.full((len(rows), width), -100)
    for i, (tokens, marks) in enumerate(rows):
        ids[i, : len(tokens)] = tokens
        labels[i, : len(marks) - 1] = marks[1:]
    places = np.flatnonzero(labels != -100)
    return {"tokens": ids, "places": places, "answers": labels.reshape(-1)[places], "pictures": draw(scenes)}


def lesson(writer: Writer, rows: int, step: int) -> Arrays:
    """Return the training pictures of a step: four of five with questions, one with a caption."""
    scenes, written = [], []
    for number in range(step * rows, (step + 1) * rows):
        dice = random.Random(number)
        scenes.append(scene := Scene.random(dice))
        written.append(writer.write([caption(scene, dice)] if number % 5 == 0 else ask(scene, dice)))
    return stack(written, scenes)


def facts(rows: int, step: int) -> Arrays:
    """Return the encoder's pictures of a step, and what each patch of them shows, [B, 64, 3]."""
    scenes = [Scene.random(random.Random(-1 - number)) for number in range(step * rows, (step + 1) * rows)]
    return {"pictures": draw(scenes), "facts": np.array([scene.facts(PATCH) for scene in scenes])}


def examination(writer: Writer, rows: int, step: int) -> Arrays:
    """Return held-out pictures of a step, each question in a row of its own, and the kinds of the questions."""
    written, scenes, kinds = [], [], []
    for number in range(step * rows, (step + 1) * rows):
        dice = random.Random(HELD_OUT + number)
        scene = Scene.random(dice)
        for question in ask(scene, dice):
            written.append(writer.write([question]))
            scenes.append(scene)
            kinds.append(question.kind)
    return stack(written, scenes) | {"kinds": np.array(kinds)}


class _Steps(Dataset[Arrays]):
    def __init__(self, make: Callable[[int], Arrays], steps: range) -> None:
        self.make, self.steps = make, steps

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, number: int) -> Arrays:
        return self.make(self.steps[number])


def batches(make: Callable[[int], Arrays], steps: range, workers: int) -> Iterator[Arrays]:
    """Yield what is made for each step, by so many processes beside this one; by this one where it is 0."""
    extra = {"prefetch_factor": 4, "multiprocessing_context": "fork"} if workers else {}
    # Arrays, not tensors: these go through a pipe, and a small shared memory is enough.
    yield from DataLoader(_Steps(make, steps), batch_size=None, num_workers=workers, collate_fn=_same, **extra)


def _same(arrays: Arrays) -> Arrays:
    return arrays
