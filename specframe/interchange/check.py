"""Check of drafters within the engines they were exported to: cycles and accepted tokens compared with specframe's."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import getfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specframe.decoding.pipeline import Pipeline
from specframe.interchange import engine_process
from specframe.kernel.errors import InputError
from specframe.neural import checkpoint
from specframe.recipes.discovery import discover

if TYPE_CHECKING:
    from specframe.decoding.encoding import Prompt
    from specframe.neural.weights.export import Export
    from specframe.recipes.build import Plan

PACKAGES = {
    "vllm": "specframe-vllm",
    "speculators": "specframe-vllm",
    "transformers": "specframe-transformers",
    "gguf": "specframe-gguf",
    "openvino": "specframe-transformers",
}
"""Packages that run a form's engine, by their extensions `check-FORM`."""


@dataclass(frozen=True)
class DecodedChain:
    """Texts of prompts as token ids, and the counts of decoding them greedily."""

    texts: Sequence[Sequence[int]]
    cycles: int
    accepted: int


@dataclass(frozen=True)
class Arrival:
    """Comparison of an engine with specframe, for one drafter."""

    ours: DecodedChain
    engine: str
    """Name and version; empty if the engine refused the drafter."""
    theirs: DecodedChain | None
    refused: str = ""

    @property
    def exact(self) -> bool:
        """True if all of the engine's counts equal specframe's."""
        return self.theirs == self.ours

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        """Returns program, cycles and accepted tokens: specframe's and the engine's."""
        rows = [("specframe", self.ours.cycles, self.ours.accepted)]
        return rows if self.theirs is None else [*rows, (self.engine, self.theirs.cycles, self.theirs.accepted)]

    @property
    def figures(self) -> dict[str, Any]:
        """Returns engine, counts and verdict, for JSON."""
        counts = [dict(zip(("cycles", "accepted"), row[1:], strict=True)) for row in self.rows]
        return {"engine": self.engine, "counts": counts, "exact": self.exact, "verdict": self.verdict}

    @property
    def verdict(self) -> str:
        """Returns the finding in one line."""
        if self.theirs is None:
            return f"refused: {self.refused}"
        if self.exact:
            return "arrives exactly"
        pairs = zip(self.ours.texts, self.theirs.texts, strict=True)
        lost = [f"accepted {self.theirs.accepted:,} in {self.theirs.cycles:,} cycles, here {self.ours.accepted:,} in "]
        lost[0] += f"{self.ours.cycles:,}"
        if differing := sum(ours != theirs for ours, theirs in pairs):
            lost.append(f"{differing} of {len(self.ours.texts)} texts differ")
        return f"arrives with a loss: {'; '.join(lost)}"


def chain_overrides(recipe: Mapping[str, Any], length: int) -> list[str]:
    """Returns the overrides for decoding as engines do: a greedy chain of `length`, in float32, unrounded."""
    return [
        f"tree={{use: chain, depth: {length}}}",
        "verifier={use: match}",
        "sampling.temperature=0.0",
        "sampling.repetition_penalty=1.0",
        "target.dtype=float32",
        "target.native=false",
        "target.fallback=null",
        "run.costs=null",
        *(f"{option}=null" for part in ("target", "drafter") for option in _rounded(recipe[part], part)),
    ]


def _rounded(section: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yields the options of a section, and of its nested parts, that round weights."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _rounded(value, f"{name}.{key}")
        elif key == "quantize" and value is not None:
            yield f"{name}.{key}"


def find_engine(form: str) -> Path:
    """Returns the module that runs a form's engine.

    Raises InputError for a form whose engine cannot be run, PluginError without its package.
    """
    if form not in PACKAGES:
        raise InputError(f"the form {form!r} cannot be checked; these can: {', '.join(PACKAGES)}")
    found = discover().extension(f"check-{form}", "specframe export --check", PACKAGES[form])
    return Path(getfile(found))


def check(made: Export, plan: Plan, folder: Path, module: Path, prompts: Sequence[Prompt], python: str) -> Arrival:
    """Decodes prompts with specframe and with an engine, and compares them.

    Args:
        made: the export in the folder.
        plan: the recipe with `chain_overrides`.
        folder: the folder that the engine reads.
        module: the module that runs the engine.
        prompts: texts, or token ids.
        python: the Python in which the engine is installed.

    Raises InputError if no command starts an engine on the folder, the engine is not installed in that Python, or it
    ends without an answer.
    """
    if not made.command:
        raise InputError("it cannot be checked: no command starts an engine on this form of the drafter")
    pipeline = Pipeline.build(plan)
    rows = [[*pipeline.encode(prompt)] for prompt in prompts]
    results = [pipeline.generate([row]) for row in rows]
    counts = [result.acceptance for result in results]
    ours = DecodedChain(
        [text for result in results for text in result.tokens],
        sum(count.cycles for count in counts),
        sum(count.accepted for count in counts),
    )
    target = str(checkpoint.locate(plan.parts["target"].options["model"]))
    command = [word.replace("FOLDER", str(folder)).replace("TARGET", target) for word in shlex.split(made.command)]
    task = {
        "command": command,
        "folder": str(folder),
        "target": target,
        "prompts": rows,
        "tokens": pipeline.sampling.max_new_tokens,
        "length": made.length,
    }
    found = run_engine(module, task, python)
    if "refused" in found:
        return Arrival(ours, "", None, found["refused"])
    return Arrival(ours, found["engine"], DecodedChain(found["texts"], found["cycles"], found["accepted"]))


def run_engine(module: Path, task: Mapping[str, Any], python: str = sys.executable) -> dict[str, Any]:
    """Returns the answer of a module's `run` to a task, in a process of that Python.

    Raises InputError if the process ends without an answer.
    """
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "answer.json"
        words = [python, engine_process.__file__, str(module), str(out)]
        try:
            done = subprocess.run(words, input=json.dumps(task), capture_output=True, text=True, check=False)
        except OSError as error:
            raise InputError(f"{python} cannot be run: {error.strerror}") from error
        if not out.exists():
            last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
            raise InputError(f"the engine gave no answer in {python}: {last}; --python names the Python that has it")
        answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return answer
