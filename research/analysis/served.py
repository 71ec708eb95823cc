"""Servers in processes of their own, loads for them, and what several of them take under one load."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any

import httpx2

import specframe
from specframe import model_folder

SHORT = 3
"""Short prompts that come after a long one."""
LOAD = Path(__file__).with_name("load.py")
RECIPES = Path(__file__).resolve().parents[2] / "recipes"
QUESTIONS = Path(specframe.__file__).parent / "bench" / "contest" / "specframe.jsonl"
"""The bench's questions."""


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    url: str
    """Address up to and with the version."""
    process: int
    """Number of the process, by which Linux counts its resources."""

    @property
    def memory(self) -> float:
        """Resident memory in megabytes, as Linux counts it."""
        status = Path(f"/proc/{self.process}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return round(int(found[1]) / 1024, 1) if found else float("nan")

    @property
    def cpu(self) -> float:
        """The processor time it has taken so far in seconds, as Linux counts it: whatever else the machine does."""
        fields = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(
        self,
        prompts: Path,
        *,
        requests: int,
        concurrency: int,
        tokens: int,
        temperature: float = 0.0,
        more: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The figures of the load generator, which runs in a process of its own, and `tokens_per_cpu_second`.

        Raises RuntimeError if it fails.
        """
        command = [sys.executable, str(LOAD), self.url, "--prompts", str(prompts)]
        command += ["--requests", str(requests), "--concurrency", str(concurrency), "--max-tokens", str(tokens)]
        begin = self.cpu
        done = subprocess.run(
            [*command, "--temperature", str(temperature), *more], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the load failed: {done.stdout}{done.stderr}")
        found = dict(json.loads(done.stdout))
        return found | {"tokens_per_cpu_second": found["tokens"] / (self.cpu - begin)}


@contextmanager
def start(recipe: Path, overrides: Sequence[str] = (), **options: int) -> Iterator[Served]:
    """A server of the recipe, once it answers; at the end it drains. `options` are those of `specframe serve`."""
    command = [sys.executable, "-m", "specframe", "serve", str(recipe), *overrides, "--port", "0"]
    command += ["--log-level", "warning"]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if " at http" not in line:
                raise RuntimeError(f"{' '.join(command)} did not start: {line}")
            yield Served(line.split(" at ")[1].split(",")[0], process.pid)
        finally:
            process.terminate()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()


LLAMACPP = """
import os, sys
os.environ.pop("GOMP_SPINCOUNT", None)
import xllamacpp
options = xllamacpp.CommonParams()
options.model.path, slots, context, threads = sys.argv[1], *map(int, sys.argv[2:])
options.n_parallel, options.n_ctx, options.ui, options.verbosity = slots, slots * context, False, 0
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(options)
print(f"llama.cpp at {server.listening_address}/v1,", flush=True)
sys.stdin.read()
"""
"""llama.cpp's own server, of the package xllamacpp, until its input ends."""


@contextmanager
def start_llamacpp(file: Path, slots: int, context: int) -> Iterator[Served]:
    """llama.cpp's server of a GGUF file, with as many slots of so many tokens."""
    command = [sys.executable, "-c", LLAMACPP, str(file), str(slots), str(context), str(os.cpu_count())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("llama.cpp at http")), "")
            if not line:
                raise RuntimeError("llama.cpp's server did not start; is xllamacpp installed?")
            yield Served(line.split(" at ")[1].split(",")[0], process.pid)
        finally:
            process.kill()


def asked(concurrency: int, options: argparse.Namespace) -> int:
    """The number of requests of so many clients."""
    return max(int(options.requests), int(options.each) * concurrency)


def ask(server: Served, concurrency: int, options: argparse.Namespace, attempts: int = 3) -> dict[str, Any]:
    """The figures of one load, every answer decoded to its budget; one in which a connection broke is sent again."""
    try:
        return server.load(
            QUESTIONS,
            requests=asked(concurrency, options),
            concurrency=concurrency,
            tokens=options.tokens,
            temperature=options.temperature,
            more=["--ignore-eos"],
        )
    except RuntimeError as error:
        if attempts == 1 or "RemoteProtocolError" not in str(error):
            raise
        print(f"sent again, {server.url}: {error}", file=sys.stderr, flush=True)
        return ask(server, concurrency, options, attempts - 1)


def goodput(options: argparse.Namespace) -> str:
    """The tree policy `goodput` with the costs that were measured."""
    files = ", ".join(map(str, sorted(options.costs.glob("costs-*.json"))))
    return f"tree={{use: goodput, depth: {options.depth}, costs: [{files}]}}"


def table(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second, and milliseconds to the first token and between tokens: medians of rounds in turns.

    llama.cpp's server, and the last two of ours, decode the same GGUF file in 4 bits.
    """
    copies, eagle, bits = (RECIPES / f"{name}.yaml" for name in ("suffix-recycling", "eagle", "suffix-recycling-int4"))
    contestants: dict[str, tuple[Path, list[str]]] = {
        "plain": (copies, ["drafter={use: none}"]),
        "suffix-recycling": (copies, []),
        "eagle": (eagle, []),
        "goodput": (eagle, [goodput(options)]),
        "plain, 4 bits": (bits, ["drafter={use: none}"]),
        "suffix-recycling, 4 bits": (bits, []),
    }
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        slots = max(options.concurrency)
        servers = {
            name: stack.enter_context(start(recipe, [*options.overrides, *own], slots=slots, context=512))
            for name, (recipe, own) in contestants.items()
        }
        file = next(model_folder("smollm2-135m").glob("*.gguf"))
        servers["llama.cpp, 4 bits"] = stack.enter_context(start_llamacpp(file, slots, 512))
        for concurrency in options.concurrency:
            rows: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
            for server in servers.values():  # the first load of so many rows allocates what they need
                ask(server, concurrency, options)
            for turn in range(options.rounds):
                names = [*servers][turn % len(servers) :] + [*servers][: turn % len(servers)]
                for name in names:
                    rows[name].append(summary_of(ask(servers[name], concurrency, options)))
            found[str(concurrency)] = {
                name: {figure: median(row[figure] for row in own) for figure in own[0]} | {"rounds": own}
                for name, own in rows.items()
            }
            print(concurrency, json.dumps(found[str(concurrency)]), flush=True)
    return found


def summary_of(figures: dict[str, Any]) -> dict[str, float]:
    """The figures of a load that a table has."""
    found = {name: float(figures[name]) for name in ("tokens_per_second", "load_average")}
    for name in ("first_token_ms", "per_token_ms"):
        found |= {f"{name}_{kind}": float(figures[name][kind]) for kind in ("median", "p95")}
    return found


def first_token(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds that others wait while a prompt of so many tokens is read, and to that prompt's first token.

    They are a running stream, and short prompts, alone and after the long one; they come when no row is running. With
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
                figures = disturbed(server, made(most, turn, 0)) | after(server, made(most, turn, 1), turn)
                rounds[piece].append(figures)
    for piece, rows in rounds.items():
        found[str(piece)] = {name: median(row[name] for row in rows) for name in rows[0]} | {"rounds": rows}
    return found | {"load": os.getloadavg()[0]}


def made(count: int, *seed: int) -> list[int]:
    """A prompt of so many tokens, another one for each seed."""
    return [17 + (31 * place + 7919 * sum(7**i * (1 + n) for i, n in enumerate(seed))) % 5000 for place in range(count)]


def after(server: Served, prompt: Sequence[int], turn: int) -> dict[str, float]:
    """The times to the first token of short prompts of 100 tokens: alone, and after a long one that is being read."""
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
    return {"short_alone": median(alone), "short_after": median(late), "long_before_short_ones": own[0]}


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
