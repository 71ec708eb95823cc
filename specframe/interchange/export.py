"""Export of a recipe's drafter in another program's form, with its provenance in the same folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from specframe.decoding.models import read_recipe
from specframe.files.provenance import PROVENANCE, describe_run, read_training, write_json
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Drafter, Target
from specframe.neural import checkpoint
from specframe.neural.weights.export import Export, Exportable
from specframe.recipes.build import Plan, plan
from specframe.recipes.discovery import discover


def export(
    recipe: str | Path,
    form: str,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    local_code: bool = True,
) -> Path:
    """Writes a recipe's trained drafter as another program reads it, as `specframe export` does.

    Args:
        recipe: a file, or the name of a recipe that comes with specframe.
        form: vllm, sglang, transformers, gguf, openvino, speculators, eagle, medusa, qwen or deepseek; a drafter has
            some of these.
        overrides: `key=value` texts that replace values of the recipe.
        out: the folder to write it to; None: exports/RECIPE-FORM.
        local_code: allow components from `./file.py:Name`.

    Returns the folder. Raises what `convert` and `write` raise, RecipeError for an invalid recipe.
    """
    asked = plan(read_recipe(recipe, overrides), discover(), local_code)
    place = Path(out) if out is not None else default_folder(asked, form)
    write(convert(asked, form), asked, form, place)
    return place


def default_folder(plan: Plan, form: str) -> Path:
    """Returns the default folder of a recipe's drafter in a form."""
    return Path("exports") / f"{plan.recipe.path.stem}-{form}"


def convert(plan: Plan, form: str) -> Export:
    """Returns the plan's drafter in a form.

    Raises InputError for an untrained drafter, and for one without this form; WeightsError if the form has no place for
    the drafter.
    """
    target: Target = plan.parts["target"].build()
    drafter: Drafter = plan.parts["drafter"].build()
    name = plan.parts["drafter"].entry.name
    if not isinstance(drafter, Exportable):
        raise InputError(f"the drafter {name!r} has no form that other programs read")
    if form not in drafter.forms:
        raise InputError(f"the drafter {name!r} has no form {form!r}; it has {', '.join(drafter.forms)}")
    if not plan.parts["drafter"].options.get("weights"):
        raise InputError(f"the drafter {name!r} is untrained: name its weights, drafter.weights=FOLDER")
    drafter.bind(target)
    return drafter.export(form)


def write(made: Export, plan: Plan, form: str, folder: Path) -> None:
    """Writes the folder: the checkpoint, and in specframe.json the recipe, its origins and the training record.

    Raises InputError for a folder with another checkpoint: nothing is overwritten without a request.
    """
    if (folder / checkpoint.CONFIG).exists() and not (folder / PROVENANCE).exists():
        raise InputError(f"{folder} holds a checkpoint that was not exported here; give another --out")
    made.write(folder)
    content = (folder / made.file).read_bytes()
    trained = read_training(plan.parts["drafter"].options["weights"])
    facts = {"form": form, "sha256": hashlib.sha256(content).hexdigest(), "trained": trained}
    write_json(folder / PROVENANCE, describe_run(plan, facts))
