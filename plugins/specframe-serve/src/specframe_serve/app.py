"""The routes: what comes in over HTTP, and what goes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specframe import NeuralTarget, Pipeline
from specframe_serve.access import require_key
from specframe_serve.answers import Answers
from specframe_serve.bodies import read
from specframe_serve.encoding import Encoder
from specframe_serve.engine import Engine
from specframe_serve.errors import ApiError, failed, too_long, too_many_rows
from specframe_serve.events import EventStream, Form
from specframe_serve.front import Front
from specframe_serve.meters import Meters
from specframe_serve.protocol import ChatRequest, CompletionRequest
from specframe_serve.replies import ChatReply, TextReply
from specframe_serve.settings import ServeSettings

SPELLED = 1 << 16
"""Tokens whose texts are remembered."""
Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """The endpoint of one pipeline; `app` is what an ASGI server runs."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        self.settings = settings
        self.meters = Meters(settings.name)
        self.engine = Engine(pipeline, settings, self.meters)
        self._pipeline = pipeline
        self._encoder = Encoder(pipeline)
        tokenizer = pipeline.tokenizer
        self._spell = lru_cache(SPELLED)(lambda token: str(tokenizer.decode([token])) if tokenizer else str(token))
        routes = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._guarded(self._models)),
                Route("/v1/models/{name:path}", self._guarded(self._model)),
                Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
                Route("/v1/completions", self._guarded(self._completions), methods=["POST"]),
            ],
            middleware=[_cross_origin(settings.origins)] if settings.origins else [],
            exception_handlers={ApiError: _refuse, HTTPException: _refuse_http, Exception: _fail},
            lifespan=self._life,
        )
        routes.router.redirect_slashes = False
        self.app = Front(routes, settings.hosts)

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        self.engine.start()
        yield
        await asyncio.to_thread(self.engine.close)

    def _guarded(self, handler: Handler) -> Handler:
        """The handler, for clients that send the key."""

        async def guarded(request: Request) -> Response:
            require_key(request.headers, self.settings.key)
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
        asked = await read(request, ChatRequest, self.settings.body)
        form = ChatReply(
            model=self.settings.name, nodes=self.engine.nodes, spell=self._spell, options=asked.stream_options
        )
        return await self._converse(request, asked, form)

    async def _converse(self, request: Request, asked: ChatRequest, form: Form) -> Response:
        """The reply to a conversation."""
        self._require_model(asked.model)
        self._require_rows(asked.n)
        return await self._reply(request, asked, [await self._encoder.chat(asked)], form)

    async def _completions(self, request: Request) -> Response:
        asked = await read(request, CompletionRequest, self.settings.body)
        self._require_model(asked.model)
        self._require_rows(len(asked.prompts) * asked.n)
        if not asked.prompts:
            raise ApiError(422, "prompt: there is none", code="invalid_field", field="prompt")
        if asked.best_of not in (None, asked.n):
            raise ApiError(422, "best_of: it must be n; answers are not ranked", code="invalid_field", field="best_of")
        for prompt in asked.prompts:
            if isinstance(prompt, list) and len(prompt) >= self.engine.longest:
                raise too_long(len(prompt), asked.budget or 1, self.engine.longest)
        if asked.echo and asked.logprobs is not None and not isinstance(self._pipeline.parts.target, NeuralTarget):
            raise ApiError(422, "echo: this target gives no log probabilities of prompts", code="invalid_field")
        prompts = await self._encoder.texts(asked.prompts)
        form = TextReply(
            model=self.settings.name,
            nodes=self.engine.nodes,
            spell=self._spell,
            options=asked.stream_options,
            echoes=self._echoes(asked) if asked.echo else None,
        )
        return await self._reply(request, asked, prompts, form)

    def _echoes(self, asked: CompletionRequest) -> list[str]:
        """The text of each answer's prompt."""
        texts = [prompt if isinstance(prompt, str) else self._pipeline.decode(prompt) for prompt in asked.prompts]
        return [text for text in texts for _ in range(asked.n)]

    def _require_rows(self, count: int) -> None:
        """Raises ApiError for more rows than the queue may ever take, before anything is made for them."""
        if count > self.settings.queue:
            raise too_many_rows(count, self.settings.queue)

    async def _reply(
        self, request: Request, asked: ChatRequest | CompletionRequest, prompts: Sequence[Sequence[int]], form: Form
    ) -> Response:
        answers = Answers(self.engine, self._pipeline, prompts, asked)
        if asked.stream:
            return EventStream(answers, form)
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


async def _departure(request: Request) -> None:
    """Ends when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _cross_origin(origins: Sequence[str]) -> Middleware:
    """Lets web pages of these origins send requests."""
    return Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = error.detail
    if error.status_code == 404 and path in ("/chat/completions", "/completions", "/models", "/responses"):
        message = f"there is nothing at {path}; the address of OpenAI's API ends in /v1 here"
    return await _refuse(request, ApiError(error.status_code, message, headers=error.headers))


async def _fail(request: Request, error: Exception) -> Response:
    return await _refuse(request, failed())
