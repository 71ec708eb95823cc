"""Public names: each means one thing in the whole repository."""

import ast

from tests.repo.repository import PLUGINS, ROOT, name, sources


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
