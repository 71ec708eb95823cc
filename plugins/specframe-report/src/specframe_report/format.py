"""Formatting of values for readers, equal in the terminal and in the report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from specframe.plugin import counted
from specframe_report.intervals import FEWEST_PROMPTS
from specframe_report.summary import format_duration

NONE = "-"

MARKDOWN = re.compile(r"[\\`*\[\]|]")
"""Characters of names that have a meaning in Markdown."""

Figure = Mapping[str, float | None] | None
"""A value with its interval, {value, low, high}, or None."""


def format_figure(figure: Figure, digits: int = 2, unit: str = "", scale: float = 1.0) -> str:
    """Formats a value and its interval: `1.52x [1.40, 1.66]`."""
    if figure is None or figure["value"] is None:
        return NONE
    text = f"{scale * figure['value']:.{digits}f}{unit}"
    low, high = figure["low"], figure["high"]
    if low is None or high is None:
        return text
    return f"{text} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"


def format_value(figure: Figure, digits: int = 2, unit: str = "") -> str:
    """Formats a value without its interval."""
    return format_figure(figure and {"value": figure["value"], "low": None, "high": None}, digits, unit)


def format_alpha(alpha: Sequence[float] | None) -> str:
    """Formats rates by depth: `.66 .41 .23`."""
    return " ".join(f"{rate:.2f}".removeprefix("0") for rate in alpha or ()) or NONE


def format_optimum(rate: float | None) -> str:
    """Formats the best verifier's acceptance at the first depth, on a separate line: `best .71`; empty if unknown."""
    return "" if rate is None else f"\nbest {format_alpha([rate])}"


def format_share(share: float | None, digits: int = 1) -> str:
    """Formats a share in percent; from ten on, the overhead of a target without a network, as a multiple."""
    if share is None:
        return NONE
    return f"{share:.{digits}%}" if share < 10 else f"{share:.0f} times"


def format_memory(size: float | None) -> str:
    """Formats bytes in MiB."""
    return NONE if size is None else f"{size / 2**20:.0f} MiB"


def format_milliseconds(seconds: float | None, digits: int = 2) -> str:
    """Formats seconds in milliseconds."""
    return NONE if seconds is None else f"{1000 * seconds:.{digits}f}"


def format_factor(factor: float | None) -> str:
    """Formats a speedup without an interval."""
    return NONE if factor is None else f"{factor:.2f}x"


def format_output(entry: Mapping[str, Any]) -> str:
    """Formats the agreement of a text with plain decoding and with `generate`, in words; LOSSY or DIFFERS."""
    figures = entry["overall"]
    identity = figures["identity"] if figures else None
    words = ["LOSSY"] if entry["lossless"] is False else []
    if identity and identity.get("plain") is not None:
        words.append(f"as plain on {identity['plain']} of {count_compared(identity)}")
    if identity and identity["differing"]:
        words.append(f"DIFFERS on {len(identity['differing'])} of {count_compared(identity)}")
    elif identity:
        ties = f", near ties on {identity['ties']} of {count_compared(identity)}" if identity["ties"] else ""
        words.append(f"identical{ties}")
    elif entry["lossless"]:
        words.append("lossless")
    return ", ".join(words) or NONE


def format_quality(entry: Mapping[str, Any]) -> str:
    """Formats the share of right answers, and its paired change to plain decoding: `82.0% (-1.5 [-4.0, 1.0])`.

    The change is in percentage points. A lossy contestant without a check reads "not measured".
    """
    figures = entry["overall"] or {}
    if (found := figures.get("quality")) is None:
        return "not measured" if entry["lossless"] is False else NONE
    change = figures.get("quality_change")
    against = "" if change is None else f" ({format_figure(change, 1, scale=100)})"
    return f"{format_share(found['value'])}{against}"


def has_quality(summary: Mapping[str, Any]) -> bool:
    """Returns whether tables need a column for quality: a contestant has one, or is lossy and has none."""
    return any(format_quality(entry) != NONE for entry in summary["contestants"])


def is_suspect(entry: Mapping[str, Any]) -> bool:
    """Returns whether a contestant's values must not be read as those of a lossless method."""
    identity = (entry["overall"] or {}).get("identity")
    return entry["lossless"] is False or bool(identity and identity["differing"])


def count_compared(identity: Mapping[str, Any]) -> int:
    """Returns the number of prompts whose outputs were compared."""
    return int(identity["identical"] + identity["ties"] + len(identity["differing"]))


def format_intervals(summary: Mapping[str, Any]) -> str:
    """Explains the scope of the intervals and their limits."""
    if summary["prompts"] < FEWEST_PROMPTS:
        return f"No intervals: {counted(summary['prompts'], 'prompt')} are too few to know what others would give."
    span = summary["span_seconds"]
    known = "" if span is None else f", as far as its load varied within {format_duration(span)}"
    return f"Intervals: 95 %, for other prompts of the same kind at another time on the same machine{known}."


def format_workload(summary: Mapping[str, Any]) -> str:
    """Formats the workload: prompts, repeats, budget, temperature."""
    settings = summary["settings"]
    parts = [counted(summary["prompts"], "prompt"), counted(summary["repeats"], "repeat")]
    for key, name in (("max_new_tokens", "{} new tokens"), ("temperature", "temperature {}"), ("batch", "batch {}")):
        if settings.get(key) is not None:
            parts.append(name.format(settings[key]))
    return ", ".join(parts)


def format_literal(text: str) -> str:
    """Formats external text as literal Markdown: no HTML, no links, no pictures, on one line."""
    return MARKDOWN.sub(r"\\\g<0>", escape(" ".join(text.split()), quote=False))
