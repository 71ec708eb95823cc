"""Answers to one request while its rows are decoded."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import NamedTuple

from specframe import Pipeline, Request
from specframe_serve.engine import Engine
from specframe_serve.errors import ApiError, failed, shutting_down, too_long, too_slow
from specframe_serve.jobs import Job, Progress
from specframe_serve.logprobs import TokenLogprobs
from specframe_serve.protocol import ChatRequest, CompletionRequest, require_tokens
from specframe_serve.reading import AnswerParts, AnswerReader, TextStream
from specframe_serve.structured import as_refusal

SILENCE = 15.0
"""Seconds without output after which a stream sends a keep-alive."""


class Piece(NamedTuple):
    """Part of an answer, for example the tokens that one cycle added."""

    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs]


NOTHING = Piece("", (), ())


@dataclass
class Answer:
    """One answer as far as it is decoded."""

    index: int
    stream: TextStream
    job: Job
    reader: AnswerReader
    bare: bool
    """True if the request asks for nothing but the prompt."""
    hidden: frozenset[int] = frozenset()
    """Tokens that end the answer and are not part of its text."""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    sent: AnswerParts = field(default_factory=AnswerParts)
    """Parts that a reply already contains."""
    begun: bool = False
    """True if a stream already contains a piece of the answer."""
    piece: Piece = NOTHING
    """Piece added by the latest cycle."""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None
    """`stop` or `length` once the answer is complete."""
    appeared: int = 0
    """Number of prediction tokens in the answer, each after its predecessor or at the start of both."""

    def __post_init__(self) -> None:
        self._awaited = Counter(pairwise([None, *self.job.request.predicted]))

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens of the answer's prompt."""
        return self.job.request.tokens

    @property
    def whole(self) -> Piece:
        """The whole answer as one piece."""
        return Piece(self.text, self.tokens, self.logprobs)

    @property
    def parts(self) -> AnswerParts:
        """The parts so far; calls have ids."""
        found = self.reader.read(self.text, self.finish is not None)
        calls = [{"id": f"call_{self.id}{place}"} | call for place, call in enumerate(found.calls)]
        return replace(found, calls=calls)

    def unsent(self) -> AnswerParts:
        """Returns the parts added since the last call of this method."""
        before, self.sent = self.sent, self.parts
        return self.sent.after(before)

    def add(self, progress: Progress) -> None:
        """Appends a cycle's tokens."""
        ended = progress.ended is not None
        if self.bare:
            progress = Progress([], [], progress.ended and "length")
        shown = progress.tokens
        if progress.ended == "end" and shown[-1] in self.hidden:
            shown = shown[:-1]
        text = self.stream.add(shown)
        if ended:
            text += self.stream.finish()
        if self.stream.stopped or ended:
            self.finish = "stop" if self.stream.stopped or progress.ended != "length" else "length"
        self.text += text
        for pair in pairwise([self.tokens[-1] if self.tokens else None, *progress.tokens]):
            if self._awaited[pair] > 0:
                self._awaited[pair] -= 1
                self.appeared += 1
        self.tokens += progress.tokens
        self.logprobs += progress.logprobs
        self.piece = Piece(text, progress.tokens, progress.logprobs)


