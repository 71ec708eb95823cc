"""A conversation in progress: the user's messages, and the target's answers so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Answer:
    """The target's answer."""

    text: str
    tokens: int | None
    """How many tokens were generated, or None where the endpoint does not report it."""
    finished: bool
    """Whether it ended by itself, before the budget was used up."""


@dataclass
class Dialogue:
    """A conversation, answered turn by turn; each answer is part of the next question.

    It ends early where it cannot go on; the messages until then are kept.
    """

    line: int
    """Where its prompt stands in the prompts' file; it names the conversation's random stream, too."""
    turns: tuple[str, ...]
    """The user's messages, turn by turn; or the opening of a text."""
    system: str | None = None
    chat: bool = True
    """Whether these are turns of a chat, and not the opening of a text that the target goes on from."""
    finished_only: bool = False
    """Whether an unfinished answer ends the conversation before it, instead of being kept."""
    answers: list[Answer] = field(default_factory=list)
    stopped: str | None = None
    """Why it ended early: `too long`, `empty`, `unfinished`."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to be asked."""
        return self.stopped is not None or len(self.answers) == len(self.turns)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat so far; while it is not done, it ends with the question to be answered."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for index, turn in enumerate(self.turns[: len(self.answers) + (not self.done)]):
            messages.append({"role": "user", "content": turn})
            if index < len(self.answers):
                messages.append({"role": "assistant", "content": self.answers[index].text})
        return messages

    def add(self, answer: Answer) -> None:
        """Takes in the answer to the question."""
        if not answer.text.strip():
            self.stop("empty")
        elif self.finished_only and not answer.finished:
            self.stop("unfinished")
        else:
            self.answers.append(answer)

    def stop(self, reason: str) -> None:
        """Ends the conversation with the messages so far."""
        self.stopped = reason

    def describe(self) -> dict[str, Any]:
        """The line that is kept, in the layout that `train.data` reads."""
        content = {"messages": self.messages} if self.chat else {"text": self.turns[0] + self.answers[0].text}
        counts = [answer.tokens for answer in self.answers]
        return {
            "line": self.line,
            **content,
            "tokens": None if None in counts else sum(filter(None, counts)),
            "finished": all(answer.finished for answer in self.answers),
        }


class Answerer(Protocol):
    """What answers for the target: the target itself, or a server."""

    def answer(self, dialogues: Sequence[Dialogue]) -> Iterator[Dialogue]:
        """Each of the dialogues as soon as it is done, in any order."""
        ...
