"""The benches whose results are in docs/benchmark, and their figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from specframe_report.summary import summarise

FOLDER = Path(__file__).resolve().parent / "benchmark"
NAME = "results.json"
TITLES = {
    "": "the embedded model of 7M parameters",
    "smollm2": "SmolLM2-135M-Instruct, with AMX",
    "smollm2-avx512": "SmolLM2-135M-Instruct, with AVX-512 and without AMX",
}
"""Labels of the benched models, by folder; with the kind of processor where one target has several benches."""
SUITES = {"": "small", "smollm2": "smollm2-short", "smollm2-avx512": "smollm2"}
"""The suite of each bench, by folder."""


@dataclass(frozen=True)
class Bench:
    """One bench."""

    name: str
    """Folder below docs/benchmark; empty for that folder itself."""
    results: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Label of the model that the bench decoded."""
        return TITLES[self.name]

    @property
    def command(self) -> str:
        """The command that makes the results anew."""
        folder = f"docs/benchmark/{self.name}".rstrip("/")
        return f"specframe bench suites/{SUITES[self.name]} --out {folder}"

    @property
    def made(self) -> str:
        """Date on which the results were written."""
        made: str = self.results["provenance"]["made"]
        return made

    @property
    def machine(self) -> str:
        """Hardware that the bench ran on."""
        hardware = self.results["provenance"]["hardware"]
        return f"{hardware['accelerator'] or hardware['processor']}, {hardware['cores']} cores"

    @cached_property
    def measured(self) -> dict[str, Any]:
        """The entry of each recipe, by its name, and that of `plain`."""
        entries = summarise(self.results)["contestants"]
        recipes = {Path(e["recipe"]).stem: e for e in entries if e["kind"] == "recipe" and e["recipe"]}
        return recipes | {e["name"]: e for e in entries if e["kind"] == "plain"}


@dataclass(frozen=True)
class Found:
    """Newest bench result of a recipe."""

    entry: Mapping[str, Any]
    bench: Bench
    newest: bool
    """True if this bench is the newest of the recipe's target."""


def read_benches(folder: Path = FOLDER) -> list[Bench]:
    """The benches in a folder, the newest first."""
    read = [
        _read(name, path.read_text(encoding="utf-8")) for name in TITLES if (path := folder / name / NAME).is_file()
    ]
    return sorted(read, key=lambda bench: bench.made, reverse=True)


@cache
def _read(name: str, text: str) -> Bench:
    """A bench by what its file holds: several pages show it, and its intervals take seconds."""
    return Bench(name, json.loads(text))


def newest(benches: Sequence[Bench]) -> dict[tuple[str, str], Found]:
    """Returns the newest result of every recipe, by recipe name and target."""
    found: dict[tuple[str, str], Found] = {}
    targets: set[str] = set()
    for bench in benches:
        measured = bench.measured
        for name, entry in measured.items():
            found.setdefault((name, entry["target"]), Found(entry, bench, entry["target"] not in targets))
        targets |= {entry["target"] for entry in measured.values()}
    return found
