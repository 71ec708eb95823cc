"""Functions that a model may call: their declaration in a request, and the parsing of calls in an answer.

Chat templates teach two forms: tags, `<tool_call>{...}</tool_call>` (Hermes, Qwen; Qwen-Coder has XML between them),
and a plain JSON object with a name and arguments or a list of calls (Llama, Mistral). For a template without tools, a
system message describes the first form.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from specframe_serve.structured import Schema, Strict, loosened

TOOLS = 128
"""Maximum number of functions of one request."""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
GUIDED = {"whitespace_pattern": r"( |\n[ \t]{0,16})?"}
"""llguidance's options for a schema within a grammar."""
TAUGHT = f"""You may call functions. To call one, write nothing but a JSON object between tags:
{OPEN}
{{"name": "the function's name", "arguments": {{}}}}
{CLOSE}
The functions:
"""
"""The system message for a template without tools; the functions follow, one per line."""
XML_CALL = re.compile(rf"\s*<function=([^>\n]+)>(.*?)</function>\s*{CLOSE}", re.DOTALL)
XML_ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|$))", re.DOTALL)
NAMED_CALL = re.compile(r"(?:\[TOOL_CALLS\])?\s*([\w.-]+)\s*(?:\[ARGS\])?\s*(?=\{)")
"""Mistral's newer form, `name[ARGS]{...}`, whose marks are special tokens and may be missing from a text."""
DEFINITIONS = ("$defs", "definitions")

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(Strict):
    """A function that may be called."""

    name: Name
    description: str | None = None
    parameters: Schema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(Strict):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: Function
    cache_control: dict[str, Any] | None = None


class NamedFunction(Strict):
    """The name of a function."""

    name: Name


class NamedTool(Strict):
    """A tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


def _parsed(arguments: str | dict[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except RecursionError:
        raise ValueError("arguments are nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("arguments are a JSON object as text")
    return found


Arguments = Annotated[str | dict[str, Any], AfterValidator(_parsed)]
"""Arguments of a call: a JSON object, given as such in Ollama's API and as text elsewhere."""


class CalledFunction(Strict):
    """A call in an earlier answer."""

    name: str
    arguments: Arguments
    index: int | None = None


class ToolCall(Strict):
    """A call of an earlier answer."""

    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def call(self) -> dict[str, Any]:
        """Returns the call in the form of chat templates, with its arguments as an object."""
        found = {"type": "function", "function": {"name": self.function.name, "arguments": self.function.arguments}}
        return found if self.id is None else found | {"id": self.id}


@dataclass(frozen=True)
class ToolForm:
    """The form in which a target writes calls."""

    functions: Sequence[Function]
    tagged: bool
    """True if each call is enclosed in tags."""
    arguments: str
    """The key of a call's arguments."""
    several: bool
    """True if an answer may contain several calls."""

    @classmethod
    def of(cls, template: str, functions: Sequence[Function], several: bool) -> ToolForm:
        """Returns the form that a chat template shows to the model; tags for a template that does not read tools."""
        tagged = OPEN in template or not shows_tools(template)
        plain = "parameters" if re.search(r'[\'"]parameters\\?[\'"]\s*:', template) and not tagged else "arguments"
        return cls(functions, tagged, plain, several)

    def rules(self, name: str | None, loose: bool = False) -> str:
        """Returns the grammar of an answer that calls any function, or the named one; `loose`: see `loosened`."""
        functions = [function for function in self.functions if name in (None, function.name)]
        calls = " | ".join(f"f{number}" for number in range(len(functions)))
        lines = [f"f{number}: %json {json.dumps(self._schema(each, loose))}" for number, each in enumerate(functions)]
        if not self.tagged:
            return "\n".join([f"start: {calls}", *lines])
        more = ' ("\\n" call)*' if self.several and name is None else ""
        return "\n".join([f"start: call{more}", f'call: "{OPEN}\\n" ({calls}) "\\n{CLOSE}"', *lines])

    def read(self, text: str, ended: bool = True) -> tuple[str, list[dict[str, Any]]]:
        """Returns the text of an answer, and its calls; malformed calls are text.

        For an incomplete answer, these are the complete calls, and the text that belongs to no call.
        """
        if not self.tagged:
            if not ended:
                return "" if text.lstrip()[:1] in ("", "{", "[") else text, []
            calls = self._untagged(text.strip())
            return (text, []) if calls is None else ("", calls if self.several else calls[:1])
        place = text.find(OPEN)
        if place < 0:
            return text if ended else text[: len(text) - partial_length(text, OPEN)].rstrip(), []
        before, found = text[:place].rstrip(), list[dict[str, Any]]()
        while (call := self._tagged(text, place)) is not None:
            found.append(call[0])
            place = call[1]
        if not found and ended:
            return text, []
        return before + text[place:] if ended else before, found if self.several else found[:1]

    def _tagged(self, text: str, place: int) -> tuple[dict[str, Any], int] | None:
        """Returns the call whose opening tag is at `place`, and the place after it; None if there is none."""
        if not text.startswith(OPEN, place):
            return None
        if (xml := XML_CALL.match(text, place + len(OPEN))) is not None:
            call, end = self._call({"name": xml[1], self.arguments: self._typed(xml[1], xml[2])}), xml.end()
        else:
            found, end = _decode(text, place + len(OPEN))
            end = _skip(text, end)
            call = self._call(found) if text.startswith(CLOSE, end) else None
            end += len(CLOSE)
        return None if call is None else (call, _skip(text, end))

    def _typed(self, name: str, xml: str) -> dict[str, Any]:
        """Returns the arguments of a call in XML: text if the function's parameter is a text, otherwise JSON."""
        known = next((each.parameters.get("properties") for each in self.functions if each.name == name), None)
        properties = known if isinstance(known, dict) else {}
        found: dict[str, Any] = {}
        for key, value in XML_ARGUMENT.findall(xml.strip()):
            kind = properties.get(key)
            parsed, end = (None, -1) if isinstance(kind, dict) and kind.get("type") == "string" else _decode(value, 0)
            found[key] = parsed if end >= 0 and not value[end:].strip() else value
        return found

    def _untagged(self, text: str) -> list[dict[str, Any]] | None:
        """Returns the calls of a text that has nothing else: objects, a list of them, or a list of calls in Python."""
        found: list[Any] = []
        place = 0
        while place < len(text):
            named = NAMED_CALL.match(text, place)
            each, end = _decode(text, place if named is None else named.end())
            if end < 0:
                found, end = (_python_calls(text, self.arguments), len(text)) if not found else ([], len(text))
            elif named is not None:
                found.append({"name": named[1], self.arguments: each})
            else:
                found += each if isinstance(each, list) else [each]
            place = _skip(text, end, "; \n")
        calls = [self._call(each) for each in found]
        return None if not calls or None in calls else [call for call in calls if call is not None]

    def write(self, call: Mapping[str, Any]) -> str:
        """Returns the text of a call with a name and arguments."""
        text = json.dumps({"name": call["name"], self.arguments: call["arguments"]}, ensure_ascii=False)
        return f"{OPEN}\n{text}\n{CLOSE}" if self.tagged else text

    def _schema(self, function: Function, loose: bool) -> Schema:
        """Returns the schema of a call; definitions are moved to where references look for them."""
        own = dict(function.parameters)
        moved = {name: own.pop(name) for name in DEFINITIONS if name in own}
        schema = {
            "x-guidance": GUIDED,
            "type": "object",
            "properties": {"name": {"const": function.name}, self.arguments: own},
            "required": ["name", self.arguments],
            "additionalProperties": False,
            **moved,
        }
        return loosened(schema) if loose else schema

    def _call(self, found: Any) -> dict[str, Any] | None:
        """Returns a call in the form of OpenAI's API, without an id; None unless it calls one of the functions."""
        names = {function.name for function in self.functions}
        arguments = found.get(self.arguments) if isinstance(found, dict) else None
        if not isinstance(arguments, dict) or found.get("name") not in names:
            return None
        called = {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"type": "function", "function": called}


