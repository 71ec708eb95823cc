"""The benches whose results are in docs/benchmark, and their figures.

``python docs/benches.py runs/everything`` puts tau of the rows that no other bench has, from the benches of
recipes/suites/everything.yaml, into docs/benchmark/everything.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from catalogue import identity

from specframe_report.summary import summarise

FOLDER = Path(__file__).resolve().parent / "benchmark"
NAME = "results.json"
ELSEWHERE = {"training/": "not measured after its training", "long/": "after long prompts, on its page"}
"""Folders of recipes that a bench of short prompts does not measure, and the words in place of a figure: a recipe of a
training decodes with the weights that it begins with."""
ROWS = "everything.json"
"""Figures of single rows: a list of entries, each with its recipe's file and the day and machine of its bench."""
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
        return machine_of(self.results)

    @cached_property
    def measured(self) -> dict[str, Any]:
        """The entry of each recipe, by its name, and that of `plain`."""
        entries = summarise(self.results)["contestants"]
        recipes = {Path(e["recipe"]).stem: e for e in entries if e["kind"] == "recipe" and e["recipe"]}
        return recipes | {e["name"]: e for e in entries if e["kind"] == "plain"}


def machine_of(results: Mapping[str, Any]) -> str:
    """The hardware of a bench."""
    hardware = results["provenance"]["hardware"]
    return f"{hardware['accelerator'] or hardware['processor']}, {hardware['cores']} cores"


@dataclass(frozen=True)
class Found:
    """Newest bench result of a recipe."""

    entry: Mapping[str, Any]
    newest: bool
    """True if its bench is the newest of the recipe's target."""


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


def read_rows(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The figures of single rows."""
    path = folder / ROWS
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return rows


def write_rows(results: Sequence[Mapping[str, Any]], folder: Path = FOLDER) -> None:
    """Adds the recipes of benches to the figures of single rows, in place of their earlier ones.

    Those of `ELSEWHERE` have no figure, nor those that drafted nothing after a bench's short prompts.
    """
    rows = {row["recipe"]: row for row in read_rows(folder)}
    for bench in results:
        for entry in summarise(bench)["contestants"]:
            recipe = (entry["recipe"] or "").rpartition("recipes/")[2]
            tau = (entry["overall"] or {}).get("tau")
            if recipe and not recipe.startswith(tuple(ELSEWHERE)) and tau and tau["value"] > 1:
                overall = {name: entry["overall"][name] for name in ("tau", "prompts", "quality", "quality_change")}
                rows[recipe] = {
                    "recipe": recipe,
                    "target": identity(recipe)[1],  # whatever file stood for it
                    "lossless": entry["lossless"],
                    "temperature": bench["settings"]["temperature"],
                    "made": bench["provenance"]["made"][:10],
                    "machine": machine_of(bench),
                    "overall": overall,
                }
    written = json.dumps([rows[recipe] for recipe in sorted(rows)], indent=1)
    (folder / ROWS).write_text(written + "\n", encoding="utf-8")


def newest(benches: Sequence[Bench], rows: Sequence[Mapping[str, Any]] = ()) -> dict[tuple[str, str], Found]:
    """Returns the newest result of every recipe, by recipe name and target; a row's where it took part in no bench."""
    found: dict[tuple[str, str], Found] = {}
    targets: set[str] = set()
    for bench in benches:
        measured = bench.measured
        for name, entry in measured.items():
            found.setdefault((name, entry["target"]), Found(entry, entry["target"] not in targets))
        targets |= {entry["target"] for entry in measured.values()}
    for row in rows:
        found.setdefault((Path(row["recipe"]).stem, row["target"]), Found(row, True))
    return found


if __name__ == "__main__":
    write_rows([json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(sys.argv[1]).glob(f"*/{NAME}"))])
