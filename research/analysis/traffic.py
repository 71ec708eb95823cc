"""A server under load, on loopback: ``python research/analysis/traffic.py texts`` and so on.

    texts       16 clients at a time, others that vanish, and each text next to that of a lone run with the same seed
    memory      the server's memory while it answers 2,000 requests
    batches     tokens per second next to those of closed batches of the same requests, in turns
    costs       what `goodput` reads
    control     speculation as deep as pays next to none and to fixed depths, in turns
    competing   nodes of all rows in competition next to `goodput` and to none, by sessions of this process in turns
    table       throughput, first tokens and paces of plain decoding and three recipes, in turns
    first-token what a running stream and short prompts wait while a long prompt is read, whole and in pieces

The others start the servers they need with `specframe serve`. Every analysis prints JSON; numbers go to traffic.json.
On a busy machine read `tokens_per_cpu_second`: the tokens of a second of the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, process_time
from typing import Any

import httpx2
from load import read_prompts
from sample import Rounds, keep
from served import QUESTIONS, RECIPES, Served, ask, asked, first_token, goodput, start, table

import specframe
from specframe import Request, Session
from specframe.inspect.profile import profile

HERE = Path(__file__).resolve().parent
NUMBERS = HERE / "traffic.json"
JOINED = (1, 1, 2, 1, 3, 1, 2, 1, 6, 1)
"""Numbers of the bench's questions that make one prompt, in turn."""
LONG = 36
"""And of every fiftieth prompt: about 900 tokens, which are read in pieces."""


def mixed(folder: Path, count: int, longest: int = LONG) -> Path:
    """A file of prompts of many lengths, made of the bench's questions."""
    questions = list(read_prompts(QUESTIONS))
    path, place = folder / "prompts.jsonl", 0
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            size = longest if number % 50 == 25 else JOINED[number % len(JOINED)]
            prompt = "\n\n".join(questions[(place + i) % len(questions)] for i in range(size))
            file.write(json.dumps({"prompt": prompt}) + "\n")
            place += size
    return path


def texts(options: argparse.Namespace) -> dict[str, Any]:
    """Counts the texts of 16 clients that differ from those of lone runs with the same seeds."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, answers = mixed(Path(folder), options.requests), Path(folder) / "texts.jsonl"
        with start(options.recipe, options.overrides, slots=16) as server:
            left, done = [0], Event()
            leaver = Thread(target=leave, args=(server, done, left))
            leaver.start()
            try:
                found = server.load(
                    prompts,
                    requests=options.requests,
                    concurrency=16,
                    tokens=options.tokens,
                    temperature=options.temperature,
                    more=["--texts", str(answers)],
                )
            finally:
                done.set()
                leaver.join()
            size = server.memory
        given = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
        pipeline = specframe.load(options.recipe, overrides=options.overrides)
        different = []
        for number, prompt in enumerate(read_prompts(prompts)):
            budget = 1 + options.tokens * (1 + number % 4) // 4
            settings = replace(pipeline.sampling, temperature=options.temperature, max_new_tokens=budget)
            alone = replace(pipeline, sampling=settings).generate(prompt, seed=number).texts[0]
            if alone != given[number]["text"]:
                different.append({"number": number, "served": given[number]["text"], "alone": alone})
    return found | {"left": left[0], "memory_mb": size, "different": len(different), "differences": different[:3]}


def leave(server: Served, done: Event, left: list[int]) -> None:
    """Asks for a stream and leaves at its first piece, again and again, until `done`."""
    ask = {"prompt": "Write a long story about a dragon.", "max_tokens": 200, "stream": True, "ignore_eos": True}
    while not done.wait(10.0):
        with httpx2.stream("POST", f"{server.url}/completions", json=ask, timeout=600) as reply:
            next(reply.iter_bytes(), None)
        left[0] += 1


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """The server's resident memory in megabytes, after every tenth of the requests."""
    with tempfile.TemporaryDirectory() as folder, start(options.recipe, options.overrides, slots=16) as server:
        prompts = mixed(Path(folder), 200, 6)
        begin, sizes, failed = server.memory, [], 0
        for _ in range(10):
            size = options.requests // 10
            found = server.load(
                prompts, requests=size, concurrency=16, tokens=options.tokens, temperature=options.temperature
            )
            sizes.append(server.memory)
            failed += found["failed"]
    return {"requests": options.requests, "failed": failed, "begin_mb": begin, "mb": sizes}