def partial_length(text: str, end: str) -> int:
    """Returns the number of last characters of a text that may begin a stop text or a tag."""
    return next((size for size in range(len(end) - 1, 0, -1) if text.endswith(end[:size])), 0)


def shows_tools(template: str) -> bool:
    """Returns whether a chat template shows tools to the model."""
    return re.search(r"\btools\b", template) is not None


def written_turns(turns: Sequence[Mapping[str, Any]], template: str, tools: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns a conversation's turns with everything that the chat template does not support written as text.

    This concerns functions, as a system message; calls in answers; and results of calls, as a user's turn.
    """
    form, calls_shown = ToolForm.of(template, [], several=True), "tool_calls" in template
    shown = [dict(turn) for turn in turns]
    for turn in shown:
        if "tool_calls" in turn and not calls_shown:
            calls = [form.write(call["function"]) for call in turn.pop("tool_calls")]
            turn["content"] = _joined(turn["content"], "\n".join(calls))
        if turn["role"] == "tool" and not calls_shown and re.search(r"\btool\b", template) is None:
            turn |= {"role": "user", "content": _joined("The function's result:", turn["content"])}
    if tools and not shows_tools(template):
        taught = TAUGHT + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        if shown[0]["role"] == "system":
            shown[0]["content"] = _joined(shown[0]["content"], taught)
        else:
            shown.insert(0, {"role": "system", "content": taught})
    return shown


def _joined(content: str | list[Any], added: str | list[Any]) -> str | list[Any]:
    """Appends content to a message's content."""
    if isinstance(content, str) and isinstance(added, str):
        return f"{content}\n{added}" if content else added
    both = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in (content, added)]
    return [*both[0], *both[1]]


def _decode(text: str, place: int) -> tuple[Any, int]:
    """Returns the JSON value at a place of a text, and its end; -1 if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, _skip(text, place))
    except (ValueError, RecursionError):
        return None, -1


def _skip(text: str, place: int, skipped: str = " \t\r\n") -> int:
    """Returns the place of the next character that is not in `skipped`."""
    return len(text) - len(text[place:].lstrip(skipped)) if place >= 0 else place


def _python_calls(text: str, key: str) -> list[Any]:
    """Returns the calls in a Python list, `[f(a=1), g()]`, as Llama writes it; empty for any other text."""
    try:
        tree = ast.parse(text.removeprefix("[TOOL_CALLS]"), mode="eval").body
        calls = [each for each in tree.elts if isinstance(each, ast.Call)] if isinstance(tree, ast.List) else []
        return [
            {
                "name": ast.unparse(call.func),
                key: {str(each.arg): ast.literal_eval(each.value) for each in call.keywords},
            }
            for call in calls
        ]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []
