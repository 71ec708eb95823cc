"""HTTP routes: requests and replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
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

Handler = Callable[[Request], Awaitable[Response]]
Answering = Callable[[Any, Request], Awaitable[Response]]
"""Function that answers a request whose body has been read."""
SCHEMAS = "#/components/schemas/{model}"


class Server:
    """The endpoint of one pipeline; `app` is the ASGI application."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings) -> None:
        self.settings = settings
        self.engine = Engine(pipeline, settings)
        self.desk = Desk(pipeline, settings, self.engine)
        ollama = Ollama(self.desk)
        gets: dict[str, Handler] = {
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._model,
            "/api/version": ollama.version,
            "/api/tags": ollama.tags,
            "/api/ps": ollama.tags,
        }
        posts: dict[str, tuple[type[BaseModel], Answering]] = {
            "/v1/chat/completions": (ChatRequest, partial(self._answer, ChatReply)),
            "/v1/completions": (CompletionRequest, partial(self._answer, TextReply)),
            "/v1/responses": (ResponseRequest, partial(self._answer, ResponseReply)),
            "/api/chat": (OllamaChat, ollama.answer),
            "/api/generate": (OllamaGenerate, ollama.answer),
            "/api/show": (OllamaShow, ollama.show),
        }
        open_to_all = {"/health": self._health, "/metrics": self._metrics, "/openapi.json": self._describe_routes}
        self._description = describe(open_to_all | gets, {path: kind for path, (kind, _) in posts.items()}, settings)
        routes = [Route(path, handler) for path, handler in open_to_all.items()]
        routes += [Route(path, self._guard(handler)) for path, handler in gets.items()]
        for path, (kind, answer) in posts.items():
            routes.append(Route(path, self._guard(partial(self._read, kind, answer)), methods=["POST"]))
        every = ["*"]
        pages = [Middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=every, allow_headers=every)]
        starlette = Starlette(
            routes=routes,
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
        """Wraps a handler so that it answers only clients that send the key."""

        async def guarded(request: Request) -> Response:
            request.scope["specframe.client"] = require_key(request.headers, self.settings.keys)
            return await handler(request)

        return guarded

    async def _health(self, request: Request) -> Response:
        """Answers with status 200 while the server accepts requests."""
        alive = self.engine.alive
        return JSONResponse({"status": "ok" if alive else "down"}, 200 if alive else 503)

    async def _metrics(self, request: Request) -> Response:
        """Answers with acceptance and load in Prometheus's format."""
        return Response(self.engine.meters.render(), media_type="text/plain; version=0.0.4")

    async def _describe_routes(self, request: Request) -> Response:
        """Answers with the description of routes and bodies."""
        return JSONResponse(self._description)

    async def _models(self, request: Request) -> Response:
        """Answers with the list of models, which has one entry."""
        return JSONResponse({"object": "list", "data": [self._describe()]})

    async def _model(self, request: Request) -> Response:
        self.desk.require_model(request.path_params["name"])
        return JSONResponse(self._describe())

    def _describe(self) -> dict[str, Any]:
        own = {"id": self.settings.name, "object": "model", "created": 0, "owned_by": "specframe"}
        return own | {"max_model_len": self.engine.longest}

    async def _read(self, kind: type[BaseModel], answer: Answering, request: Request) -> Response:
        return await answer(await read(request, kind, self.settings.body), request)

    async def _answer(self, form: Callable[[Any, Desk], Form], asked: Any, request: Request) -> Response:
        wanted = asked.chat() if isinstance(asked, ResponseRequest) else asked
        return await self.desk.answer(request, wanted, form(asked, self.desk))


def describe(
    gets: Mapping[str, Handler], posts: Mapping[str, type[BaseModel]], settings: ServeSettings
) -> dict[str, Any]:
    """Returns the OpenAPI description by path: routes without a body, and routes whose body has the given model."""
    schemas, components = models_json_schema([(kind, "validation") for kind in posts.values()], ref_template=SCHEMAS)
    reply = {"200": {"description": "the reply"}, "default": {"description": "an error, as {'error': ...}"}}
    paths: dict[str, Any] = {
        path: {"get": {"summary": handler.__doc__, "responses": reply}}
        for path, handler in gets.items()
        if "{" not in path
    }
    for path, kind in posts.items():
        body = {"required": True, "content": {"application/json": {"schema": schemas[kind, "validation"]}}}
        summary = (kind.__doc__ or "").partition("\n")[0]
        paths[path] = {"post": {"summary": summary, "requestBody": body, "responses": reply}}
    security = {"key": {"type": "http", "scheme": "bearer"}} if settings.keys else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "specframe serve", "version": version("specframe-serve")},
        "paths": paths,
        "components": {"schemas": components["$defs"], "securitySchemes": security},
        "security": [{name: []} for name in security],
    }


async def _refuse(request: Request, error: Exception) -> Response:
    """Returns the reply to an error, in the form of the API that was called."""
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
    body = {"error": str(error)} if path.startswith("/api/") else error.body  # Ollama's form of an error
    return JSONResponse(body, error.status, error.headers)
