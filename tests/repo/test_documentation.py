"""The documentation is executed: every Python block, command and recipe, and every public name is in it."""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

import specframe
import specframe.neural
import specframe.plugin
import specframe.testing
from specframe.cli.group import COMMANDS
from specframe.cli.main import main
from specframe.kernel.errors import RecipeError
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from tests.repo.repository import BASES, PAGES, RECIPES, ROOT, Block, blocks, name, packages

COMPARE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SMOKE = ["sampling.max_new_tokens=8", "run.repeats=1"]
PROMPT = ["--prompt", "Write about your garden."]
"""In place of the prompts of a shipped recipe, all of which `.ci/run` decodes."""


def having(language: str) -> list[Path]:
    """The pages that have blocks of a language to execute."""
    return [page for page in PAGES if executed(page, language)]


def executed(page: Path, language: str) -> list[Block]:
    return [block for block in blocks(page) if block.language == language and not block.title]


@pytest.fixture
def project(request, tmp_path, monkeypatch) -> Path:
    """A working folder with the files that the page shows, its package installed, and the repository's recipes."""
    for recipe in [*RECIPES, *BASES]:  # in the folder itself, too: a shown recipe stands next to its parent
        for folder in (tmp_path, tmp_path / "recipes"):
            path = folder / recipe.relative_to(ROOT / "recipes")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(recipe.read_text(encoding="utf-8"), encoding="utf-8")
    for block in blocks(request.param):  # what the page shows may be called like one of them
        if block.title:
            path = tmp_path / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    if (tmp_path / "pyproject.toml").exists():
        install(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def install(folder: Path) -> None:
    """Files that pip would leave over: the metadata by which plugins are found."""
    about = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in about["entry-points"].items()
    )
    info = folder / "src" / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir()
    metadata = {"Metadata-Version": "2.1", "Name": about["name"], "Version": about["version"]}
    (info / "METADATA").write_text("".join(f"{key}: {value}\n" for key, value in metadata.items()))
    (info / "entry_points.txt").write_text(points)


LONG = {"docs/tutorials/compare-two-methods.md", "docs/tutorials/in-a-notebook.md"}
"""Pages whose Python takes more than ten seconds."""
WITH_PYTHON = [pytest.param(page, marks=pytest.mark.full if name(page) in LONG else []) for page in having("python")]


@pytest.mark.parametrize("project", WITH_PYTHON, ids=name, indirect=True)
def test_python_blocks_run(project, request):
    # One script a page, in this process: warnings are errors here, and sockets are blocked.
    page = request.node.callspec.params["project"]
    lines: list[str] = []
    for block in executed(page, "python"):
        lines += [""] * (block.line - len(lines))  # so that tracebacks show the page's own lines
        lines += block.text.splitlines()
    exec(compile("\n".join(lines), page, "exec"), {"__name__": "__main__"})


OPENING = {"README.md", "docs/index.md", "docs/quickstart.md"}
"""The pages that a newcomer opens first: their commands are run in the quick tier."""
WITH_COMMANDS = [
    pytest.param(page, marks=[] if name(page) in OPENING else pytest.mark.full) for page in having("console")
]


@pytest.mark.parametrize("project", WITH_COMMANDS, ids=name, indirect=True)
def test_commands_run(project, request, capsys):
    page = request.node.callspec.params["project"]
    for block in executed(page, "console"):
        wanted = int((block.mark or "exit 0").removeprefix("exit "))
        for command, expected in commands(block):
            status = main(smoke(command))
            shown, aside = capsys.readouterr()  # progress and errors are in the second
            printed = shown + aside
            assert status == wanted, f"{block}: specframe {shlex.join(command)}\n{printed}"
            if expected.strip():
                assert same(expected, shown or aside) or same(expected, printed), f"{block}:\n{printed}"


FIRST_PAGES = [ROOT / "README.md", ROOT / "docs/index.md", ROOT / "docs/quickstart.md"]
SHELL = re.compile(r"(?:^|&& |\$\()specframe ([^&|>#)\n]*)", re.MULTILINE)


@pytest.mark.parametrize("project", FIRST_PAGES[:1], ids=name, indirect=True)
def test_shell_commands_of_the_first_pages_run(project, capsys):
    """Those of specframe, each once; `.ci/run` has the others, pip and pytest."""
    lines = [[line for block in executed(page, "bash") for line in SHELL.findall(block.text)] for page in FIRST_PAGES]
    assert all(lines)
    for line in sorted(set().union(*lines)):
        assert main(smoke(shlex.split(line))) == 0, f"specframe {line}\n{capsys.readouterr()}"


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert not [line for line in lines if len(line) > 160]


def commands(block: Block) -> list[tuple[list[str], str]]:
    """The block's commands, each with the output that the page shows below it."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    assert parts, f"{block}: a console block needs a line that starts with '$ specframe'"
    found = []
    for part in parts:
        line, _, output = part.partition("\n")
        program, *arguments = shlex.split(line, comments=True)
        assert program == "specframe", f"{block}: only specframe's commands are executed"
        found.append((arguments, output))
    return found


def same(expected: str, printed: str) -> bool:
    """True where the output is as the page shows it: `...` stands for anything, recipes' line numbers for any."""
    expected, printed = (re.sub(r"(?<=\.yaml:)\d+", "1", text) for text in (expected, printed))
    return doctest.OutputChecker().check_output(expected, printed, COMPARE)


