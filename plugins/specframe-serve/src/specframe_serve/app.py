"""The HTTP routes: requests and replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specframe import InputError, Pipeline
from specframe_serve.desk import Desk
from specframe_serve.engine import Engine
from specframe_serve.errors import ApiError, failed
from specframe_serve.ollama.protocol import OllamaChat, OllamaGenerate, OllamaShow
from specframe_serve.ollama.routes import Ollama
from specframe_serve.protocol import ChatRequest, CompletionRequest
from specframe_serve.replies import ChatReply, TextReply
from specframe_serve.response_replies import ResponseReply
from specframe_serve.responses import ResponseRequest
from specframe_serve.settings import ServeSettings
from specframe_serve.web.access import require_key
from specframe_serve.web.bodies import read
from specframe_serve.web.events import Form
from specframe_serve.web.front import Front
from specframe_serve.web.schema import describe

GETS = {
    "/health": "200 while requests are taken",
    "/metrics": "acceptance and load, in Prometheus's format",
    "/v1/models": "the one model",
    "/api/tags": "the one model, in Ollama's form",
    "/api/version": "the version",
}
POSTS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/api/chat": OllamaChat,
    "/api/generate": OllamaGenerate,
    "/api/show": OllamaShow,
}
Handler = Callable[[Request], Awaitable[Response]]
Asked = TypeVar("Asked", ChatRequest, CompletionRequest)


class Server:
    """The endpoint of one pipeline; `app` is the ASGI application."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        self.settings = settings
        self.engine = Engine(pipeline, settings)
        self.desk = Desk(pipeline, settings, self.engine)
        ollama = Ollama(self.desk)
        guarded: dict[str, Handler] = {
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._model,
            "/v1/chat/completions": partial(self._answer, ChatRequest, ChatReply),
            "/v1/completions": partial(self._answer, CompletionRequest, TextReply),
            "/v1/responses": self._respond,
            "/api/version": ollama.version,
            "/api/tags": ollama.tags,
            "/api/ps": ollama.tags,
            "/api/show": ollama.show,
            "/api/chat": partial(ollama.answer, OllamaChat),
            "/api/generate": partial(ollama.answer, OllamaGenerate),
        }
        open_to_all = {"/health": self._health, "/metrics": self._metrics, "/openapi.json": self._describe_routes}
        handlers = open_to_all | {path: self._guard(handler) for path, handler in guarded.items()}
        every = ["*"]
        pages = [Middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=every, allow_headers=every)]
        starlette = Starlette(
            routes=[
                Route(path, handler, methods=["POST" if path in POSTS else "GET"]) for path, handler in handlers.items()
            ],
            middleware=pages if settings.origins else [],
            exception_handlers=dict.fromkeys([ApiError, InputError, HTTPException, Exception], _refuse),
            lifespan=self._life,
        )
        starlette.router.redirect_slashes = False
        self.app = Front(starlette, settings.hosts)

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(self.desk.prepare)
        self.engine.start()
        yield
        await asyncio.to_thread(self.engine.close)

    def _guard(self, handler: Handler) -> Handler:
        """The handler, for clients that send the key."""

        async def guarded(request: Request) -> Response:
            request.scope["specframe.client"] = require_key(request.headers, self.settings.keys)
            return await handler(request)

        return guarded

    async def _health(self, request: Request) -> Response:
        alive = self.engine.alive
        return JSONResponse({"status": "ok" if alive else "down"}, 200 if alive else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.engine.meters.render(), media_type="text/plain; version=0.0.4")

    async def _describe_routes(self, request: Request) -> Response:
        return JSONResponse(describe(GETS, POSTS, bool(self.settings.keys)))

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._describe()]})

    async def _model(self, request: Request) -> Response:
        self.desk.require_model(request.path_params["name"])
        return JSONResponse(self._describe())

    def _describe(self) -> dict[str, Any]:
        return {
            "id": self.settings.name,
            "object": "model",
            "created": 0,
            "owned_by": "specframe",
            "max_model_len": self.engine.longest,
        }

    async def _answer(self, kind: type[Asked], form: Callable[[Asked, Desk], Form], request: Request) -> Response:
        asked = await read(request, kind, self.settings.body)
        return await self.desk.answer(request, asked, form(asked, self.desk))

    async def _respond(self, request: Request) -> Response:
        asked = await read(request, ResponseRequest, self.settings.body)
        return await self.desk.answer(request, asked.chat(), ResponseReply(asked, self.desk))


async def _refuse(request: Request, error: Exception) -> Response:
    """The reply to an error, in the form of the API that was asked."""
    path = request.url.path
    if isinstance(error, InputError):
        error = ApiError(400, str(error))
    elif isinstance(error, HTTPException):
        message = error.detail
        if error.status_code == 404 and path in ("/chat/completions", "/completions", "/models", "/responses"):
            message = f"there is nothing at {path}; the address of OpenAI's API ends in /v1 here"
        error = ApiError(error.status_code, message, headers=error.headers)
    elif not isinstance(error, ApiError):
        error = failed()
    body = {"error": str(error)} if path.startswith("/api/") else error.body  # Ollama's form
    return JSONResponse(body, error.status, error.headers)
