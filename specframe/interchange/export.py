"""A recipe's drafter in another program's form, with its provenance in the same folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specframe.files.provenance import describe_run, write_json
from specframe.files.trained import PROVENANCE, read_training
from specframe.kernel.build import Plan
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Drafter, Target
from specframe.neural import checkpoint
from specframe.neural.weights.export import Export, Exportable


def export(plan: Plan, form: str) -> Export:
    """The plan's drafter in a form.

    Raises InputError for an untrained drafter, and for one that has no such form; WeightsError for a drafter that the
    form has no place for.
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

    Raises InputError for a folder that holds another checkpoint: nothing is overwritten unasked.
    """
    if (folder / checkpoint.CONFIG).exists() and not (folder / PROVENANCE).exists():
        raise InputError(f"{folder} holds a checkpoint that was not exported here; give another --out")
    made.write(folder)
    content = (folder / made.file).read_bytes()
    trained = read_training(plan.parts["drafter"].options["weights"])
    facts = {"form": form, "sha256": hashlib.sha256(content).hexdigest(), "trained": trained}
    write_json(folder / PROVENANCE, describe_run(plan, facts))