def batches(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of a server and of closed batches over the same requests: medians of rounds in turns."""
    pipeline = specframe.load(options.recipe, overrides=options.overrides)
    found: dict[str, Any] = {}
    for concurrency in options.concurrency:
        rounds = Rounds(["served", "closed"])
        with start(options.recipe, options.overrides, slots=concurrency) as server:
            for _ in range(options.rounds):
                rounds.add("served", ask(server, concurrency, options))
                rounds.add("closed", in_batches(pipeline, concurrency, options))
        found[str(concurrency)] = rounds.summary()
        print(concurrency, json.dumps(found[str(concurrency)]), flush=True)
    return found


def in_batches(pipeline: specframe.Pipeline, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """The same requests in batches of `size`, each begun when the one before has ended."""
    requests = requests_of(pipeline, size, options)
    with pipeline.open_endless(size, longest=512) as session:
        return decoded(session, [requests[first : first + size] for first in range(0, len(requests), size)])


def requests_of(pipeline: specframe.Pipeline, size: int, options: argparse.Namespace) -> list[Request]:
    """The requests that `size` clients send, each with a length of its own."""
    questions = list(read_prompts(QUESTIONS))
    requests = []
    for number in range(asked(size, options)):
        settings = replace(pipeline.sampling, temperature=options.temperature)
        (request,) = pipeline.requests([pipeline.encode(questions[number % len(questions)])], settings, number)
        budget = 1 + options.tokens * (1 + number % 4) // 4
        requests.append(replace(request, max_new_tokens=budget, ends=frozenset()))
    return requests


def decoded(session: Session, batches: Iterable[Sequence[Request]]) -> dict[str, Any]:
    """The speed of batches, one after the other; rows that end make room for the next ones of their batch."""
    begin, cpu = perf_counter(), process_time()
    tokens = sum(len(entry.tokens) for batch in batches for entry in session.run(batch))
    return {
        "tokens_per_second": tokens / (perf_counter() - begin),
        "tokens_per_cpu_second": tokens / (process_time() - cpu),
        "load_average": os.getloadavg()[0],
    }


def competing(options: argparse.Namespace) -> dict[str, Any]:
    """The speed of three pipelines: medians of rounds in turns, with every round.

    `compared` has ratios of the speeds of two in one round, which the load of the machine changes least. Costs for
    numbers of rows that `--costs` has no file of are timed before.
    """
    missing = [rows for rows in options.concurrency if not (options.costs / f"costs-{rows}.json").is_file()]
    costs(argparse.Namespace(**vars(options) | {"concurrency": missing}))
    overrides = {"none": ["drafter={use: none}", "tree=null"], "goodput": [goodput(options)], "competing": []}
    pipelines = {
        name: specframe.load(options.recipe, overrides=[*options.overrides, *own]) for name, own in overrides.items()
    }
    found: dict[str, Any] = {}
    for rows in options.concurrency:
        rounds, names = Rounds(list(pipelines)), list(pipelines)
        batches = {name: [requests_of(pipeline, rows, options)] for name, pipeline in pipelines.items()}
        with ExitStack() as stack:
            sessions = {
                name: stack.enter_context(pipeline.open_endless(rows, longest=512))
                for name, pipeline in pipelines.items()
            }
            for name in names:  # the first load allocates what it needs, and is what drafters and trees begin to learn
                decoded(sessions[name], batches[name])
            begin, turn = perf_counter(), 0
            while turn < options.rounds or perf_counter() - begin < options.seconds:
                first = turn % len(names)
                for name in names[first:] + names[:first]:
                    rounds.add(name, decoded(sessions[name], batches[name]))
                turn += 1
        found[str(rows)] = rounds.summary()
        print(rows, json.dumps(found[str(rows)]), flush=True)
    return found


def costs(options: argparse.Namespace) -> dict[str, Any]:
    """Files of `specframe profile` for `control`, one for each concurrency."""
    questions = list(read_prompts(QUESTIONS))
    options.costs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for rows in options.concurrency:
        settings = [f"run.batch={rows}", "sampling.ignore_eos=true", f"sampling.max_new_tokens={options.tokens}"]
        pipeline = specframe.load(options.recipe, overrides=[*options.overrides, *settings])
        prompts = [questions[number % len(questions)] for number in range(max(12, 2 * rows))]
        sizes = range(1, options.depth + 2)
        measured = profile(pipeline, prompts, depth=options.depth, width=1, sizes=sizes)
        measured.write(options.costs / f"costs-{rows}.json")
        found[str(rows)] = json.loads((options.costs / f"costs-{rows}.json").read_text(encoding="utf-8"))
        print(rows, json.dumps(found[str(rows)]), flush=True)
    return found


def control(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second with no speculation, chains of fixed depth and `goodput`: medians of rounds in turns."""
    depths = options.depths or range(1, options.depth + 1)
    overrides = {
        "none": ["drafter={use: none}", "tree=null"],
        **{f"chain {depth}": [f"tree={{use: chain, depth: {depth}}}"] for depth in depths},
        "goodput": [goodput(options)],
    }
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        slots = max(options.concurrency)
        servers = {
            name: stack.enter_context(start(options.recipe, [*options.overrides, *own], slots=slots))
            for name, own in overrides.items()
        }
        for concurrency in options.concurrency:
            rounds, names = Rounds(list(servers)), list(servers)
            for server in servers.values():  # the first load of so many rows allocates what they need
                ask(server, concurrency, options)
            for turn in range(options.rounds):
                first = turn % len(names)
                for name in names[first:] + names[:first]:
                    rounds.add(name, ask(servers[name], concurrency, options))
            found[str(concurrency)] = rounds.summary()
            print(concurrency, json.dumps(found[str(concurrency)]), flush=True)
    return found


ANALYSES = {
    "table": table,
    "texts": texts,
    "memory": memory,
    "batches": batches,
    "costs": costs,
    "control": control,
    "competing": competing,
    "first-token": first_token,
}


DEFAULTS = dict.fromkeys(("costs", "control", "competing"), "eagle.yaml")
"""Analyses that choose a tree need a drafter that grows one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("analysis", choices=ANALYSES)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes of the recipe")
    parser.add_argument("--recipe", type=Path, help="suffix-recycling, or eagle where a tree is chosen")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--each", type=int, default=0, help="requests for each client, where that is more")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer at most; they have a quarter to all of it")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.0, help="of more rounds in competing, by number of rows")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--costs", type=Path, default=HERE / "costs", help="the folder of what `goodput` reads")
    parser.add_argument("--depth", type=int, default=4, help="levels that `goodput` drafts at most")
    parser.add_argument("--depths", type=int, nargs="+", help="of the chains in control; by default every one")
    parser.add_argument("--prompt", type=int, default=3000, help="tokens of the long prompt")
    options = parser.parse_args(arguments)
    options.recipe = options.recipe or RECIPES / DEFAULTS.get(options.analysis, "suffix-recycling.yaml")
    begin = os.getloadavg()[0]
    found = ANALYSES[options.analysis](options)
    found = {"command": " ".join(sys.argv[1:]), "load_begin": begin, "load_end": os.getloadavg()[0]} | found
    print(json.dumps(found, indent=1))
    keep(NUMBERS, {options.analysis: found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
