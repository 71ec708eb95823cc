"""Public names: each means one thing in the whole repository."""

import ast
import re

import specframe.plugin
from specframe.recipes.registry import KINDS
from tests.repo.repository import PAGES, PLUGINS, ROOT, name, sources

ONE_USER = 36
"""The most names of `specframe.plugin` that serve one file alone and stand on no page: only ever lowered."""
SPATIAL = {"here", "there", "at", "above", "below", "held", "kept", "ahead", "beyond"}
"""Words that state where a value is, not what it is: `parent_logits`, `accepted_mask`, `next_slots` do."""
NOUNS = [ROOT / "specframe", *(each / "src" for each in PLUGINS)]
"""Folders whose identifiers are none of them."""
KNOWN = {
    "specframe/certify/certificate.py": {"held"},  # a key of the certificate's JSON
    "specframe/inspect/recorder.py": {"kept"},  # a key of a trace's JSON
    "specframe/training/online.py": {"held"},  # an option of recipes
}
"""Those of recipes and of files, which stay."""
IMPORTED = re.compile(r"from specframe\.plugin import (\([^)]*\)|.*)")


def test_two_classes_never_share_a_public_name():
    """Of specframe and the plugins' packages: a name in an error, a traceback or a search means one thing."""
    homes: dict[str, list[str]] = {}
    folders = [ROOT / "specframe", *(plugin / "src" for plugin in PLUGINS)]
    for path in (path for folder in folders for path in sources(folder)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name(path))
    assert {"Session", "NeuralDrafter", "Eagle"} <= homes.keys(), "classes are missing: the test checks too little"
    assert {found: places for found, places in homes.items() if len(places) > 1} == {}


def test_a_name_for_plugins_is_a_contract_or_has_users():
    """Users are plugins, the templates of `specframe new`, research, and pages that show it, but for the reference."""
    places = [
        *(path for plugin in PLUGINS for path in sources(plugin / "src")),
        *sorted((ROOT / "specframe" / "cli" / "templates").rglob("*.in")),
        *sources(ROOT / "research"),
        *(page for page in PAGES if page.parent.name != "reference"),
    ]
    users: dict[str, set[str]] = {contract.__name__: {"the registry", kind} for kind, contract in KINDS.items()}
    for path in places:
        text = path.read_text(encoding="utf-8")
        shown = [] if path.suffix != ".md" else re.findall(r"`([A-Za-z_]+)[`(]", text)
        for public in {*re.findall(r"\w+", " ".join(IMPORTED.findall(text))), *shown}:
            users.setdefault(public, set()).add(name(path))
    assert [public for public in specframe.plugin.__all__ if public not in users] == []
    alone = [
        public
        for public in specframe.plugin.__all__
        if len(users[public]) == 1 and not min(users[public]).endswith(".md")
    ]
    assert len(alone) <= ONE_USER, "a new name of one user: let the plugin have it\n" + "\n".join(alone)


def spatial(source: str) -> set[str]:
    """The spatial words among the variables, arguments, attributes, functions and classes that a source defines."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=found, ctx=ast.Store()) | ast.Attribute(attr=found, ctx=ast.Store()):
                names.add(found)
            case ast.arg(arg=found) | ast.FunctionDef(name=found) | ast.ClassDef(name=found):
                names.add(found)
            case ast.AsyncFunctionDef(name=found) | ast.alias(asname=str(found)):
                names.add(found)
    return {found for found in names if found.strip("_") in SPATIAL}


def test_identifiers_are_nouns():
    """A name is of what a value is, so that a line is read without those around it."""
    example = "def at(self, kept):\n    self._held, above = 1, 2"
    assert spatial(example) == {"at", "kept", "_held", "above"}
    texts = {name(path): path.read_text(encoding="utf-8") for folder in NOUNS for path in sources(folder)}
    assert {place: found for place, text in texts.items() if (found := spatial(text))} == KNOWN, (
        "write what the value is, as `parent_logits` does; a name that is gone leaves KNOWN"
    )
