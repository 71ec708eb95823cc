"""`POST /v1/responses`, OpenAI's newer API: the fields of a request, and its reply as an object or as named events."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import count
from time import time
from typing import Annotated, Any, Literal

from pydantic import Field

from specframe import Pipeline
from specframe_serve.answers import Answers
from specframe_serve.errors import ApiError
from specframe_serve.messages import PROMPTS, Empty, Message
from specframe_serve.protocol import ChatRequest, Count, Whole
from specframe_serve.structured import Strict, TextFormat
from specframe_serve.web.events import WAITING, event


class InputItem(Message):
    """A turn of the input, or a message of an earlier reply's output."""

    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class TextOptions(Strict):
    """The format of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseRequest(Strict):
    """The fields of a request. Nothing is stored, so a conversation is sent whole."""

    model: str | None = None
    input: str | Annotated[list[InputItem], Field(fail_fast=True, min_length=1, max_length=PROMPTS)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool = False

    # Accepted without effect.
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None
    # Accepted with the values that change nothing.
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    text: TextOptions | None = None
    tools: Empty | None = None
    tool_choice: Literal["none", "auto"] | None = None
    include: Empty | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=0)] | None = None

    def chat(self) -> ChatRequest:
        """The same as a request for a chat completion."""
        turns: list[Message] = list(self.input) if not isinstance(self.input, str) else []
        if isinstance(self.input, str):
            turns = [Message(role="user", content=self.input)]
        if self.instructions is not None:
            turns = [Message(role="system", content=self.instructions), *turns]
        form = self.text.format if self.text is not None else None
        return ChatRequest(
            model=self.model,
            messages=turns,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            stream=self.stream,
            response_format=form.response_format if form is not None else None,
        )


@dataclass(frozen=True, kw_only=True)
class ResponseReply:
    """The reply to one request."""

    model: str
    asked: ResponseRequest
    temperature: float
    top_p: float
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))
    numbers: Iterator[int] = field(default_factory=count)
    """Counter of a stream's events."""
    media_type: str = "text/event-stream"

    @classmethod
    def of(cls, model: str, asked: ResponseRequest, pipeline: Pipeline) -> ResponseReply:
        """The reply to a request, whose settings are the pipeline's where it gives none."""
        sampling = pipeline.sampling
        return cls(
            model=model,
            asked=asked,
            temperature=sampling.temperature if asked.temperature is None else asked.temperature,
            top_p=sampling.top_p if asked.top_p is None else asked.top_p,
        )

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The reply as one object."""
        (answer,) = answers.all
        done = answer.finish != "length"
        prompt, completion = answers.prompt_tokens, answers.completion_tokens
        return self._object("completed" if done else "incomplete") | {
            "incomplete_details": None if done else {"reason": "max_output_tokens"},
            "output": [self._message(answer.text, "completed" if done else "incomplete")],
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": answers.cached_tokens},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + completion,
            },
        }

    async def stream(self, answers: Answers) -> AsyncIterator[str]:
        """The named events of a stream, each with its number."""
        (answer,) = answers.all

        def named(name: str, **fields: Any) -> str:
            return event({"type": name, "sequence_number": next(self.numbers)} | fields, name)

        message = f"msg_{self.id}"
        item = {"output_index": 0}
        part = {"item_id": message, "output_index": 0, "content_index": 0}
        yield named("response.created", response=self._object("in_progress"))
        yield named("response.in_progress", response=self._object("in_progress"))
        begun = False
        async for piece in answers.pieces():
            if piece is None:
                yield WAITING
                continue
            if not begun:
                begun = True
                yield named("response.output_item.added", item=self._message(None, "in_progress"), **item)
                yield named("response.content_part.added", part=_text(""), **part)
            if piece.text:
                yield named("response.output_text.delta", delta=piece.text, logprobs=[], **part)
        whole = self.whole(answers)
        yield named("response.output_text.done", text=answer.text, logprobs=[], **part)
        yield named("response.content_part.done", part=_text(answer.text), **part)
        yield named("response.output_item.done", item=whole["output"][0], **item)
        yield named(f"response.{whole['status']}", response=whole)

    def error(self, error: ApiError) -> str:
        """The event that ends a stream with an error."""
        found = error.body["error"]
        failed = self._object("failed") | {"error": {"code": found["code"] or found["type"], "message": str(error)}}
        name = "response.failed"
        return event({"type": name, "sequence_number": next(self.numbers), "response": failed}, name)

    def _object(self, status: str) -> dict[str, Any]:
        asked = self.asked
        return {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": self.temperature,
            "text": {"format": _format(asked)},
            "tool_choice": asked.tool_choice or "auto",
            "tools": [],
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": asked.user,
        }

    def _message(self, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [_text(text)]
        return {
            "id": f"msg_{self.id}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }


def _format(asked: ResponseRequest) -> dict[str, Any]:
    """The format of the answer, as the request has it."""
    form = asked.text.format if asked.text is not None else None
    if form is None or form.type != "json_schema":
        return {"type": form.type if form is not None else "text"}
    return form.model_dump(by_alias=True)


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
