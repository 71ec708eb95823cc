"""The bench itself: all contestants alternately over the same prompts, in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specframe.engine.bench.contestants import plain_pipeline
from specframe.engine.bench.identity import Reference
from specframe.engine.bench.journal import Journal
from specframe.engine.bench.lineup import Entrant, Lineup
from specframe.engine.bench.outcome import describe, require_sound
from specframe.engine.bench.schedule import Round, plan_rounds, take_turns
from specframe.engine.bench.sets import Question, spread
from specframe.engine.bench.timing import settled_objects, time_decoding
from specframe.engine.settings import RunSettings
from specframe.kernel.errors import InputError
from specframe.kernel.registry import one_line

logger = logging.getLogger(__name__)
GENERATE = "hf:generate"


@dataclass(frozen=True)
class Terms:
    """What holds for all contestants."""

    batch: int = 1
    repeats: int = 3
    seed: int = 0
    turns: int = 1
    """How many turns of a conversation are decoded, at most."""
    limit: int | None = None
    """How many prompts of all sets together."""

    def __post_init__(self) -> None:
        for name in ("batch", "repeats", "turns", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} {value} measures nothing; use 1 or more")


@dataclass(frozen=True)
class Decoded:
    """What a contestant gave for the prompts of a turn."""

    tokens: Sequence[Sequence[int]]
    seconds: float
    lines: list[dict[str, Any]]
    """Each row's figures for results.json."""


@dataclass(frozen=True)
class Step:
    """One decoding of the bench, for whoever watches."""

    contestant: str
    tokens: int
    seconds: float
    error: str | None

    @classmethod
    def of(cls, entrant: Entrant, decoded: Decoded | None) -> Step:
        """The step that gave this; None is a failure."""
        if decoded is None:
            return cls(entrant.name, 0, 0.0, entrant.error)
        return cls(entrant.name, sum(map(len, decoded.tokens)), decoded.seconds, None)


