"""Answers to clients that do not get what they asked for: one sentence, never a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any


class ApiError(Exception):
    """An answer with an error status, in OpenAI's form."""

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
        """`field` is the request's field that is wrong, OpenAI's `param`."""
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": field, "code": code}}


def invalid(field: str, message: str, status: int = 422, code: str = "invalid_field") -> ApiError:
    """The answer to a request with a field that cannot be followed."""
    return ApiError(status, f"{field}: {message}", code=code, field=field)


def failed() -> ApiError:
    """The answer to a request that an error in the server ended: the log has the rest."""
    return ApiError(500, "the server failed on this request; the reason is in its log", kind="server_error")


def too_slow(seconds: float) -> ApiError:
    """The answer to a request that took too long."""
    return ApiError(504, f"the request was not done after {seconds:g} seconds", kind="timeout", code="timeout")


def shutting_down() -> ApiError:
    """The answer to a request that the end of the server ended, or kept out."""
    return ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down")


def queue_full(rows: int, wait: float) -> ApiError:
    """The answer to a request that does not fit into the queue; its client is asked to wait for `wait` seconds."""
    full = f"{rows} rows may wait, and this request does not fit among those that do"
    again = {"Retry-After": str(ceil(wait)), "Retry-After-Ms": str(ceil(wait * 1000))}
    return ApiError(429, full, kind="rate_limit_error", code="queue_full", headers=again)


def too_long(prompt: int, answer: int, context: int) -> ApiError:
    """The answer to a request of more tokens than the context has, in the words that clients look for."""
    message = (
        f"This model's maximum context length is {context} tokens. However, you requested {prompt + answer} tokens "
        f"({prompt} in the messages, {answer} in the completion). Please reduce the length of the messages or "
        "completion."
    )
    return ApiError(400, message, code="context_length_exceeded")
