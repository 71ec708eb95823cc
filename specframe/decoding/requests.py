"""Requests of a session, and the tokens that each row has been given so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target, text_of
from specframe.kernel.types import Draw, KnownPrefix, Prompts, TokenTree, Verdict
from specframe.sampling.laws import History, RowSampling, Sampling

GREEDY = Sampling()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt, with everything that its continuation depends on."""

    tokens: Sequence[int]
    sampling: Sampling = GREEDY
    seed: int = 0
    max_new_tokens: int
    number: int = 0
    """The caller's number of the request."""
    ends: frozenset[int] = frozenset()
    """The tokens that end the continuation."""
    stop: Callable[[Entry], bool] | None = None
    """Returns whether the text ends the row; called after every token."""
    listener: Callable[[list[int]], None] | None = None
    """Callback that gets new tokens as soon as a cycle commits them."""
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """Inputs that the target reads with the prompt, such as an image's pixels: see `Prompts`."""
    prefix: KnownPrefix | None = field(default=None, compare=False)
    """A beginning of the prompt, shorter than it, that a target with `read_ahead` need not read again."""
    predicted: Sequence[int] = ()
    """A likely continuation, from which drafters that copy from the text may copy, too. The output is the same."""

    @property
    def failure(self) -> str | None:
        """A grammar's message for a text that it could not continue; None without one."""
        return next(filter(None, (getattr(each, "failure", None) for each in self.sampling.processors)), None)


