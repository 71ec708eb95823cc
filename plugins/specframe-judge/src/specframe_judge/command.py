"""`specframe judge RECIPE`: mines labels, fits a head and stores it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe import InputError, recipe_command

if TYPE_CHECKING:
    from specframe import Pipeline
    from specframe.plugin import Check, PromptRecord
    from specframe_judge.fitting import Fitted, Operating
    from specframe_judge.labels import Mined
    from specframe_judge.mining import Problem


@recipe_command
@click.option("--prompts", required=True, type=click.Path(path_type=Path), metavar="FILE", help="problems with answers")
@click.option("--check", default="number", metavar="NAME", help="test of an answer: number, exact, similar or tests")
@click.option("--run-code", is_flag=True, help="let the check `tests` run code that a model wrote")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="where labels and head go")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="only the first N problems of the file")
@click.option("--labels", default=25, type=click.IntRange(min=1), metavar="N", help="labels of a problem, at most")
@click.option("--harm", default=0.1, type=click.FloatRange(0, 1), metavar="S", help="share of harmful tokens to accept")
@click.option("--seed", default=0, metavar="N", help="seed of the labels' places and of the held-out problems")
@click.option("--tap", default="last", metavar="NAME", help="the target's feature that the head reads")
def judge(
    plan: Any,
    prompts: Path,
    check: str,
    run_code: bool,
    out: Path,
    limit: int | None,
    labels: int,
    harm: float,
    seed: int,
    tap: str,
) -> int:
    """Mine labels for a judge, fit its head and store it: which refused tokens do no harm?

    The recipe's target answers the problems; where it refuses a token of the recipe's drafter, that token is put into
    the answer, and the check decides whether the finished answer is still right. The same command goes on where it
    was interrupted.
    """
    from specframe.plugin import find_check, read_records
    from specframe_judge.fitting import fit
    from specframe_judge.head import About, store
    from specframe_judge.mining import mine

    test = find_check(check, run_code=run_code)
    records = read_records(prompts, limit)
    problems = list(problems_of(records, test, prompts))
    pipeline = _pipeline(plan)
    target: Any = pipeline.parts.target
    stored = _stored(out, plan, pipeline, records, check=check, labels=labels, seed=seed, tap=tap)
    waiting = [problem for problem in problems if problem.number not in stored.mined]
    for problem, found in mine(pipeline, tap, waiting, most=labels, seed=seed):
        stored.add(problem.number, found)
        print(_progress(stored.mined, len(problems)), file=sys.stderr, flush=True)
    fitted = fit([(number, found) for number, found in sorted(stored.mined.items()) if found], seed)
    harmless, harmful = _counts(stored.mined)
    chosen = min(fitted.points, key=lambda point: abs(point.harmful - harm))
    store(fitted.head, About(target.identify(), tap, check, harmless, harmful, chosen.threshold), out)
    print(_report(fitted, chosen, stored.mined, out))
    return 0


def problems_of(records: Sequence[PromptRecord], test: Check, file: Path) -> Sequence[Problem]:
    """Returns the problems of a file. Raises InputError for a prompt without an answer."""
    from specframe_judge.mining import Problem

    problems = []
    for number, record in enumerate(records):
        if record.reference is None:
            raise InputError(f"{file}: prompt {number + 1} has no answer to check; give it a field `answer`")
        prompt = record.turns[0]
        problems.append(Problem(number, prompt, partial(_is_right, test, prompt, record.reference)))
    return problems


def _is_right(test: Check, prompt: str, reference: str, answer: str) -> bool:
    return test(answer, prompt, reference) == 1


def _pipeline(plan: Any) -> Pipeline:
    """Returns the recipe's composition with `match`, which decodes greedily and uses whole drafts."""
    from specframe import compose

    data = plan.recipe.data
    return compose(
        target=data["target"],
        drafter=data["drafter"],
        tree=data.get("tree"),
        sampling={**(data.get("sampling") or {}), "temperature": 0.0},
        run={**(data.get("run") or {}), "costs": None},
    )


def _stored(out: Path, plan: Any, pipeline: Pipeline, records: Sequence[PromptRecord], **terms: Any) -> Any:
    from specframe_judge.labels import LabelFile

    parts = {name: plan.recipe.data.get(name) for name in ("target", "drafter", "tree")}
    given = {"max_new_tokens": pipeline.sampling.max_new_tokens}
    return LabelFile(out, {**parts, **given, **terms}, [key_of(record) for record in records])


def key_of(record: PromptRecord) -> str:
    """Returns a short key of a problem, which depends on prompt and answer."""
    return hashlib.sha256(json.dumps([record.turns, record.reference]).encode()).hexdigest()[:16]


def _counts(mined: Mined) -> tuple[int, int]:
    """Returns the numbers of harmless and harmful tokens."""
    found = [label.harmless for labels in mined.values() for label in labels or ()]
    return sum(found), len(found) - sum(found)


def _progress(mined: Mined, problems: int) -> str:
    harmless, harmful = _counts(mined)
    wrong = sum(labels is None for labels in mined.values())
    return f"{len(mined)} of {problems} problems, {wrong} not solved: {harmless} harmless and {harmful} harmful tokens"


def _report(fitted: Fitted, chosen: Operating, mined: Mined, out: Path) -> str:
    """Compares the head with the rule without training, on problems that were not used to fit it."""
    lines = [
        _progress(mined, len(mined)),
        f"a harmless token is ranked above a harmful one in {fitted.area:.0%} of pairs, by -log p alone in "
        f"{fitted.surprise_area:.0%} (problems that the head was not fitted to; L2 {fitted.penalty:g})",
        "harmful let through   judge: threshold, harmless kept, answers at risk   surprise: limit, the same",
    ]
    for point, other in zip(fitted.points, fitted.surprise_points, strict=True):
        ours = f"{point.threshold:.3f}  {point.harmless:>4.0%}  {point.answers:>4.0%}"
        theirs = f"{-other.threshold:.2f}  {other.harmless:>4.0%}  {other.answers:>4.0%}"
        lines.append(f"{point.harmful:>19.0%}   {ours:>48}   {theirs:>25}")
    where = f"verifier: {{use: judge, weights: {out}, threshold: {chosen.threshold:.3f}}}"
    return "\n".join([*lines, f"written to {out}", where])
