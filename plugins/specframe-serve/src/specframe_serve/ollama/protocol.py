"""Request fields of Ollama's API, and conversion to OpenAI's terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from specframe_serve.errors import invalid
from specframe_serve.messages import Empty, Many, Message, image_of
from specframe_serve.protocol import Budget, ChatRequest, CompletionRequest, Count, Sampled, Whole
from specframe_serve.structured import Schema, Strict
from specframe_serve.tools import TOOLS, Tool

LATEST = ":latest"
"""Tag that Ollama's clients append to a name without one."""


class OllamaOptions(Sampled):
    """The field `options`. Omitted options follow the recipe."""

    num_predict: Literal[-2] | Budget | None = None
    num_ctx: Count | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=2)] | None = None

    # Accepted without effect: they place a model in memory, or belong to a sampler that is off.
    num_keep: Whole | None = None  # a text ends at the context's end
    numa: bool | None = None
    low_vram: bool | None = None
    use_mlock: bool | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    num_batch: Whole | None = None
    num_gpu: Whole | None = None
    main_gpu: Whole | None = None
    num_thread: Whole | None = None
    use_mmap: bool | None = None
    # Accepted only with the values that change nothing.
    repeat_last_n: Literal[-1, 64] | None = None  # 64 is Ollama's default; the penalty always covers the whole text
    penalize_newline: Literal[True] | None = None
    typical_p: Annotated[float, Field(ge=1, le=1)] | None = None
    tfs_z: Annotated[float, Field(ge=1, le=1)] | None = None
    mirostat: Annotated[Whole, Field(ge=0, le=0)] | None = None

    def generation(self) -> dict[str, Any]:
        """Returns the settings by OpenAI's and vLLM's names."""
        most = None if self.num_predict is None else max(self.num_predict, -1)
        return self.sampled | {"max_tokens": most, "repetition_penalty": self.repeat_penalty}


Images = Many[str]
"""Images in base64, without a header."""


class OllamaMessage(Message):
    """A turn of a conversation with its images."""

    images: Images = Field(default_factory=list)
    thinking: str | None = None
    tool_name: str | None = None

    @property
    def turn(self) -> dict[str, Any]:
        """Returns the message in the form of chat templates, images before the text."""
        turn = super().turn | ({"reasoning_content": self.thinking} if self.thinking else {})
        if self.tool_name is not None:
            turn |= {"tool_name": self.tool_name}  # for templates that read it; results are in the order of calls
        if not self.images:
            return turn
        text = turn["content"]
        parts = [{"type": "text", "text": text}] if isinstance(text, str) else text
        shown = [{"type": "image", "image": image_of(f"data:image/any;base64,{image}")} for image in self.images]
        return turn | {"content": [*shown, *parts]}


class OllamaRequest(Strict):
    """The fields of both routes. Answers are streamed unless `stream` is false."""

    model: str
    stream: bool = True
    options: OllamaOptions = OllamaOptions()
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: str | float | None = None  # the model always stays loaded
    format: Literal["", "json"] | Schema | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Returns the fields common to all requests, by OpenAI's and vLLM's names."""
        schema = {"type": "object"} if self.format == "json" else self.format or None
        return self.options.generation() | {"model": self.name, "stream": self.stream, "guided_json": schema}

    @property
    def name(self) -> str:
        """The model's name without the tag that Ollama's clients append."""
        return self.model.removesuffix(LATEST)

    def chat_request(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> ChatRequest:
        """Returns the request for a chat completion."""
        effort = self.think if isinstance(self.think, str) else {None: None, True: "medium", False: "none"}[self.think]
        given = self.given | {"reasoning_effort": effort, "tools": list(tools)}
        return ChatRequest(messages=list(messages), **given)


class OllamaChat(OllamaRequest):
    """`POST /api/chat`."""

    messages: Many[OllamaMessage] = Field(default_factory=list)
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=TOOLS)] = Field(default_factory=list)

    def request(self) -> ChatRequest | None:
        """Returns the request in OpenAI's terms; None without a question, with which clients load a model."""
        return self.chat_request(self.messages, self.tools) if self.messages else None


class OllamaGenerate(OllamaRequest):
    """`POST /api/generate`: one question, or with `raw` a text to continue."""

    prompt: str = ""
    system: str = ""
    raw: bool = False
    images: Images = Field(default_factory=list)
    context: Empty | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    template: Annotated[str, Field(max_length=0)] | None = None

    def request(self) -> ChatRequest | CompletionRequest | None:
        """Returns the request in OpenAI's terms: a question, or a text without template. Raises ApiError for images."""
        if not self.prompt:
            return None
        if self.raw:
            if self.images:
                raise invalid("images", "a raw prompt takes none", 400)
            return CompletionRequest(prompt=self.prompt, **self.given)
        system = [Message(role="system", content=self.system)] if self.system else []
        question = OllamaMessage(role="user", content=self.prompt, images=self.images)
        return self.chat_request([*system, question])


class OllamaShow(Strict):
    """`POST /api/show`; `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool = False
