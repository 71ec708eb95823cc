"""A plugin as an outsider makes it: outside of this repository, in an environment of its own, by pip, offline."""

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from specframe import __version__
from tests.repo.repository import ROOT

pytestmark = pytest.mark.full  # environments take long; tests/recipes/test_plugins.py has such plugins in this process

RECIPE = """
target: {use: hf, model: zoo://talk-7m}
drafter: {use: follower, smoothing: 0.5}
tree: {use: chain, depth: 2}
verifier: {use: match}
sampling: {temperature: 0.7, max_new_tokens: 6}
run: {prompts: [Hello], repeats: 0}
"""

PROJECT = """
[project]
name = "specframe-{name}"
version = "1.0"
dependencies = [{needs}]
[project.entry-points.specframe]
{name} = "specframe_{name}"
[tool.setuptools]
py-modules = ["specframe_{name}"]
"""

HOOK = """
from specframe.plugin import hookimpl
@hookimpl
def specframe_register(register):
    register({registered})
"""

SIGNATURES = """
    register("drafter", "open", "specframe_odd:Open", summary="takes anything")
    register("tree", "vague", "specframe_odd:Vague", summary="takes what YAML cannot hold")
    register("verifier", "bare", "specframe_odd:Bare", summary="declares no type")
class Open:
    def __init__(self, **options): ...
class Vague:
    def __init__(self, *, places: set[complex] = frozenset()): ...
class Bare:
    def __init__(self, *, strict=True): ...
"""


def hook(*registered: str, summary: str = "an outsider's") -> str:
    return HOOK.format(registered=", ".join(map(repr, registered)) + f", summary={summary!r}")


BUSH = hook("tree", "bush", "m:Bush")
TROUBLE = {
    "newer": (BUSH, f"needs specframe >=9.0, this is {__version__}: pip install -U specframe"),
    "older": (BUSH, f"needs specframe <0.1, this is {__version__}: pip install -U specframe-older"),
    "unloadable": ("import flash_attention_9", "ModuleNotFoundError: No module named 'flash_attention_9'"),
    "kind": (hook("tre", "bush", "m:Bush"), "unknown kind 'tre'; did you mean 'tree'?"),
    "place": (hook("tree", "bush", "m.Bush"), "'m.Bush' of tree 'bush' is not of the form module:attr"),
    "spaced": (hook("tree", "my bush", "m:Bush"), "'my bush' is no component name"),
}  # fmt: skip
"""Plugins that must be left out: the module, and the text of the one line."""
NEEDS = {"newer": '"specframe>=9.0"', "older": '"specframe<0.1"'}


class Outsider:
    """A working folder and an environment: what is installed here is seen there, and not the other way round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        (packages,) = (folder / "venv").glob("[Ll]ib/**/site-packages")
        above = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
        (packages / "above.pth").write_text(f"import site; {above}\n", encoding="utf-8")

    def run(self, *command: str, status: int = 0) -> list[str]:
        """The lines that `python -m command` prints."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPECFRAME_PLUGINS")}
        offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            [self.python, "-m", *command],
            cwd=self.folder,
            env=kept | offline,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]

    def install(self, *folders: str) -> None:
        """pip, without the network, the build tools being those that are here."""
        self.run(
            "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", *map("./{}".format, folders)
        )

    def make(self, name: str, module: str) -> str:
        """A package of one module; its folder."""
        folder = self.folder / name
        folder.mkdir()
        project = PROJECT.format(name=name, needs=NEEDS.get(name, '"specframe"'))
        (folder / "pyproject.toml").write_text(project, encoding="utf-8")
        (folder / f"specframe_{name}.py").write_text(module, encoding="utf-8")
        return name

    def write(self, name: str, text: str) -> str:
        """A recipe next to the packages; its name."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return name


@pytest.fixture(scope="module")
def outsider(tmp_path_factory) -> Outsider:
    """The environment, with the generated plugin, the example, and every kind of trouble installed with them."""
    outsider = Outsider(tmp_path_factory.mktemp("outsider"))
    outsider.run("specframe", "new", "plugin", "follower")
    ignored = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    shutil.copytree(ROOT / "plugins" / "specframe-example", outsider.folder / "example", ignore=ignored)
    twin = outsider.make("twin", hook("drafter", "follower", "specframe_twin:Twin") + "class Twin: ...\n")
    odd = HOOK.partition("    register")[0] + SIGNATURES.lstrip("\n")
    trouble = [outsider.make(name, module) for name, (module, _) in TROUBLE.items()]
    outsider.install("specframe-follower", "example", twin, outsider.make("odd", odd), *trouble)
    return outsider


def test_what_works_is_listed_and_what_does_not_has_one_line_of_reason(outsider):
    lines = outsider.run("specframe", "plugins")
    for package in (
        "specframe-follower 0.1.0",
        "specframe-example 0.1.0",
        "specframe-twin 1.0",
        f"specframe {__version__}",
    ):
        assert package in lines
    for name, (_, reason) in TROUBLE.items():
        (line,) = [line for line in lines if line.startswith(f"specframe-{name} ")]
        assert line.startswith(f"specframe-{name} BROKEN  ") and reason in line
    assert sum("BROKEN" in line for line in lines) == len(TROUBLE)


def test_a_name_of_two_packages_shows_both_and_one_of_none_the_broken_ones(outsider):
    recipe = outsider.write("names.yaml", RECIPE.replace("use: chain, depth: 2", "use: bush"))
    lines = outsider.run("specframe", "validate", recipe, status=2)
    assert len(lines) == 2
    assert (
        "drafter 'follower' is ambiguous: write 'specframe-follower/follower' or 'specframe-twin/follower'" in lines[0]
    )
    assert "no tree named 'bush'" in lines[1] and "specframe-newer" in lines[1]


def test_signatures_that_no_recipe_can_fill_are_named(outsider):
    use = RECIPE.replace("{use: follower, smoothing: 0.5}", "open").replace("{use: chain, depth: 2}", "vague")
    recipe = outsider.write("odd.yaml", use.replace("{use: match}", "bare"))
    lines = outsider.run("specframe", "validate", recipe, status=2)
    for line, message in zip(lines, ("Open.__init__", "Vague", "Bare"), strict=True):
        assert message.partition(".")[0] in line
    assert "keyword-only" in lines[0] and "cannot express" in lines[1] and "type annotation" in lines[2]


def test_an_outsider_runs_and_certifies_a_plugin_and_uninstalls_it(outsider):
    outsider.run("pip", "uninstall", "-q", "-y", "specframe-twin")  # and the bare name is free again
    assert "  smoothing: number (default 0.1)" in outsider.run("specframe", "explain", "follower")
    recipe = outsider.write("mine.yaml", RECIPE)
    figures = json.loads(outsider.run("specframe", "run", recipe, "--json")[-1])
    assert figures["tokens"] == 6 and figures["lossless"] is True
    sampled = ("verifier.use=recursive", "tree.draw=iid", "drafter.use=example", "drafter.smoothing=0.3")
    certificate = outsider.run("specframe", "certify", recipe, *sampled, "--exact-only", "--json")
    assert json.loads(certificate[-1])["lossless"] is True
    outsider.run("pip", "uninstall", "-q", "-y", "specframe-follower", "specframe-example")
    assert not [line for line in outsider.run("specframe", "plugins") if "follower" in line]
    (line,) = outsider.run("specframe", "validate", recipe, status=2)
    assert "no drafter named 'follower'" in line
