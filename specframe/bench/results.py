"""results.json, schema 1: settings, provenance, contestants, prompts and every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from specframe.bench.contest.contest import Contest
from specframe.bench.contest.contestants import Contestants, Entrant
from specframe.bench.contest.datasets import PromptSet
from specframe.bench.contest.settings import ContestSettings
from specframe.bench.journal import Journal
from specframe.decoding.settings import SamplingSettings
from specframe.files.provenance import describe_run
from specframe.recipes.build import Plan
from specframe.recipes.folders import recipes_folder

SCHEMA = 1


def describe_bench(
    contestants: Contestants, settings: ContestSettings, sets: Sequence[str], chosen: Sequence[PromptSet]
) -> dict[str, Any]:
    """The identity of a bench before models load, as plain data: a bench resumes where all of it is equal."""
    provenance = _provenance(contestants)
    hardware = {name: value for name, value in provenance["hardware"].items() if name != "load"}
    return {
        "settings": _settings(contestants, settings, sets, contestants.chat),
        "contestants": [_contestant(entrant) | {"lossless": None} for entrant in contestants.entrants],
        "prompts": [vars(question) for each in chosen for question in each.questions],
        "versions": provenance["versions"],
        "hardware": hardware,
    }


def collect(contest: Contest, journal: Journal, sets: Sequence[str]) -> dict[str, Any]:
    """The results of all rounds in the journal, in the rounds' order; non-finite numbers become null."""
    order = {this.key: this.index for this in contest.rounds}
    entries = sorted(journal.rounds, key=lambda entry: order[entry["repeat"], tuple(entry["prompts"])])
    runs = [line for entry in entries for line in entry["runs"]]
    weights = {name: found for entry in entries for name, found in entry["weights"].items()}
    lengths: dict[tuple[str, int], int] = {}
    for line in runs:
        lengths.setdefault((line["prompt"], line["turn"]), line["prompt_tokens"])
    prompts = [
        {
            "id": question.id,
            "set": question.set,
            "task": question.task,
            "check": question.check,
            "tokens": [lengths[question.id, t] for t in range(contest.settings.turns) if (question.id, t) in lengths],
        }
        for question in contest.questions
    ]
    seconds = sum(line["seconds"] for line in runs)
    results = {
        "schema": SCHEMA,
        "settings": _settings(contest.contestants, contest.settings, sets, bool(contest.runner.chat)),
        "provenance": _provenance(contest.contestants),
        "contestants": [
            _contestant(entrant) | {"weights": weights.get(entrant.name), "error": contest.errors.get(entrant.name)}
            for entrant in contest.contestants.entrants
        ],
        "prompts": prompts,
        "skipped": {"prompts": contest.skipped, "turns": sum(entry["skipped_turns"] for entry in entries)},
        "workers": _workers(entries),
        "runs": runs,
        "bench_overhead": sum(line["bench_seconds"] for line in runs) / seconds if seconds else 0.0,
    }
    finite: dict[str, Any] = _finite(results)
    return finite


PENALTIES = (
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias"),
    *("no_repeat_ngram_size", "bad_words_ids", "min_new_tokens", "grammar"),
)
"""Settings of the section `sampling` that are recorded if they have an effect."""
PLAIN = SamplingSettings()


def _settings(
    contestants: Contestants, settings: ContestSettings, sets: Sequence[str], chat: bool | None
) -> dict[str, Any]:
    sampling = contestants.sampling
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        **{name: getattr(sampling, name) for name in PENALTIES if getattr(sampling, name) != getattr(PLAIN, name)},
        "max_new_tokens": sampling.max_new_tokens,
        "ignore_eos": sampling.ignore_eos,
        "chat": chat,
        "batch": settings.batch,
        "repeats": settings.repeats,
        "seed": settings.seed,
        "sets": list(sets),
        "limit": settings.limit,
        "turns": settings.turns,
        "check": settings.check,
        "run_code": settings.run_code,
        "bound": settings.bound,
    }


def _workers(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the workers that ran rounds, and the number of rounds of each."""
    counts = Counter(tuple(entry["worker"].items()) for entry in entries)
    return [{**dict(worker), "rounds": count} for worker, count in counts.items()]


def _contestant(entrant: Entrant) -> dict[str, Any]:
    is_recipe = entrant.kind == "recipe"
    return {
        "name": entrant.name,
        "kind": entrant.kind,
        "recipe": _recipe_name(entrant.plan.recipe.path) if is_recipe else None,
        "resolved": entrant.plan.recipe.data if is_recipe else None,
        "lossless": entrant.contestant.lossless,
        "target": entrant.label,
    }


def _recipe_name(path: Path) -> str:
    """The file of a recipe; `recipes/..` for one that comes with specframe, wherever that is."""
    home = recipes_folder()
    return str(path) if home is None or not path.is_relative_to(home) else f"recipes/{path.relative_to(home)}"


def _provenance(contestants: Contestants) -> dict[str, Any]:
    """Describes the provenance of the figures, with the package versions of all recipes' components."""
    plans = [entrant.plan for entrant in contestants.entrants]
    parts = {f"{index}.{name}": part for index, plan in enumerate(plans) for name, part in plan.parts.items()}
    described = describe_run(Plan(plans[0].recipe, parts), {})
    return {name: value for name, value in described.items() if name not in ("recipe", "origins", "figures")}


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data
