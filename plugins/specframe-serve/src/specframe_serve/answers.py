"""The answers to one request, as its rows are decoded."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic

from specframe import Pipeline
from specframe_serve.engine import Closed, Engine, Full
from specframe_serve.errors import ApiError, failed, too_slow
from specframe_serve.jobs import Job, Progress, Speculation, TokenLogprobs
from specframe_serve.protocol import ChatRequest, CompletionRequest
from specframe_serve.text import TextStream


@dataclass(frozen=True)
class Piece:
    """What one cycle added to one answer."""

    index: int
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    finish: str | None
    """`stop` or `length` with the last piece."""


@dataclass
class Answer:
    """One answer so far."""

    index: int
    stream: TextStream
    job: Job
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None

    @property
    def speculation(self) -> Speculation:
        """What drafting did for it."""
        return self.job.speculation


class Answers:
    """All answers to one request; `close` it whatever happens, so that rows that are not wanted any more leave."""

    def __init__(
        self,
        engine: Engine,
        pipeline: Pipeline,
        prompts: Sequence[Sequence[int]],
        asked: ChatRequest | CompletionRequest,
    ) -> None:
        """Submits a row for each prompt and choice. Raises ApiError where they do not fit, or the queue is full."""
        self._engine = engine
        self._queue: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.prompt_tokens = sum(map(len, prompts))
        settings = replace(pipeline.sampling, **asked.sampling())
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        deadline = monotonic() + engine.settings.timeout
        self.all: list[Answer] = []
        for prompt in prompts:
            left = engine.longest - len(prompt)
            if left < (asked.budget or 1):
                raise ApiError(
                    400,
                    f"the prompt has {len(prompt)} tokens and the answer may have {asked.budget or 1}, more than the "
                    f"{engine.longest} that this server decodes",
                    code="context_length_exceeded",
                )
            limits = replace(settings, max_new_tokens=asked.budget or min(settings.max_new_tokens, left))
            for request in pipeline.requests([prompt] * (asked.n or 1), limits, seed):
                index = len(self.all)
                job = Job(request, self._receiver(index), asked.likeliest, deadline)
                self.all.append(Answer(index, TextStream(pipeline.decode, settings.stop), job))
        try:
            engine.submit([answer.job for answer in self.all])
        except Full as full:
            raise ApiError(
                429,
                f"{engine.settings.queue} rows may wait, and this request does not fit among those that do",
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(full.wait)},
            ) from None
        except Closed:
            raise ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down") from None

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return sum(len(answer.tokens) for answer in self.all)

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of all answers as they come. Raises ApiError when a row failed or took too long."""
        left = len(self.all)
        while left:
            index, progress = await self._queue.get()
            answer = self.all[index]
            if answer.finish is not None:  # its stop text was found before the engine found it
                continue
            if progress.ended == "timeout":
                raise too_slow(self._engine.settings.timeout)
            if progress.ended in ("failed", "cancelled"):
                raise failed()
            text = answer.stream.add(progress.tokens)
            if progress.ended is not None:
                text += answer.stream.finish()
                answer.finish = "length" if progress.ended == "length" and not answer.stream.stopped else "stop"
            elif answer.stream.stopped:
                answer.finish = "stop"
                self._engine.cancel([answer.job])
            answer.text += text
            answer.tokens += progress.tokens
            answer.logprobs += progress.logprobs
            left -= answer.finish is not None
            yield Piece(index, text, progress.tokens, progress.logprobs, answer.finish)

    async def finished(self) -> list[Answer]:
        """The answers, once all are done."""
        async for _ in self.pieces():
            pass
        return self.all

    def close(self) -> None:
        """Gives up what is not done."""
        self._engine.cancel([answer.job for answer in self.all if answer.finish is None])

    def _receiver(self, index: int) -> Callable[[Progress], None]:
        def receive(progress: Progress) -> None:
            with suppress(RuntimeError):  # the web side has ended, and with it its loop
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, progress))

        return receive
