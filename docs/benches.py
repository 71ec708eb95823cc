"""The benches whose results are in docs/benchmark, and what each of them found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.bench.figures.summary import summarise

FOLDER = Path(__file__).resolve().parent / "benchmark"
NAME = "results.json"
TITLES = {
    "": "the embedded model of 7M parameters",
    "smollm2": "SmolLM2-135M-Instruct, with AMX",
    "smollm2-avx512": "SmolLM2-135M-Instruct, with AVX-512 and without AMX",
}
"""What a bench of a folder decoded, and on which kind of processor where there are several of a target."""


@dataclass(frozen=True)
class Bench:
    """One bench."""

    name: str
    """Its folder below docs/benchmark; empty for that folder itself."""
    results: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What it decoded."""
        return TITLES[self.name]

    @property
    def made(self) -> str:
        """When its results were written."""
        made: str = self.results["provenance"]["made"]
        return made

    @property
    def machine(self) -> str:
        """What it ran on."""
        hardware = self.results["provenance"]["hardware"]
        return f"{hardware['accelerator'] or hardware['processor']}, {hardware['cores']} cores"

    @property
    def measured(self) -> dict[str, Any]:
        """The entry of each recipe, by its name, and that of `plain`."""
        entries = summarise(self.results)["contestants"]
        recipes = {Path(e["recipe"]).stem: e for e in entries if e["kind"] == "recipe" and e["recipe"]}
        return recipes | {e["name"]: e for e in entries if e["kind"] == "plain"}


@dataclass(frozen=True)
class Found:
    """What the newest bench found for a recipe."""

    entry: Mapping[str, Any]
    bench: Bench
    newest: bool
    """Whether that is the newest bench of the recipe's target."""


def read_benches(folder: Path = FOLDER) -> list[Bench]:
    """The benches in a folder, the newest first."""
    read = [
        Bench(name, json.loads(path.read_text(encoding="utf-8")))
        for name in TITLES
        if (path := folder / name / NAME).is_file()
    ]
    return sorted(read, key=lambda bench: bench.made, reverse=True)


def newest(benches: Sequence[Bench]) -> dict[tuple[str, str], Found]:
    """By a recipe's name and target, what the newest of the benches found that it took part in."""
    found: dict[tuple[str, str], Found] = {}
    targets: set[str] = set()
    for bench in benches:
        measured = bench.measured
        for name, entry in measured.items():
            found.setdefault((name, entry["target"]), Found(entry, bench, entry["target"] not in targets))
        targets |= {entry["target"] for entry in measured.values()}
    return found
