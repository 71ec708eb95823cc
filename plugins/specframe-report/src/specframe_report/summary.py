"""A bench's summary: the values of results.json overall, by task and by prompt set, and when the bench ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from specframe import InputError
from specframe.plugin import counted
from specframe_report.figures import gather
from specframe_report.grid import Axes, dig
from specframe_report.intervals import CONFIDENCE, FEWEST_PROMPTS

SCHEMA = 1
MACHINE = ("processor", "cores", "threads", "accelerator")
"""Properties in which machines must agree for times to be comparable."""
NOTABLE = 0.01
"""Share of time in which other processes had the processor from which a note reports it."""
PLAIN, TRANSFORMERS = "plain", "hf:generate"
BASELINES = {"speedup": PLAIN, "speedup_hf": TRANSFORMERS}
"""Baseline of each speedup, by kind; with several targets, each target has one of each."""


def summarise(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of every contestant, as plain data; the definitions are on the Metrics page.

    Each entry of `contestants` has the bench's record of it and `overall`, `tasks` and `sets`: values, or None for a
    contestant that failed. Raises InputError for results of another schema.
    """
    check_schema(results)
    settings = results["settings"]
    runs = gather_runs(results)
    groups = {kind: _group(results["prompts"], kind) for kind in ("task", "set")}
    everything = [prompt["id"] for prompt in results["prompts"]]
    axes, span = Axes.of(results["runs"], everything), RunSpan.of(results)
    entries = []
    for contestant in results["contestants"]:
        about = {key: contestant.get(key) for key in ("name", "kind", "recipe", "lossless", "target", "error")}
        if about["error"] is None and not runs.get(about["name"]):
            about["error"] = "no runs"
        entry = about | {"overall": None, "tasks": {}, "sets": {}}
        if about["error"] is None:
            against = find_baselines(contestant, results["contestants"], runs)

            def figures(prompts: Iterable[str], about: Any = contestant, against: Any = against) -> dict[str, Any]:
                return gather(runs, about, replace(axes, prompts=tuple(prompts)), against, settings.get("seed") or 0)

            entry["overall"] = figures(everything)
            for kind in ("task", "set"):
                entry[f"{kind}s"] = {name: figures(prompts) for name, prompts in groups[kind].items()}
        entries.append(entry)
    summary = {
        "schema": SCHEMA,
        "confidence": CONFIDENCE,
        "settings": settings,
        "provenance": results.get("provenance") or {},
        "prompts": len(everything),
        "tasks": {task: len(prompts) for task, prompts in groups["task"].items()},
        "sets": {name: len(prompts) for name, prompts in groups["set"].items()},
        "repeats": len(axes.repeats),
        "span_seconds": span.seconds if span else None,
        "contestants": entries,
        "skipped": results.get("skipped") or {},
        "workers": results.get("workers") or [],
        "bench_overhead": results.get("bench_overhead"),
        "waited": _waited(results["runs"]),
    }
    return summary | {"notes": list(_notes(summary))}


def check_schema(results: Mapping[str, Any]) -> None:
    """Raises InputError for results that this version cannot read."""
    found = results.get("schema")
    if found != SCHEMA:
        raise InputError(
            f"these are bench results of schema {found}, and schema {SCHEMA} is needed; run the bench again"
        )


