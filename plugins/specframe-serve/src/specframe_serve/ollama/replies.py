"""Answers in the form of Ollama's clients: one JSON object per line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from specframe_serve.answers import Answer, Answers
from specframe_serve.errors import ApiError
from specframe_serve.ollama.protocol import OllamaChat, OllamaRequest
from specframe_serve.reading import AnswerParts
from specframe_serve.web.events import Form

NANO = 1_000_000_000


class OllamaReply(Form):
    """The reply to one request."""

    media_type, waiting = "application/x-ndjson", ""  # JSON lines have no comments

    def __init__(self, asked: OllamaRequest) -> None:
        """Creates the reply to a request of either route."""
        super().__init__(asked.model)
        self.chat = isinstance(asked, OllamaChat)

    def loaded(self) -> dict[str, Any]:
        """Returns the reply to a request without a question, with which clients load a model."""
        return self._object(AnswerParts(), done=True) | {"done_reason": "load"}

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Returns the reply as one object."""
        return self._object(answers.all[0].parts, done=True) | self._figures(answers)

    def add(self, answers: Answers, answer: Answer) -> str:
        """Returns a line with the new part of an answer."""
        parts = answer.unsent()
        return "" if parts == AnswerParts(calls=[]) else _line(self._object(parts, done=False))

    def end(self, answers: Answers) -> str:
        """Returns the last line."""
        return _line(self._object(AnswerParts(), done=True) | self._figures(answers))

    def error(self, error: ApiError) -> str:
        """Returns the line that ends a stream with an error."""
        return _line({"error": str(error)})

    def _object(self, parts: AnswerParts, done: bool) -> dict[str, Any]:
        """Returns parts of an answer as an object; arguments of calls are objects in this API."""
        thought = {"thinking": parts.reasoning} if parts.reasoning else {}
        functions = [call["function"] for call in parts.calls]
        calls = [{"function": each | {"arguments": json.loads(each["arguments"])}} for each in functions]
        message = {"role": "assistant", "content": parts.text} | thought | ({"tool_calls": calls} if calls else {})
        content: dict[str, Any] = {"message": message} if self.chat else {"response": parts.text} | thought
        return {"model": self.model, "created_at": now(), **content, "done": done}

    def _figures(self, answers: Answers) -> dict[str, Any]:
        """Returns counts, and durations in nanoseconds; the prompt's duration includes its wait in the queue."""
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
    """Returns the current time in RFC 3339 format."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"
