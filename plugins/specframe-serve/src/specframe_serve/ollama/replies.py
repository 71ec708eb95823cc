"""Answers in the form that Ollama's clients read: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from specframe_serve.answers import Answer, Answers
from specframe_serve.errors import ApiError
from specframe_serve.tools import ToolForm

NANO = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class OllamaReply:
    """The reply to one request."""

    model: str
    chat: bool
    """True if it is a turn of a conversation, rather than a text."""
    calls: ToolForm | None = None
    """The form of calls in the answer; None: it has none."""
    media_type: str = "application/x-ndjson"

    def loaded(self) -> dict[str, Any]:
        """The reply to a request without a question, by which clients have a model loaded."""
        return self._object("", done=True) | {"done_reason": "load"}

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The reply as one object."""
        text, calls = self._read(answers.all[0])
        return self._object(text, done=True, calls=calls) | self._figures(answers)

    async def stream(self, answers: Answers) -> AsyncIterator[str]:
        """The lines of a stream."""
        shown = 0
        async for piece in answers.pieces():
            if piece is not None:  # lines of JSON have no comments to show that it waits
                whole = self._begun(answers.all[0])
                if len(whole) > shown:
                    yield _line(self._object(whole[shown:], done=False))
                    shown = len(whole)
        text, calls = self._read(answers.all[0])
        if text[shown:] or calls:
            yield _line(self._object(text[shown:], done=False, calls=calls))
        yield _line(self._object("", done=True) | self._figures(answers))

    def error(self, error: ApiError) -> str:
        """The line that ends a stream with an error."""
        return _line({"error": str(error)})

    def _begun(self, answer: Answer) -> str:
        """The text of an answer so far, without what may be the beginning of a call."""
        return answer.text if self.calls is None else self.calls.open_text(answer.text)

    def _read(self, answer: Answer) -> tuple[str, list[dict[str, Any]]]:
        """The text of a finished answer and its calls, whose arguments are objects here."""
        if self.calls is None:
            return answer.text, []
        text, calls = self.calls.read(answer.text)
        functions = [call["function"] for call in calls]
        return text, [{"function": each | {"arguments": json.loads(each["arguments"])}} for each in functions]

    def _object(self, text: str, done: bool, calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        message = {"role": "assistant", "content": text} | ({"tool_calls": [*calls]} if calls else {})
        content: dict[str, Any] = {"message": message} if self.chat else {"response": text}
        return {"model": self.model, "created_at": now(), **content, "done": done}

    def _figures(self, answers: Answers) -> dict[str, Any]:
        """Counts, and durations in nanoseconds; the prompt's includes its wait in the queue."""
        (answer,) = answers.all
        job, end = answer.job, monotonic()
        first = end if job.first is None else job.first
        return {
            "done_reason": answer.finish,
            "total_duration": int((end - job.arrived) * NANO),
            "load_duration": 0,
            "prompt_eval_count": answers.prompt_tokens,
            "prompt_eval_duration": int((first - job.arrived) * NANO),
            "eval_count": answers.completion_tokens,
            "eval_duration": int((end - first) * NANO),
        }


def now() -> str:
    """The time in the form of RFC 3339."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"
