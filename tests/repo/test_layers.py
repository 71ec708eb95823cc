"""Imports point one way: kernel, native and sampling, neural, files, components, decoding, its uses, cli."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.repo.repository import PLUGINS, ROOT, name, sources

LAYERS = ("kernel", "native", "sampling", "neural", "files", "components", "decoding")
USES = ("training", "certify", "bench", "inspect", "interchange")
"""What is made of decoding; these do not import each other, but for the pairs below."""
ACROSS = {("inspect", "bench"), ("inspect", "training")}
KERNEL_NEEDS = {"omegaconf", "packaging", "pluggy", "yaml"}
PUBLIC = ("specframe", "specframe.neural", "specframe.testing")


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


def test_the_kernel_needs_little_at_run_time():
    allowed = KERNEL_NEEDS | {"specframe"} | sys.stdlib_module_names
    wrong = [
        f"{name(path)} imports {imported}"
        for path in sources(ROOT / "specframe" / "kernel")
        for imported in imports(path, run_time_only=True)
        if imported.partition(".")[0] not in allowed
    ]
    assert not wrong


def test_nothing_imports_the_testing_kit_but_tests():
    inside = ROOT / "specframe" / "testing"
    wrong = [
        f"{name(path)} imports {imported}"
        for path in package_files()
        for imported in imports(path)
        if inside not in path.parents and is_part(imported, "specframe.testing")
    ]
    assert not wrong


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_uses_the_public_interface_only(plugin):
    # For type checkers a plugin may name what the public functions take and give.
    wrong = [
        f"{name(path)} imports {imported}"
        for path in sources(plugin / "src")
        for imported in imports(path, run_time_only=True)
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