def smoke(command: list[str]) -> list[str]:
    """The command itself; a run of few tokens, of a shipped recipe one prompt, a certificate without the model.

    A training takes a few steps.
    """
    match command:
        case ["train", recipe, *_] if not recipe.startswith("-"):
            return [*command, "train.steps=2"]
        case ["run", *_]:
            shipped = any(word.startswith("recipes/") for word in command) and "--prompt" not in command
            return [*command, *SMOKE, *(PROMPT if shipped else [])]
        case ["certify", _]:
            return [*command, "--exact-only"]
    return command


@pytest.mark.parametrize("project", having("yaml"), ids=name, indirect=True)
def test_recipes_validate(project, request):
    page = request.node.callspec.params["project"]
    for number, block in enumerate(executed(page, "yaml")):
        path = project / f"block-{number}.yaml"
        path.write_text(whole(block.text), encoding="utf-8")
        try:
            plan(Recipe.read(path), discover())
        except RecipeError as error:
            pytest.fail(f"{block}: {error}")


def whole(text: str) -> str:
    """A recipe as it is; single sections over the first recipe."""
    is_whole = re.search(r"^extends:", text, re.MULTILINE) or all(
        re.search(rf"^{section}:", text, re.MULTILINE) for section in ("target", "drafter", "verifier")
    )
    return text if is_whole else f"extends: falcon.yaml\n{text}"


WITH_PACKAGES = [page for page in PAGES if any(block.title == "pyproject.toml" for block in blocks(page))]


@pytest.mark.parametrize("project", WITH_PACKAGES, ids=name, indirect=True)
def test_shown_packages_work(project):
    registry = discover()
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not registry.broken
    entries = [entry for entry in registry.entries if entry.package == about["name"]]
    assert entries
    for entry in entries:
        entry.load()()
    if not (project / "tests").exists():
        return
    environment = {**os.environ, "PYTHONPATH": f"{project / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-socket", "tests"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_file_shown_on_two_pages_is_the_same():
    shown: dict[str, str] = {}
    for page in PAGES:
        for block in blocks(page):
            if block.title:
                assert shown.setdefault(block.title, block.text) == block.text, str(block)


def test_generated_pages_are_up_to_date(generators):
    for page, render in generators("generate").PAGES.items():
        stale = (ROOT / page).read_text(encoding="utf-8") != render()
        assert not stale, f"{page} is out of date: python docs/generate.py"
    blocks = list(generators("measured").render_blocks())
    assert blocks, "no page has a block that the bench fills in"
    for path, text in blocks:
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: python docs/generate.py"


def mentioned() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES if "docs" in page.parts)


TIERS = [specframe, specframe.plugin, specframe.neural, specframe.testing]


@pytest.mark.parametrize("module", TIERS, ids=lambda module: module.__name__)
def test_every_public_name_is_documented(module):
    text = mentioned()
    assert not [public for public in module.__all__ if not re.search(rf"\b{public}\b", text)]


def test_what_a_page_draws_from_the_code_exists():
    """mkdocs builds no page of which one such name is not found."""
    names = [
        name for page in PAGES for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert names
    assert [name for name in names if not exists(name)] == []
    assert not exists("specframe.cli.no_module.name") and not exists("specframe.cli.candidates.no_name")


def exists(name: str) -> bool:
    """Returns whether a dotted name is that of a module, or of something in one."""
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_every_component_and_command_is_documented():
    text = mentioned()
    registry = discover()
    assert packages() - {e.package for e in registry.entries} - registry.broken.keys() == set()
    ours = [entry for entry in registry.entries if entry.package in packages()]
    heading = {"command": "## specframe {}\n"}
    missing = [e.name for e in ours if heading.get(e.kind, "### {} ").format(e.name) not in text]
    assert not missing
    assert not [command for command in COMMANDS if f"## specframe {command}" not in text]


IMPORT = re.compile(r"^\s*(?:from (specframe[\w.]*) import|import (specframe[\w.]*))", re.MULTILINE)
PUBLIC = {tier.__name__ for tier in TIERS}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_no_page_imports_anything_private(page):
    found = [
        f"{block}: {module}"
        for block in blocks(page)
        for module in (one or other for one, other in IMPORT.findall(block.text))
        if module.partition(".")[0] == "specframe" and module not in PUBLIC
    ]
    assert not found, "a page shows what users may write: export the name from specframe, or give a command"


def test_private_imports_are_found_in_every_kind_of_block():
    shown = "python - <<'END'\nfrom specframe.files.prompts import read_prompts\nimport specframe\nEND\n"
    assert [one or other for one, other in IMPORT.findall(shown)] == ["specframe.files.prompts", "specframe"]


def test_the_readme_opens_with_the_two_commands():
    opening = (ROOT / "README.md").read_text(encoding="utf-8")[:600]
    assert "pip install -r requirements.txt && specframe run recipes/falcon.yaml" in opening
    assert "pip install -r requirements.txt && pytest" in opening
