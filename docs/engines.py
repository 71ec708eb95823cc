"""Results of shipped drafters in engines (docs/engines.yaml): ``python docs/engines.py [DRAFTER]..`` refreshes them.

Refusals are the exporters' own. With `--check FORM` a form's engine is run on what could be written, as
`specframe export --check` does, in the Python of `--python`; a result that is there is kept without it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from catalogue import DOCS

from specframe import SpecframeError
from specframe.interchange.check import PACKAGES, chain_overrides
from specframe.interchange.export import convert
from specframe.recipes.build import GivenPart, plan
from specframe.recipes.discovery import discover
from specframe.recipes.folders import shipped_recipes
from specframe.recipes.recipe import Recipe

RESULTS = DOCS / "engines.yaml"
ENGINES = {
    "vllm": "vLLM",
    "speculators": "speculators, in vLLM",
    "transformers": "transformers",
    "gguf": "llama.cpp",
    "openvino": "OpenVINO",
}
"""The engines of the table by the form that they read."""
HEADS = ("draft-vocabulary", "coral-router", "eagle-parallelspec-router", "eagle-acceptance")
"""Methods of trained models that are parts of drafters."""
NO_FORM = "refused: no such form"
ENGINE_REFUSED = "refused by the engine"
OPENVINO = {
    "eagle3": "refused: its converter, optimum-intel 2.2, has no fc_norm and would drop it",
    "dflash": "refused: no such form, though OpenVINO GenAI 2026.4 has the method",
}
"""Reasons against OpenVINO for drafters without a form, by method."""
NOT_IN_OPENVINO = "refused: OpenVINO GenAI 2026.4 drafts by models, EAGLE-3, DFlash and MTP alone"
UNCHECKED = "not checked: it can be written, and the engine was not run"
DECODED = ["sampling.max_new_tokens=32"]
INTRODUCTION = """# Drafters in engines

<!-- Written by docs/generate.py from docs/engines.yaml, which docs/engines.py writes. -->

Every trained drafter that comes with specframe, and how it arrives where `specframe export` has a form for an engine.
*Exactly*: the engine had the same texts, cycles and accepted tokens as specframe's chain of the same length, greedily,
in float32, for the recipe's prompts and 32 tokens of each, by
[`specframe export --check`](../howto/export.md#check-that-it-arrives). *Refused*: by the exporter or the engine, with
its reason; reasons of OpenVINO are from its code and its converter's, where no form exists. A drafter without a form
may draft [within vLLM](../howto/vllm.md) by the plugin `specframe-vllm`.

`python docs/engines.py DRAFTER --check vllm --python FILE` refreshes a row of `docs/engines.yaml`, and runs an engine
for it; without `--check` the exporters alone are asked. `--target FOLDER` replaces a target that is not at hand:
Qwen2.5-Coder's was its GGUF file (Q4_K_M), written as a folder in bfloat16.

"""


def render_engines() -> str:
    """The page of the table."""
    results = read_results()
    lines = [f"| drafter | {' | '.join(ENGINES.values())} |", "|---" * (len(ENGINES) + 1) + "|"]
    for name, cells in sorted(results.items()):
        shown = (cells[form].replace("|", "\\|") for form in ENGINES)
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    return INTRODUCTION + "\n".join(lines) + "\n"


def read_results() -> dict[str, dict[str, str]]:
    """The cells by drafter and form, and the recipe of each drafter as `recipe`."""
    found: dict[str, dict[str, str]] = yaml.safe_load(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def shipped_drafters() -> set[str]:
    """The names of the trained drafters that come with specframe, parts of drafters left out."""
    models = [(entry.name, entry.load()) for entry in discover().of("model")]
    return {name for name, model in models if getattr(model, "method", None) not in (None, *HEADS)}


@cache
def recipes_of_drafters() -> Mapping[str, Path]:
    """The first shipped recipe that drafts with each drafter alone."""
    found: dict[str, Path] = {}
    for _, path in shipped_recipes():
        weights = plan(Recipe.read(path), discover()).parts["drafter"].options.get("weights")
        found.setdefault(str(weights).removeprefix("zoo://"), path)
    return {name: found[name] for name in shipped_drafters() & found.keys()}


def refresh(
    name: str, old: Mapping[str, str], targets: dict[str, Any], forms: list[str], python: str, model: str | None
) -> dict[str, str]:
    """The cells of a drafter; engines of `forms` are run. `model` replaces the recipe's target."""
    recipe = recipes_of_drafters()[name]
    made = plan(Recipe.read(recipe), discover())
    given = [value for value in chain_overrides(made.recipe.data, 1) if value.endswith("quantize=null")]
    given += [f"target.model={model}"] if model else []
    made = plan(Recipe.read(recipe, given), discover())
    model = made.parts["target"].options["model"]
    if model not in targets:
        targets[model] = made.parts["target"].build()
    made.parts["target"] = GivenPart.of("target", targets[model])
    kept = getattr(made.parts["drafter"].build(), "forms", ())
    no_form = {"openvino": OPENVINO.get(made.parts["drafter"].entry.name, NOT_IN_OPENVINO)}
    cells = {form: no_form.get(form, NO_FORM) for form in ENGINES}
    for form in set(ENGINES).intersection(kept):
        try:
            convert(made, form)
            before = old.get(form, "")
            cells[form] = before if before.startswith(("arrives", ENGINE_REFUSED)) else UNCHECKED
        except SpecframeError as error:
            cells[form] = f"refused: {str(error).partition('drafter: ')[2] or error}"
        if form in forms and not cells[form].startswith("refused: "):
            cells[form] = run_check(recipe, [*given, *DECODED], form, python)
    return cells


def run_check(recipe: Path, overrides: list[str], form: str, python: str) -> str:
    """The verdict of `specframe export --check`, with version and counts."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "specframe", "export", str(recipe), *overrides, "--to", form, "--out", folder]
        words += ["--check", "--python", python, "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if not done.stdout:
        return f"not checked: {done.stderr.strip().splitlines()[-1]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["check"]
    verdict = textwrap.shorten(found["verdict"], 160)
    if not found["exact"]:
        refused = verdict.replace("refused", ENGINE_REFUSED, 1)
        return refused if verdict.startswith("refused") else f"{verdict} ({found['engine']})"
    ours = found["counts"][0]
    return f"{verdict}: {found['engine']}, {ours['cycles']} cycles, {ours['accepted']} accepted"


def execute() -> None:
    """Refreshes the results, each written as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafters", nargs="*", help="default: all")
    parser.add_argument("--check", action="append", default=[], choices=sorted(PACKAGES))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--target", help="a folder in place of the recipe's target")
    given = parser.parse_args()
    targets: dict[str, Any] = {}
    for name in given.drafters or sorted(shipped_drafters()):
        try:
            cells = refresh(name, read_results().get(name, {}), targets, given.check, given.python, given.target)
        except SpecframeError:
            cells = dict.fromkeys(ENGINES, "not checked: its target was not on the machine")
        results = read_results() | {name: cells}
        RESULTS.write_text(yaml.safe_dump(results, width=200, allow_unicode=True), encoding="utf-8")
        print(name, json.dumps(cells), flush=True)


if __name__ == "__main__":
    execute()
