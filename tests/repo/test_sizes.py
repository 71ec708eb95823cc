"""Files stay small enough to be read, and the repository small enough to be cloned."""

import ast
import json
from collections import Counter
from pathlib import Path

from tests.repo.repository import PLUGINS, ROOT, files, name, sources

LINES = 300
FILES = 25
MODULES = 3
"""The fewest modules of a folder, those of its own folders counted."""
HOUSE = {"folders": 27, "modules": 292, "plugins": 23}
"""The most of `specframe/`, lowered with every part that moves to a plugin, and of `plugins/`; merge before adding."""
PROTOCOLS = {"all": 45, "checked at run time": 12}
"""The most Protocols of `specframe/` and `plugins/`: an optional method is asked for by a function, as `text_of` is."""
LOOP_LINES = 100
REPOSITORY_BYTES = 150_000_000
CODE = {".py", ".pyi", ".cpp", ".h"}
RECORDED = Path(__file__).with_name("lines.json")
"""Lines of code by area, as `python -m tests.repo.test_sizes` counts and writes them."""
GROWTH = 1.01
"""An area that grows more than this is recorded anew in the same commit, which states why."""


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def area(path):
    """A folder of `specframe/`, the sources of all plugins, the tests of all plugins, or those of the core."""
    top, *rest = path.relative_to(ROOT).parts
    if top == "specframe":
        return f"specframe/{rest[0]}" if len(rest) > 1 else top
    if top == "plugins" and rest[1] in ("src", "tests"):
        return f"plugins/*/{rest[1]}"
    return top if top == "tests" else None


def code():
    """The modules of `specframe/` and of the plugins."""
    found = [*sources(ROOT / "specframe"), *(path for plugin in PLUGINS for path in sources(plugin / "src"))]
    assert found
    return found


def lines_by_area():
    counts = Counter()
    for path in files():
        if path.suffix in CODE and (place := area(path)):
            counts[place] += lines(path)
    return dict(sorted(counts.items()))


def test_no_area_grows_unnoticed():
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    grown = {name: count for name, count in lines_by_area().items() if count > GROWTH * recorded.get(name, 0)}
    assert not grown, f"{grown}: run `python -m tests.repo.test_sizes`, and give the reason in the commit's message"


def test_no_source_file_grows_long():
    long = {name(path): lines(path) for path in code() if lines(path) >= LINES}
    assert not long


def test_contracts_are_few():
    """A Protocol is a contract with several implementations, or with one on the other side of a border."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in code()]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = [node for node in nodes if "Protocol" in map(ast.unparse, node.bases)]
    checked = [node for node in found if "runtime_checkable" in map(ast.unparse, node.decorator_list)]
    assert len(found) <= PROTOCOLS["all"] and len(checked) <= PROTOCOLS["checked at run time"]


def test_a_cycle_fits_a_screen():
    """From admission to release: what a reader judges the engine by."""
    text = (ROOT / "specframe" / "decoding" / "session.py").read_text(encoding="utf-8")
    assert text[text.index("    def admit(") : text.index("    def _release(")].count("\n") < LOOP_LINES


def test_the_repository_stays_small():
    sizes = {name(path): path.stat().st_size for path in files()}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert sum(sizes.values()) < REPOSITORY_BYTES, largest


def test_a_folder_shows_what_it_holds():
    """Of files at one level; sub-folders are how a folder that grows stays readable."""
    counts = Counter(path.parent for path in files() if path.suffix in {".py", ".yaml"})
    assert counts
    assert not {name(folder): count for folder, count in counts.items() if count > FILES}


def test_a_folder_is_worth_opening():
    house = ROOT / "specframe"
    folders = {path.parent for path in sources(house)}
    modules = {folder: [path for path in sources(folder) if path.name != "__init__.py"] for folder in folders}
    assert not {name(folder): len(below) for folder, below in modules.items() if len(below) < MODULES}
    assert len(folders) <= HOUSE["folders"]
    assert len(PLUGINS) <= HOUSE["plugins"], "a method joins the package of its idea"
    own = [path for path in sources(house) if path.name != "__init__.py"]
    assert len(own) <= HOUSE["modules"], "merge modules that are one noun before adding one"


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(lines_by_area(), indent=2) + "\n", encoding="utf-8")
