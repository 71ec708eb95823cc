"""A forked process inherits torch's locks, and not its threads: specframe starts afresh or not at all."""

import ast

from tests.repo.repository import PLUGINS, ROOT, name, sources


def test_nothing_forks():
    found = []
    for path in [*sources(ROOT / "specframe"), *(p for plugin in PLUGINS for p in sources(plugin / "src"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                threads = set(names) <= {"ThreadPoolExecutor", "as_completed", "concurrent.futures"}
                forks = not threads and any(each.split(".")[0] in ("multiprocessing", "concurrent") for each in names)
            else:
                forks = isinstance(node, ast.Attribute) and _forks(node)
            if forks:
                found.append(f"{name(path)}:{node.lineno}")
    assert not found


def _forks(node: ast.Attribute) -> bool:
    """Returns whether an attribute forks a process; a logits processor's `fork` copies its state."""
    own = isinstance(node.value, ast.Name) and node.value.id != "os"
    return node.attr in ("forkpty", "num_workers") or (node.attr == "fork" and not own)
