"""Ollama's API: its routes, and what clients ask of them before they send a question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specframe_serve.desk import Desk
from specframe_serve.errors import invalid
from specframe_serve.ollama.protocol import OllamaChat, OllamaGenerate, OllamaShow
from specframe_serve.ollama.replies import OllamaReply, now
from specframe_serve.web.bodies import read

LATEST = ":latest"
"""Tag that Ollama's clients add to a name without one."""
Handler = Callable[[Request], Awaitable[Response]]
Asked = TypeVar("Asked", OllamaChat, OllamaGenerate)


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
            "capabilities": ["completion", *self._desk.encoder.abilities],
        }
        return JSONResponse(shown)

    def _details(self) -> dict[str, Any]:
        return {"format": "specframe", "family": "specframe", "parameter_size": "", "quantization_level": ""}

    async def _chat(self, request: Request) -> Response:
        asked = await self._read(request, OllamaChat)
        form = OllamaReply(model=asked.model, chat=True)
        return await self._converse(request, asked, form) if asked.messages else self._loaded(asked, form)

    async def _generate(self, request: Request) -> Response:
        asked = await self._read(request, OllamaGenerate)
        form = OllamaReply(model=asked.model, chat=False)
        if not asked.prompt:
            return self._loaded(asked, form)
        if asked.raw:
            return await self._desk.complete(request, asked.completion(_untagged(asked.model)), form)
        return await self._converse(request, asked, form)

    async def _read(self, request: Request, kind: type[Asked]) -> Asked:
        """The request. Raises ApiError for one that asks for a longer context than the server's."""
        asked = await read(request, kind, self._desk.settings.body)
        longest = self._desk.engine.longest
        if asked.options.num_ctx is not None and asked.options.num_ctx > longest:
            raise invalid("options.num_ctx", f"this server decodes {longest} tokens, prompt and answer together", 400)
        return asked

    async def _converse(self, request: Request, asked: OllamaChat | OllamaGenerate, form: OllamaReply) -> Response:
        if asked.think and not self._desk.encoder.thinks:
            raise invalid("think", "the target's chat template has no switch for it")
        return await self._desk.converse(request, asked.request(_untagged(asked.model)), form)

    def _loaded(self, asked: OllamaChat | OllamaGenerate, form: OllamaReply) -> Response:
        """The answer to a request without a question, by which clients load a model."""
        self._desk.require_model(_untagged(asked.model))
        return JSONResponse(form.loaded())


def _untagged(name: str | None) -> str | None:
    return None if name is None else name.removesuffix(LATEST)
