"""Answers by the recipe's own loop, as many side by side as this machine answers fastest by."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from specframe import Entry, InputError, Pipeline, Request
from specframe.plugin import Observer, mix
from specframe_distill.dialogue import Dialogue, DialogueAnswer


class Decoding:
    """An answerer: `run.batch` conversations at a time.

    The answers of a conversation depend on the seed and its line in the prompts' file, not on the others: an
    interrupted run that is resumed gives the same answers.
    """

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.pipeline, self.seed = pipeline, seed

    def answer(self, dialogues: Sequence[Dialogue]) -> Iterator[Dialogue]:
        """Yields each of the dialogues as soon as it is done. Raises InputError for texts that cannot be encoded.

        A finished answer makes room for the next question, of the same dialogue or of the next one.
        """
        waiting = deque(dialogues)
        running: list[tuple[Dialogue, Entry]] = []
        with self.pipeline.open_endless() as session:
            while waiting or running:
                asked: list[Dialogue] = []
                while waiting and len(asked) < session.free:
                    dialogue = waiting.popleft()
                    if len(self.encode(dialogue)) < self.pipeline.parts.target.context:
                        asked.append(dialogue)
                    else:
                        dialogue.stop("too long")
                        yield dialogue
                if asked:
                    running += zip(asked, session.admit([self._request(dialogue) for dialogue in asked]), strict=True)
                elif session.live:
                    session.step()
                for dialogue, entry in [pair for pair in running if pair[1].ended]:
                    running.remove((dialogue, entry))
                    dialogue.add(self._read(entry, dialogue))
                    if dialogue.done:
                        yield dialogue
                    else:
                        waiting.appendleft(dialogue)

    def encode(self, dialogue: Dialogue) -> Sequence[int]:
        """The tokens of the dialogue's question, with all messages before it."""
        if not dialogue.chat:
            return self.pipeline.encode(dialogue.turns[0])
        if not getattr(self.pipeline.tokenizer, "chat_template", None):
            raise InputError(
                "the prompts are turns of a chat, and the target's tokenizer has no chat template; give openings "
                "of texts, with run.chat=false"
            )
        try:
            return self.pipeline.encode_turns(dialogue.messages)
        except InputError as error:
            raise InputError(f"the prompt of line {dialogue.line}: {error}") from error

    def _request(self, dialogue: Dialogue) -> Request:
        """The dialogue's next question; its random numbers follow from its line and its turn."""
        seed = mix(self.seed, len(dialogue.answers))
        return self.pipeline.requests([self.encode(dialogue)], seed=seed, first=dialogue.line)[0]

    def _read(self, entry: Entry, dialogue: Dialogue) -> DialogueAnswer:
        text = self.pipeline.decode(entry.tokens)
        if not dialogue.chat:
            # A text's words are continued in place: some tokenizers leave out a space where decoding begins.
            opening, whole = (self.pipeline.decode(row) for row in (entry.request.tokens, entry.text))
            text = whole.removeprefix(opening) if whole.startswith(opening) else text
        return DialogueAnswer(text, len(entry.tokens), entry.ended not in ("length", "failed"))


SIZES = (8, 16, 32, 64)
"""Conversations side by side that are tried, as long as more of them are faster."""
WORTH = 1.05
"""Smallest speedup that justifies more conversations at once, since they take more memory."""
PROMPT = 32
"""Number of a prompt's first tokens that are read in a trial."""
TOKENS = 12
"""New tokens of a trial's rows; the first comes with the prompt and is not timed."""

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Trial:
    """Result of one way of answering."""

    pipeline: Pipeline
    rate: float
    """Tokens per second, prompts not counted."""

    def __str__(self) -> str:
        drafts = "with the recipe's drafts" if self.pipeline.parts.nodes > 1 else "without drafts"
        return f"{self.pipeline.run.batch} conversations side by side, {drafts}: {self.rate:.0f} tokens/s in a trial"


def decoding_rate(pipeline: Pipeline, prompts: Prompts) -> float:
    """Tokens per second of decoding a few tokens after each of the prompts, all side by side."""
    settings = replace(pipeline.sampling, max_new_tokens=TOKENS, stop=[], stop_token_ids=[], grammar=None)
    endless = replace(settings, ignore_eos=True)
    requests = pipeline.requests(prompts, endless)
    with pipeline.open(requests, slots=len(requests)) as session:
        entries = session.admit(requests)
        started = perf_counter()
        while session.live:
            session.step()
        seconds = perf_counter() - started
    return sum(len(entry.tokens) - 1 for entry in entries) / max(seconds, 1e-9)


def fastest(
    pipeline: Pipeline, prompts: Prompts, rate: Callable[[Pipeline, Prompts], float] = decoding_rate
) -> list[Trial]:
    """Trials of the ways to answer the prompts, fastest first; the texts are the same in all of them.

    More and more conversations are tried until that no longer pays. Drafts may be left out where the verifier draws by
    position, so that a text does not depend on them; parts that learn or remember are left out of trials.
    """
    ways = [pipeline]
    if pipeline.parts.verifier.needs.by_position:
        learns = isinstance(pipeline.parts.drafter, Observer)
        ways = [pipeline.plain(), *([] if learns else [pipeline])]

    def attempt(way: Pipeline, size: int) -> Trial:
        sized = replace(way, run=replace(way.run, batch=size))
        return Trial(sized, rate(sized, [prompt[:PROMPT] for prompt in prompts[:size]]))

    best = attempt(ways[0], SIZES[0])
    for size in SIZES[1:]:
        if size > len(prompts):
            break
        trial = attempt(ways[0], size)
        if trial.rate < WORTH * best.rate:
            break
        best = trial
    trials = [best, *(attempt(way, best.pipeline.run.batch) for way in ways[1:])]
    return sorted(trials, key=lambda trial: -trial.rate)
