"""The fields of requests to Ollama's API, and the same requests in OpenAI's terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from specframe_serve.errors import ApiError
from specframe_serve.messages import PROMPTS, Empty, Message
from specframe_serve.protocol import ChatRequest, CompletionRequest, Count, Penalty, Stop, Whole
from specframe_serve.structured import Schema, Strict
from specframe_serve.tools import TOOLS, Tool


class OllamaOptions(Strict):
    """The field `options`. The recipe holds where one is left out."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[Whole, Field(ge=0, lt=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    num_predict: Count | None = None
    num_ctx: Count | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None

    # Accepted without effect: they place a model in memory.
    num_batch: Whole | None = None
    num_gpu: Whole | None = None
    main_gpu: Whole | None = None
    num_thread: Whole | None = None
    use_mmap: bool | None = None
    # Accepted with the values that change nothing.
    repeat_last_n: Annotated[Whole, Field(ge=-1, le=-1)] | None = None
    typical_p: Annotated[float, Field(ge=1, le=1)] | None = None
    mirostat: Annotated[Whole, Field(ge=0, le=0)] | None = None

    def generation(self) -> dict[str, Any]:
        """The settings by OpenAI's and vLLM's names."""
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "max_tokens": self.num_predict,
            "seed": self.seed,
            "stop": self.stop,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }


Images = Annotated[list[str], Field(fail_fast=True, max_length=PROMPTS)]
"""Images in base64, without a header."""


class OllamaMessage(Message):
    """A turn of a conversation, after its images."""

    images: Images = Field(default_factory=list)
    thinking: Annotated[str, Field(max_length=0)] | None = None
    tool_name: str | None = None

    @property
    def turn(self) -> dict[str, Any]:
        """The message in the form of chat templates, images before the text."""
        turn = super().turn
        if self.tool_name is not None:
            turn |= {"tool_name": self.tool_name}  # for a template that reads it; results stand in the order of calls
        if not self.images:
            return turn
        text = turn["content"]
        parts = [{"type": "text", "text": text}] if isinstance(text, str) else text
        shown = [{"type": "image", "image": f"data:image/any;base64,{image}"} for image in self.images]
        return turn | {"content": [*shown, *parts]}


class OllamaRequest(Strict):
    """The fields of both routes. Answers are streamed unless `stream` is false."""

    model: str
    stream: bool = True
    options: OllamaOptions = OllamaOptions()
    think: Literal[False] | None = None
    keep_alive: str | float | None = None  # the model stays loaded
    format: Literal["", "json"] | Schema | None = None

    @property
    def schema_(self) -> Schema | None:
        """The JSON schema of the answer, if it has a format."""
        if isinstance(self.format, dict):
            return self.format
        return {"type": "object"} if self.format == "json" else None

    def chat_request(
        self, model: str | None, messages: Sequence[Message], thinking: bool, tools: Sequence[Tool] = ()
    ) -> ChatRequest:
        """The request for a chat completion; with `thinking` the chat template is asked not to think."""
        variables = {"enable_thinking": False} if thinking else {}
        given = self.options.generation() | {
            "stream": self.stream,
            "chat_template_kwargs": variables,
            "guided_json": self.schema_,
            "tools": list(tools),
        }
        return ChatRequest(model=model, messages=list(messages), **given)


class OllamaChat(OllamaRequest):
    """`POST /api/chat`."""

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True, max_length=PROMPTS)] = Field(default_factory=list)
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=TOOLS)] = Field(default_factory=list)

    def request(self, model: str | None, thinking: bool) -> ChatRequest:
        """The request in OpenAI's terms."""
        return self.chat_request(model, self.messages, thinking, self.tools)


class OllamaGenerate(OllamaRequest):
    """`POST /api/generate`: one question, or with `raw` a text to continue."""

    prompt: str = ""
    system: str = ""
    raw: bool = False
    images: Images = Field(default_factory=list)
    context: Empty | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    template: Annotated[str, Field(max_length=0)] | None = None

    def request(self, model: str | None, thinking: bool) -> ChatRequest:
        """The request in OpenAI's terms, a conversation of one question."""
        system = [Message(role="system", content=self.system)] if self.system else []
        question = OllamaMessage(role="user", content=self.prompt, images=self.images)
        return self.chat_request(model, [*system, question], thinking)

    def completion(self, model: str | None) -> CompletionRequest:
        """The request in OpenAI's terms, a text without a template. Raises ApiError for images."""
        if self.images:
            raise ApiError(400, "images: a raw prompt takes none", code="invalid_field", field="images")
        given = self.options.generation() | {"stream": self.stream, "guided_json": self.schema_}
        return CompletionRequest(model=model, prompt=self.prompt, **given)


class OllamaShow(Strict):
    """`POST /api/show`; `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool = False
