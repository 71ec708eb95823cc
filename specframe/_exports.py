"""Public names of a module, imported on first use from where they are defined."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def exports(module: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a module whose stub, FILE.pyi, imports its public names.

    So each name stands in one place, which type checkers read, too. (`lazy_loader` does the same, but keeps what it has
    imported in the package, so that names of `specframe.plugin` would become attributes of `specframe`.)
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [statement for statement in stub.body if isinstance(statement, ast.ImportFrom)]
    homes = {alias.name: str(statement.module) for statement in imports for alias in statement.names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = import_module(homes[name])
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{homes[name]}.{name}")
        setattr(sys.modules[module], name, value)
        return value

    return load, lambda: sorted(homes), sorted(homes)


def make_callable(module: str, home: str) -> None:
    """Makes a package callable: `specframe.bench("falcon")` is the function `module:name` that `home` names.

    Python binds the package to its name in `specframe`, which is the function's, too. Setting `__class__` is the
    language's own way to customise a module.
    """
    place, _, name = home.partition(":")

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return getattr(import_module(place), name)(*args, **options)

    sys.modules[module].__class__ = CallableModule
