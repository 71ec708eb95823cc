"""Test of a running server through its OpenAI endpoint: do its tokens follow the target's distribution?

The second and later tokens of a completion may be drafted. Every token comes with the probabilities of the most likely
tokens; the test compares how often it is the most likely, the second, the third ... with these. First tokens, which
follow the prompt's forward pass without a draft, are tested in the same way as a control, which shows whether the
server draws by its log-probabilities at all. Whether the log-probabilities of drafted tokens are the target's is tested
with prompts that contain the same text, after which the token is the first one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import exp
from typing import Any

import httpx2
import numpy as np

from specframe import InputError
from specframe_against.fit import fit_ranks

KEY = "SPECFRAME_API_KEY"
"""The environment variable whose value is sent as the bearer token."""
LOGPROBS = (20, 5)
"""Numbers of alternatives to request; the first one that the server grants is used."""
TOKENS = 4
"""Number of tokens of a completion."""
RANKS = 10
"""Maximum number of ranks counted separately; fewer than the server returns, because two tokens may share a text."""
COMPARED = 8
"""Number of most frequent texts of each length whose log-probabilities are compared with those after a prompt."""
NEAR = 0.05
"""Total variation by which two passes over one text may differ through arithmetic, as in bfloat16 and batches."""
MOST_ENDED = 0.005
"""Share of completions that may end early: most servers do not list the end token, so it is not counted."""
CONCURRENCY = 8
SECONDS = 300.0
"""Maximum number of seconds for an answer."""
BROKEN = "\ufffd"
"""Mark of an incomplete character: tokens with it may share their text."""
COUNTER = re.compile(r"^[\w:]*accepted_tokens(?:_total)?(?:\{[^}\n]*\})? ([\d.eE+-]+)", re.MULTILINE)
"""Matches a metric of accepted draft tokens."""
TEXTS = ("The three primary colours are", "def fibonacci(n):\n    ", "Once upon a time, there was a")

Law = dict[str, float]


@dataclass(frozen=True)
class Completion:
    """A completion, token by token."""

    tokens: tuple[str, ...]
    laws: tuple[Law, ...]
    """Probabilities of the most likely tokens at each position, without the drawn one if it is not among them."""
    prompt: int | None
    """Number of prompt tokens; None if the server does not report it."""

    def law(self, place: int) -> Law:
        """Probabilities of the likeliest tokens at a position, without those that are parts of characters."""
        return {token: mass for token, mass in self.laws[place].items() if BROKEN not in token}


class ServerProbe:
    """An OpenAI-compatible endpoint, asked for completions.

    Args:
        url: its address up to and with the version, such as http://localhost:8000/v1.
        model: the model to ask; none: the first that it lists.
        body: further fields of every request.
        transport: replaces the network.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        body: Mapping[str, Any] | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        key = os.environ.get(KEY, "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.Client(headers=headers, timeout=SECONDS, transport=transport)
        self._body = dict(body or {})
        self._logprobs = LOGPROBS[-1]
        self.ranks = 0
        """Number of ranks to count, known after the first request."""
        self.model = model or self._first_model()

    def _first_model(self) -> str:
        listed = self._read(self._send("GET", f"{self.url}/models"))
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise InputError(f"{self.url} lists no model: name one with --model") from None

    def begin(self, text: str) -> Completion:
        """Returns the first completion of a text, and determines how many alternatives the server returns."""
        for count in LOGPROBS:
            self._logprobs, self.ranks = count, min(count - 1, RANKS)
            try:
                return self.complete(text, 1)
            except InputError:
                if count == LOGPROBS[-1]:
                    raise
        raise AssertionError

    def complete(self, text: str, tokens: int, seed: int = 0) -> Completion:
        """Returns a completion of at most `tokens` tokens, drawn at temperature 1."""
        body = {
            "model": self.model,
            "prompt": text,
            "max_tokens": tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "seed": seed,
            "logprobs": self._logprobs,
            **self._body,
        }
        return self._completion(self._read(self._send("POST", f"{self.url}/completions", body)))

    def _likeliest(self, law: Law) -> Law:
        """Returns the requested number of alternatives: some servers add the drawn token."""
        return dict(sorted(law.items(), key=lambda entry: -entry[1])[: self._logprobs])

    def accepted(self) -> float | None:
        """Returns the number of drafted tokens accepted so far, by the server's metrics; None if they lack it."""
        try:
            text = self._client.get(re.sub(r"/v\d+$", "", self.url) + "/metrics").text
        except httpx2.HTTPError:
            return None
        found = COUNTER.findall(text)
        return sum(map(float, found)) if found else None

    def _send(self, method: str, address: str, body: Mapping[str, Any] | None = None) -> httpx2.Response:
        try:
            return self._client.request(method, address, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise InputError(f"{self.url} cannot be reached: {type(error).__name__}: {error}") from None

    def _read(self, reply: httpx2.Response) -> Any:
        """Returns the content of a reply. Raises InputError with the server's reason if there is none."""
        if reply.status_code >= 400:
            hint = f"; set {KEY}" if reply.status_code in (401, 403) else ""
            raise InputError(f"{self.url} answers HTTP {reply.status_code}: {' '.join(reply.text.split())[:200]}{hint}")
        try:
            return reply.json()
        except ValueError:
            raise InputError(f"{self.url} answers no JSON: is it an OpenAI endpoint, with its /v1?") from None

    def _completion(self, answer: Any) -> Completion:
        try:
            (choice,) = answer["choices"]
            entries = list(_entries(choice["logprobs"]))
            tokens, laws = tuple(token for token, _ in entries), tuple(self._likeliest(law) for _, law in entries)
            return Completion(tokens, laws, (answer.get("usage") or {}).get("prompt_tokens"))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                f"{self.url} gives no `logprobs` of completions, without which its target's distribution is not known"
            ) from None


def _entries(logprobs: Any) -> Iterator[tuple[str, Law]]:
    """Yields each token and the probabilities of the most likely, from OpenAI's form for completions or for chats."""
    if "content" in logprobs:
        for entry in logprobs["content"]:
            yield entry["token"], {each["token"]: exp(each["logprob"]) for each in entry["top_logprobs"]}
    else:
        for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
            yield token, {each: exp(value) for each, value in top.items()}


def certify_server(
    url: str,
    samples: int,
    model: str | None = None,
    texts: Sequence[str] = (),
    body: Mapping[str, Any] | None = None,
    announce: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Returns the findings of `probe` about the server at an address, with `TEXTS` if no texts are given."""
    return probe(ServerProbe(url, model, body), samples, texts or TEXTS, announce)


def probe(
    server: ServerProbe, samples: int, texts: Sequence[str], announce: Callable[[str], None] = lambda step: None
) -> dict[str, Any]:
    """Draws completions of each text and tests their tokens, position by position; returns the findings for JSON.

    Raises InputError for a server that cannot be tested.
    """
    before = server.accepted()
    drawn: list[tuple[str, Completion]] = []
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        for text in texts:
            server.begin(text)
            announce(f"{samples:,} completions of {text!r}")
            answers = pool.map(lambda seed, text=text: server.complete(text, TOKENS, seed), range(samples))
            drawn += [(text, answer) for answer in answers]
        after = server.accepted()
        announce("log-probabilities after prompts of the same texts")
        compared = pool.map(lambda each: _distance(server, *each), _frequent(drawn))
        distances = [distance for distance in compared if distance is not None]
    positions = [_position(place, [answer for _, answer in drawn], server.ranks) for place in range(TOKENS)]
    ended = sum(len(answer.tokens) < TOKENS for _, answer in drawn)
    accepted = None if before is None or after is None else after - before
    distance = max(distances, default=None)
    return {
        "server": server.url,
        "model": server.model,
        "samples": len(drawn),
        "accepted": accepted,
        "ended": ended,
        "distance": distance,
        "different": any(place["refused"] for place in positions) or (distance or 0) > NEAR,
        "tested": accepted != 0 and ended <= MOST_ENDED * len(drawn),
        "positions": positions,
    }


def _position(place: int, answers: Sequence[Completion], count: int) -> dict[str, Any]:
    """Returns the test of one position's tokens, by `count` ranks and all others."""
    ranks: list[int] = []
    laws = np.zeros((len(answers), count + 1))
    for answer in answers:
        if len(answer.tokens) <= place:
            continue
        law, token = answer.law(place), answer.tokens[place]
        names = list(law)[:count]
        laws[len(ranks), : len(names)] = [law[name] for name in names]
        ranks.append(names.index(token) if token in names else count)
    laws[:, count] = (1 - laws[:, :count].sum(1)).clip(min=0)
    fit = fit_ranks(ranks, laws[: len(ranks)])
    return {**fit.as_dict(), "position": place + 1, "refused": fit.refused}


def _frequent(drawn: Sequence[tuple[str, Completion]]) -> Iterator[tuple[str, Completion, int]]:
    """Yields the texts and positions whose log-probabilities are compared, with a completion that has them."""
    for place in range(1, TOKENS):
        begun = {(text, answer.tokens[:place]): answer for text, answer in drawn if len(answer.tokens) > place}
        count = Counter((text, answer.tokens[:place]) for text, answer in drawn if len(answer.tokens) > place)
        for (text, tokens), _ in count.most_common(COMPARED):
            yield text, begun[text, tokens], place


def _distance(server: ServerProbe, text: str, answer: Completion, place: int) -> float | None:
    """Returns the total variation between a position's distribution and that after a prompt of its text.

    None if the prompt's tokens differ from those of the text and the completion.
    """
    begun = "".join(answer.tokens[:place])
    again = server.complete(text + begun, 1)
    if BROKEN in begun or answer.prompt is None or again.prompt != answer.prompt + place:
        return None
    one, other = answer.law(place), again.law(0)
    shared = one.keys() & other.keys()
    rest = abs(sum(one[token] for token in shared) - sum(other[token] for token in shared))
    return (sum(abs(one[token] - other[token]) for token in shared) + rest) / 2
