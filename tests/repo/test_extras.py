"""Imports of a package are declared, and without the extras all works but their own features."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest

from tests.repo.repository import PLUGINS, ROOT, name, sources

EXTRAS = (
    "PIL",
    "accelerate",
    "datasets",
    "gguf",
    "llguidance",
    "matplotlib",
    "peft",
    "ray",
    "specframe_report",
)
"""Packages of the extras, by the name that is imported."""
BROUGHT = ("gguf",)
"""Those that another package needs anyway: the zoo."""


def normal(package):
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", package)[0]).lower()


def declared(project, extras):
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = about.get("optional-dependencies", {})
    lists = [about["dependencies"], *(optional[extra] for extra in optional if extras)]
    return {normal(package) for found in lists for package in found} | {about["name"]}


def imported(path, top_only):
    """The packages that a file imports; `top_only`: whenever it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("project", [ROOT, *PLUGINS], ids=lambda path: path.name if path != ROOT else "specframe")
def test_what_is_imported_is_declared(project):
    code = project / ("specframe" if project == ROOT else "src")
    known = packages_distributions()
    for extras, top_only in ((True, False), (False, True)):
        allowed = declared(project, extras) | declared(ROOT, extras)  # a plugin has what specframe needs
        for path in sources(code):
            if top_only and (path.parent.name == "testing" or path.name == "plots.py"):
                continue  # of the extras testing and bench, imported by those that have them
            for package in set(imported(path, top_only)) - sys.stdlib_module_names:
                of = {normal(one) for one in known.get(package, [package])}
                assert of & allowed, f"{name(path)} imports {package}, which {project.name} does not declare"


PROGRAM = """
import sys
for package in sys.argv[2:]:
    sys.modules[package] = None
import specframe
from specframe.cli.main import main
run = ["run", sys.argv[1], "--json", "--prompt", "hello", "run.repeats=1", "sampling.max_new_tokens=4"]
print(main([*run, "--out", "run"]))
print(main(["bench", sys.argv[1], "--out", "bench"]))
print(main(["show", sys.argv[1], "--html", "page.html"]))
from specframe import SpecframeError
try:
    import specframe.training.processes
except SpecframeError as error:
    print(error)
"""


def test_a_run_needs_no_extra(recipe, tmp_path):
    without = [package for package in EXTRAS if package not in BROUGHT]
    command = [sys.executable, "-c", PROGRAM, str(recipe), *without]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures, run, bench, show, *refused = done.stdout.splitlines()
    assert '"speedup_hf"' in figures and (run, bench, show) == ("0", "2", "2")
    for command, line in zip(("bench", "show --html"), done.stderr.splitlines()[-2:], strict=True):
        assert line.startswith(f"`specframe {command}` is in specframe-report, which is broken: ")
    assert refused == ['training needs the package accelerate: pip install "specframe[train]"']
