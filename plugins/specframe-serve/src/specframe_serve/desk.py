"""From a parsed request to its reply: encodes the prompts, decodes the rows, formats the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specframe import InputError, Pipeline
from specframe.plugin import NeuralTarget
from specframe_serve.answers import Answers
from specframe_serve.encoding import Encoder
from specframe_serve.engine import Engine
from specframe_serve.errors import ApiError, invalid
from specframe_serve.protocol import ChatRequest, CompletionRequest
from specframe_serve.reading import AnswerReader
from specframe_serve.settings import ServeSettings
from specframe_serve.structured import as_refusal
from specframe_serve.web.bodies import cut
from specframe_serve.web.events import EventStream, Form

SPELLED = 1 << 16
"""Number of tokens whose texts are cached."""


class Desk:
    """Answers conversations and completions of every API."""

    def __init__(self, pipeline: Pipeline, settings: ServeSettings, engine: Engine) -> None:
        self.settings = settings
        self.engine = engine
        self.pipeline = pipeline
        self.encoder = Encoder(pipeline)
        tokenizer = pipeline.tokenizer
        self.spell = lru_cache(SPELLED)(lambda token: str(tokenizer.decode([token])) if tokenizer else str(token))
        """Text of a single token, special tokens included."""

    def require_model(self, name: str | None) -> None:
        """Raises ApiError if the name is another model's."""
        if name not in (None, self.settings.name):
            known = f"there is no model of that name here; this server has {self.settings.name}"
            raise ApiError(404, known, code="model_not_found", field="model")

    async def answer(self, request: Request, asked: ChatRequest | CompletionRequest, form: Form) -> Response:
        """Returns the reply to a request. Raises ApiError for one that cannot be answered."""
        self.require_model(asked.model)
        rows = asked.n * (1 if isinstance(asked, ChatRequest) else len(asked.prompts))
        self.engine.require_room(rows)  # before any prompt is encoded
        if isinstance(asked, ChatRequest):
            prompt, reader, predicted = await self._turns(asked)
            prompts: Sequence[Sequence[int]] = [prompt]
        else:
            prompts, reader, predicted = await self._prompts(asked), AnswerReader(), ()
        headers = await self._compile(asked)
        client = request.scope.get("specframe.client", "")
        answers = Answers(self.engine, self.pipeline, prompts, asked, reader, client, predicted)
        request.scope["specframe.record"].answers = answers
        if asked.stream:
            return EventStream(answers, form, headers)
        leaving = asyncio.create_task(_departure(request, answers))
        try:
            await answers.finished()
            return JSONResponse(form.whole(answers), headers=headers)
        finally:
            leaving.cancel()
            answers.close()

    async def _turns(self, asked: ChatRequest) -> tuple[Sequence[int], AnswerReader, Sequence[int]]:
        """Returns a conversation's prompt, the reader of its answers, and the tokens that they probably repeat."""
        if (calls := self.encoder.tool_form(asked)) is not None and asked.tool_choice not in (None, "auto"):
            asked.enforce(calls)
        texts = [text for message in asked.messages if isinstance(text := message.turn["content"], str)]
        self.encoder.require_short([asked.predicted, *texts], asked.needed, self.engine.longest)
        prompt = await self.encoder.chat(asked)
        return prompt, self.encoder.reader(asked, prompt), await self.encoder.predicted(asked)

    async def _prompts(self, asked: CompletionRequest) -> Sequence[Sequence[int]]:
        """Returns the prompts of a request without a template."""
        self.encoder.require_short(asked.prompts, asked.needed, self.engine.longest)
        if asked.echo and asked.logprobs is not None and not isinstance(self.pipeline.parts.target, NeuralTarget):
            raise invalid("echo", "this target gives no log probabilities of prompts")
        return await self.encoder.texts(asked.prompts)

    def prepare(self) -> None:
        """Loads the tokenizer for grammars in advance, a second for a large one; no effect if that fails."""
        with suppress(InputError):
            settings = replace(self.pipeline.sampling, grammar={"regex": "."}, ignore_eos=False)
            self.pipeline.requests([], settings)

    async def _compile(self, asked: ChatRequest | CompletionRequest) -> dict[str, str]:
        """Compiles the grammar of a request in another thread; returns headers that list what the grammar leaves out.

        Raises ApiError for a grammar that cannot be followed.
        """
        warning: dict[str, str] = {}
        while asked.grammar is not None:
            try:
                settings = replace(self.pipeline.sampling, **asked.sampling())
                await asyncio.to_thread(self.pipeline.requests, [], settings)
                break
            except InputError as error:
                refusal = as_refusal(*asked.grammar, str(error))
                if warning or self.settings.strict_schemas:
                    raise refusal from None
            warning = {"Warning": f"299 specframe {json.dumps(cut(f'ignored in {refusal}'))}"}
            asked.loosen()
        return warning


async def _departure(request: Request, answers: Answers) -> None:
    """Cancels the answers when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answers.close()
