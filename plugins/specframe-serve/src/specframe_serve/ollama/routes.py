"""Ollama's API: its routes, and what clients ask of them before they send a question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specframe_serve.desk import Desk
from specframe_serve.errors import ApiError
from specframe_serve.ollama.protocol import OllamaChat, OllamaGenerate, OllamaOptions, OllamaShow
from specframe_serve.ollama.replies import OllamaReply, now
from specframe_serve.web.bodies import read

LATEST = ":latest"
"""Tag that Ollama's clients add to a name without one."""
Handler = Callable[[Request], Awaitable[Response]]


class Ollama:
    """The routes of Ollama's API."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.routes: dict[str, tuple[Handler, list[str]]] = {
            "/api/version": (self._version, ["GET"]),
            "/api/tags": (self._tags, ["GET"]),
            "/api/ps": (self._tags, ["GET"]),
            "/api/show": (self._show, ["POST"]),
            "/api/chat": (self._chat, ["POST"]),
            "/api/generate": (self._generate, ["POST"]),
        }
        """Handlers and methods by path."""

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": version("specframe-serve")})

    async def _tags(self, request: Request) -> Response:
        name = self._desk.settings.name
        model = {"name": name, "model": name, "modified_at": now(), "size": 0, "digest": "", "details": self._details()}
        return JSONResponse({"models": [model]})

    async def _show(self, request: Request) -> Response:
        asked = await read(request, OllamaShow, self._desk.settings.body)
        self._desk.require_model(_untagged(asked.model or asked.name))
        shown = {
            "details": self._details(),
            "model_info": {"general.architecture": "specframe", "specframe.context_length": self._desk.engine.longest},
            "capabilities": ["completion"],
        }
        return JSONResponse(shown)

    def _details(self) -> dict[str, Any]:
        return {"format": "specframe", "family": "specframe", "parameter_size": "", "quantization_level": ""}

    async def _chat(self, request: Request) -> Response:
        asked = await read(request, OllamaChat, self._desk.settings.body)
        model = _untagged(asked.model)
        self._require_context(asked.options)
        form = OllamaReply(model=asked.model, chat=True)
        if not asked.messages:
            self._desk.require_model(model)
            return JSONResponse(form.loaded())
        thinking = asked.think is not None and self._desk.encoder.reads("enable_thinking")
        return await self._desk.converse(request, asked.request(model, thinking), form)

    async def _generate(self, request: Request) -> Response:
        asked = await read(request, OllamaGenerate, self._desk.settings.body)
        model = _untagged(asked.model)
        self._require_context(asked.options)
        form = OllamaReply(model=asked.model, chat=False)
        if not asked.prompt:
            self._desk.require_model(model)
            return JSONResponse(form.loaded())
        if asked.raw:
            return await self._desk.complete(request, asked.completion(model), form)
        thinking = asked.think is not None and self._desk.encoder.reads("enable_thinking")
        return await self._desk.converse(request, asked.request(model, thinking), form)

    def _require_context(self, options: OllamaOptions) -> None:
        longest = self._desk.engine.longest
        if options.num_ctx is not None and options.num_ctx > longest:
            raise ApiError(400, f"options.num_ctx: this server decodes {longest} tokens, prompt and answer together")


def _untagged(name: str | None) -> str | None:
    return None if name is None else name.removesuffix(LATEST)
