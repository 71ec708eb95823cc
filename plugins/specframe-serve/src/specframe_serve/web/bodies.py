"""Request bodies: limited in size and time, limited JSON, and one sentence per error."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from specframe_serve.errors import ApiError

UPLOAD = 30.0
"""Seconds in which the body of a request must arrive."""
FIELDS = 1000
"""Maximum number of fields of one JSON object."""
NAMED = 5
"""Maximum number of unknown fields that a refusal names."""
ECHOED = 80
"""Maximum number of characters of a client's input that a refusal repeats."""
BROWSERS = frozenset(["origin", "referer", "sec-fetch-site", "sec-fetch-mode", "cookie"])
"""Headers of which a browser sends at least one with a request of a web page to another site."""

Asked = TypeVar("Asked", bound=BaseModel)


async def read(request: Request, kind: type[Asked], most: int) -> Asked:
    """Parses a request in a body of at most `most` bytes, in another thread.

    Raises ApiError for a body that is too large or slow, not declared as JSON, or of another form.
    """
    body = await receive(request, most)
    return await asyncio.to_thread(parse, kind, body)


async def receive(request: Request, most: int) -> bytes:
    """Reads the body of a request. Raises ApiError: 413, 408, or 415 if it is not declared as JSON."""
    # A web page may send any other type without a preflight request. Ollama's clients do not declare JSON.
    declares = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    if not declares and (not request.url.path.startswith("/api/") or BROWSERS.intersection(request.headers)):
        raise ApiError(415, "the body must be JSON, with Content-Type: application/json")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(UPLOAD):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large(most)
    except TimeoutError:
        raise ApiError(408, f"the request was not there after {UPLOAD:g} seconds") from None
    except ClientDisconnect:
        raise ApiError(499, "the client left before its request was there") from None
    return bytes(body)


def too_large(most: int) -> ApiError:
    """Returns the error for a body of more than `most` bytes."""
    return ApiError(413, f"a request may have {most} bytes")


def parse(kind: type[Asked], body: bytes) -> Asked:
    """Parses a JSON body as a request; null fields are omitted.

    Raises ApiError: 400 if it is not JSON, 422 with the names of wrong fields.
    """
    try:
        data = json.loads(body, object_pairs_hook=_object, parse_constant=_refuse_constant)
        if b"\\ud" in body.lower():  # unpaired surrogates, which no text contains
            json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {cut(str(error))}") from None
    if not isinstance(data, dict):
        raise ApiError(422, "the body: it must be a JSON object", code="invalid_field")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _refusal(error) from None


def cut(text: str) -> str:
    """Shortens a client's input to what a refusal may repeat, in ASCII."""
    shown = text[:ECHOED].encode("ascii", "backslashreplace").decode()
    return shown if len(text) <= ECHOED else f"{shown}..."


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > FIELDS:
        raise ApiError(422, f"an object of the body has more than {FIELDS} fields", code="invalid_field")
    return {name: value for name, value in pairs if value is not None or name == "const"}  # null in a JSON schema


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _refusal(error: ValidationError) -> ApiError:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    unknown = list(dict.fromkeys(_place(p["loc"]) for p in problems if p["type"] == "extra_forbidden"))
    if unknown:
        listed = ", ".join(unknown[:NAMED]) + (", ..." if len(unknown) > NAMED else "")
        return ApiError(422, f"this server does not know the field {listed}", code="unknown_field", field=unknown[0])
    # Report the member of a union whose validation came furthest.
    first = max(problems, key=lambda problem: len(problem["loc"]))
    place = _place(first["loc"])
    return ApiError(422, f"{place or 'the body'}: {cut(first['msg'])}", code="invalid_field", field=place)


def _place(loc: tuple[int | str, ...]) -> str:
    """Formats the location of a problem: `messages.0.content`, without pydantic's names for members of a union."""
    names = [cut(str(part)) for part in loc if isinstance(part, int) or part.isidentifier()]
    while len(names) > 1 and names[-1] in ("str", "TextPart"):
        names.pop()
    return ".".join(names)
