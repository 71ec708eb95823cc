"""The routes: what comes in over HTTP, and what goes out."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specframe import InputError, Pipeline
from specframe_serve.answers import Answers
from specframe_serve.engine import Engine
from specframe_serve.errors import ApiError, failed
from specframe_serve.meters import Meters
from specframe_serve.protocol import ChatRequest, CompletionRequest, read
from specframe_serve.replies import ChatReply, TextReply
from specframe_serve.settings import ServeSettings

UPLOAD = 30.0
"""Seconds that the body of a request may take."""
Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """The endpoint of one pipeline; `app` is what an ASGI server runs."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        self.settings = settings
        self.meters = Meters(settings.name)
        self.engine = Engine(pipeline, settings, self.meters)
        self._pipeline = pipeline
        self._text = replace(pipeline, run=replace(pipeline.run, chat=False))  # a prompt as it is, without a template
        self._reading = asyncio.Lock()
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._guarded(self._models)),
                Route("/v1/models/{name:path}", self._guarded(self._model)),
                Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
                Route("/v1/completions", self._guarded(self._completions), methods=["POST"]),
            ],
            exception_handlers={ApiError: _refuse, HTTPException: _refuse_http, Exception: _fail},
            lifespan=self._life,
        )

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        self.engine.start()
        yield
        await asyncio.to_thread(self.engine.close)

    def _guarded(self, handler: Handler) -> Handler:
        """The handler, for clients that send the key."""
        wanted = self.settings.key

        async def guarded(request: Request) -> Response:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if wanted is not None and not hmac.compare_digest(given.encode(), wanted.encode()):
                raise ApiError(
                    401,
                    "this server wants its key as bearer token",
                    kind="authentication_error",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            return await handler(request)

        return guarded

    async def _health(self, request: Request) -> Response:
        alive = self.engine.alive
        return JSONResponse({"status": "ok" if alive else "down"}, 200 if alive else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.meters.render(), media_type="text/plain; version=0.0.4")

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._describe()]})

    async def _model(self, request: Request) -> Response:
        self._require_model(request.path_params["name"])
        return JSONResponse(self._describe())

    def _describe(self) -> dict[str, Any]:
        return {
            "id": self.settings.name,
            "object": "model",
            "created": 0,
            "owned_by": "specframe",
            "max_model_len": self.engine.longest,
        }

    def _require_model(self, name: str | None) -> None:
        if name not in (None, self.settings.name):
            raise ApiError(
                404,
                f"there is no model of that name here; this server has {self.settings.name}",
                code="model_not_found",
                field="model",
            )

    async def _chat(self, request: Request) -> Response:
        asked = read(ChatRequest, await self._body(request))
        self._require_model(asked.model)
        turns = [message.turn for message in asked.messages]
        prompt = await self._encode(lambda: self._pipeline.encode_turns(turns))
        return await self._reply(request, asked, [prompt], self._form(ChatReply))

    async def _completions(self, request: Request) -> Response:
        asked = read(CompletionRequest, await self._body(request))
        self._require_model(asked.model)
        if not asked.prompts:
            raise ApiError(422, "prompt: there is none", code="invalid_field", field="prompt")
        if asked.best_of not in (None, asked.n or 1):
            raise ApiError(422, "best_of: it must be n; answers are not ranked", code="invalid_field", field="best_of")
        prompts = [await self._encode(partial(self._text.encode, prompt)) for prompt in asked.prompts]
        return await self._reply(request, asked, prompts, self._form(TextReply))

    def _form(self, kind: type[Any]) -> Any:
        tokenizer = self._pipeline.tokenizer
        spell = (lambda token: str(tokenizer.decode([token]))) if tokenizer is not None else str
        return kind(self.settings.name, self.engine.nodes, spell)

    async def _body(self, request: Request) -> bytes:
        """The body of a request. Raises ApiError for one that is too large or slow, or not declared as JSON."""
        # A web page in a browser may send anything but this without asking first.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the body must be JSON, with Content-Type: application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(UPLOAD):
                async for part in request.stream():
                    body += part
                    if len(body) > self.settings.body:
                        raise ApiError(413, f"a request may have {self.settings.body} bytes")
        except TimeoutError:
            raise ApiError(408, f"the request was not there after {UPLOAD:g} seconds") from None
        except ClientDisconnect:
            raise ApiError(499, "the client left before its request was there") from None
        return bytes(body)

    async def _encode(self, encode: Callable[[], list[int]]) -> list[int]:
        """A prompt's tokens, made in another thread, one prompt at a time. Raises ApiError for one that has none."""
        async with self._reading:
            try:
                return await asyncio.to_thread(encode)
            except InputError as error:
                raise ApiError(400, str(error)) from None

    async def _reply(
        self, request: Request, asked: ChatRequest | CompletionRequest, prompts: list[list[int]], form: Any
    ) -> Response:
        answers = Answers(self.engine, self._pipeline, prompts, asked)
        if asked.stream:
            return EventStream(answers, _events(answers, asked, form))
        done = asyncio.ensure_future(answers.finished())
        left = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait({done, left}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                return Response(status_code=499)  # the client has left: sent to none, and seen in logs
            await done
            return JSONResponse(form.whole(answers))
        finally:
            done.cancel()
            left.cancel()
            answers.close()


class EventStream(StreamingResponse):
    """A stream of server-sent events whose rows are given up when it ends, however that happens."""

    def __init__(self, answers: Answers, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answers = answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


async def _events(
    answers: Answers, asked: ChatRequest | CompletionRequest, form: ChatReply | TextReply
) -> AsyncIterator[str]:
    options = asked.stream_options
    always = options is not None and options.continuous_usage_stats
    usage = always or (options is not None and options.include_usage)
    for answer in answers.all:
        for chunk in form.opening(answer):
            yield _event(chunk)
    try:
        async for piece in answers.pieces():
            if not (piece.text or piece.logprobs or piece.finish):
                continue
            chunk = form.chunk(piece, answers.all[piece.index])
            if always:
                chunk["usage"] = form.usage(answers)
            if piece.finish and not usage:
                chunk |= form.metrics(answers)
            yield _event(chunk)
    except ApiError as error:  # the status has been sent already
        yield _event(error.body)
        return
    if usage:
        yield _event(form.closing() | {"usage": form.usage(answers)} | form.metrics(answers))
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


async def _departure(request: Request) -> None:
    """Ends when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = ApiError(error.status_code, error.detail, headers=error.headers)
    return await _refuse(request, refusal)


async def _fail(request: Request, error: Exception) -> Response:
    return await _refuse(request, failed())
