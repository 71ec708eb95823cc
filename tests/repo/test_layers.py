"""Imports point one way: kernel, recipes, native and sampling, neural, files, components, decoding, its uses, cli."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.repo.repository import PLUGINS, ROOT, name, sources

LAYERS = ("kernel", "recipes", "native", "sampling", "neural", "files", "components", "decoding")
USES = ("training", "certify", "bench", "inspect", "interchange")
"""Uses of decoding; these do not import each other, but for the pairs below."""
ACROSS = {("certify", "inspect"), ("inspect", "bench"), ("inspect", "training")}
NEEDS = {"kernel": frozenset[str](), "recipes": frozenset({"omegaconf", "packaging", "pluggy", "yaml"})}
"""Packages that layers without torch import at run time."""
PUBLIC = ("specframe", "specframe.plugin", "specframe.neural", "specframe.testing")


def imports(path, run_time_only=False) -> Iterator[str]:
    """The dotted names a file imports, `from a import b` as a.b; perhaps without type checkers'."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        inner
        for node in ast.walk(tree)
        if run_time_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_files():
    folders = [ROOT / "specframe", *(plugin / "src" for plugin in PLUGINS)]
    return [path for folder in folders for path in sources(folder)]


def is_part(imported: str, module: str) -> bool:
    return f"{imported}.".startswith(f"{module}.")


def above(layer: str) -> list[str]:
    """The packages that the files of a layer must not import."""
    if layer in USES:
        others = [use for use in USES if use != layer and (layer, use) not in ACROSS]
        return [*others, "cli", "testing"]
    return [*LAYERS[LAYERS.index(layer) + 1 :], *USES, "cli", "testing"]


def graph(packages: Iterable[Path]) -> dict[str, set[str]]:
    """The modules of these packages, each with those that it imports: in functions and for type checkers, too."""
    paths: dict[str, list[Path]] = {}
    for package in packages:
        for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
            parts = path.relative_to(package.parent).with_suffix("").parts
            paths.setdefault(".".join(part for part in parts if part != "__init__"), []).append(path)
    found: dict[str, set[str]] = {}
    for module, places in paths.items():
        names = [imported for path in places for imported in imports(path)]
        wanted = {imported if imported in paths else imported.rpartition(".")[0] for imported in names}
        found[module] = (wanted & paths.keys()) - {module}
    return found


def circle(modules: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; none if there is none."""
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others():
    modules = graph([ROOT / "specframe", *(path.parent for path in ROOT.glob("plugins/*/src/*/__init__.py"))])
    assert {"specframe", "specframe.kernel.types", "specframe_eagle.drafter"} <= modules.keys()
    assert circle(modules) == []


@pytest.mark.parametrize(
    "back", ["if TYPE_CHECKING:\n    from a.one import One", "def late():\n    import a.one", "from a import one"]
)
def test_every_kind_of_circle_is_found(back, tmp_path):
    package = tmp_path / "a"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from a.two import Two\n")
    (package / "two.py").write_text("from a.three import Three\n")
    (package / "three.py").write_text("import os\n")
    assert circle(graph([package])) == []
    (package / "three.py").write_text(back + "\n")
    assert set(circle(graph([package]))) == {"a.one", "a.two", "a.three"}


@pytest.mark.parametrize("layer", [*LAYERS, *USES])
def test_a_layer_imports_those_below_it_only(layer):
    forbidden = [f"specframe.{package}" for package in above(layer)]
    found = sources(ROOT / "specframe" / layer)
    assert found, f"the layer {layer} has no files: this test would check nothing"
    wrong = [
        f"{name(path)} imports {imported}"
        for path in found
        for imported in imports(path)
        if any(is_part(imported, module) for module in forbidden)
    ]
    assert not wrong


@pytest.mark.parametrize("layer", NEEDS)
def test_the_kernel_and_recipes_need_little_at_run_time(layer):
    allowed = NEEDS[layer] | {"specframe"} | sys.stdlib_module_names
    wrong = [
        f"{name(path)} imports {imported}"
        for path in sources(ROOT / "specframe" / layer)
        for imported in imports(path, run_time_only=True)
        if imported.partition(".")[0] not in allowed
    ]
    assert not wrong


def test_nothing_imports_the_testing_kit_but_tests():
    inside, command = ROOT / "specframe" / "testing", ROOT / "specframe" / "cli" / "check.py"
    wrong = [
        f"{name(path)} imports {imported}"
        for path in package_files()
        for imported in imports(path)
        if inside not in path.parents and path != command and is_part(imported, "specframe.testing")
    ]
    assert not wrong


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_uses_the_public_interface_only(plugin):
    wrong = [
        f"{name(path)} imports {imported}"
        for path in sources(plugin / "src")
        for imported in imports(path)
        if is_part(imported, "specframe") and imported not in PUBLIC and imported.rpartition(".")[0] not in PUBLIC
    ]
    assert not wrong


def test_listing_plugins_imports_no_torch():
    code = """
import sys
from specframe.cli.main import main
assert main(["plugins"]) == 0
assert not {"torch", "transformers"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
