"""Routes of Ollama's API, including those that clients call before they send a question."""

from __future__ import annotations

from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specframe_serve.desk import Desk
from specframe_serve.errors import invalid
from specframe_serve.ollama.protocol import LATEST, OllamaChat, OllamaGenerate, OllamaShow
from specframe_serve.ollama.replies import OllamaReply, now

DETAILS = {"format": "specframe", "family": "specframe", "parameter_size": "", "quantization_level": ""}


class Ollama:
    """The routes of Ollama's API."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def version(self, request: Request) -> Response:
        """Answers with the version of this package."""
        return JSONResponse({"version": version("specframe-serve")})

    async def tags(self, request: Request) -> Response:
        """Answers with the list of models, which has one entry."""
        name = self._desk.settings.name
        model = {"name": name, "model": name, "modified_at": now(), "size": 0, "digest": "", "details": DETAILS}
        return JSONResponse({"models": [model]})

    async def show(self, asked: OllamaShow, request: Request) -> Response:
        """Answers with the abilities of the model."""
        name = asked.model or asked.name
        self._desk.require_model(name and name.removesuffix(LATEST))
        about = {"general.architecture": "specframe", "specframe.context_length": self._desk.engine.longest}
        abilities = ["completion", *self._desk.encoder.abilities]
        return JSONResponse({"details": DETAILS, "model_info": about, "capabilities": abilities})

    async def answer(self, asked: OllamaChat | OllamaGenerate, request: Request) -> Response:
        """Returns the reply to a request. Raises ApiError for one that cannot be answered."""
        self._desk.require_model(asked.name)
        longest, form = self._desk.engine.longest, OllamaReply(asked)
        if asked.options.num_ctx is not None and asked.options.num_ctx > longest:
            raise invalid("options.num_ctx", f"this server decodes {longest} tokens, prompt and answer together", 400)
        if (chat := asked.request()) is None:
            return JSONResponse(form.loaded())
        if asked.think and not self._desk.encoder.thinks:
            raise invalid("think", "the target's chat template has no switch for it")
        return await self._desk.answer(request, chat, form)
