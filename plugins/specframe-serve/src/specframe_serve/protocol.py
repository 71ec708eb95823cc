"""Request fields of OpenAI's API and vLLM's extensions; unknown fields are refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from specframe_serve.errors import invalid
from specframe_serve.messages import Empty, Many, Message, Texts, joined
from specframe_serve.structured import Form, Strict, Structured
from specframe_serve.tools import TOOLS, Function, NamedTool, Tool, ToolForm

CHOICES = 64
"""Maximum number of answers to one request."""
TOP = 20
"""Maximum number of most likely tokens reported with each token."""
LONGEST = 1 << 20
"""Maximum number of token ids of one prompt."""
BIASES = 1000
"""Maximum number of tokens with a logit bias in one request."""
GREEDY = 1e-6
"""Temperatures below this value count as 0: logits divided by them may overflow float32."""


def _whole(value: Any) -> Any:
    """Converts a float without a fraction to an int: some clients send `top_k: 1.0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _some(value: int) -> int:
    if value == 0:
        raise ValueError("an answer has 1 token or more, or -1: as many as fit")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1)]
Budget = Annotated[Whole, Field(ge=-1), AfterValidator(_some)]
"""Maximum number of tokens of an answer; -1: up to the end of the context."""
Temperature = Annotated[float, Field(ge=0, le=100), AfterValidator(lambda given: given if given >= GREEDY else 0.0)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,11}$")]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""OpenAI's `reasoning_effort`; no effect if the model's template does not read it."""
Tokens = Annotated[list[int], Field(fail_fast=True, max_length=LONGEST)]


class StreamOptions(Strict):
    """Options of a stream: what it contains in addition to the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class Sampled(Strict):
    """Sampling fields with the same name in all APIs. Omitted or null fields follow the recipe."""

    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, lt=2**31), AfterValidator(lambda count: max(count, 0))] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=16)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None

    @property
    def sampled(self) -> dict[str, Any]:
        """Returns the given fields by name."""
        return self.model_dump(include=set(Sampled.model_fields), exclude_none=True)


class Labels(Strict):
    """Fields that change no text: names, labels and priorities; `cache_salt` separates parts of the prefix cache."""

    model: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None  # nothing is ever stored
    cache_salt: Annotated[str, Field(max_length=256)] = ""


class Generation(Sampled, Labels, Structured):
    """The fields of both endpoints."""

    max_tokens: Budget | None = None
    min_tokens: Annotated[Whole, Field(ge=0)] | None = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True, max_length=128)] = Field(default_factory=list)
    ignore_eos: bool | None = None
    n: Annotated[Whole, Field(ge=1, le=CHOICES)] = 1
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: Annotated[dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=BIASES)] | None = (
        None
    )
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    request_id: str | None = None
    cache_prompt: bool | None = None  # llama.cpp's field: the cache never changes a text
    # Accepted only with the values that change nothing.
    length_penalty: Annotated[float, Field(ge=1, le=1)] | None = None
    use_beam_search: Literal[False] | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    include_stop_str_in_output: Literal[False] | None = None
    return_token_ids: Literal[False] | None = None
    priority: Annotated[Whole, Field(ge=0, le=0)] | None = None
    bad_words: Empty | None = None

    @property
    def stops(self) -> list[str]:
        """Returns the stop texts."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def budget(self) -> int | None:
        """Maximum number of answer tokens, None if not given; 1, which is not shown, if only the prompt is wanted."""
        return 1 if self.max_tokens == 0 else self.max_tokens

    @property
    def needed(self) -> int:
        """Number of tokens that the context must have room for after the prompt."""
        return max(self.budget or 1, 1)

    def sampling(self) -> dict[str, Any]:
        """Returns the request's settings by the names of a recipe's section `sampling`."""
        own: dict[str, Any] = {"repetition_penalty": self.repetition_penalty, "logit_bias": self.logit_bias}
        own |= {"stop": self.stops or None, "min_new_tokens": self.min_tokens, "ignore_eos": self.ignore_eos}
        own["grammar"] = None if self.grammar is None else self.grammar[1]
        given = self.sampled | own
        return {name: value for name, value in given.items() if value is not None and name != "seed"}


class Prediction(Strict):
    """A text that the answer probably repeats in part."""

    type: Literal["content"]
    content: Texts


class ChatRequest(Generation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[Many[Message], Field(min_length=1)]
    max_completion_tokens: Budget | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=TOP)] | None = None
    prediction: Prediction | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None

    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=TOOLS)] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: list[Literal["text"]] | None = None
    documents: Empty | None = None
    verbosity: Literal["medium"] | None = None
    reasoning_effort: Effort | None = None
    echo: Literal[False] | None = None
    add_special_tokens: Literal[False] | None = None

    @model_validator(mode="after")
    def _one_beginning(self) -> ChatRequest:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message continues the last turn, add_generation_prompt begins another")
        return self

    _calls: tuple[ToolForm, str | None] | None = PrivateAttr(default=None)

    def enforce(self, calls: ToolForm) -> None:
        """Makes the answer follow the grammar of a call."""
        self._calls = calls, self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None

    @property
    def grammar(self) -> tuple[str, Form] | None:
        """Returns the field that defines a grammar, and the grammar; that of a call if one is required."""
        own = super().grammar
        if self._calls is None:
            return own
        if own is not None:
            raise invalid("tool_choice", f"it requires a call, and {own[0]} names another grammar", 400)
        calls, named = self._calls
        return "tools", {"lark": calls.rules(named, self._loose)}

    @property
    def offered(self) -> list[Function]:
        """Returns the functions that the answer may call."""
        return [] if self.tool_choice == "none" else [tool.function for tool in self.tools]

    @property
    def budget(self) -> int | None:
        """Maximum number of answer tokens; `max_tokens` is the older name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """Number of most likely tokens to report with each token; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def predicted(self) -> str:
        """Returns the text that the answer probably repeats."""
        return "" if self.prediction is None else joined(self.prediction.content)

    @property
    def template(self) -> dict[str, Any]:
        """Returns the options and variables of the chat template."""
        options: dict[str, Any] = {}
        if self.continue_final_message:
            options = {"add_generation_prompt": False, "continue_final_message": True}
        elif self.add_generation_prompt is not None:
            options = {"add_generation_prompt": self.add_generation_prompt}
        if self.offered:
            options["tools"] = [
                tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in self.tools
            ]
        return options | self.chat_template_kwargs


class CompletionRequest(Generation):
    """`POST /v1/completions`."""

    prompt: str | Tokens | Many[str] | Many[Tokens]
    max_tokens: Literal[0] | Budget | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=TOP)] | None = None
    echo: bool = False
    suffix: Annotated[str, Field(max_length=0)] | None = None
    best_of: Whole | None = None
    add_special_tokens: Literal[True] | None = None

    @property
    def likeliest(self) -> int | None:
        """Number of most likely tokens to report with each token; None: no log probabilities."""
        return self.logprobs

    @model_validator(mode="after")
    def _has_an_answer(self) -> CompletionRequest:
        if not self.prompt and not isinstance(self.prompt, str):
            raise invalid("prompt", "there is none")
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens", "it is 0 with echo alone")
        if self.best_of not in (None, self.n):
            raise invalid("best_of", "it must be n; answers are not ranked")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Returns the prompts as texts or token ids."""
        prompt: Any = self.prompt
        one = isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))
        return [prompt] if one else list(prompt)


def require_tokens(tokens: Iterable[int], vocab: int, field: str) -> None:
    """Raises ApiError for token ids outside a vocabulary of `vocab` tokens."""
    if any(not 0 <= token < vocab for token in tokens):
        raise invalid(field, f"token ids are numbers from 0 to {vocab - 1} here")
