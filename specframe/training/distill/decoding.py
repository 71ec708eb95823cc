"""Answers by the recipe's own loop, many conversations side by side."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch

from specframe.decoding.clock import Clock
from specframe.decoding.ledger import Entry, as_prompts
from specframe.decoding.loop import decode
from specframe.decoding.pipeline import Pipeline
from specframe.kernel.errors import InputError
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.training.distill.dialogue import Answer, Dialogue
from specframe.training.schedule import mix

POOL = 8
"""So many batches of conversations, in the file's order, are sorted by length together."""

Asked = tuple[Dialogue, list[int]]
"""A dialogue, and its question in tokens."""


class Decoding:
    """An answerer: `run.batch` conversations at a time, those of a batch about equally long.

    What a conversation is answered follows from the seed and its line in the prompts' file, not from its
    neighbours: an interrupted work that goes on gives what it would have given.
    """

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.pipeline, self.seed = pipeline, seed

    def play(self, dialogues: Sequence[Dialogue]) -> Iterator[Dialogue]:
        """Each of the dialogues as soon as it is done. Raises InputError for what cannot be encoded."""
        size = self.pipeline.run.batch
        for start in range(0, len(dialogues), POOL * size):
            pool = [(dialogue, self.encode(dialogue)) for dialogue in dialogues[start : start + POOL * size]]
            for batch in cut(pool, size, self.seed):
                yield from self._play(batch)

    def encode(self, dialogue: Dialogue) -> list[int]:
        """The tokens of the dialogue's question, with all that was said before it."""
        if not dialogue.chat:
            return self.pipeline.encode(dialogue.turns[0])
        if not getattr(self.pipeline.tokenizer, "chat_template", None):
            raise InputError(
                "the prompts are turns of a chat, and the target's tokenizer has no chat template; give openings "
                "of texts, with run.chat=false"
            )
        try:
            return self.pipeline.encode_turns(dialogue.messages)
        except Exception as error:  # a template raises what it likes, where it knows no system message for one
            raise InputError(f"the chat template refuses the prompt of line {dialogue.line}: {error}") from error

    def _play(self, batch: list[Asked]) -> Iterator[Dialogue]:
        while batch:
            fitting = []
            for dialogue, row in batch:
                if len(row) < self.pipeline.parts.target.context:
                    fitting.append((dialogue, row))
                else:
                    dialogue.stop("too long")
                    yield dialogue
            going_on = []
            for dialogue, answer in self._answer(fitting):
                dialogue.hear(answer)
                if dialogue.done:
                    yield dialogue
                else:
                    going_on.append(dialogue)
            batch = [(dialogue, self.encode(dialogue)) for dialogue in going_on]

    @torch.inference_mode()
    def _answer(self, asked: list[Asked]) -> Iterator[tuple[Dialogue, Answer]]:
        """Every dialogue's answer, as soon as its row ends; all dialogues are at the same turn."""
        if not asked:
            return
        pipeline, settings = self.pipeline, self.pipeline.sampling
        rows = [row for _, row in asked]
        ledger = pipeline.open_ledger(rows, settings)
        device = getattr(pipeline.parts.target, "device", None) or "cpu"
        lines = [dialogue.line for dialogue, _ in asked]
        noise = SeededRandom(mix(self.seed, len(asked[0][0].answers)), max(lines) + 1, device)
        noise.keep(torch.tensor(lines, device=device))
        sampling = Sampling(
            temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p, min_p=settings.min_p
        )
        running = ledger.open
        for _ in decode(pipeline.parts, sampling, as_prompts(rows, torch.device(device)), noise, ledger, Clock()):
            for entry in running:
                if entry.ended:
                    dialogue = asked[entry.row][0]
                    yield dialogue, self._read(entry, dialogue)
            running = ledger.open

    def _read(self, entry: Entry, dialogue: Dialogue) -> Answer:
        text = self.pipeline.decode(entry.tokens)
        if not dialogue.chat:
            # A text's words are continued in place: some tokenizers leave out a space where decoding begins.
            opening, whole = (self.pipeline.decode(row) for row in (entry.prompt, entry.prompt + entry.tokens))
            text = whole.removeprefix(opening) if whole.startswith(opening) else text
        return Answer(text, len(entry.tokens), entry.ended != "length")


def cut(pool: Sequence[Asked], size: int, seed: int) -> list[list[Asked]]:
    """Batches of at most `size`, alike in turns and length, in shuffled order: an early stop leaves no length out."""
    alike = sorted(pool, key=lambda asked: (len(asked[0].turns), len(asked[1])))
    batches = [alike[start : start + size] for start in range(0, len(alike), size)]
    random.Random(mix(seed, alike[0][0].line)).shuffle(batches)
    return batches
