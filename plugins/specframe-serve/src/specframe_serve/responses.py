"""Request fields of `POST /v1/responses`, OpenAI's newer API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from specframe_serve.errors import invalid
from specframe_serve.messages import Many, Message, Texts, joined, tagger
from specframe_serve.protocol import Budget, ChatRequest, Effort, Labels, Sampled, Whole
from specframe_serve.structured import Strict, TextFormat
from specframe_serve.tools import TOOLS, CalledFunction, Function, NamedFunction, NamedTool, Tool, ToolCall

Included = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]
"""Optional parts of a reply that a request may list; replies have none of them."""


class OutputItem(Strict):
    """Fields common to every item of an earlier reply's output."""

    id: str | None = None
    status: str | None = None


class MessageItem(OutputItem, Message):
    """A turn of the input, or a message of an earlier reply's output."""

    type: Literal["message"] = "message"
    phase: str | None = None


class CallItem(OutputItem, CalledFunction):
    """A function call in an earlier reply's output."""

    type: Literal["function_call"]
    call_id: str

    @property
    def call(self) -> ToolCall:
        """Returns the call in the form of a chat completion."""
        return ToolCall(id=self.call_id, function=self)


class ResultItem(OutputItem):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Texts

    @property
    def turn(self) -> Message:
        """Returns the result in the form of a chat completion."""
        return Message(role="tool", content=joined(self.output), tool_call_id=self.call_id)


class ReasoningItem(OutputItem):
    """The reasoning in an earlier reply's output; the model does not see it again."""

    type: Literal["reasoning"]
    content: list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


Item = Annotated[  # tags are not field names
    Annotated[MessageItem, Tag("a message")]
    | Annotated[CallItem, Tag("a call")]
    | Annotated[ReasoningItem, Tag("a thought")]
    | Annotated[ResultItem, Tag("a result")],
    Discriminator(
        tagger({"function_call": "a call", "function_call_output": "a result", "reasoning": "a thought"}, "a message")
    ),
]


class FunctionTool(Function):
    """A function that may be called; other tools are refused."""

    type: Literal["function"]

    @property
    def tool(self) -> Tool:
        """Returns the function in the form of a chat completion."""
        return Tool(type="function", function=self)


class NamedFunctionTool(NamedFunction):
    """The function that must be called."""

    type: Literal["function"]


class TextOptions(Strict):
    """The format of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Strict):
    """The effort of an answer."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class ResponseRequest(Sampled, Labels):
    """The request fields. Nothing is stored, so every request contains the whole conversation."""

    input: str | Annotated[Many[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Budget | None = None
    reasoning: Reasoning | None = None
    stream: bool = False
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=TOOLS)] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None

    # Accepted only with the values that change nothing.
    background: Literal[False] | None = None
    truncation: Literal["auto", "disabled"] | None = None  # a conversation that is too long is refused
    text: TextOptions | None = None
    include: list[Included] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=0)] | None = None

    def chat(self) -> ChatRequest:
        """Returns the request for a chat completion. Raises ApiError if the input is no conversation."""
        form = self.text.format if self.text is not None else None
        turns, choice = self._turns(), self.tool_choice
        if not turns:
            raise invalid("input", "there is no message in it")
        return ChatRequest(
            messages=turns,
            max_completion_tokens=self.max_output_tokens,
            reasoning_effort=self.reasoning.effort if self.reasoning is not None else None,
            response_format=form.response_format if form is not None else None,
            tools=[tool.tool for tool in self.tools],
            tool_choice=NamedTool(type="function", function=choice) if isinstance(choice, NamedFunction) else choice,
            **self.sampled | self.model_dump(include={"model", "stream", "cache_salt", "parallel_tool_calls"}),
        )

    def _turns(self) -> list[Message]:
        """Returns the turns of the conversation; an answer's text and calls, separate items, form one turn."""
        turns = [] if self.instructions is None else [Message(role="system", content=self.instructions)]
        if isinstance(self.input, str):
            return [*turns, Message(role="user", content=self.input)]
        for item in self.input:
            if isinstance(item, MessageItem):
                turns.append(item)
            elif isinstance(item, ResultItem):
                turns.append(item.turn)
            elif isinstance(item, CallItem):
                if not turns or turns[-1].role != "assistant":
                    turns.append(Message(role="assistant", content=""))
                if len(turns[-1].tool_calls) == TOOLS:
                    raise invalid("input", f"an answer has at most {TOOLS} calls")
                turns[-1].tool_calls.append(item.call)
        return turns
