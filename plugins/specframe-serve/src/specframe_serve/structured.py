"""Fields that make an answer follow a grammar: OpenAI's `response_format`, and vLLM's extensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from specframe_serve.errors import ApiError, invalid

CHOSEN = 4096
"""Maximum number of choices of one request."""
LONG = 1 << 18
"""Maximum number of characters of a regular expression or of a grammar's rules."""

LOOSE = {"lenient": True, "coerce_one_of": True}
"""llguidance's options for a schema whose unknown keywords are ignored."""
LOOK = re.compile(r"\(\?<?[=!]")

Schema = dict[str, Any]
Form = dict[str, Any]
"""A grammar in the form of a recipe's `sampling.grammar`."""
Expression = Annotated[str, Field(max_length=LONG)]
KINDS = {"json": "json", "regex": "regex", "choice": "choice", "grammar": "lark"}
"""The recipe's names of vLLM's forms."""
Choices = Annotated[list[Annotated[str, Field(max_length=LONG)]], Field(min_length=1, max_length=CHOSEN)]


class Strict(BaseModel):
    """A model that accepts exactly the declared fields and types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class JsonSchema(Strict):
    """The schema of a `response_format`. It is always followed, strict or not."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Schema = Field(default_factory=lambda: {"type": "object"}, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """The format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def form(self) -> Form | None:
        """Returns the grammar, if there is one. Raises ApiError for a schema that is missing or does not belong."""
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise _refusal("response_format", "json_schema stands with the type json_schema, and with no other")
        if self.json_schema is not None:
            return {"json": self.json_schema.schema_}
        return {"json": {"type": "object"}} if self.type == "json_object" else None


class TextFormat(JsonSchema):
    """`text.format` of the Responses API: the schema's fields without the nested object."""

    type: Literal["text", "json_object", "json_schema"]

    @property
    def response_format(self) -> ResponseFormat:
        """Returns the constraint in the form of a chat completion."""
        return ResponseFormat(type=self.type, json_schema=self if self.type == "json_schema" else None)


class StructuredOutputs(Strict):
    """vLLM's `structured_outputs`, of which exactly one field is given."""

    json_: Schema | Expression | None = Field(default=None, alias="json")
    regex: Expression | None = None
    choice: Choices | None = None
    grammar: Expression | None = None
    json_object: bool | None = None


class Structured(Strict):
    """Request fields that define a grammar."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | Expression | None = None
    guided_regex: Expression | None = None
    guided_choice: Choices | None = None
    guided_grammar: Expression | None = None

    _loose: bool = PrivateAttr(default=False)

    def loosen(self) -> None:
        """Removes from the request's schemas what llguidance does not support."""
        self._loose = True

    @property
    def grammar(self) -> tuple[str, Form] | None:
        """Returns the field that defines a grammar, and the grammar; None without one. Raises ApiError for several."""
        given = {f"guided_{name}": (kind, getattr(self, f"guided_{name}")) for name, kind in KINDS.items()}
        if (own := self.structured_outputs) is not None:
            fields = own.model_dump(by_alias=True) | {"json_object": {"type": "object"} if own.json_object else None}
            given |= {f"structured_outputs.{name}": (KINDS.get(name, "json"), value) for name, value in fields.items()}
        found: dict[str, Form] = {name: {kind: value} for name, (kind, value) in given.items() if value is not None}
        if self.response_format is not None and (form := self.response_format.form) is not None:
            found["response_format"] = form
        if len(found) > 1:
            raise _refusal(next(iter(found)), f"an answer follows one grammar, and {' and '.join(found)} name several")
        for name, form in found.items():
            schema = form.get("json")
            return name, {"json": loosened(schema)} if self._loose and isinstance(schema, dict) else form
        return None


def loosened(schema: Schema) -> Schema:
    """Returns a schema whose unknown keywords llguidance ignores, without patterns that use lookaround."""
    own = schema.get("x-guidance")
    try:
        found: Schema = _without_looks(schema)
    except RecursionError:  # nested too deeply; the compiler will refuse it
        found = schema
    return found | {"x-guidance": LOOSE | own if isinstance(own, dict) else LOOSE}


def _without_looks(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_looks(each) for each in value]
    if not isinstance(value, dict):
        return value
    looks = isinstance(value.get("pattern"), str) and LOOK.search(value["pattern"])
    return {name: _without_looks(each) for name, each in value.items() if not (looks and name == "pattern")}


def as_refusal(field: str, form: Mapping[str, Any], reason: str) -> ApiError:
    """Returns the error for a grammar that cannot be followed, with the request's name of the field."""
    return _refusal(field, reason.removeprefix(f"grammar.{next(iter(form))}: "))


def _refusal(field: str, reason: str) -> ApiError:
    return invalid(field, reason, 400, "invalid_grammar")
