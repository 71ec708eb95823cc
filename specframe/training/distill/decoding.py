"""Answers by the recipe's own loop, many conversations side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from specframe.decoding.pipeline import Pipeline
from specframe.decoding.requests import Entry, Request
from specframe.kernel.errors import InputError
from specframe.training.distill.dialogue import Answer, Dialogue
from specframe.training.schedule import mix


class Decoding:
    """An answerer: `run.batch` conversations at a time.

    What a conversation is answered follows from the seed and its line in the prompts' file, not from the others: an
    interrupted work that goes on gives what it would have given.
    """

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.pipeline, self.seed = pipeline, seed

    def answer(self, dialogues: Sequence[Dialogue]) -> Iterator[Dialogue]:
        """Each of the dialogues as soon as it is done. Raises InputError for what cannot be encoded.

        An answer makes room for the next question: of the same dialogue, or of the next one.
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

    def encode(self, dialogue: Dialogue) -> list[int]:
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

    def _read(self, entry: Entry, dialogue: Dialogue) -> Answer:
        text = self.pipeline.decode(entry.tokens)
        if not dialogue.chat:
            # A text's words are continued in place: some tokenizers leave out a space where decoding begins.
            opening, whole = (self.pipeline.decode(row) for row in (entry.request.tokens, entry.text))
            text = whole.removeprefix(opening) if whole.startswith(opening) else text
        return Answer(text, len(entry.tokens), entry.ended not in ("length", "failed"))
