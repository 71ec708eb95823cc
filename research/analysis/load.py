"""A bounded load for a server: `python research/analysis/load.py URL --prompts FILE --concurrency 8 --requests 64`.

A fixed number of clients ask at a time, each for one streamed answer after the other, with the same seeds in every run.
It works with any OpenAI-compatible server; acceptance is read from the metrics that vLLM has, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Asked:
    """One request: its outcome and times."""

    number: int
    started: float
    first: float | None = None
    """Time of the first text."""
    ended: float | None = None
    tokens: int = 0
    text: str = ""
    failure: str | None = None


@dataclass(frozen=True)
class Load:
    """Requests to send."""

    url: str
    model: str
    prompts: Sequence[str]
    requests: int
    concurrency: int
    max_tokens: int
    temperature: float
    ignore_eos: bool = False
    key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    async def run(self) -> list[Asked]:
        """Sends all requests in order, `concurrency` of them at a time."""
        numbers = iter(range(self.requests))
        done: list[Asked] = []
        limits = httpx2.Limits(max_connections=self.concurrency)
        async with httpx2.AsyncClient(headers=self.headers, timeout=None, limits=limits) as client:

            async def ask_all() -> None:
                for number in numbers:
                    done.append(await self._ask(client, number))

            await asyncio.gather(*(ask_all() for _ in range(self.concurrency)))
        return sorted(done, key=lambda asked: asked.number)

    async def _ask(self, client: httpx2.AsyncClient, number: int) -> Asked:
        asked = Asked(number, perf_counter())
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompts[number % len(self.prompts)]}],
            "max_tokens": 1 + self.max_tokens * (1 + number % 4) // 4,  # of several lengths
            "temperature": self.temperature,
            "seed": number,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | ({"ignore_eos": True} if self.ignore_eos else {})
        try:
            async with client.stream("POST", f"{self.url}/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    asked.failure = f"HTTP {reply.status_code}"
                    return asked
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        self._read(asked, json.loads(line.removeprefix("data: ")))
        except (httpx2.HTTPError, OSError) as error:
            asked.failure = type(error).__name__
        asked.ended = perf_counter()
        return asked

    def _read(self, asked: Asked, event: dict[str, Any]) -> None:
        if "error" in event:
            asked.failure = event["error"]["message"]
        for choice in event.get("choices", []):
            if text := choice["delta"].get("content"):
                asked.first = asked.first or perf_counter()
                asked.text += text
        if event.get("usage"):
            asked.tokens = event["usage"]["completion_tokens"]


def summarise(
    done: Sequence[Asked], seconds: float, before: dict[str, float], after: dict[str, float]
) -> dict[str, Any]:
    """The figures of a load as plain data; `digest` is that of all texts, equal where every text is."""
    good = [asked for asked in done if asked.failure is None and asked.first is not None and asked.ended is not None]
    waits = [asked.first - asked.started for asked in good if asked.first is not None]
    paces = [
        (asked.ended - asked.first) / (asked.tokens - 1)
        for asked in good
        if asked.first is not None and asked.ended is not None and asked.tokens > 1
    ]
    drafts, accepted = (
        after.get(name, 0.0) - before.get(name, 0.0)
        for name in ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total")
    )
    tokens = sum(asked.tokens for asked in good)
    return {
        "requests": len(done),
        "failed": len(done) - len(good),
        "failures": sorted({asked.failure for asked in done if asked.failure}),
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "first_token_ms": _quantiles(waits),
        "per_token_ms": _quantiles(paces),
        "acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "digest": sha256("\0".join(asked.text for asked in done).encode()).hexdigest()[:16],
        "load_average": os.getloadavg()[0],
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {"median": 1000 * median(ordered), "p95": 1000 * ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]}


def read_metrics(text: str) -> dict[str, float]:
    """The sums of all samples by name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def ask_metrics(url: str) -> dict[str, float]:
    """The sums of a server's metrics; none of one that has no metrics."""
    reply = httpx2.get(url.removesuffix("/v1") + "/metrics")
    return read_metrics(reply.text) if reply.is_success else {}


def read_prompts(path: Path) -> Iterator[str]:
    """The prompts of a JSONL file: `prompt`, or the first of `turns`."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            found = json.loads(line)
            yield found["prompt"] if "prompt" in found else found["turns"][0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the figures as one JSON object; exit status 1 if a request failed."""
    parser = argparse.ArgumentParser(prog="load.py", description=__doc__)
    parser.add_argument("url", help="the endpoint, up to and including the version: http://127.0.0.1:8000/v1")
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="JSONL with `prompt` or `turns`")
    parser.add_argument("--requests", type=int, default=64, metavar="N")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=64,
        metavar="N",
        help="tokens of the longest answers; others have a quarter, half or three quarters",
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ignore-eos", action="store_true", help="decode every answer to its budget")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="write every answer there, a line each")
    options = parser.parse_args(arguments)
    try:
        found, done = measure(options)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        print(f"{options.url} cannot be used: {error or type(error).__name__}", file=sys.stderr)
        return 2
    print(json.dumps({"concurrency": options.concurrency} | found))
    if options.texts is not None:
        lines = [json.dumps({name: asdict(asked)[name] for name in ("number", "tokens", "text")}) for asked in done]
        options.texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if found["failed"] else 0


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[Asked]]:
    """The figures and the requests of the load that the arguments name. Raises httpx2's errors and OSError."""
    url = options.url.rstrip("/")
    key = os.environ.get("SPECFRAME_SERVE_KEY")
    load = Load(
        url=url,
        model="",
        prompts=list(read_prompts(options.prompts)),
        requests=options.requests,
        concurrency=options.concurrency,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
        key=key,
    )
    models = httpx2.get(f"{url}/models", headers=load.headers)
    load = replace(load, model=models.raise_for_status().json()["data"][0]["id"])
    before, start = ask_metrics(url), perf_counter()
    done = asyncio.run(load.run())
    seconds = perf_counter() - start
    return summarise(done, seconds, before, ask_metrics(url)), done


if __name__ == "__main__":
    sys.exit(main())
