"""The conformance check of whole plugin packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click

from specframe.kernel.errors import SpecframeError
from specframe.recipes.discovery import discover
from specframe.recipes.options import read_options
from specframe.recipes.registry import Registration
from specframe.testing.drafters import check_drafter
from specframe.testing.heads import check_head
from specframe.testing.losses import check_loss
from specframe.testing.policies import check_tree
from specframe.testing.targets import check_target
from specframe.testing.verifiers import check_verifier

CHECKS: dict[str, Callable[[Callable[[], Any]], None]] = {
    "target": check_target,
    "drafter": check_drafter,
    "tree": check_tree,
    "verifier": check_verifier,
    "loss": check_loss,
    "head": check_head,
}

HEAVY = ("torch", "transformers", "numpy")


def check_plugin(package: str) -> None:
    """Raises AssertionError unless everything that an installed package registers keeps its contract.

    Registering imports nothing heavy; every component loads, has a docstring and a signature that recipes can
    express; targets, drafters, trees, verifiers, losses and heads that can be built without options pass their own
    checks.
    """
    registry = discover()
    assert package not in registry.broken, f"{package} cannot be loaded: {registry.broken.get(package)}"
    entries = [entry for entry in registry.entries if entry.package == package]
    assert entries, f"{package} registers nothing; is it installed?"
    check_registration(package)
    for entry in entries:
        if entry.kind != "model":
            check_entry(entry)


def check_registration(package: str) -> None:
    """Listing the package's components imports neither torch nor transformers."""
    code = (
        "import sys; from specframe.recipes.discovery import discover; registry = discover(); "
        f"assert any(e.package == {package!r} for e in registry.entries); "
        f"print(*[m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the package cannot be listed: {done.stderr}"
    assert not done.stdout.strip(), f"registering {package} imports {done.stdout.strip()}"


def check_entry(entry: Registration) -> None:
    """One component: it loads, has a summary and readable options, and keeps its kind's contract."""
    component = entry.load()
    about = component.help if isinstance(component, click.Command) else component.__doc__
    assert (about or "").strip(), f"{entry.kind} '{entry.name}' has no docstring"
    if entry.kind == "command":
        assert isinstance(component, click.Command), f"command '{entry.name}' is no click command"
        return
    options = read_options(component)
    if entry.kind not in CHECKS or any(option.required for option in options.values()):
        return
    try:
        component()
    except SpecframeError:
        return  # it can be built with options only, and declares it
    try:
        CHECKS[entry.kind](component)
    except AssertionError as error:
        raise AssertionError(f"{entry.kind} '{entry.name}': {error}") from error
