"""Answers from an OpenAI-compatible endpoint, such as that of vLLM, SGLang or llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from specframe.decoding.settings import SamplingSettings
from specframe.kernel.errors import InputError, SpecframeError
from specframe.training.distill.dialogue import Answer, Dialogue
from specframe.training.schedule import mix

KEY = "SPECFRAME_API_KEY"
"""The environment variable whose value is sent as the bearer token."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may be another a moment later."""
ATTEMPTS = 6
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An answerer: `concurrency` conversations at a time, each asked turn by turn."""

    url: str
    """Up to and with the version: http://localhost:8000/v1."""
    model: str
    sampling: SamplingSettings
    seed: int = 0
    concurrency: int = 8
    timeout: float = 600.0
    """Seconds a request may take."""
    key: str | None = None
    pause: float = 1.0
    """Seconds before a request is tried again; they double each time."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--endpoint {self.url} is no address; it looks like http://localhost:8000/v1")
        if self.concurrency < 1:
            raise InputError(f"--concurrency {self.concurrency} asks nothing; use 1 or more")
        if self.timeout <= 0:
            raise InputError(f"--timeout {self.timeout:g} waits for no answer; use a number of seconds above 0")

    def check(self) -> None:
        """Raises InputError when nobody is there, or the key is refused."""
        try:
            self._send("models", None, min(self.timeout, 10.0))
        except HTTPError as error:
            if error.code in (401, 403):
                raise self._refusal(error.code, what_it_says(error)) from None
            # Otherwise somebody is there: not every server lists its models.
        except (OSError, HTTPException) as error:
            raise InputError(f"{self.url} cannot be reached: {reason(error)}; is the server running?") from error

    def play(self, dialogues: Sequence[Dialogue]) -> Iterator[Dialogue]:
        """Each of the dialogues as soon as it is done. Raises SpecframeError when the endpoint gives up."""
        waiting: SimpleQueue[Dialogue | None] = SimpleQueue()
        done: SimpleQueue[Dialogue | Exception] = SimpleQueue()
        stopped = Event()

        def work() -> None:
            while (dialogue := waiting.get()) is not None and not stopped.is_set():
                try:
                    while not dialogue.done and not stopped.is_set():
                        self._ask(dialogue, stopped)
                except Exception as error:  # it is raised again where somebody hears it
                    done.put(error)
                    return
                done.put(dialogue)

        for dialogue in [*dialogues, *[None] * self.concurrency]:
            waiting.put(dialogue)
        for _ in range(self.concurrency):  # daemons: Ctrl-C does not wait for answers in flight
            Thread(target=work, daemon=True).start()
        try:
            for _ in dialogues:
                found = done.get()
                if isinstance(found, Exception):
                    raise found
                yield found
        finally:
            stopped.set()

    def _ask(self, dialogue: Dialogue, stopped: Event) -> None:
        """Asks the dialogue's question, and lets it hear the answer."""
        path, body = self._request(dialogue)
        for attempt in range(1, ATTEMPTS + 1):
            wait = self.pause * 2 ** (attempt - 1)
            try:
                dialogue.hear(self._read(self._send(path, body, self.timeout), dialogue.chat))
                return
            except HTTPError as error:
                if error.code not in PASSING:
                    said = what_it_says(error)
                    if not is_too_long(error.code, said):
                        raise self._refusal(error.code, said) from None
                    dialogue.stop("too long")
                    return
                failure = f"HTTP {error.code} {error.reason}"
                after = error.headers.get("Retry-After", "")
                wait = float(after) if after.isdigit() else wait
            except (OSError, HTTPException) as error:
                failure = reason(error)
            if attempt < ATTEMPTS and stopped.wait(min(wait, LONGEST_PAUSE)):
                return
        raise SpecframeError(f"{self.url}: {failure}, {ATTEMPTS} times in a row; the same command goes on from here")

    def _request(self, dialogue: Dialogue) -> tuple[str, dict[str, Any]]:
        """Where the question goes, and what is sent; settings that not every server knows only where they matter."""
        sampling = self.sampling
        unusual = {
            "top_p": sampling.top_p if sampling.top_p < 1 else None,
            "top_k": sampling.top_k or None,
            "min_p": sampling.min_p or None,
            "stop": sampling.stop or None,
            "ignore_eos": sampling.ignore_eos or None,
        }
        body = {
            "model": self.model,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
            "seed": mix(self.seed, dialogue.line, len(dialogue.answers)) % 2**31,
            **{name: value for name, value in unusual.items() if value is not None},
        }
        if dialogue.chat:
            return "chat/completions", body | {"messages": dialogue.messages}
        return "completions", body | {"prompt": dialogue.turns[0]}

    def _send(self, path: str, body: dict[str, Any] | None, timeout: float) -> bytes:
        """The reply; POST where there is a body. Raises what urllib raises."""
        request = Request(
            f"{self.url.rstrip('/')}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "specframe"},
        )
        if self.key:
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        with urlopen(request, timeout=timeout) as reply:
            found: bytes = reply.read()
            return found

    def _read(self, reply: bytes, chat: bool) -> Answer:
        try:
            found = json.loads(reply)
            choice = found["choices"][0]
            text = choice["message"]["content"] if chat else choice["text"]
            count = (found.get("usage") or {}).get("completion_tokens")
            return Answer(text or "", count, choice.get("finish_reason") == "stop")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(f"{self.url} gives replies without an answer; is it OpenAI-compatible?") from error

    def _refusal(self, status: int, said: str) -> InputError:
        hint = f"; set {KEY}" if status in (401, 403) else ""
        return InputError(f"{self.url} refuses (HTTP {status}): {said}{hint}")


def is_too_long(status: int, message: str) -> bool:
    """Whether a refusal says that the prompt and the budget exceed the context, in any server's words."""
    words = message.lower()
    return status in (400, 413, 422) and "context" in words and any(w in words for w in ("length", "size", "window"))


def what_it_says(error: HTTPError) -> str:
    """The first line of the server's own message, or the status' name."""
    try:
        said = json.load(error)
        found = said.get("error", said.get("detail", said)) if isinstance(said, dict) else said
        text = str(found.get("message", found) if isinstance(found, dict) else found)
    except (OSError, ValueError, HTTPException):
        text = ""
    return (text.strip() or str(error.reason)).splitlines()[0][:300]


def reason(error: BaseException) -> str:
    """What went wrong with a connection, in a few words."""
    inner = error.reason if isinstance(error, URLError) else error
    if isinstance(inner, TimeoutError):
        return "timed out"
    return str(getattr(inner, "strerror", None) or inner) or type(inner).__name__
