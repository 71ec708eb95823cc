"""Replies of `/v1/responses`, as one object or as named events."""

from __future__ import annotations

from itertools import count
from typing import Any

from specframe_serve.answers import Answer, Answers
from specframe_serve.desk import Desk
from specframe_serve.errors import ApiError
from specframe_serve.responses import ResponseRequest
from specframe_serve.web.events import Form, event

TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""Names in events of the texts of items."""


class ResponseReply(Form):
    """The reply to one request; settings that the request omits are the pipeline's."""

    def __init__(self, asked: ResponseRequest, desk: Desk) -> None:
        """Creates the reply to a request."""
        super().__init__(desk.settings.name)
        sampling = desk.pipeline.sampling
        self.asked = asked
        self.temperature = sampling.temperature if asked.temperature is None else asked.temperature
        self.top_p = sampling.top_p if asked.top_p is None else asked.top_p
        self.numbers = count()
        """Numbers the events of a stream."""
        self.begun: list[str] = []
        """The kinds of items that have begun in the stream."""

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Returns the reply as one object."""
        (answer,) = answers.all
        done = answer.finish != "length"
        prompt, completion = answers.prompt_tokens, answers.completion_tokens
        return self._object("completed" if done else "incomplete") | {
            "incomplete_details": None if done else {"reason": "max_output_tokens"},
            "output": self._output(answer, "completed" if done else "incomplete"),
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": answers.cached_tokens if answers.shows_cached else 0},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + completion,
            },
        }

    def begin(self, answers: Answers) -> str:
        """Returns the events that begin a stream."""
        begun = self._object("in_progress")
        return self._named("created", response=begun) + self._named("in_progress", response=begun)

    def add(self, answers: Answers, answer: Answer) -> str:
        """Returns the events for new text."""
        parts, events = answer.unsent(), ""
        for kind, text in (("reasoning", parts.reasoning), ("message", parts.text)):
            if text and kind not in self.begun:
                self.begun.append(kind)
                events += self._begin(kind, len(self.begun) - 1)
            if text:
                events += self._text("delta", kind, self.begun.index(kind), delta=text)
        return events

    def end(self, answers: Answers) -> str:
        """Returns the events that end text items, those of calls, each sent as a whole, and the final event."""
        whole, events = self.whole(answers), ""
        for place, item in enumerate(whole["output"]):
            if item["type"] == "function_call":
                events += self._call_events(place, item)
                continue
            if item["type"] not in self.begun:
                events += self._begin(item["type"], place)
            events += self._close(item, place)
        return events + self._named(whole["status"], response=whole)

    def _named(self, name: str, /, **fields: Any) -> str:
        name = f"response.{name}"
        return event({"type": name, "sequence_number": next(self.numbers)} | fields, name)

    def _begin(self, kind: str, place: int) -> str:
        """Returns the events that begin a text item."""
        added = self._named("output_item.added", item=self._item(kind, None, "in_progress"), output_index=place)
        return added + self._named("content_part.added", part=_content(kind, ""), **self._part(kind, place))

    def _text(self, event: str, kind: str, place: int, **fields: Any) -> str:
        """Returns an event about an item's text."""
        more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        return self._named(f"{TEXTS[kind]}.{event}", **fields, **more, **self._part(kind, place))

    def _close(self, item: dict[str, Any], place: int) -> str:
        """Returns the events that end a text item."""
        kind, part = item["type"], item["content"][0]
        ended = self._text("done", kind, place, text=part["text"])
        ended += self._named("content_part.done", part=part, **self._part(kind, place))
        return ended + self._named("output_item.done", item=item, output_index=place)

    def _part(self, kind: str, place: int) -> dict[str, Any]:
        """Returns the location of an item's text."""
        return {"item_id": self._item(kind, None, "")["id"], "output_index": place, "content_index": 0}

    def _call_events(self, place: int, item: dict[str, Any]) -> str:
        """Returns the events of a call, which is sent as a whole."""
        where, arguments = {"item_id": item["id"], "output_index": place}, item["arguments"]
        begun = item | {"status": "in_progress", "arguments": ""}
        events = self._named("output_item.added", item=begun, output_index=place)
        events += self._named("function_call_arguments.delta", delta=arguments, **where)
        events += self._named("function_call_arguments.done", arguments=arguments, name=item["name"], **where)
        return events + self._named("output_item.done", item=item, output_index=place)

    def error(self, error: ApiError) -> str:
        """Returns the event that ends a stream with an error."""
        found = error.body["error"]
        failed = self._object("failed") | {"error": {"code": found["code"] or found["type"], "message": str(error)}}
        return self._named("failed", response=failed)

    def _object(self, status: str) -> dict[str, Any]:
        asked, choice = self.asked, self.asked.tool_choice or "auto"
        return {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "store": False,
            "temperature": self.temperature,
            "text": {"format": _format(asked)},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in asked.tools],
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": asked.user,
        } | dict.fromkeys(("error", "incomplete_details", "previous_response_id", "usage"))

    def _output(self, answer: Answer, status: str) -> list[dict[str, Any]]:
        """Returns the items of an answer: the reasoning, the text unless there are only calls, and the calls."""
        parts = answer.parts
        items = [self._item("reasoning", parts.reasoning, status)] if parts.reasoning else []
        items += [self._item("message", parts.text, status)] if parts.text or not parts.calls else []
        calls = [{"call_id": call["id"]} | call["function"] for call in parts.calls]
        return items + [
            {"id": call["call_id"].replace("call", "fc"), "type": "function_call", "status": "completed"} | call
            for call in calls
        ]

    def _item(self, kind: str, text: str | None, status: str) -> dict[str, Any]:
        """Returns an item with a text; None: no text yet."""
        content = [] if text is None else [_content(kind, text)]
        more: dict[str, Any] = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
        return {"id": f"{kind[:3]}_{self.id}", "type": kind, "status": status, "content": content} | more


def _format(asked: ResponseRequest) -> dict[str, Any]:
    """Returns the format of the answer as the request gave it."""
    form = asked.text.format if asked.text is not None else None
    if form is None or form.type != "json_schema":
        return {"type": form.type if form is not None else "text"}
    return form.model_dump(by_alias=True)


def _content(kind: str, text: str) -> dict[str, Any]:
    """Returns the content object for the text of an item."""
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