@dataclass
class Entry:
    """A request in a session: its generated tokens, and the reason why it ended."""

    request: Request
    limit: int
    tokens: list[int] = field(default_factory=list)
    ended: str | None = None
    """None while the row runs; then the reason for its end: `length`, `end` (an end-of-sequence token), `stop` (a stop
    text), `cancelled` or `failed` (see `error`)."""
    error: str | None = None
    """Reason for a failure, in one sentence."""
    read: int = 0
    """Tokens of the text that the drafter had read at its last draft, where costs decide whether it drafts."""

    @property
    def text(self) -> list[int]:
        """The prompt and the generated tokens."""
        return [*self.request.tokens, *self.tokens]

    @property
    def length(self) -> int:
        """The number of tokens of the text."""
        return len(self.request.tokens) + len(self.tokens)

    @property
    def left(self) -> int:
        """The number of tokens that may still be generated."""
        return self.limit - len(self.tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Appends tokens up to an end of sequence, a stop text or the budget; later ones are cut off.

        A callback may end the entry: a cancelled one stays cancelled, and gets no further tokens.
        """
        start = len(self.tokens)
        for token in tokens:
            if self.ended:
                break
            self.tokens.append(token)
            if token in self.request.ends:
                self.ended = "end"
            elif self.request.stop is not None and self.request.stop(self):
                self.ended = self.ended or "stop"
            elif len(self.tokens) >= self.limit:
                self.ended = self.ended or "length"
        if self.request.listener is not None and len(self.tokens) > start:
            self.request.listener(self.tokens[start:])


BANNED = "either the target's logits are not numbers there, or the logits processors ban every token"


def register(requests: Sequence[Request], context: int) -> list[Entry]:
    """An entry for each request. Raises InputError for a prompt that is empty or longer than the context."""
    return [Entry(request, budget(request, context, number)) for number, request in enumerate(requests)]


def enter(entries: Sequence[Entry], draft: TokenTree, verdict: Verdict, gaps: torch.Tensor | None = None) -> None:
    """Appends a cycle's tokens to the entries of its rows.

    A row fails at its path's first node after which no token has mass, gaps [B, N] bool; later tokens are dropped.
    """
    host = verdict.to_host(draft)
    first: list[int | None] = host.gaps or [None] * len(entries)
    if gaps is not None and host.gaps is None and gaps.any():
        missing = gaps.gather(1, verdict.slots.clamp(min=0)) & (verdict.slots >= 0)  # [B, A + 1]
        first = [row.index(True) if any(row) else None for row in missing.tolist()]
    for entry, tokens, place in zip(entries, host.tokens, first, strict=True):
        if place != 0:
            entry.add(tokens[:place])
        if place is not None and entry.ended is None:
            entry.ended = "failed"
            why = entry.request.failure
            entry.error = (
                f"prompt {entry.request.number + 1}, position {len(entry.text)}: no token has any probability; "
                + (f"the grammar cannot be followed: {why}" if why is not None else BANNED)
            )


def require_whole(entries: Sequence[Entry]) -> None:
    """Raises InputError if rows failed, with a line for each."""
    if errors := [entry.error for entry in entries if entry.error is not None]:
        raise InputError("\n".join(errors))


def budget(request: Request, context: int, number: int) -> int:
    """The most new tokens of a request. Raises InputError for a prompt that is empty or too long."""
    if not request.tokens:
        raise InputError(f"prompt {number + 1} is empty; give it at least one token")
    left = context - len(request.tokens)
    if left < 1:
        raise InputError(
            f"prompt {number + 1} has {len(request.tokens)} tokens and leaves no room in the target's context of "
            f"{context}; shorten it to {context - 1} tokens or fewer, or raise the target's `context`"
        )
    return min(request.max_new_tokens, left)


def sampling_of(entries: Sequence[Entry]) -> Sampling | RowSampling:
    """The common sampling of all entries, or each row's own if they differ."""
    samplings = [entry.request.sampling for entry in entries]
    if all(other == samplings[0] for other in samplings):
        return samplings[0] if samplings else Sampling()
    return RowSampling(samplings)


def following(
    sampling: Sampling | RowSampling, entries: Sequence[Entry], device: torch.device | None = None
) -> Sampling | RowSampling:
    """The sampling, bound to the entries' committed tokens on the logits' device if it has processors."""
    if not sampling.processors:
        return sampling
    return sampling.following(History(*pad([entry.text for entry in entries], device)))


Allows = Callable[[Sequence[int], Sequence[int], Sequence[int]], list[bool]]
"""The method `allows` of a logits processor that knows some of its banned tokens without logits.

Given a text, and the tokens and parents of a tree after it, it returns for each node True unless the node is banned;
node 0 is the text's last token.
"""


def pruned(draft: TokenTree, entries: Sequence[Entry]) -> TokenTree:
    """The draft without the nodes that its rows' logits processors ban, and without all nodes below them.

    The target's law has no mass at such a node, so no accepted path leads through it. Sampled nodes stay: dropping
    some by their tokens would change the law of the others.
    """
    processors: list[tuple[object, ...]] = [entry.request.sampling.processors for entry in entries]
    guides: list[list[Allows]] = [[each.allows for each in own if hasattr(each, "allows")] for own in processors]
    if draft.levels == 0 or not any(guides):
        return draft
    fields = torch.stack([draft.tokens, draft.parent, draft.valid.long(), draft.draw.long()], 1)  # one copy to the host
    parts: list[list[list[int]]] = fields.tolist()
    nodes, whole = list[list[int]](), True
    for entry, own, (tokens, parents, valid, draws) in zip(entries, guides, parts, strict=True):
        allowed = [allows(entry.text, tokens, parents) for allows in own]
        left = {0}
        for node, parent in enumerate(parents[1:], 1):
            if parent in left and valid[node] and (draws[node] != Draw.TOP or all(each[node] for each in allowed)):
                left.add(node)
        nodes.append(sorted(left))
        whole = whole and len(left) == sum(valid)
    return draft if whole else draft.only(nodes)


def pad(rows: Sequence[Sequence[int]], device: torch.device | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows right-padded with 0, [B, L], and their lengths [B]."""
    count = torch.tensor([len(row) for row in rows], device=device)
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
    return tokens.to(device), count


def as_prompts(rows: Sequence[Sequence[int]], device: torch.device | None = None) -> Prompts:
    """The rows as a batch of prompts."""
    return Prompts(*pad(rows, device))


def groups(target: Target, requests: Sequence[Request]) -> list[list[int]]:
    """The indices of requests that can be read in one batch, group by group.

    Texts without a prefix are one group; those with prefixes of one length are another. Requests with inputs share a
    group if the inputs have the same shapes, apart from the length of the text, and the same number of image tokens: a
    row with too many cannot take the features of another.
    Raises InputError for inputs that the target does not read.
    """
    if not any(request.inputs or request.prefix for request in requests):
        return [[*range(len(requests))]]
    if not any(request.inputs for request in requests):
        alike: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            alike.setdefault(0 if request.prefix is None else len(request.prefix.tokens), []).append(place)
        return list(alike.values())
    text, images = text_of(target), text_of(target).image_tokens
    found: dict[object, list[int]] = {}
    for place, request in enumerate(requests):
        text.require_inputs(request.inputs)
        shapes = [
            (name, None if is_by_token(values, len(request.tokens)) else values.shape)
            for name, values in sorted(request.inputs.items())
        ]
        count = sum(token in images for token in request.tokens) if shapes else 0
        found.setdefault((count, *shapes), []).append(place)
    return list(found.values())


def prompts_of(requests: Sequence[Request], device: torch.device | None = None) -> Prompts:
    """The requests of one group as a batch; inputs with a number per token are padded with 0, all are concatenated."""
    tokens, count = pad([request.tokens for request in requests], device)
    inputs = {}
    for name in requests[0].inputs:
        rows = [
            F.pad(values, (0, tokens.shape[1] - values.shape[1]))
            if is_by_token(values, len(request.tokens))
            else values
            for request, values in ((request, request.inputs[name]) for request in requests)
        ]
        inputs[name] = torch.cat(rows).to(device)
    prefixes = [request.prefix for request in requests if request.prefix is not None]
    return Prompts(tokens, count, inputs, prefixes, [request.predicted for request in requests])


def is_by_token(values: torch.Tensor, count: int) -> bool:
    """Returns whether an input has one number for each of the `count` tokens of a text."""
    return values.shape == (1, count) and not values.is_floating_point()


def refilled(alive: Sequence[bool]) -> list[int]:
    """The rows that stay, in their new order: the last row fills each gap, the others keep their places."""
    order = list(range(len(alive)))
    place = 0
    while place < len(order):
        if alive[order[place]]:
            place += 1
        elif alive[last := order.pop()]:  # so it is not the gap itself
            order[place] = last
    return order


SPARE = 8
"""Tokens examined beyond one for each character of a stop text, since characters may be split among tokens."""


class StopTexts:
    """Test whether a row's new text contains a stop text, with its special tokens or without them.

    transformers' `stop_strings` match a special token's own text, such as `<|im_end|>`, which decoded text leaves out.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        """The test for these texts, over a tokenizer of transformers."""
        self._texts = tuple(texts)
        self._tokenizer = tokenizer
        self._special = frozenset(number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._reach = max(map(len, texts)) + SPARE

    def __call__(self, entry: Entry) -> bool:
        """Returns whether the latest token completes a stop text, which may span tokens: the tail is examined."""
        tail = entry.tokens[-self._reach :]
        shown = str(self._tokenizer.decode(tail, skip_special_tokens=True))
        if any(text in shown for text in self._texts):
            return True
        if self._special.isdisjoint(tail):
            return False
        whole = str(self._tokenizer.decode(tail, skip_special_tokens=False))
        return any(text in whole for text in self._texts)
