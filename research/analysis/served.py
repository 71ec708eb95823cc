"""A server in a process of its own, and loads for it."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specframe

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
        command = [sys.executable, "-m", "specframe_serve.load", self.url, "--prompts", str(prompts)]
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


def asked(concurrency: int, options: argparse.Namespace) -> int:
    """The number of requests of so many clients."""
    return max(int(options.requests), int(options.each) * concurrency)


def ask(server: Served, concurrency: int, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one load, every answer decoded to its budget."""
    return server.load(
        QUESTIONS,
        requests=asked(concurrency, options),
        concurrency=concurrency,
        tokens=options.tokens,
        temperature=options.temperature,
        more=["--ignore-eos"],
    )