def gather_runs(results: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Returns the runs of each contestant that did not fail; those of a failed one are unreliable."""
    failed = {contestant["name"] for contestant in results["contestants"] if contestant.get("error") is not None}
    runs = defaultdict(list)
    for run in results["runs"]:
        if run["contestant"] not in failed:
            runs[run["contestant"]].append(run)
    return dict(runs)


def find_baselines(
    contestant: Mapping[str, Any], others: Iterable[Mapping[str, Any]], runs: Mapping[str, Any]
) -> dict[str, str]:
    """Returns the baseline of each speedup of the contestant: the contestant of that kind on its target."""
    peers = {
        other["kind"]: other["name"]
        for other in others
        if other["name"] in runs and other.get("target") == contestant.get("target")
    }
    return {figure: peers[kind] for figure, kind in BASELINES.items() if kind in peers}


def _group(prompts: Iterable[Mapping[str, Any]], kind: str) -> dict[str, list[str]]:
    groups = defaultdict(list)
    for prompt in prompts:
        groups[prompt.get(kind) or "other"].append(prompt["id"])
    return dict(groups)


def _is_unbounded(contestant: Mapping[str, Any]) -> bool:
    """Returns whether a speed over all prompts has no interval."""
    rate = dig(contestant["overall"], "tokens_per_second")
    return rate is not None and rate["low"] is None


def _waited(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the share of time in which other processes had the processor; None if it was not measured."""
    seconds = sum(run["seconds"] for run in runs)
    known = [run["waited_seconds"] for run in runs if run.get("waited_seconds") is not None]
    return sum(known) / seconds if known and seconds else None


def _notes(summary: Mapping[str, Any]) -> Iterable[str]:
    """Yields the caveats that a reader must know before trusting the figures."""
    if summary["repeats"] < 2:
        yield "One repeat: load variation is unknown, so times have no interval."
    enough = summary["repeats"] > 1 and summary["prompts"] >= FEWEST_PROMPTS
    if enough and any(map(_is_unbounded, summary["contestants"])):
        yield "Some figures have no interval, because there are too few prompts or repeats."
    if (waited := summary.get("waited") or 0.0) >= NOTABLE:
        yield f"Other processes used the processor in {waited:.0%} of the time: speedups exclude it, tokens/s do not."
    if (summary["settings"].get("temperature") or 0) > 0:
        yield "Sampled texts differ between contestants and runs: times are compared per token, outputs are not."
    skipped = summary["skipped"]
    if skipped.get("prompts"):
        yield f"Prompts too long for the context were left out: {skipped['prompts']}."
    if skipped.get("turns"):
        yield f"Later turns that had become too long for the context were left out: {skipped['turns']}."
    if len({tuple(worker.get(key) for key in MACHINE) for worker in summary["workers"]}) > 1:
        yield "Rounds ran on different machines: trust the speedups, which are ratios within a round, not the times."
    elif any(worker["engine"] == "ray" for worker in summary["workers"]):
        yield "Rounds ran in parallel on Ray workers: times are those of a worker on a shared machine."
    ties: dict[str, list[str]] = {}  # equal sentences about several contestants are merged
    for entry in summary["contestants"]:
        figures = entry["overall"]
        if figures is None:
            yield f"{entry['name']} was left out: {entry['error']}"
            continue
        if figures["prompts"] < summary["prompts"]:
            yield f"{entry['name']} has runs of only {figures['prompts']} of the {summary['prompts']} prompts."
        if entry["lossless"] is False:
            unknown = "" if figures.get("quality") else " Its quality is not measured: give the prompts a check."
            why = "its verifier changes the target's distribution, or its target reads a part of long prompts"
            yield f"{entry['name']} is LOSSY: {why}.{unknown}"
        if (identity := figures["identity"]) and identity["differing"]:
            gap = _describe_gap(identity["largest_gap"])
            advice = ": differs from plain decoding: run `specframe certify`" if entry["lossless"] else ""
            yield f"{entry['name']} DIFFERS from the reference on {', '.join(identity['differing'])}{gap}{advice}."
        if identity and identity["ties"]:
            where = f"{counted(identity['ties'], 'prompt')}{_describe_gap(identity['largest_tie'])}"
            ties.setdefault(where, []).append(entry["name"])
    for where, names in ties.items():
        differ = f"{names[0]} differs" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} differ"
        yield f"{differ} from the reference at near ties, which rounding decides, on {where}."


def _describe_gap(largest: Mapping[str, float | None] | None) -> str:
    if not largest:
        return ""
    noise = largest["noise"]
    scale = "" if noise is None else f", and rounding moves a logit by {noise:.1e}"
    return f": the two logits are at most {largest['gap']:.1e} apart{scale}"


@dataclass(frozen=True)
class RunSpan:
    """Time from the start of the first run to the end of the last, in seconds since 1970."""

    begin: float
    end: float

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> Self | None:
        """Returns the span of a bench's runs; None if it was not recorded.

        Results whose runs have no start time were recorded when the last run ended, and ran without a break.
        """
        runs = results["runs"]
        if runs and all(run.get("began") is not None for run in runs):
            return cls(min(run["began"] for run in runs), max(run["began"] + run["seconds"] for run in runs))
        made = (results.get("provenance") or {}).get("made")
        if not made:
            return None
        end = datetime.fromisoformat(made).timestamp()
        return cls(end - sum(run["seconds"] for run in runs), end)

    @property
    def seconds(self) -> float:
        """Length of the span in seconds."""
        return self.end - self.begin

    def distance(self, other: RunSpan) -> float:
        """Returns the seconds between the midpoints of two spans."""
        return abs(self.begin + self.end - other.begin - other.end) / 2


def format_duration(seconds: float) -> str:
    """Formats a duration in a suitable unit: `40 seconds`, `1.2 minutes`, `3 hours`."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