@dataclass
class Contest:
    """A lineup that is loaded, and the prompts it will decode."""

    lineup: Lineup
    terms: Terms
    questions: list[Question] = field(default_factory=list)
    skipped: int = 0
    """How many prompts were left out because they are too long for a target's context."""
    skipped_turns: int = 0
    """How many later turns of conversations were left out of this session's decodings, for the same reason."""

    def __post_init__(self) -> None:
        targets, terms = self.lineup.targets, self.terms
        chat = self.lineup.chat
        if chat is None:
            chat = all(getattr(getattr(t, "tokenizer", None), "chat_template", None) for t in targets.values())
        if terms.turns > 1 and not chat:
            raise InputError("a second turn needs the tokenizer's chat template, which is not used here; use --turns 1")
        self.chat = chat
        run = RunSettings(batch=terms.batch, chat=chat)
        self.coders = {key: plain_pipeline(target, self.lineup.sampling, run) for key, target in targets.items()}
        self.references = {key: Reference(target, self.lineup.sampling) for key, target in targets.items()}
        self.device: torch.device = getattr(next(iter(targets.values())), "device", torch.device("cpu"))

    def choose(self, questions: Sequence[Question]) -> None:
        """Takes up to `limit` prompts, spread over sets and tasks, that fit every target's context.

        Raises InputError when none fits.
        """
        order = list(questions) if self.terms.limit is None else spread(questions, self.terms.seed)
        for question in order:
            if len(self.questions) == self.terms.limit:
                break
            rows = [self.encode(key, question, []) for key in self.coders]
            if all(map(self.fits, self.coders, rows)):
                self.questions.append(question)
            else:
                self.skipped += 1
        if not self.questions:
            raise InputError(
                f"none of the {self.skipped} prompts fits the context with max_new_tokens "
                f"{self.lineup.sampling.max_new_tokens}; use a smaller --max-new-tokens or other prompts"
            )
        place = {question: index for index, question in enumerate(questions)}
        self.questions.sort(key=place.__getitem__)

    @property
    def rounds(self) -> list[Round]:
        """All rounds, done or not."""
        terms = self.terms
        return plan_rounds(self.questions, batch=terms.batch, repeats=terms.repeats, turns=terms.turns)

    def encode(self, key: str, question: Question, answers: Sequence[str]) -> list[int]:
        """The prompt's tokens for a target, after the answers to the turns before."""
        coder = self.coders[key]
        if not answers:
            return coder.encode(question.turns[0])
        said = [{"role": "user", "content": question.turns[0]}]
        for answer, turn in zip(answers, question.turns[1:], strict=False):
            said += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        return coder.encode_turns(said)

    def fits(self, key: str, row: Sequence[int]) -> bool:
        """Whether a prompt and the whole budget fit the target's context."""
        return len(row) + self.lineup.sampling.max_new_tokens <= self.lineup.targets[key].context

    def run(self, journal: Journal, listener: Callable[[Step], None] | None = None) -> None:
        """Runs the rounds that the journal does not have, after a warm-up.

        A contestant that fails takes no further part; its error is kept with it and in the journal.
        """
        for entry in journal.rounds:
            for entrant in self.lineup.entrants:
                entrant.error = entrant.error or entry["errors"].get(entrant.name)
        done = {(entry["repeat"], tuple(entry["prompts"])) for entry in journal.rounds}
        rounds = [entry for entry in self.rounds if entry.key not in done]
        if not rounds:
            return
        with settled_objects():
            self._warm_up(rounds[0].questions)
            for this in rounds:
                if not self.alive:
                    return
                before = self.skipped_turns
                runs = [line for turn in self._play(this, listener) for line in turn]
                repeat, prompts = this.key
                journal.append(
                    {
                        "repeat": repeat,
                        "prompts": prompts,
                        "skipped_turns": self.skipped_turns - before,
                        "errors": {e.name: e.error for e in self.lineup.entrants if e.error is not None},
                        "runs": runs,
                    }
                )

    @property
    def alive(self) -> list[Entrant]:
        """Who still takes part."""
        return [entrant for entrant in self.lineup.entrants if entrant.error is None]

    def _warm_up(self, questions: Sequence[Question]) -> None:
        for entrant in self.alive:
            rows = [self.encode(entrant.target, question, []) for question in questions]
            self._decode(entrant, rows, self.terms.seed)

    def _play(self, this: Round, listener: Callable[[Step], None] | None) -> Iterator[list[dict[str, Any]]]:
        """The runs of a round, a conversation turn at a time."""
        answers: dict[str, list[list[str]]] = {e.name: [[] for _ in this.questions] for e in self.alive}
        names = [entrant.name for entrant in self.lineup.entrants]
        for turn in range(this.turns):
            places = take_turns(names, this.index + turn, self.terms.seed)
            found: list[tuple[Entrant, dict[int, list[int]], Decoded]] = []
            for entrant in sorted(self.alive, key=lambda e: places.index(e.name)):
                rows = self._rows(entrant, this, turn, answers[entrant.name])
                if not rows:
                    continue
                decoded = self._decode(entrant, list(rows.values()), self.terms.seed * 1_000_003 + this.index)
                if decoded is not None:
                    found.append((entrant, rows, decoded))
                if listener is not None:
                    listener(Step.of(entrant, decoded))
            # Before anyone is compared, what `generate` said is known.
            for entrant, rows, decoded in found:
                if entrant.kind == GENERATE and len(rows) == 1:
                    self.references[entrant.target].learn(next(iter(rows.values())), decoded.tokens[0])
            lines: list[dict[str, Any]] = []
            for entrant, rows, decoded in found:
                lines += self._describe(entrant, this, turn, places.index(entrant.name), rows, decoded)
                for index, tokens in zip(rows, decoded.tokens, strict=True):
                    answers[entrant.name][index].append(self.coders[entrant.target].decode(tokens))
            yield lines

    def _rows(self, entrant: Entrant, this: Round, turn: int, answers: list[list[str]]) -> dict[int, list[int]]:
        """The prompts of a turn by their place in the batch; those that have become too long are left out."""
        rows = {
            index: self.encode(entrant.target, question, answers[index])
            for index, question in enumerate(this.questions)
            if len(answers[index]) == turn
        }
        fitting = {index: row for index, row in rows.items() if self.fits(entrant.target, row)}
        self.skipped_turns += len(rows) - len(fitting)
        return fitting

    def _decode(self, entrant: Entrant, rows: list[list[int]], seed: int) -> Decoded | None:
        """What the contestant gave, or None: then its error is noted."""
        target = self.lineup.targets[entrant.target]
        try:
            timed = time_decoding(entrant.contestant, rows, seed, self.device)
            require_sound(timed.outcome, len(rows), self.lineup.sampling.max_new_tokens, target.vocab_size)
            return Decoded(timed.outcome.tokens, timed.seconds, describe(timed))
        except Exception as error:  # whatever a contestant does, the others go on
            logger.debug("contestant %s failed", entrant.name, exc_info=True)
            entrant.error = one_line(error)
            return None

    def _describe(
        self, entrant: Entrant, this: Round, turn: int, place: int, rows: Mapping[int, list[int]], decoded: Decoded
    ) -> Iterator[dict[str, Any]]:
        reference = self.references[entrant.target]
        for (index, row), tokens, line in zip(rows.items(), decoded.tokens, decoded.lines, strict=True):
            identical, gap = reference.compare(row, tokens)
            yield line | {
                "contestant": entrant.name,
                "prompt": this.questions[index].id,
                "repeat": this.repeat,
                "turn": turn,
                "order": place,
                "prompt_tokens": len(row),
                "identical": identical,
                "gap": gap,
            }
