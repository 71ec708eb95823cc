"""Answers from an OpenAI-compatible endpoint, such as that of vLLM, SGLang or llama.cpp."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_exponential

from specframe import InputError, SpecframeError
from specframe.plugin import has_secrets, mix
from specframe_distill.dialogue import Dialogue, DialogueAnswer
from specframe_distill.replies import EndpointReply, Passing, Refusal, Unusable, read_answer, read_reason

if TYPE_CHECKING:
    from specframe.plugin import SamplingSettings

KEY = "SPECFRAME_API_KEY"
"""The environment variable whose value is sent as the bearer token."""
ATTEMPTS = 6
LONGEST_PAUSE = 60.0
PATIENCE = 32
"""Number of refused prompts without any answer from which the settings, not the prompts, are taken to be refused."""
LARGEST = 2**26
"""Maximum number of bytes of a reply."""

HIDDEN = "***"
"""Replacement for a key."""
REFUSED = "refused: "
"""Prefix of the reason in a refused dialogue."""

FAILURES = (httpx2.HTTPError, httpx2.InvalidURL, OSError, TimeoutError)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An answerer that holds `concurrency` conversations at a time, turn by turn."""

    url: str
    """Address including the version: http://localhost:8000/v1."""
    model: str
    sampling: SamplingSettings
    seed: int = 0
    concurrency: int = 8
    timeout: float = 600.0
    """Seconds for an answer, from the first byte of the request to the last of the reply."""
    key: str | None = field(default=None, repr=False)
    pause: float = 1.0
    """Seconds before a request is repeated; they double each time."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The field `chat_template_kwargs` of chats, if any."""
    answered: bool = False
    """True if it has given answers under these settings; a refusal is then due to the prompt."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if has_secrets(self.url) or "@" in self.url:
            raise InputError(
                f"--endpoint takes an address without user, password or query; put the key into {KEY} instead"
            )
        if not valid:
            raise InputError(f"--endpoint {self.url} is no address; it looks like http://localhost:8000/v1")
        if self.sampling.no_repeat_ngram_size or self.sampling.bad_words_ids:
            raise InputError(
                "--endpoint cannot pass on sampling.no_repeat_ngram_size and sampling.bad_words_ids, which no server's "
                "requests have; leave them out"
            )
        if self.sampling.grammar is not None:
            raise InputError("--endpoint cannot pass on sampling.grammar; leave it out")
        if self.concurrency < 1:
            raise InputError(f"--concurrency {self.concurrency} asks nothing; use 1 or more")
        if not self.timeout > 0:
            raise InputError(f"--timeout {self.timeout:g} waits for no answer; use a number of seconds above 0")

    def check(self) -> None:
        """Raises InputError if no server replies, or if the key is refused."""

        async def ask() -> EndpointReply:
            async with self._client() as client:
                return await self._send(client, "models", None, min(self.timeout, 10.0))

        try:
            reply = asyncio.run(ask())
        except FAILURES as error:
            raise InputError(f"{self.url} cannot be reached: {reason(error)}; is the server running?") from error
        if reply.status in (401, 403):  # any other reply shows a server: not every server lists its models
            raise self._refusal(f"HTTP {reply.status}: {read_reason(reply)}")

    def answer(self, dialogues: Sequence[Dialogue]) -> Iterator[Dialogue]:
        """Yields each dialogue when it is done, refused ones included.

        Raises SpecframeError when the endpoint gives up, after the conversations in flight have ended, and InputError
        when it refuses every prompt.
        """
        refused: list[Dialogue] = []
        answered = self.answered
        with asyncio.Runner() as runner:  # it runs while this generator waits for a dialogue
            done: asyncio.Queue[Dialogue | None] = asyncio.Queue()
            work = runner.get_loop().create_task(self._answer(dialogues, done))
            while (dialogue := runner.run(done.get())) is not None:
                refused.append(dialogue)
                answered = answered or not is_refused(dialogue)
                if answered:
                    yield from refused
                    refused.clear()
                elif len(refused) == PATIENCE:
                    break
            else:
                runner.run(_result(work))
        if refused:
            raise self._refusal(str(refused[0].stopped).removeprefix(REFUSED))

    async def _answer(self, dialogues: Sequence[Dialogue], done: asyncio.Queue[Dialogue | None]) -> None:
        """Queues each finished dialogue, and None at the end. Raises the first failure."""
        left, failures = iter(dialogues), list[SpecframeError]()

        async def work(client: httpx2.AsyncClient) -> None:
            while not failures and (dialogue := next(left, None)) is not None:
                try:
                    while not dialogue.done:
                        await self._ask(client, dialogue, failures)
                except SpecframeError as error:
                    failures.append(error)
                else:
                    done.put_nowait(dialogue)

        try:
            async with self._client() as client:
                await asyncio.gather(*(work(client) for _ in range(min(self.concurrency, len(dialogues)))))
        finally:
            done.put_nowait(None)
        if failures:
            raise failures[0]

    async def _ask(self, client: httpx2.AsyncClient, dialogue: Dialogue, failures: Sequence[SpecframeError]) -> None:
        """Sends the dialogue's question and adds the answer; repeats nothing after a failure of another dialogue."""
        path, body = self._request(dialogue)
        try:
            async for attempt in self._attempts(failures):
                with attempt:
                    dialogue.add(await self._read(client, path, body, dialogue.chat))
        except Refusal as refusal:
            refused = str(refusal)
            dialogue.stop(refused if refused == "too long" else f"{REFUSED}{self._hide(refused)}")
        except Unusable as error:
            raise self._refusal(str(error)) from None
        except Passing as error:
            raise SpecframeError(
                f"{self.url}: {self._hide(str(error))}, {ATTEMPTS} times in a row; the same command goes on from here"
            ) from error

    def _attempts(self, failures: Sequence[SpecframeError]) -> AsyncRetrying:
        """Yields up to ATTEMPTS tries of a request, none after another's failure, with the server's pauses."""
        backoff = wait_exponential(multiplier=self.pause, max=LONGEST_PAUSE)

        def wait(state: RetryCallState) -> float:
            failed = state.outcome.exception() if state.outcome else None
            after = failed.after if isinstance(failed, Passing) else None
            return backoff(state) if after is None else min(after, LONGEST_PAUSE)

        last = stop_after_attempt(ATTEMPTS)
        return AsyncRetrying(
            stop=lambda state: bool(failures) or last(state),
            retry=retry_if_exception_type(Passing),
            wait=wait,
            reraise=True,
        )

    async def _read(self, client: httpx2.AsyncClient, path: str, body: Mapping[str, Any], chat: bool) -> DialogueAnswer:
        """Returns the answer to a request. Raises the errors of `read_answer`, and Passing for a failed connection."""
        try:
            reply = await self._send(client, path, body, self.timeout)
        except FAILURES as error:
            raise Passing(reason(error)) from error
        return read_answer(reply, chat)

    def _request(self, dialogue: Dialogue) -> tuple[str, dict[str, Any]]:
        """Returns the path and the body of a request; settings that some servers lack are included only when needed."""
        sampling = self.sampling
        unusual = {
            "top_p": sampling.top_p if sampling.top_p < 1 else None,
            "top_k": sampling.top_k or None,
            "min_p": sampling.min_p or None,
            "stop": sampling.stop or None,
            "repetition_penalty": sampling.repetition_penalty if sampling.repetition_penalty != 1 else None,
            "frequency_penalty": sampling.frequency_penalty or None,
            "presence_penalty": sampling.presence_penalty or None,
            "logit_bias": sampling.logit_bias or None,
            "min_tokens": sampling.min_new_tokens or None,
            "stop_token_ids": sampling.stop_token_ids or None,
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
            return "chat/completions", body | {"messages": dialogue.messages, **self.template}
        return "completions", body | {"prompt": dialogue.turns[0]}

    def _client(self) -> httpx2.AsyncClient:
        headers = {"Content-Type": "application/json", "User-Agent": "specframe"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            # The time of the whole request is limited, in _send, not that of single steps.
            return httpx2.AsyncClient(headers=headers, timeout=None, limits=httpx2.Limits(max_connections=None))
        except (
            ValueError,
            ImportError,
            httpx2.InvalidURL,
        ):  # their messages contain the proxy's address and password
            raise InputError(
                "the proxy that the environment names cannot be used; see HTTP_PROXY and ALL_PROXY"
            ) from None

    async def _send(
        self, client: httpx2.AsyncClient, path: str, body: Mapping[str, Any] | None, timeout: float
    ) -> EndpointReply:
        """Returns the complete reply; the method is POST if there is a body. Raises one of FAILURES."""
        content = None if body is None else json.dumps(body).encode()
        address = f"{self.url.rstrip('/')}/{path}"
        read = bytearray()
        async with (
            asyncio.timeout(timeout),
            client.stream("GET" if body is None else "POST", address, content=content) as reply,
        ):
            async for part in reply.aiter_bytes():
                read += part
                if len(read) > LARGEST:
                    raise OSError(f"a reply of more than {LARGEST >> 20} MiB")
            return EndpointReply(reply.status_code, bytes(read), reply.headers.get("Retry-After", ""))

    def _refusal(self, reason: str) -> InputError:
        hint = f"; set {KEY}" if reason.startswith(("HTTP 401", "HTTP 403")) else ""
        return InputError(f"{self.url} gives no answer: {self._hide(reason)}{hint}")

    def _hide(self, text: str) -> str:
        """Returns the server's text without the key, which some servers repeat."""
        return text.replace(self.key, HIDDEN) if self.key else text


def is_refused(dialogue: Dialogue) -> bool:
    """Returns whether the server refused the dialogue before any answer."""
    return not dialogue.answers and str(dialogue.stopped).startswith(REFUSED)


def read_key(environment: Mapping[str, str]) -> str | None:
    """Returns the key in the environment, or None. Raises InputError, without the key, for one that cannot be sent."""
    key = environment.get(KEY, "").strip()
    if not all(33 <= ord(character) < 127 for character in key):
        raise InputError(f"{KEY} holds characters that a key cannot have, such as spaces or quotes of a text editor")
    return key or None


def reason(error: BaseException | None) -> str:
    """Returns a short reason for a connection's failure: the operating system's, if known."""
    if isinstance(error, TimeoutError) and not error.errno:
        return "timed out"
    found, words = error, str(error).strip()
    while found is not None:
        if isinstance(found, ConnectionError) and found.errno:
            return os.strerror(found.errno)  # asyncio's message would repeat the address
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        found = found.__cause__ or found.__context__
    return words or type(error).__name__


async def _result(task: asyncio.Task[None]) -> None:
    await task
