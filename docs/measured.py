"""The bench's figures within pages that are written by hand: each block names its recipes, the results fill it in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from benches import FOLDER, TITLES, read_benches
from letter import setting_rows

from specframe_report.format import count_compared, format_figure, format_share

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/index.md", "docs/methods/*.md", "docs/howto/trees.md", "docs/explanation/measured.md")
BLOCK = re.compile(r"(<!-- bench(?: (\S+))?\n(.*?)-->\n).*?(<!-- /bench -->)", re.DOTALL)
PAPERS = re.compile(r"(<!-- papers(?: (\S+))?\n(.*?)-->\n).*?(<!-- /papers -->)", re.DOTALL)
SETTINGS = re.compile(r"(<!-- settings (\S+) -->\n).*?(<!-- /settings -->)", re.DOTALL)
HEAD = ("recipe", "tau", "speedup against `generate`", "against our plain decoding", "overhead")
INLINE = re.compile(r"(<!-- (figure|best) ([^>\n]+?) -->).*?(<!-- /\2 -->)", re.DOTALL)
FORWARD = ("target", "drafter")
PAPERS_HEAD = "| | tau | times `generate` | times plain decoding |\n|---|---|---|---|"

Measured = Mapping[str, Mapping[str, Any]]
"""Bench results by bench folder and recipe name."""


def render_blocks(folder: Path = FOLDER) -> Iterator[tuple[Path, str]]:
    """Yields every page that has a block of the bench, of papers or settings, with its text and all blocks filled in.

    A block begins with a comment that holds a YAML mapping of recipes to a note on each; a block of another bench than
    that of the embedded model names its folder. Within a sentence stands `figure BENCH RECIPE NAME [TASK]`, or `best
    BENCH` for the largest gain over plain decoding. A block of settings names a recipe of recipes/papers. Raises
    KeyError for a recipe that the results don't have.
    """
    measured = {bench.name: bench.measured for bench in read_benches(folder)}
    for pattern in PAGES:
        for page in sorted(ROOT.glob(pattern)):
            text = page.read_text(encoding="utf-8")
            if any(kind.search(text) for kind in (BLOCK, PAPERS, SETTINGS, INLINE)):
                text = SETTINGS.sub(_fill_settings, text)
                for kind, rows in ((BLOCK, bench_rows), (PAPERS, paper_rows)):
                    text = kind.sub(partial(_fill, rows, measured), text)
                yield page, INLINE.sub(partial(_fill_inline, measured), text)


def _fill(rows: Callable[..., list[str]], measured: Measured, block: re.Match[str]) -> str:
    opening, folder, named, closing = block.groups()
    return "\n".join([opening, *rows(measured, folder or "", yaml.safe_load(named)), "", closing])


def _fill_settings(block: re.Match[str]) -> str:
    opening, recipe, closing = block.groups()
    return "\n".join([opening, *setting_rows(recipe), "", closing])


def _fill_inline(measured: Measured, mark: re.Match[str]) -> str:
    opening, kind, words, closing = mark.groups()
    bench, *about = words.split()
    shown = best_gain(measured[bench]) if kind == "best" else format_inline(measured[bench], *about)
    return f"{opening}{shown}{closing}"


def format_inline(entries: Mapping[str, Any], recipe: str, name: str, task: str = "") -> str:
    """One figure of a recipe, overall or of a task, without its interval; `target` is milliseconds a forward."""
    entry = entries[recipe]
    figures = entry["tasks"][task] if task else entry["overall"]
    if name in FORWARD:
        return f"{1000 * figures['forward_seconds'][name]:.0f} ms"
    return format_figure({**figures[name], "low": None})


def best_gain(entries: Mapping[str, Any]) -> str:
    """The largest gain over plain decoding with its interval, and the number of recipes whose interval is above 1."""
    gains = [entry["overall"]["speedup"] for name, entry in entries.items() if name != "plain"]
    best = max(gains, key=lambda gain: gain["value"])
    clear = sum(gain["low"] > 1 for gain in gains)
    return (
        f"{best['value']:.2f} [{best['low']:.2f}, {best['high']:.2f}]; "
        f"for {clear} of {len(gains)} recipes the whole interval is above 1"
    )


def bench_rows(measured: Measured, folder: str, named: Mapping[str, str | None]) -> list[str]:
    """A table of the recipes' figures, the note of each next to its name.

    Near ties in bfloat16 are the report's subject: where prompts have some and none differ, no column counts them.
    """
    entries = {recipe: measured[folder][recipe]["overall"] for recipe in named}
    found = [figures["identity"] for figures in entries.values()]
    compared = any(each and (each["differing"] or not each["ties"]) for each in found)
    rows = [_row([*HEAD, *(["identical"] if compared else [])]), "|---" * (len(HEAD) + compared) + "|"]
    for recipe, figures in entries.items():
        note = named[recipe]
        name = note if recipe == "plain" and note else f"`{recipe}.yaml`" + (f": {note}" if note else "")
        shown = [format_figure(figures[each]) for each in ("tau", "speedup_hf", "speedup")]
        identical = [format_identical(figures["identity"])] if compared else []
        rows.append(_row([name, *shown, format_share(figures["overhead"]), *identical]))
    return rows


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def format_identical(identity: Mapping[str, Any] | None) -> str:
    """Number of prompts with the text of plain decoding, or of `generate` where a bench did not compare with it."""
    if identity is None:
        return ""
    same = identity["identical"] if identity.get("plain") is None else identity["plain"]
    text = f"{same} of {count_compared(identity)}"
    return text if not identity["differing"] else f"{text}; **{len(identity['differing'])} differ**"


def paper_rows(measured: Measured, folder: str, named: Mapping[str, Any]) -> list[str]:
    """Returns each recipe's figures measured here, in the row above those of its paper.

    A paper's figures are a text, `where: gain`, or a mapping with `where`, `gain` and perhaps `tau`; `here` replaces
    the figures of a recipe without a bench.
    """
    rows = [PAPERS_HEAD]
    for recipe, paper in named.items():
        if isinstance(paper, str):
            where, _, gain = paper.partition(": ")
            paper = {"where": where, "gain": gain}
        rows.append(f"| {paper['here']} |" if "here" in paper else _here(recipe, measured[folder], folder))
        rows.append(f"| the paper: {paper['where']} | {paper.get('tau', '')} | | {paper['gain']} |")
    return rows


def _here(recipe: str, measured: Mapping[str, Any], folder: str) -> str:
    figures = measured[recipe]["overall"]
    target = TITLES[folder].partition(",")[0]
    shown = [format_figure(figures[name]) for name in ("tau", "speedup_hf", "speedup")]
    return "| " + " | ".join([f"`{recipe}.yaml`, {target}, two cores", *shown]) + " |"
