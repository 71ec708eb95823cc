"""Error replies to clients: one sentence, never a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any


class ApiError(Exception):
    """A reply with an error status, in OpenAI's form."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Creates the error; `field` is the wrong field of the request, OpenAI's `param`."""
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": field, "code": code}}


def invalid(field: str, message: str, status: int = 422, code: str = "invalid_field") -> ApiError:
    """Returns the error for a field that cannot be followed."""
    return ApiError(status, f"{field}: {message}", code=code, field=field)


def failed() -> ApiError:
    """Returns the error for a request that ended by an error in the server; the log has the details."""
    return ApiError(500, "the server failed on this request; the reason is in its log", kind="server_error")


def too_slow(seconds: float) -> ApiError:
    """Returns the error for a request that took too long."""
    return ApiError(504, f"the request was not done after {seconds:g} seconds", kind="timeout", code="timeout")


def shutting_down() -> ApiError:
    """Returns the error for a request that was ended or refused because the server shuts down."""
    return ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down")


def queue_full(rows: int, wait: float) -> ApiError:
    """Returns the error for a request that does not fit into the queue; it asks the client to wait `wait` seconds."""
    full = f"{rows} rows may wait, and this request does not fit among those that do"
    again = {"Retry-After": str(ceil(wait)), "Retry-After-Ms": str(ceil(wait * 1000))}
    return ApiError(429, full, kind="rate_limit_error", code="queue_full", headers=again)


def too_long(prompt: int, answer: int, context: int) -> ApiError:
    """Returns the error for a request longer than the context, in the wording that clients search for."""
    message = (
        f"This model's maximum context length is {context} tokens. However, you requested {prompt + answer} tokens "
        f"({prompt} in the messages, {answer} in the completion). Please reduce the length of the messages or "
        "completion."
    )
    return ApiError(400, message, code="context_length_exceeded")
