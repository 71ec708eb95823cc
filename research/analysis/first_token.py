"""Cost of a long prompt for other requests: the waits of a running stream, and the time to the prompt's first token."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from statistics import median
from threading import Event, Thread
from time import perf_counter
from typing import Any

import httpx2
from served import Served, start


def first_token(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds that a running stream waits while a prompt of so many tokens is read, and to that prompt's first token.

    With several budgets of `--prefill`, the last of which reads it whole; rounds in turns.
    """
    prompt = [17 + 31 * place % 40_000 for place in range(options.prompt)]
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        servers = {
            prefill: stack.enter_context(
                start(options.recipe, options.overrides, slots=4, context=options.prompt + 256, prefill=prefill)
            )
            for prefill in (256, 512, options.prompt)
        }
        rounds: dict[int, list[tuple[float, float, float]]] = {prefill: [] for prefill in servers}
        for _ in range(options.rounds):
            for prefill, server in servers.items():
                rounds[prefill].append(disturbed(server, prompt))
    for prefill, rows in rounds.items():
        columns = [[row[place] for row in rows] for place in range(3)]
        names = ("longest_wait", "median_wait", "first_token")
        found[str(prefill)] = {name: median(column) for name, column in zip(names, columns, strict=True)}
        found[str(prefill)]["rounds"] = rows
    return found | {"load": os.getloadavg()[0]}


def disturbed(server: Served, prompt: Sequence[int]) -> tuple[float, float, float]:
    """Measures a stream disturbed by a long prompt: its longest and its median wait, and the prompt's to its token."""
    stamps: list[float] = []
    running = Thread(target=lambda: stamps.extend(stream(server, "Write a long story about a dragon.", 160, ready)))
    ready = Event()
    running.start()
    ready.wait()
    begin = perf_counter()
    first = next(stream(server, prompt, 2)) - begin
    running.join()
    waits = [later - earlier for earlier, later in pairwise(stamps)]
    return max(waits), median(waits), first


def stream(server: Served, prompt: str | Sequence[int], tokens: int, ready: Event | None = None) -> Iterator[float]:
    """The times at which a stream's events come; `ready` is set with the tenth."""
    ask = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "seed": 1}
    with httpx2.stream("POST", f"{server.url}/completions", json=ask, timeout=600) as reply:
        events = (line for line in reply.iter_lines() if line.startswith("data: {"))
        for number, _ in enumerate(events):
            if ready is not None and number == 10:
                ready.set()
            yield perf_counter()
