"""Functions that a model may call: how a request declares them, and how calls are read from an answer.

Two forms are known, by the target's chat template: that of Hermes and Qwen, `<tool_call>{...}</tool_call>`, and a plain
JSON object with a name and arguments, as Llama's has it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from specframe_serve.structured import Schema, Strict

TOOLS = 128
"""The most functions of one request."""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
GUIDED = {"whitespace_pattern": r"( |\n[ \t]{0,16})?"}
"""llguidance's options of a schema within a grammar."""
DEFINITIONS = ("$defs", "definitions")

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(Strict):
    """A function that may be called."""

    name: Name
    description: str | None = None
    parameters: Schema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(Strict):
    """A tool; functions are the only ones."""

    type: Literal["function"]
    function: Function
    cache_control: dict[str, Any] | None = None


class NamedFunction(Strict):
    """The name of a function."""

    name: Name


class NamedTool(Strict):
    """A tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Strict):
    """A call in an earlier answer; its arguments are a JSON object as text, or as they are in Ollama's API."""

    name: str
    arguments: str | dict[str, Any]
    index: int | None = None


class ToolCall(Strict):
    """A call of an earlier answer."""

    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def call(self) -> dict[str, Any]:
        """The call as chat templates take it: its arguments are an object. Raises ValueError for text that is none."""
        found = {"type": "function", "function": {"name": self.function.name, "arguments": self.require_arguments()}}
        return found if self.id is None else found | {"id": self.id}

    def require_arguments(self) -> dict[str, Any]:
        """The arguments as an object. Raises ValueError for text that is none."""
        arguments = self.function.arguments
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except RecursionError:
                raise ValueError("arguments are nested too deeply") from None
        if not isinstance(arguments, dict):
            raise ValueError("arguments are a JSON object as text")
        return arguments


@dataclass(frozen=True)
class ToolForm:
    """The form in which a target writes its calls."""

    functions: Sequence[Function]
    tagged: bool
    """True if each call stands between tags."""
    arguments: str
    """The name of a call's arguments, in a call without tags."""
    several: bool
    """True if an answer may have several calls."""

    @classmethod
    def of(cls, template: str, functions: Sequence[Function], several: bool) -> ToolForm | None:
        """The form that a chat template shows to the model; None for a template that does not read tools."""
        if re.search(r"\btools\b", template) is None:
            return None
        tagged = OPEN in template
        plain = "parameters" if re.search(r'[\'"]parameters\\?[\'"]\s*:', template) and not tagged else "arguments"
        return cls(functions, tagged, plain, several)

    def rules(self, name: str | None) -> str:
        """The grammar of an answer that calls some function, or that of this name."""
        functions = [function for function in self.functions if name in (None, function.name)]
        calls = " | ".join(f"f{number}" for number in range(len(functions)))
        lines = [f"f{number}: %json {json.dumps(self._schema(each))}" for number, each in enumerate(functions)]
        if not self.tagged:
            return "\n".join([f"start: {calls}", *lines])
        more = ' ("\\n" call)*' if self.several and name is None else ""
        return "\n".join([f"start: call{more}", f'call: "{OPEN}\\n" ({calls}) "\\n{CLOSE}"', *lines])

    def read(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """The text of an answer before its calls, and these; all of it where what should be a call is none."""
        if not self.tagged:
            call = self._call(text)
            return (text, []) if call is None else ("", [call])
        before, *parts = text.split(OPEN)
        calls = [self._call(part.partition(CLOSE)[0]) if CLOSE in part else None for part in parts]
        if not calls or None in calls:
            return text, []
        found = [call for call in calls if call is not None]
        return before.rstrip(), found if self.several else found[:1]

    def open_text(self, text: str) -> str:
        """The beginning of an unfinished answer that belongs to no call, whatever follows."""
        if not self.tagged:
            return "" if text.lstrip()[:1] in ("", "{") else text
        if OPEN in text:
            return text.partition(OPEN)[0].rstrip()
        held = next((size for size in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:size])), 0)
        return text[: len(text) - held].rstrip()

    def _schema(self, function: Function) -> Schema:
        """The schema of a call; definitions move to where references look for them."""
        own = dict(function.parameters)
        moved = {name: own.pop(name) for name in DEFINITIONS if name in own}
        return {
            "x-guidance": GUIDED,
            "type": "object",
            "properties": {"name": {"const": function.name}, self._key: own},
            "required": ["name", self._key],
            "additionalProperties": False,
            **moved,
        }

    def _call(self, text: str) -> dict[str, Any] | None:
        """A call in the form of OpenAI's API; None for a text that is no call of one of the functions."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        names = {function.name for function in self.functions}
        if not isinstance(found, dict) or found.get("name") not in names or not isinstance(found.get(self._key), dict):
            return None
        called = {"name": found["name"], "arguments": json.dumps(found[self._key], ensure_ascii=False)}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": called}

    @property
    def _key(self) -> str:
        return "arguments" if self.tagged else self.arguments
