"""Runs rounds: the loaded contestants decode the same prompts in turn, in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specframe.bench.contest.contestants import GENERATE, PLAIN, Contestants, Entrant
from specframe.bench.contest.datasets import Question
from specframe.bench.contest.outcome import Reference, describe, require_sound
from specframe.bench.contest.own import RecipeContestant
from specframe.bench.contest.settings import ContestSettings, Round, take_turns
from specframe.bench.contest.timing import time_with_memory
from specframe.decoding.encoding import Key, key_of
from specframe.decoding.pipeline import Pipeline, plain_parts
from specframe.decoding.settings import RunSettings
from specframe.files.checks import find_check
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import text_of
from specframe.recipes.registry import one_line

logger = logging.getLogger(__name__)

Errors = dict[str, str]
"""Errors of failed contestants, by name; they take no further part."""
RoundResult = dict[str, Any]
"""Result of a round, as plain data: a line of runs.jsonl."""


@dataclass(frozen=True)
class Decoded:
    """Output of a contestant for the prompts of a turn."""

    tokens: Sequence[Sequence[int]]
    seconds: float
    lines: list[dict[str, Any]]
    """Figures of each row for results.json."""


@dataclass(frozen=True)
class Step:
    """One decoding of the bench, for a listener."""

    contestant: str
    tokens: int
    seconds: float
    error: str | None

    @classmethod
    def of(cls, name: str, decoded: Decoded | None, error: str | None) -> Step:
        """The step that gave this; None is a failure."""
        if decoded is None:
            return cls(name, 0, 0.0, error)
        return cls(name, sum(map(len, decoded.tokens)), decoded.seconds, None)


class Runner:
    """Runs rounds with the loaded contestants."""

    def __init__(self, contestants: Contestants, settings: ContestSettings) -> None:
        self.contestants, self.settings = contestants, settings
        targets, chat = contestants.targets, contestants.chat
        if chat is None:
            chat = all(getattr(text_of(t).tokenizer, "chat_template", None) for t in targets.values())
        if settings.turns > 1 and not chat:
            raise InputError("a second turn needs the tokenizer's chat template, which is not used here; use --turns 1")
        self.chat = chat
        """True if prompts become a user's turn."""
        run = RunSettings(batch=settings.batch, chat=chat, chat_template_kwargs=contestants.variables)
        self.coders = {
            key: Pipeline.around(plain_parts(target), contestants.sampling, run) for key, target in targets.items()
        }
        self.weights: dict[str, dict[str, int]] = {}
        """Number of weights that a forward of each contestant's models reads, where the warm-up could count them."""
        self.references = {key: Reference(target, contestants.sampling) for key, target in targets.items()}
        self.device: torch.device = text_of(next(iter(targets.values()))).device or torch.device("cpu")

    def encode(self, key: str, question: Question, answers: Sequence[str]) -> Sequence[int]:
        """The prompt's tokens for a target, after the answers to the turns before."""
        coder = self.coders[key]
        images = [question.image] if question.image else []
        if not answers:
            return coder.encode(question.turns[0], images)
        messages: list[dict[str, Any]] = [{"role": "user", "content": question.turns[0]}]
        if images:
            messages[0]["content"] = [
                {"type": "image", "image": images[0]},
                {"type": "text", "text": question.turns[0]},
            ]
        for answer, turn in zip(answers, question.turns[1:], strict=False):
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        return coder.encode_turns(messages)

    def fits(self, key: str, row: Sequence[int]) -> bool:
        """Returns whether a prompt and the whole budget fit the target's context."""
        return len(row) + self.contestants.sampling.max_new_tokens <= self.contestants.targets[key].context

    def warm_up(self, questions: Sequence[Question], errors: Errors) -> None:
        """Lets every contestant decode some unrecorded prompts; one that fails is added to `errors`."""
        for entrant in self._alive(errors):
            rows = [self.encode(entrant.target, question, []) for question in questions]
            self._decode(entrant, rows, self.settings.seed, errors)
            if entrant.name not in errors:
                self._weigh(entrant, rows[0])

    def run(self, this: Round, errors: Errors, listener: Callable[[Step], None]) -> RoundResult:
        """Runs a round with all contestants that are not among `errors`; one that fails is added there."""
        answers: dict[str, list[list[str]]] = {e.name: [[] for _ in this.questions] for e in self._alive(errors)}
        names = [entrant.name for entrant in self.contestants.entrants]
        runs: list[dict[str, Any]] = []
        skipped = 0
        for turn in range(this.turns):
            places = take_turns(names, this.index + turn, self.settings.seed)
            found: list[tuple[Entrant, dict[int, Sequence[int]], Decoded]] = []
            for entrant in sorted(self._alive(errors), key=lambda e: places.index(e.name)):
                rows, left_out = self._rows(entrant, this, turn, answers[entrant.name])
                skipped += left_out
                if not rows:
                    continue
                seed = self.settings.seed * 1_000_003 + this.index
                decoded = self._decode(entrant, list(rows.values()), seed, errors)
                if decoded is not None:
                    found.append((entrant, rows, decoded))
                    self._bound(entrant, list(rows.values()), seed, this.repeat, decoded.lines, errors)
                listener(Step.of(entrant.name, decoded, errors.get(entrant.name)))
            # The tokens of `generate` come first: the others are compared with them.
            for entrant, rows, decoded in found:
                if entrant.kind == GENERATE and len(rows) == 1:
                    self.references[entrant.target].learn(next(iter(rows.values())), decoded.tokens[0])
            plain = {
                (entrant.target, key_of(row)): list(tokens)
                for entrant, rows, decoded in found
                if entrant.kind == PLAIN
                for row, tokens in zip(rows.values(), decoded.tokens, strict=True)
            }
            for entrant, rows, decoded in found:
                runs += self._describe(entrant, this, turn, places.index(entrant.name), rows, decoded, plain)
                for index, tokens in zip(rows, decoded.tokens, strict=True):
                    answers[entrant.name][index].append(self.coders[entrant.target].decode(tokens))
        repeat, prompts = this.key
        return {
            "repeat": repeat,
            "prompts": prompts,
            "skipped_turns": skipped,
            "errors": dict(errors),
            "weights": self.weights,
            "runs": runs,
        }

    def _bound(
        self,
        entrant: Entrant,
        rows: list[Sequence[int]],
        seed: int,
        repeat: int,
        lines: list[dict[str, Any]],
        errors: Errors,
    ) -> None:
        """Adds the optimal acceptance to the lines of a first repeat, distributed by their cycles."""
        cycles = sum(line.get("cycles", 0) for line in lines)
        if not self.settings.bound or repeat or not cycles or not isinstance(entrant.contestant, RecipeContestant):
            return
        try:
            total, count = entrant.contestant.find_optimum(rows, seed)
        except Exception as error:  # as in any other decoding: the others go on
            errors[entrant.name] = one_line(error)
            return
        for line in lines:
            share = line["cycles"] / cycles
            line |= {"optimum": share * total, "optimum_cycles": share * count}

    def _check(self, question: Question, turn: int, key: str, tokens: Sequence[int]) -> float | None:
        """Returns the quality of the last turn's answer; None where nothing checks it."""
        if question.check is None or turn + 1 < len(question.turns):
            return None
        if question.check == "tests" and not self.settings.run_code:
            return None
        check = find_check(question.check, run_code=self.settings.run_code)
        return check(self.coders[key].decode(tokens), question.turns[-1], question.reference)

    def _weigh(self, entrant: Entrant, row: Sequence[int]) -> None:
        if not isinstance(entrant.contestant, RecipeContestant):
            return
        try:
            self.weights[entrant.name] = entrant.contestant.weigh(row)
        except Exception as error:  # some operation that cannot be watched: one estimate less
            logger.debug("the weights of %s are unknown: %s", entrant.name, one_line(error))

    def _alive(self, errors: Errors) -> list[Entrant]:
        return [entrant for entrant in self.contestants.entrants if entrant.name not in errors]

    def _rows(
        self, entrant: Entrant, this: Round, turn: int, answers: list[list[str]]
    ) -> tuple[dict[int, Sequence[int]], int]:
        """The prompts of a turn by their place in the batch, and how many had become too long to be among them."""
        rows = {
            index: self.encode(entrant.target, question, answers[index])
            for index, question in enumerate(this.questions)
            if len(answers[index]) == turn
        }
        fitting = {index: row for index, row in rows.items() if self.fits(entrant.target, row)}
        return fitting, len(rows) - len(fitting)

    def _decode(self, entrant: Entrant, rows: list[Sequence[int]], seed: int, errors: Errors) -> Decoded | None:
        """Returns the contestant's output; None if it failed, with its error noted in `errors`."""
        target = self.contestants.targets[entrant.target]
        try:
            timed = time_with_memory(entrant.contestant, rows, seed, self.device)
            require_sound(timed.outcome, len(rows), self.contestants.sampling.max_new_tokens, target.vocab_size)
            return Decoded(timed.outcome.tokens, timed.seconds, describe(timed))
        except Exception as error:  # whatever a contestant does, the others go on
            logger.debug("contestant %s failed", entrant.name, exc_info=True)
            errors[entrant.name] = one_line(error)
            return None

    def _describe(
        self,
        entrant: Entrant,
        this: Round,
        turn: int,
        place: int,
        rows: Mapping[int, Sequence[int]],
        decoded: Decoded,
        plain: Mapping[tuple[str, Key], list[int]],
    ) -> Iterator[dict[str, Any]]:
        reference = self.references[entrant.target]
        for (index, row), tokens, line in zip(rows.items(), decoded.tokens, decoded.lines, strict=True):
            identity = reference.compare(row, tokens)
            ours = plain.get((entrant.target, key_of(row))) if self.contestants.sampling.temperature == 0 else None
            yield line | {
                "contestant": entrant.name,
                "prompt": this.questions[index].id,
                "repeat": this.repeat,
                "turn": turn,
                "order": place,
                "prompt_tokens": len(row),
                "as_plain": None if ours is None else list(tokens) == ours,
                "quality": self._check(this.questions[index], turn, entrant.target, tokens),
                "identical": identity.same,
                "gap": identity.gap,
                "noise": identity.noise,
            }
