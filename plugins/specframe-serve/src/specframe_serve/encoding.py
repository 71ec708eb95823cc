"""Encoding of prompts as token ids, in another thread, one request at a time."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from specframe import Pipeline
from specframe.plugin import text_of
from specframe_serve.errors import ApiError, invalid, too_long
from specframe_serve.protocol import ChatRequest
from specframe_serve.reading import AnswerReader
from specframe_serve.tools import NamedTool, ToolForm, shows_tools, written_turns
from specframe_serve.web.bodies import cut


class Encoder:
    """The tokenizer of a pipeline's target, for conversations and for texts without a template."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._text = replace(pipeline, run=replace(pipeline.run, chat=False))
        self._turn = asyncio.Lock()
        vocabulary = {} if pipeline.tokenizer is None else pipeline.tokenizer.get_vocab()
        self._widest = max(map(len, vocabulary), default=1 << 62)  # characters of the longest token

    async def chat(self, asked: ChatRequest) -> Sequence[int]:
        """Returns the tokens of a conversation. Raises ApiError if the chat template cannot show all of it."""
        shown = [message.turn for message in asked.messages]
        turns = written_turns(shown, self.template, asked.template.get("tools", ()))
        self._require_variables(asked.chat_template_kwargs)
        options = self._effort(asked.reasoning_effort) | asked.template
        return await self._alone(self._encode_turns, turns, options)

    async def predicted(self, asked: ChatRequest) -> Sequence[int]:
        """Returns the tokens of the text that an answer probably repeats."""
        tokenizer = self._pipeline.tokenizer
        if not asked.predicted or tokenizer is None:
            return ()
        return list((await self._alone(partial(tokenizer, asked.predicted, add_special_tokens=False)))["input_ids"])

    def require_short(self, prompts: Iterable[str | Sequence[int]], answer: int, context: int) -> None:
        """Raises ApiError for prompts that do not fit the context; a text counts as if each token were the longest one.

        A text that is too long in any case is thus refused without the tokenizer, which serves one request at a time.
        """
        least = max(len(prompt) // self._widest if isinstance(prompt, str) else len(prompt) for prompt in prompts)
        if least >= context:
            raise too_long(least, answer, context)

    async def texts(self, prompts: Sequence[str | list[int]]) -> list[Sequence[int]]:
        """Returns the tokens of each prompt without a template. Raises ApiError for a prompt without tokens."""
        return await self._alone(lambda: [self._encode(prompt) for prompt in prompts])

    async def _alone(self, encode: Callable[..., Any], *given: Any) -> Any:
        """Encodes in another thread, one request at a time."""
        async with self._turn:
            return await asyncio.to_thread(encode, *given)

    def _encode(self, prompt: str | list[int]) -> Sequence[int]:
        tokenizer = self._pipeline.tokenizer
        if isinstance(prompt, str) and prompt.isspace() and tokenizer is not None:  # an ordinary prompt in this API
            return list(tokenizer(prompt)["input_ids"])
        return _with_tokens(self._text.encode(prompt), "prompt")

    def _encode_turns(self, turns: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Sequence[int]:
        return _with_tokens(self._pipeline.encode_turns(turns, options), "messages")

    @property
    def thinks(self) -> bool:
        """True if the chat template has a switch for thinking."""
        return self._reads("enable_thinking") or self._reads("reasoning_effort")

    def _effort(self, effort: str | None) -> dict[str, Any]:
        """Returns the template's variables for an effort: a switch, a degree, or none if it has neither."""
        if effort is None:
            return {}
        switches = {"enable_thinking": effort != "none", "reasoning_effort": effort}
        return {name: value for name, value in switches.items() if self._reads(name)}

    def _reads(self, name: str) -> bool:
        """Returns whether the chat template has a variable of that name that is not an argument of the tokenizer."""
        tokenizer = self._pipeline.tokenizer
        own = inspect.signature(tokenizer.apply_chat_template).parameters if tokenizer is not None else {}
        return name not in own and re.search(rf"\b{re.escape(name)}\b", self.template) is not None

    @property
    def abilities(self) -> list[str]:
        """Returns the target's abilities other than writing, in Ollama's terms: tools, vision, thinking."""
        images = text_of(self._pipeline.parts.target).image_tokens
        found = {"tools": shows_tools(self.template), "vision": bool(images), "thinking": self.thinks}
        return [name for name, can in found.items() if can]

    def reader(self, asked: ChatRequest, prompt: Sequence[int]) -> AnswerReader:
        """Returns the reader of answers to this prompt. Text that follows a grammar is not reasoning."""
        end = "" if self._pipeline.tokenizer is None else str(self._pipeline.tokenizer.decode(prompt[-8:]))
        return AnswerReader.of("" if asked.grammar is not None else self.template, end, self.tool_form(asked))

    @property
    def template(self) -> str:
        """Returns the chat template of the tokenizer."""
        return str(getattr(self._pipeline.tokenizer, "chat_template", None) or "")

    def tool_form(self, asked: ChatRequest) -> ToolForm | None:
        """Returns the form of calls; None if the answer may have none. Raises ApiError for an unsupported choice."""
        names = [function.name for function in asked.offered]
        choice = asked.tool_choice
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise invalid("tool_choice", "there is no tool of that name", 400)
        if not names:
            if choice == "required":
                raise invalid("tool_choice", "there are no tools", 400)
            return None
        return ToolForm.of(self.template, asked.offered, asked.parallel_tool_calls is not False)

    def _require_variables(self, given: Mapping[str, Any]) -> None:
        """Raises ApiError for a variable that the template does not read."""
        for name in given:
            if not self._reads(name):
                raise invalid("chat_template_kwargs", f"the target's chat template does not read {cut(name)}")


def _with_tokens(tokens: Sequence[int], field: str) -> Sequence[int]:
    """Returns the tokens. Raises ApiError if there are none, for example if a template drops an empty message."""
    if not tokens:
        raise ApiError(400, "a prompt is empty; give it at least one token", code="invalid_field", field=field)
    return tokens
