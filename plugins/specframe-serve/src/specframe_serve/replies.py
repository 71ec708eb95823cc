"""Answers in the form that OpenAI's clients read."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from time import time
from typing import Any

from specframe_serve.answers import Answer, Answers, Piece
from specframe_serve.errors import ApiError
from specframe_serve.logprobs import TokenLogprobs
from specframe_serve.protocol import StreamOptions
from specframe_serve.reading import AnswerParts
from specframe_serve.text import HALF
from specframe_serve.web.events import WAITING, event

DONE = "data: [DONE]\n\n"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The parts that all objects of one reply have in common."""

    model: str
    nodes: int
    """Tokens a draft may have."""
    spell: Callable[[int], str]
    """A token's own text, special tokens included."""
    options: StreamOptions
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))
    media_type: str = "text/event-stream"
    prefix: str = ""
    """The beginning of its ids."""
    chunks: str = ""
    """The kind of its objects in a stream."""

    def usage(self, answers: Answers) -> dict[str, Any]:
        """Tokens read and generated so far, and how many of the prompts came from the prefix cache."""
        prompt, completion = answers.prompt_tokens, answers.completion_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if answers.shows_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": answers.cached_tokens}
        if answers.predicted is not None:
            names = ("accepted_prediction_tokens", "rejected_prediction_tokens")
            usage["completion_tokens_details"] = dict(zip(names, answers.predicted, strict=True))
        return usage

    def metrics(self, answers: Answers) -> dict[str, Any]:
        """vLLM's per-request figures, for a request with one answer."""
        if len(answers.all) != 1:
            return {}
        return {"metrics": {"speculative_decoding": answers.all[0].speculation.describe(self.nodes)}}

    def chunk(self, piece: Piece, answer: Answer, first: bool) -> dict[str, Any]:
        """A piece as a chunk of a stream, perhaps the answer's first."""
        raise NotImplementedError

    async def stream(self, answers: Answers) -> AsyncIterator[str]:
        """The events of a stream."""
        always = self.options.continuous_usage_stats
        usage = always or self.options.include_usage
        begun: set[int] = set()
        async for piece in answers.pieces():
            if piece is None:
                yield WAITING
                continue
            if not (piece.text or piece.logprobs or piece.finish):
                continue
            chunk = self.chunk(piece, answers.all[piece.index], piece.index not in begun)
            begun.add(piece.index)
            if always:
                chunk["usage"] = self.usage(answers)
            if piece.finish and not usage:
                chunk |= self.metrics(answers)
            yield event(chunk)
        if usage:
            yield event(self._chunk([]) | {"usage": self.usage(answers)} | self.metrics(answers))
        yield DONE

    def error(self, error: ApiError) -> str:
        """The event that ends a stream with an error."""
        return event(error.body)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._object(self.chunks, choices)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


@dataclass(frozen=True, kw_only=True)
class ChatReply(Reply):
    """Replies of `/v1/chat/completions`."""

    prefix: str = "chatcmpl"
    chunks: str = "chat.completion.chunk"

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The reply as one object."""
        choices = [
            {
                "index": answer.index,
                "message": {"role": "assistant", "content": parts.text or (None if parts.calls else "")}
                | _further(parts, parts.calls),
                "logprobs": self._logprobs(answer.tokens, answer.logprobs),
                "finish_reason": "tool_calls" if parts.calls else answer.finish,
            }
            for answer in answers.all
            for parts in [answer.parts]
        ]
        reply = self._object("chat.completion", choices)
        return reply | {"usage": self.usage(answers)} | self.metrics(answers)

    def chunk(self, piece: Piece, answer: Answer, first: bool) -> dict[str, Any]:
        """A piece as a chunk of a stream; the first one has the role, and each call is whole."""
        begun = len(answer.sent.calls)
        parts = answer.unsent()
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if parts.text or (first and not parts.calls):
            delta["content"] = parts.text
        delta |= _further(parts, [{"index": place} | call for place, call in enumerate(parts.calls, begun)])
        choice = {
            "index": piece.index,
            "delta": delta,
            "logprobs": self._logprobs(piece.tokens, piece.logprobs),
            "finish_reason": "tool_calls" if piece.finish and answer.sent.calls else piece.finish,
        }
        return self._chunk([choice])

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not logprobs:
            return None
        content = [
            self._entry(token, found.chosen) | {"top_logprobs": [self._entry(*likely) for likely in found.top]}
            for token, found in zip(tokens, logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.spell(token)
        return {"token": text, "logprob": logprob, "bytes": None if HALF in text else list(text.encode())}


def _further(parts: AnswerParts, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fields of a message in addition to its content."""
    found = {"reasoning_content": parts.reasoning, "tool_calls": list(calls)}
    return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, kw_only=True)
class TextReply(Reply):
    """Replies of `/v1/completions`."""

    prefix: str = "cmpl"
    chunks: str = "text_completion"

    echo: bool
    """True if prompts precede their answers."""
    echoed: Callable[[int], str]
    """Text before an answer, by its index."""

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The reply as one object."""
        choices = [
            self._choice(
                answer.index,
                self.echoed(answer.index) + answer.text,
                self._logprobs(answer, answer.tokens, answer.logprobs, first=True),
                answer.finish,
            )
            for answer in answers.all
        ]
        reply = self._object("text_completion", choices)
        return reply | {"usage": self.usage(answers)} | self.metrics(answers)

    def chunk(self, piece: Piece, answer: Answer, first: bool) -> dict[str, Any]:
        """A piece as a chunk of a stream; the first one has the prompt, where it is asked for."""
        logprobs = self._logprobs(answer, piece.tokens, piece.logprobs, first)
        text = self.echoed(piece.index) + piece.text if first else piece.text
        return self._chunk([self._choice(piece.index, text, logprobs, piece.finish)])

    def _choice(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(
        self, answer: Answer, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], first: bool
    ) -> dict[str, Any] | None:
        """The lists of an answer's newest tokens, those of an echoed prompt before the first of them."""
        if not logprobs and not (first and answer.bare and answer.job.prompt_logprobs):
            return None
        before: list[int] = [] if first else answer.tokens[: -len(tokens)]
        found: list[TokenLogprobs | None] = list(logprobs)
        if self.echo and first:
            tokens, found = [*answer.prompt, *tokens], [None, *answer.job.prompt_logprobs, *found]
        elif self.echo:
            before = [*answer.prompt, *before]
        spelled = [self.spell(token) for token in tokens]
        start = sum(len(self.spell(token)) for token in before)
        return {
            "tokens": spelled,
            "token_logprobs": [None if each is None else each.chosen for each in found],
            "top_logprobs": [
                None if each is None else self._likeliest(own, each) for own, each in zip(spelled, found, strict=True)
            ],
            "text_offset": list(accumulate(map(len, spelled[:-1]), initial=start)),
        }

    def _likeliest(self, own: str, found: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens by their texts, and the chosen one; the likeliest of several with the same text."""
        best: dict[str, float] = {}
        for text, value in [*((self.spell(token), value) for token, value in found.top), (own, found.chosen)]:
            best.setdefault(text, value)
        return best