@dataclass(eq=False)
class Answers:
    """Answers to one request. `close` must always be called, so that unwanted rows leave the session."""

    engine: Engine
    pipeline: Pipeline
    prompts: Sequence[Sequence[int]]
    asked: ChatRequest | CompletionRequest
    reader: AnswerReader
    client: str = ""
    prediction: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Submits a row for each prompt and choice. Raises ApiError if a row does not fit or the queue is full."""
        self._salt = "\0".join([self.client, self.asked.cache_salt]) if self.client or self.asked.cache_salt else ""
        self._queue: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.prompt_tokens = sum(map(len, self.prompts))
        self.all = [self._answer(index, request) for index, request in enumerate(self._requests())]
        self.engine.submit([answer.job for answer in self.all])

    def _requests(self) -> list[Request]:
        """Returns the requests of all rows. Raises ApiError for requests beyond the target's or server's limits."""
        asked, pipeline, longest = self.asked, self.pipeline, self.engine.longest
        vocab = pipeline.parts.target.vocab_size
        require_tokens(asked.stop_token_ids, vocab, "stop_token_ids")
        settings = replace(pipeline.sampling, **asked.sampling())
        require_tokens(settings.biases, vocab, "logit_bias")
        require_tokens(self.prediction, vocab, "prediction")
        settings = replace(settings, stop_token_ids=[*settings.stop_token_ids, *asked.stop_token_ids])
        if settings.min_new_tokens:
            settings = replace(settings, stop=[])  # `TextStream` finds stop texts after `min_tokens`
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        requests: list[Request] = []
        for prompt in self.prompts:
            left = longest - len(prompt)
            if left < asked.needed:
                raise too_long(len(prompt), asked.needed, longest)
            to_end = self.engine.settings.to_end and isinstance(asked, ChatRequest)
            most = asked.budget or (-1 if to_end else settings.max_new_tokens)
            limits = replace(settings, max_new_tokens=left if most < 0 else min(most, left))
            requests += pipeline.requests([prompt] * asked.n, limits, seed)
        return [replace(request, predicted=self.prediction[:longest]) for request in requests]

    def _answer(self, index: int, request: Request) -> Answer:
        asked, pipeline = self.asked, self.pipeline
        job = Job(
            request,
            partial(self._receive, index),
            logprobs=asked.likeliest,
            scored=isinstance(asked, CompletionRequest) and asked.echo and asked.likeliest is not None,
            salt=self._salt,
            deadline=monotonic() + self.engine.settings.timeout,
        )
        stops = asked.stops or pipeline.sampling.stop
        hidden = frozenset([*asked.stop_token_ids, *pipeline.sampling.stop_token_ids]) - pipeline.ends
        least = pipeline.sampling.min_new_tokens if asked.min_tokens is None else asked.min_tokens
        bare = isinstance(asked, CompletionRequest) and asked.max_tokens == 0
        return Answer(index, TextStream(pipeline.decode, stops, least), job, self.reader, bare, hidden)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return sum(len(answer.tokens) for answer in self.all)

    @property
    def shows_cached(self) -> bool:
        """True if clients may see how much of a prompt came from the prefix cache."""
        return self.engine.settings.prompt_details

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens taken from the prefix cache, counted once per prompt."""
        return sum(answer.job.found for answer in self.all[:: self.asked.n])

    @property
    def predicted(self) -> tuple[int, int] | None:
        """Numbers of the prediction's tokens that the answers contain and do not contain; None without a prediction."""
        appeared = sum(answer.appeared for answer in self.all)
        return (appeared, len(self.prediction) * len(self.all) - appeared) if self.prediction else None

    async def pieces(self) -> AsyncIterator[Answer | None]:
        """Yields each answer when it gets a piece, and None after a time without any.

        Raises ApiError when a row failed or took too long, or when the server ends.
        """
        left = len(self.all)
        while left:
            try:
                async with asyncio.timeout(SILENCE):  # `wait_for` may lose a cancellation
                    index, progress = await self._queue.get()
            except TimeoutError:
                yield None
                continue
            answer = self.all[index]
            if answer.finish is not None:  # its stop text was found before the engine stopped the row
                continue
            if progress.ended == "timeout":
                raise too_slow(self.engine.settings.timeout)
            if progress.ended == "shutdown":
                raise shutting_down()
            if progress.ended == "cancelled":
                raise ApiError(499, "the client left before its answers were there")
            if progress.ended == "failed":
                raise self._failure(answer)
            answer.add(progress)
            if answer.finish is not None:
                left -= 1
                if progress.ended is None:
                    self.engine.cancel([answer.job])
            yield answer

    def _failure(self, answer: Answer) -> ApiError:
        """Returns the error of a row that failed: of its grammar, in the compiler's words, or of the server."""
        why, grammar = answer.job.request.failure, self.asked.grammar
        return failed() if why is None or grammar is None else as_refusal(*grammar, f"it cannot be followed: {why}")

    async def finished(self) -> None:
        """Waits until all answers are complete. Raises the errors of `pieces`."""
        async for _ in self.pieces():
            pass

    def close(self) -> None:
        """Cancels the unfinished rows."""
        self.engine.cancel([answer.job for answer in self.all if answer.finish is None])

    def _receive(self, index: int, progress: Progress) -> None:
        with suppress(RuntimeError):  # the web server has ended together with its event loop
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, progress))
