"""Start and memory: ``python research/analysis/start.py RECIPE [KEY=VALUE ...] [--versus "RECIPE KEY=VALUE"]``.

It loads each recipe in fresh processes, in turns, and prints the medians of the seconds until it is loaded and until
its first text, and of its memory then; and the slow modules that loading imports. `--trees A B` compares source trees.
On a busy machine the processor's seconds (`CPU s`, until loaded) still compare, with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

PROMPT = "Explain in two sentences why the sky is blue."
SLOW = (
    "transformers.modeling_utils",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "accelerate",
    "scipy",
    "sympy",
)
"""Modules whose import takes a tenth of a second or more."""


def measure(recipe: str, overrides: list[str]) -> dict[str, Any]:
    """Load a recipe in this process and return seconds, megabytes and slow imports."""
    from time import perf_counter, process_time

    begin = perf_counter()
    import torch  # noqa: F401 - its share is reported

    found: dict[str, Any] = {"torch s": perf_counter() - begin}
    import specframe

    pipeline = specframe.load(recipe, overrides=overrides)
    found |= {"loaded s": perf_counter() - begin, "CPU s": process_time(), "loaded MB": _status("VmRSS")}
    found["slow imports"] = [name for name in SLOW if name in sys.modules]
    pipeline.generate(PROMPT, max_new_tokens=8)
    return found | {"first text s": perf_counter() - begin, "text MB": _status("VmRSS"), "peak MB": _status("VmHWM")}


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(name))


def main() -> None:
    """Compare recipes or source trees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--versus", action="append", default=[], help="another recipe with its overrides, in quotes")
    parser.add_argument("--trees", nargs="+", default=[None], help="folders to import specframe and its plugins from")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.recipe, asked.overrides)))
        return
    compared = [[asked.recipe, *asked.overrides], *map(shlex.split, asked.versus)]
    contestants = [(tree, words) for words in compared for tree in asked.trees]
    results: list[list[dict[str, Any]]] = [[] for _ in contestants]
    for _ in range(asked.rounds):
        for (tree, words), runs in zip(contestants, results, strict=True):
            places = [] if tree is None else [tree, *map(str, Path(tree).glob("plugins/*/src"))]
            environment = os.environ | ({"PYTHONPATH": os.pathsep.join(places)} if places else {})
            command = [sys.executable, __file__, *words, "--one"]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    for (tree, words), runs in zip(contestants, results, strict=True):
        print(*([] if tree is None else [f"{tree}:"]), *words)
        for name in runs[0]:
            values = [run[name] for run in runs]
            print(f"  {name:13}", *([f"{median(values):.2f}"] if name != "slow imports" else values[-1]))


if __name__ == "__main__":
    main()
