"""Answers in the form that OpenAI's clients read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any

from specframe_serve.answers import Answer, Answers, Piece
from specframe_serve.jobs import TokenLogprobs
from specframe_serve.text import HALF


@dataclass(frozen=True)
class Reply:
    """What all objects of one reply have in common."""

    model: str
    nodes: int
    """Tokens a draft may have."""
    spell: Callable[[int], str]
    """A token's own text, special tokens included."""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time()))

    def usage(self, answers: Answers) -> dict[str, int]:
        """Tokens read and generated so far."""
        prompt, completion = answers.prompt_tokens, answers.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def metrics(self, answers: Answers) -> dict[str, Any]:
        """vLLM's per-request figures, for a request with one answer."""
        if len(answers.all) != 1:
            return {}
        return {"metrics": {"speculative_decoding": answers.all[0].speculation.describe(self.nodes)}}

    def _object(self, prefix: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


@dataclass(frozen=True)
class ChatReply(Reply):
    """Replies of `/v1/chat/completions`."""

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The reply as one object."""
        choices = [
            {
                "index": answer.index,
                "message": {"role": "assistant", "content": answer.text},
                "logprobs": self._logprobs(answer.tokens, answer.logprobs),
                "finish_reason": answer.finish,
            }
            for answer in answers.all
        ]
        reply = self._object("chatcmpl", "chat.completion", choices)
        return reply | {"usage": self.usage(answers)} | self.metrics(answers)

    def opening(self, answer: Answer) -> list[dict[str, Any]]:
        """The chunks before an answer's first piece."""
        return [self._chunk(answer.index, {"role": "assistant", "content": ""}, None, None)]

    def chunk(self, piece: Piece, answer: Answer) -> dict[str, Any]:
        """A piece as a chunk of a stream."""
        delta = {"content": piece.text} if piece.text else {}
        return self._chunk(piece.index, delta, self._logprobs(piece.tokens, piece.logprobs), piece.finish)

    def closing(self) -> dict[str, Any]:
        """A chunk without choices, for the usage."""
        return self._object("chatcmpl", "chat.completion.chunk", [])

    def _chunk(
        self, index: int, delta: dict[str, str], logprobs: dict[str, Any] | None, finish: str | None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._object("chatcmpl", "chat.completion.chunk", [choice])

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


@dataclass(frozen=True)
class TextReply(Reply):
    """Replies of `/v1/completions`."""

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The reply as one object."""
        choices = [
            self._choice(answer.index, answer.text, self._logprobs(answer.tokens, answer.logprobs, 0), answer.finish)
            for answer in answers.all
        ]
        reply = self._object("cmpl", "text_completion", choices)
        return reply | {"usage": self.usage(answers)} | self.metrics(answers)

    def opening(self, answer: Answer) -> list[dict[str, Any]]:
        """The chunks before an answer's first piece: none."""
        return []

    def chunk(self, piece: Piece, answer: Answer) -> dict[str, Any]:
        """A piece as a chunk of a stream."""
        logprobs = self._logprobs(piece.tokens, piece.logprobs, len(answer.tokens) - len(piece.tokens))
        return self._object("cmpl", "text_completion", [self._choice(piece.index, piece.text, logprobs, piece.finish)])

    def closing(self) -> dict[str, Any]:
        """A chunk without choices, for the usage."""
        return self._object("cmpl", "text_completion", [])

    def _choice(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], start: int) -> dict[str, Any] | None:
        if not logprobs:
            return None
        return {
            "tokens": [self.spell(token) for token in tokens],
            "token_logprobs": [found.chosen for found in logprobs],
            "top_logprobs": [{self.spell(token): value for token, value in found.top} for found in logprobs],
        }
