"""Answers by the recipe's own decoding, with the number of rows that is fastest on this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from specframe import Entry, InputError, Pipeline, Request
from specframe.plugin import Observer, mix
from specframe_distill.dialogue import Dialogue, DialogueAnswer


class Decoding:
    """An answerer that decodes `run.batch` conversations at a time.

    The answers of a conversation depend on the seed and its line in the prompts' file, not on other conversations: a
    resumed run gives the answers of an uninterrupted one.
    """

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.pipeline, self.seed = pipeline, seed

    def answer(self, dialogues: Sequence[Dialogue]) -> Iterator[Dialogue]:
        """Yields each dialogue when it is done. Raises InputError for texts that cannot be encoded.

        A finished answer makes room for the next question, of this dialogue or of the next one.
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
        """Returns the tokens of the dialogue's question, with all earlier messages."""
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
        """Returns the dialogue's next question as a request; its random numbers depend on its line and turn."""
        seed = mix(self.seed, len(dialogue.answers))
        return self.pipeline.requests([self.encode(dialogue)], seed=seed, first=dialogue.line)[0]

    def _read(self, entry: Entry, dialogue: Dialogue) -> DialogueAnswer:
        text = self.pipeline.decode(entry.tokens)
        if not dialogue.chat:
            # Continue a text by its tokens: some tokenizers drop a leading space when they decode.
            opening, whole = (self.pipeline.decode(row) for row in (entry.request.tokens, entry.text))
            text = whole.removeprefix(opening) if whole.startswith(opening) else text
        return DialogueAnswer(text, len(entry.tokens), entry.ended not in ("length", "failed"))


SIZES = (8, 16, 32, 64)
"""Numbers of rows that are tried, as long as more of them are faster."""
WORTH = 1.05
"""Smallest speedup that justifies more rows at once, because they need more memory."""
PROMPT = 32
"""Number of first tokens of a prompt that are read in a trial."""
TOKENS = 12
"""Number of new tokens of a trial's rows; the first comes with the prompt and is not timed."""

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Trial:
    """Result of one setting for answering."""

    pipeline: Pipeline
    rate: float
    """Tokens per second, without prompts."""

    def __str__(self) -> str:
        drafts = "with the recipe's drafts" if self.pipeline.parts.nodes > 1 else "without drafts"
        return f"{self.pipeline.run.batch} conversations side by side, {drafts}: {self.rate:.0f} tokens/s in a trial"


def decoding_rate(pipeline: Pipeline, prompts: Prompts) -> float:
    """Returns the tokens per second of decoding a few tokens after each of the prompts, all in one batch."""
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
    """Returns trials of settings for answering the prompts, fastest first; all give equal texts.

    Larger and larger batches are tried until that no longer pays. Drafts may be disabled if the verifier draws by
    position, so that texts do not depend on them; parts that learn or remember are not used in trials.
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
