"""Cost of a long prompt for other requests: the waits of a running stream, of short prompts, and its own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from statistics import median
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any

import httpx2
from served import Served, start

SHORT = 3
"""Short prompts that come behind a long one."""


def first_token(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds that others wait while a prompt of so many tokens is read, and to that prompt's first token.

    They are a running stream, and short prompts, alone and behind the long one; they come when no row is running. With
    several sizes of `--piece`, the last of which reads it whole; rounds in turns, with new texts, so that nothing is
    known of them.
    """
    found: dict[str, Any] = {}
    most = options.prompt
    with ExitStack() as stack:
        servers = {
            piece: stack.enter_context(
                start(
                    options.recipe,
                    options.overrides,
                    slots=4,
                    context=most + 256,
                    piece=piece,
                    prefill=max(512, piece),
                )
            )
            for piece in (64, 512, most)
        }
        rounds: dict[int, list[dict[str, float]]] = {piece: [] for piece in servers}
        for server in servers.values():
            waited(server, made(600, 0))
        for turn in range(options.rounds):
            for piece, server in servers.items():
                figures = disturbed(server, made(most, turn, 0)) | behind(server, made(most, turn, 1), turn)
                rounds[piece].append(figures)
    for piece, rows in rounds.items():
        found[str(piece)] = {name: median(row[name] for row in rows) for name in rows[0]} | {"rounds": rows}
    return found | {"load": os.getloadavg()[0]}


def made(count: int, *seed: int) -> list[int]:
    """A prompt of so many tokens, another one for each seed."""
    return [17 + (31 * place + 7919 * sum(7**i * (1 + n) for i, n in enumerate(seed))) % 5000 for place in range(count)]


def behind(server: Served, prompt: Sequence[int], turn: int) -> dict[str, float]:
    """The times to the first token of short prompts of 100 tokens: alone, and behind a long one that is being read."""
    alone = [waited(server, made(100, turn, 2, number)) for number in range(SHORT)]
    own: list[float] = []
    reading = Thread(target=lambda: own.append(waited(server, prompt)))
    reading.start()
    late = []
    for number in range(SHORT):
        sleep(0.45)  # in the midst of pieces of any size
        if own:  # it was read whole before the first of them
            break
        late.append(waited(server, made(100, turn, 3, number)))
    reading.join()
    return {"short_alone": median(alone), "short_behind": median(late), "long_before_short_ones": own[0]}


def waited(server: Served, prompt: Sequence[int]) -> float:
    """Seconds to the first token of a prompt."""
    begin = perf_counter()
    return next(stream(server, prompt, 1)) - begin


def disturbed(server: Served, prompt: Sequence[int]) -> dict[str, float]:
    """The longest and the median wait of a stream that a long prompt disturbs, and the time to that one's token."""
    stamps: list[float] = []
    running = Thread(target=lambda: stamps.extend(stream(server, "Write a long story about a dragon.", 160, ready)))
    ready = Event()
    running.start()
    ready.wait()
    begin = perf_counter()
    first = next(stream(server, prompt, 2)) - begin
    running.join()
    waits = [later - earlier for earlier, later in pairwise(stamps)]
    return {"longest_wait": max(waits), "median_wait": median(waits), "first_token": first}


def stream(server: Served, prompt: str | Sequence[int], tokens: int, ready: Event | None = None) -> Iterator[float]:
    """The times at which a stream's events come; `ready` is set with the tenth."""
    ask = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "seed": 1}
    with httpx2.stream("POST", f"{server.url}/completions", json=ask, timeout=600) as reply:
        events = (line for line in reply.iter_lines() if line.startswith("data: {"))
        for number, _ in enumerate(events):
            if ready is not None and number == 10:
                ready.set()
            yield perf_counter()
