"""The conformance check of whole plugin packages: contracts, certificates, compositions, types and wheel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from zipfile import ZipFile
from zlib import crc32

import click

from specframe.certify.certify import certify_plan
from specframe.kernel.errors import PluginError, SpecframeError, raised_at
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.options import read_options
from specframe.recipes.recipe import Recipe
from specframe.recipes.registry import Registration, Registry, suggest
from specframe.testing.compositions import BUDGET, check_recipe
from specframe.testing.coverage import DRAWN, Coverage, CoverageCase, summary
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
    if entry.kind == "extension":  # called by the core, not with a recipe's options
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


SKIPPED = shutil.ignore_patterns(".git", ".venv", "venv", "build", "dist", "__pycache__", "*.egg-info")
"""Files that are no part of a package's source."""
NO_COMPONENT = ("model", "data", "section", "extension")


@dataclass(frozen=True)
class Row:
    """One check of a package."""

    name: str
    passed: bool | None
    """None where it could not be done."""
    detail: str = ""
    """The finding in one line."""
    report: str = ""
    """A failure in full: the recipe, and the command that repeats it."""


@dataclass(frozen=True)
class PackageCheck:
    """The checks of an installed package.

    Args:
        package: its name, as pip has it.
        budget: branches to enumerate of a recipe's output, at most.
        draws: recipes drawn of each composition's components, after the smallest one.
        registry: what is installed.

    Raises PluginError for a package that cannot be loaded or registers nothing.
    """

    package: str
    budget: int = BUDGET
    draws: int = 2
    registry: Registry = field(default_factory=discover)

    def __post_init__(self) -> None:
        if self.package in self.registry.broken:
            raise PluginError(f"{self.package} cannot be loaded: {self.registry.broken[self.package]}")
        if not self.entries:
            near = suggest(self.package, {entry.package for entry in self.registry.entries})
            raise PluginError(
                f"no installed package '{self.package}' registers anything{near}; see `specframe plugins`"
            )

    @property
    def entries(self) -> list[Registration]:
        """Its registrations."""
        return [entry for entry in self.registry.entries if entry.package == self.package]

    def rows(self) -> Iterator[Row]:
        """Yields all checks as they are done: those that end soon first."""
        yield _row("registration", partial(check_registration, self.package))
        yield self.types()
        yield self.wheel()
        for entry in self.entries:
            if entry.kind not in NO_COMPONENT:
                yield _row(f"{entry.kind} {entry.name}: contract", partial(check_entry, entry))
        yield from self.compositions_of_all()

    def compositions_of_all(self) -> Iterator[Row]:
        """Yields the certificates of the components that decode, and their compositions with all others."""
        coverage = Coverage(self.registry, package=self.package)
        for kind, name in sorted(coverage.missing):
            detail = "its options need values that their types do not give, such as files; call check_recipe with them"
            yield Row(f"{kind} {name}: compositions", None, detail)
        for case in coverage.few:
            names = [f"{kind} {name}" for kind, name in case.components if (kind, name) in coverage.components]
            yield self.certificate(", ".join(names), case)
        for kind in DRAWN:
            for entry in self.registry.of(kind):
                if entry.package == self.package and (kind, coverage.sections.name_of(entry)) not in coverage.missing:
                    yield self.compositions(entry, coverage)

    def certificate(self, names: str, case: CoverageCase) -> Row:
        """The certificate of a composition."""

        def certify() -> str:
            valid = plan(Recipe(Path("case.yaml"), case.recipe), self.registry, local_code=False)
            found = certify_plan(valid, budget=self.budget, seeds=1)
            worst = found.worst
            assert found.exact or not found.promised, (
                f"not lossless: {worst.name}: total variation {worst.comparison.tv:.4g}"
            )
            assert found.guarantees_hold, "a property that a lossy rule keeps does not hold"
            word = "lossless" if found.lossless else "not shown" if found.promised else "lossy, as declared"
            return f"{word}, {sum(each.comparison.enumeration.branches for each in found.cases):,} branches"

        return _row(f"{names}: certificate", certify)

    def compositions(self, entry: Registration, coverage: Coverage) -> Row:
        """A component with every other that it composes with, and recipes drawn of them."""
        drawn: list[tuple[bool, int, tuple[tuple[str, str], ...]]] = []

        def check(recipe: dict[str, object]) -> None:
            found = check_recipe(recipe, budget=self.budget, registry=self.registry)
            drawn.append((found.refusal is None, found.branches, coverage.components_of(recipe)))

        def compose() -> str:
            this = entry.kind, coverage.sections.name_of(entry)
            for case in coverage.cases:
                if this in case.components:
                    check(case.recipe)
                    self.draw(case, check)
            return summary(drawn)

        return _row(f"{entry.kind} {entry.name}: compositions", compose)

    def draw(self, case: CoverageCase, check: Callable[[dict[str, object]], None]) -> None:
        """Checks recipes drawn of a case's components, where Hypothesis is installed."""
        if not self.draws or find_spec("hypothesis") is None:
            return
        from hypothesis import HealthCheck, given, seed, settings

        from specframe.testing.strategies import recipes

        few = settings(max_examples=self.draws, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        seed(crc32(repr(case.components).encode()))(few(given(recipes(self.registry, containing=case.names))(check)))()

    def types(self) -> Row:
        """`mypy` over the package's modules."""
        if find_spec("mypy") is None:
            return Row("mypy", None, "not installed: pip install mypy")
        modules = sorted({entry.target.partition(":")[0].partition(".")[0] for entry in self.entries})
        command = [sys.executable, "-m", "mypy", *(word for module in modules for word in ("-p", module))]
        return _row("mypy", lambda: _run(command, self.source))

    def wheel(self) -> Row:
        """A wheel of the package's source, with the modules that it registers."""
        source = self.source
        if source is None:
            return Row("wheel", True, "installed from one")

        def build() -> str:
            with tempfile.TemporaryDirectory() as folder:
                shutil.copytree(source, copy := Path(folder) / "source", ignore=SKIPPED)
                pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
                _run([*pip, "-w", folder, str(copy)])
                [wheel] = Path(folder).glob("*.whl")
                files = ZipFile(wheel).namelist()
            modules = {entry.target.partition(":")[0].replace(".", "/") for entry in self.entries}
            lacking = [each for each in modules if not {f"{each}.py", f"{each}/__init__.py"} & set(files)]
            assert not lacking, f"{wheel.name} lacks {', '.join(sorted(lacking))}"
            return f"{wheel.name}, {len(files)} files"

        return _row("wheel", build)

    @property
    def source(self) -> Path | None:
        """The folder that the package was installed from; None for one from a wheel."""
        written = distribution(self.package).read_text("direct_url.json")
        place = urlparse(json.loads(written)["url"]) if written else None
        folder = Path(unquote(place.path)) if place is not None and place.scheme == "file" else None
        return folder if folder is not None and folder.is_dir() else None


def _run(command: list[str], folder: Path | None = None) -> str:
    """A command's last line. Raises AssertionError with its first error, and all lines, where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    printed = f"{done.stdout}\n{done.stderr}".strip()
    lines = printed.splitlines() or [""]
    assert done.returncode == 0, "\n".join(
        [next((line for line in lines if "error" in line.lower()), lines[0]), *lines]
    )
    return lines[-1]


def _row(name: str, check: Callable[[], str | None]) -> Row:
    """The row of a check that raises where something is wrong."""
    try:
        return Row(name, True, check() or "")
    except (AssertionError, SpecframeError) as error:
        text = str(error)
    except Exception as error:  # a part under development may raise anything
        text = f"{raised_at(error)}: {error}"
    return Row(name, False, text.partition("\n")[0], text)
