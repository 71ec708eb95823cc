"""What a request may hold, after OpenAI's API and vLLM's extensions; a field that is not here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specframe_serve.errors import ApiError

CHOICES = 64
"""The most answers that one request may ask for."""
TOP = 20
"""The most likeliest tokens that may be reported with each token."""

Count = Annotated[int, Field(ge=1)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Neutral = Annotated[float, Field(ge=0, le=0)] | None
Asked = TypeVar("Asked", bound="Generation")


class Strict(BaseModel):
    """Fields of exactly these names and types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """What a stream holds in addition to the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Generation(Strict):
    """What both endpoints take. What is left out or null is the recipe's."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    max_tokens: Count | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    presence_penalty: Neutral = None
    frequency_penalty: Neutral = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @property
    def stops(self) -> list[str]:
        """The stop texts."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def budget(self) -> int | None:
        """The most tokens of an answer."""
        return self.max_tokens

    def sampling(self) -> dict[str, Any]:
        """The settings that the request gives, by the names of a recipe's section `sampling`."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "min_p": self.min_p,
            "stop": self.stops or None,
            "ignore_eos": self.ignore_eos,
        }
        return {name: value for name, value in given.items() if value is not None}


class TextPart(Strict):
    """A part of a message; images and sounds are refused."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def turn(self) -> dict[str, str]:
        """Role and text, as chat templates take them."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ResponseFormat(Strict):
    """Text is the only format."""

    type: Literal["text"]


class ChatRequest(Generation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None
    response_format: ResponseFormat | None = None

    @property
    def budget(self) -> int | None:
        """The most tokens of an answer; `max_tokens` is the older name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """How many likeliest tokens to report with each token; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Generation):
    """`POST /v1/completions`."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    best_of: int | None = None

    @property
    def likeliest(self) -> int | None:
        """How many likeliest tokens to report with each token; None: no log probabilities."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, texts or token ids."""
        prompt: Any = self.prompt
        one = isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))
        return [prompt] if one else list(prompt)


def read(kind: type[Asked], body: bytes) -> Asked:
    """The request of a body of JSON. Raises ApiError: 400 for what is not JSON, 422 that names the wrong fields."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        if problems[0]["type"] == "json_invalid":
            raise ApiError(400, f"the body is not JSON: {problems[0]['msg']}") from None
        unknown = [_place(p["loc"]) for p in problems if p["type"] == "extra_forbidden"]
        if unknown:
            listed = ", ".join(dict.fromkeys(unknown))
            raise ApiError(
                422, f"this server does not know the field {listed}", code="unknown_field", field=unknown[0]
            ) from None
        # Of a union's members the one that came furthest is meant.
        first = max(problems, key=lambda problem: len(problem["loc"]))
        place = _place(first["loc"])
        raise ApiError(422, f"{place or 'the body'}: {first['msg']}", code="invalid_field", field=place) from None


def _place(loc: tuple[int | str, ...]) -> str:
    """Where a problem is: `messages.0.content`, without pydantic's words for the members of a union."""
    kept = [str(part) for part in loc if isinstance(part, int) or part.isidentifier()]
    while len(kept) > 1 and kept[-1] in ("str", "TextPart"):
        kept.pop()
    return ".".join(kept)
