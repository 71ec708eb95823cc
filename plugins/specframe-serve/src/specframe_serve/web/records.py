"""One log line per request, as text or JSON."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
from dataclasses import dataclass, field
from time import monotonic, strftime
from typing import Any

from starlette.types import Scope

from specframe_serve.answers import Answers

log = logging.getLogger("specframe.serve")
HEALTH = ("/health", "/metrics")
"""Paths that probes request."""
ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Matches a valid request id given by a client."""


@dataclass
class RequestRecord:
    """The log record of a request."""

    id: str
    method: str
    path: str
    status: int | None = None
    answers: Answers | None = None
    """The answers decoded for it; None if there are none."""
    started: float = field(default_factory=monotonic)

    @classmethod
    def of(cls, scope: Scope, given: str | None) -> RequestRecord:
        """Creates the record of a request and attaches it to the request; `given` is the client's request id."""
        name = given if given is not None and ID.fullmatch(given) else secrets.token_hex(12)
        scope["specframe.record"] = record = cls(name, scope["method"], scope["path"])
        return record

    def write(self) -> None:
        """Logs the request after its reply; probes, which come every few seconds, at level debug."""
        level = logging.DEBUG if self.path in HEALTH else logging.INFO
        if not log.isEnabledFor(level):
            return
        fields: dict[str, Any] = {"id": self.id, "method": self.method, "path": self.path, "status": self.status}
        fields["seconds"] = round(monotonic() - self.started, 4)
        if (answers := self.answers) is not None:
            jobs = [answer.job for answer in answers.all]
            firsts = [job.first - self.started for job in jobs if job.first is not None]
            fields |= {
                "prompt": answers.prompt_tokens,
                "tokens": answers.completion_tokens,
                "first": round(min(firsts), 4) if firsts else None,
                "cached": answers.cached_tokens,
                "reason": ",".join(sorted({answer.finish or "unfinished" for answer in answers.all})),
            }
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
        log.log(level, "%s", text, extra={"own": fields})


class JsonLines(logging.Formatter):
    """Formats each log line as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line: time, level, and the fields of a request or the message."""
        fields = getattr(record, "own", None) or {"message": record.getMessage()}
        if record.exc_info:
            fields = fields | {"traceback": self.formatException(record.exc_info)}
        time = strftime("%Y-%m-%dT%H:%M:%S%z", self.converter(record.created))
        return json.dumps({"time": time, "level": record.levelname} | fields)


def log_to_stderr(level: str, form: str) -> None:
    """Sends the server's log to standard error, from a level on, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(level.upper())
