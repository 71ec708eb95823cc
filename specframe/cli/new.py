"""`specframe new plugin NAME`: creates a working package to be adapted."""

from __future__ import annotations

import json
import keyword
import re
import shlex
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from specframe.cli.arguments import PATH, json_option

TEMPLATES = files("specframe.cli") / "templates"
FILES = {
    "package/pyproject.toml": "pyproject.toml",
    "package/README.md": "README.md",
    "package/LICENSE": "LICENSE",
    "package/gitignore": ".gitignore",
    "package/tests.yml": ".github/workflows/tests.yml",
    "package/py.typed": "src/$module/py.typed",
    "package/__init__.py": "src/$module/__init__.py",
    "component/$kind.py": "src/$module/$kind.py",
    "tests/${kind}_test.py": "tests/test_$snake.py",
}
"""Templates, and the files that they become."""

TRAIN = "specframe train small/falcon train.data=[zoo://smollm2-135m-answers] train.cache=null train.steps=50"
"""Trains on texts that are included in the recipes' plugins, for long enough to see that it works."""
COMMANDS = {
    "target": "specframe validate small/falcon target.use=$name drafter.use=lookup tree=null",
    "drafter": "specframe run small/falcon drafter.use=$name",
    "tree": "specframe run small/falcon tree.use=$name",
    "verifier": "specframe certify small/falcon verifier.use=$name",
    "loss": f'{TRAIN} "loss=[{{use: $name}}]"',
    "rollout": f"{TRAIN} train.rollout.use=$name",
    "head": 'specframe run small/falcon "drafter.head={use: $name}"',
    "kv_selection": 'specframe run small/falcon tree.width=1 "drafter={use: self, kv_selection: {use: $name}}"',
    "selection": "specframe run small/falcon tree=null "
    '"drafter={use: excerpt, select: {use: $name, tokens: 12}, drafter: {use: lookup}}"',
    "store": 'specframe run small/falcon tree=null "drafter={use: retrieval, store: {use: $name}}"',
    "watcher": f"{TRAIN} train.watcher.use=$name",
    "contestant": "specframe bench small/falcon $name --limit 5",
}
"""Kinds with a template, and the command that tries a component of each in the repository's first recipe."""

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
LONGEST = 24


@click.command()
@click.argument("what", help="what to write: `plugin`")
@click.argument("name", help="the component's name in recipes; `bigram` becomes the package specframe-bigram")
@click.option("--kind", default="drafter", metavar="KIND", help=f"what the component is: {', '.join(COMMANDS)}")
@click.option("--out", type=PATH, metavar="DIR", help="where to create the package's folder (default: here)")
@json_option("print what was written, as one JSON object")
def new(what: str, name: str, kind: str, out: Path | None, as_json: bool) -> int:
    """Create a plugin package with a small working component and its tests."""
    from specframe.kernel.errors import InputError
    from specframe.recipes.registry import suggest

    if what != "plugin":
        raise InputError(f"there is no template for a '{what}': write `specframe new plugin NAME`")
    if kind not in COMMANDS:
        hint = suggest(kind, COMMANDS)
        raise InputError(f"there is no kind '{kind}'{hint} (kinds: {', '.join(COMMANDS)})")
    words = name_parts(name, kind)
    folder = (out or Path()) / words["package"]
    package = render(words)
    write(package, folder)
    if as_json:
        about = {word: words[word] for word in ("kind", "name", "package", "module", "command")}
        print(json.dumps({"folder": str(folder), "files": sorted(package), **about}))
        return 0
    print(f"{folder} has a {kind}, '{words['name']}', that works. Make it yours:\n")
    place, testing = shlex.quote(str(folder)), shlex.quote(f"{folder}[test]")
    print(f"  pip install -e {testing}\n  pytest {place}\n  {words['command']}")
    return 0


def name_parts(name: str, kind: str) -> dict[str, str]:
    """Returns the values of the templates' placeholders. Raises InputError for a name that cannot be used."""
    from specframe._version import __version__
    from specframe.kernel.errors import InputError
    from specframe.recipes.discovery import discover
    from specframe.recipes.versions import series

    bare = name.removeprefix("specframe-").replace("_", "-")
    if not NAME.fullmatch(name) or len(name) > LONGEST or keyword.iskeyword(bare):
        raise InputError(
            f"'{name}' cannot be a plugin's name: use lower-case letters, digits and single hyphens, "
            f"begin with a letter, at most {LONGEST}, and no word of Python's own"
        )
    if any(entry.answers(bare) for entry in discover([]).of(kind)):  # built-in components only
        raise InputError(f"there is a built-in {kind} '{bare}', and the two would be ambiguous in recipes")
    package = f"specframe-{bare}"
    if any(entry.package == package for entry in discover().entries):
        raise InputError(f"a package {package} is installed already; choose another name")
    component = _template(f"component/{kind}.py")
    title = bare.title().replace("-", "")
    if re.search(rf"\b{title}\b", component):
        raise InputError(f"the class would be called {title}, which its module uses already; choose another name")
    summary = component.partition('"""')[2].partition('."""')[0]  # the first line of the docstring
    words = {
        "kind": kind,
        "name": bare,
        "package": package,
        "snake": bare.replace("-", "_"),
        "module": f"specframe_{bare.replace('-', '_')}",
        "Class": title,
        "Summary": summary,
        "summary": summary[0].lower() + summary[1:],
        "series": series(__version__),
    }
    return words | {"command": Template(COMMANDS[kind]).substitute(words)}


def render(words: dict[str, str]) -> dict[str, str]:
    """Returns the package's files: path to text."""
    return {
        Template(path).substitute(words): Template(_template(Template(source).substitute(words))).substitute(words)
        for source, path in FILES.items()
    }


def write(package: dict[str, str], folder: Path) -> None:
    """Writes the files into a new folder: all of them or none. Raises InputError if that fails."""
    from specframe.kernel.errors import InputError

    if folder.exists():
        raise InputError(f"{folder} exists already; choose another name, or --out DIR")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
            whole = Path(scratch) / folder.name
            for path, text in package.items():
                (whole / path).parent.mkdir(parents=True, exist_ok=True)
                (whole / path).write_text(text, encoding="utf-8")
            whole.rename(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error


def _template(name: str) -> str:
    return (TEMPLATES / f"{name}.in").read_text(encoding="utf-8")
