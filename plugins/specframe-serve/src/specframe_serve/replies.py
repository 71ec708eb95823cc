"""Answers in the form of OpenAI's clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from specframe_serve.answers import Answer, Answers, Piece
from specframe_serve.desk import Desk
from specframe_serve.logprobs import TokenLogprobs
from specframe_serve.protocol import ChatRequest, CompletionRequest
from specframe_serve.reading import HALF
from specframe_serve.web.events import Form, event

DONE = "data: [DONE]\n\n"


class Reply(Form):
    """Fields common to all objects of one reply."""

    prefix: str
    """Prefix of its ids."""
    kind: str
    """`object` field of the complete reply."""
    chunks: str
    """`object` field of a stream's chunks."""

    def __init__(self, asked: ChatRequest | CompletionRequest, desk: Desk) -> None:
        """Creates the reply to a request."""
        super().__init__(desk.settings.name)
        self.asked, self.options, self.desk = asked, asked.stream_options, desk

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Returns the reply as one object."""
        reply = self._object(self.kind, [self.choice(answer, answer.whole, True, "message") for answer in answers.all])
        return reply | {"usage": self.usage(answers)} | self.metrics(answers)

    def choice(self, answer: Answer, piece: Piece, first: bool, name: str) -> dict[str, Any]:
        """Returns a piece of an answer, `first` or later: the `delta` of a stream, or the complete `message`."""
        raise NotImplementedError

    def add(self, answers: Answers, answer: Answer) -> str:
        """Returns the chunk for an answer's new piece."""
        piece, always = answer.piece, self.options.continuous_usage_stats
        if not (piece.text or piece.logprobs or answer.finish):
            return ""
        chunk = self._object(self.chunks, [self.choice(answer, piece, not answer.begun, "delta")])
        answer.begun = True
        if always:
            chunk["usage"] = self.usage(answers)
        elif answer.finish and not self.options.include_usage:
            chunk |= self.metrics(answers)
        return event(chunk)

    def end(self, answers: Answers) -> str:
        """Returns the usage, if requested, and the end mark."""
        if not (self.options.continuous_usage_stats or self.options.include_usage):
            return DONE
        return event(self._object(self.chunks, []) | {"usage": self.usage(answers)} | self.metrics(answers)) + DONE

    def usage(self, answers: Answers) -> dict[str, Any]:
        """Returns the numbers of tokens read and generated so far, and of prompt tokens from the prefix cache."""
        prompt, completion = answers.prompt_tokens, answers.completion_tokens
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
        usage["total_tokens"] = prompt + completion
        if answers.shows_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": answers.cached_tokens}
        if answers.predicted is not None:
            names = ("accepted_prediction_tokens", "rejected_prediction_tokens")
            usage["completion_tokens_details"] = dict(zip(names, answers.predicted, strict=True))
        return usage

    def metrics(self, answers: Answers) -> dict[str, Any]:
        """Returns vLLM's per-request metrics, for a request with one answer."""
        if len(answers.all) != 1:
            return {}
        counts = answers.all[0].job.acceptance
        found = {
            "mean_acceptance_length": counts.tau,
            "draft_acceptance_rate": counts.efficiency,
            "acceptance_histogram": [more - less for more, less in pairwise([counts.cycles, *counts.by_depth, 0])],
            "num_spec_steps": counts.cycles,
            "num_accepted_draft_tokens": counts.accepted,
            "num_draft_tokens": counts.drafted,
            "num_spec_tokens": self.desk.engine.nodes,
        }
        return {"metrics": {"speculative_decoding": found}}

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        own = {"id": f"{self.prefix}-{self.id}", "object": kind, "created": self.created}
        return own | {"model": self.model, "choices": choices}


class ChatReply(Reply):
    """Replies of `/v1/chat/completions`."""

    prefix, kind, chunks = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, answer: Answer, piece: Piece, first: bool, name: str) -> dict[str, Any]:
        """Returns a piece of an answer; the first one has the role, and calls are always complete."""
        begun = len(answer.sent.calls)
        parts = answer.unsent()
        message: dict[str, Any] = {"role": "assistant"} if first else {}
        if parts.text or (first and not parts.calls):
            message["content"] = parts.text
        elif first and name == "message":
            message["content"] = None
        if parts.reasoning:
            message["reasoning_content"] = parts.reasoning
        if parts.calls:
            places = [{"index": place} if name == "delta" else {} for place in range(begun, len(answer.sent.calls))]
            message["tool_calls"] = [place | call for place, call in zip(places, parts.calls, strict=True)]
        return {
            "index": answer.index,
            name: message,
            "logprobs": self._logprobs(piece),
            "finish_reason": "tool_calls" if answer.finish and answer.sent.calls else answer.finish,
        }

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if not piece.logprobs:
            return None
        content = [
            self._entry(token, found.chosen) | {"top_logprobs": [self._entry(*likely) for likely in found.top]}
            for token, found in zip(piece.tokens, piece.logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.desk.spell(token)
        return {"token": text, "logprob": logprob, "bytes": None if HALF in text else list(text.encode())}


class TextReply(Reply):
    """Replies of `/v1/completions`."""

    prefix, kind, chunks = "cmpl", "text_completion", "text_completion"

    def choice(self, answer: Answer, piece: Piece, first: bool, name: str) -> dict[str, Any]:
        """Returns a piece of an answer; the first one begins with the prompt, if requested."""
        return {
            "index": answer.index,
            "text": (self._prompt(answer) if first else "") + piece.text,
            "logprobs": self._logprobs(answer, piece, first),
            "finish_reason": answer.finish,
        }

    def _prompt(self, answer: Answer) -> str:
        """Returns the prompt before an answer, if requested."""
        prompt = self.asked.prompts[answer.index // self.asked.n] if self.asked.echo else ""
        return prompt if isinstance(prompt, str) else self.desk.pipeline.decode(prompt)

    def _logprobs(self, answer: Answer, piece: Piece, first: bool) -> dict[str, Any] | None:
        """Returns the log probabilities of the newest tokens; the first piece also has those of an echoed prompt."""
        tokens: Sequence[int] = piece.tokens
        if not piece.logprobs and not (first and answer.bare and answer.job.prompt_logprobs):
            return None
        before: list[int] = [] if first else answer.tokens[: -len(tokens)]
        found: list[TokenLogprobs | None] = list(piece.logprobs)
        if self.asked.echo and first:
            tokens, found = [*answer.prompt, *tokens], [None, *answer.job.prompt_logprobs, *found]
        elif self.asked.echo:
            before = [*answer.prompt, *before]
        spelled = [self.desk.spell(token) for token in tokens]
        start = sum(len(self.desk.spell(token)) for token in before)
        return {
            "tokens": spelled,
            "token_logprobs": [None if each is None else each.chosen for each in found],
            "top_logprobs": [
                None if each is None else self._likeliest(own, each) for own, each in zip(spelled, found, strict=True)
            ],
            "text_offset": list(accumulate(map(len, spelled[:-1]), initial=start)),
        }

    def _likeliest(self, own: str, found: TokenLogprobs) -> dict[str, float]:
        """Returns the most likely tokens and the chosen one by text; tokens with equal texts count as the likeliest."""
        best: dict[str, float] = {}
        for text, value in [*((self.desk.spell(token), value) for token, value in found.top), (own, found.chosen)]:
            best.setdefault(text, value)
        return best
