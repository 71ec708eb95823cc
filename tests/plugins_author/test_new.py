"""`specframe new`: for every kind a package that is clean, fits its recipe, and passes its own tests."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from contextlib import nullcontext
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from specframe import __version__
from specframe.cli.main import main
from specframe.cli.new import COMMANDS, LONGEST, name_parts, render
from specframe.kernel.errors import PluginError
from specframe.recipes.discovery import discover
from specframe.recipes.registry import KINDS
from specframe.recipes.versions import require, series
from tests.repo.repository import ROOT


def new(*arguments: str) -> int:
    return main(["new", "plugin", *arguments])


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> list[Path]:
    """A package of every kind, with the metadata by which an installed one is found."""
    out = tmp_path_factory.mktemp("new")
    for kind in COMMANDS:
        assert new(f"my-{kind}", "--kind", kind, "--out", str(out)) == 0
    folders = sorted(out.iterdir())
    for folder in folders:
        about = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        info = folder / "src" / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {needed}\n" for needed in about["dependencies"])
        metadata = f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n{needs}"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        points = "".join(f"{name} = {value}\n" for name, value in about["entry-points"]["specframe"].items())
        (info / "entry_points.txt").write_text(f"[specframe]\n{points}", encoding="utf-8")
    return folders


def test_there_is_a_template_for_every_kind():
    assert set(COMMANDS) == set(KINDS)


def test_json_lists_what_was_written(tmp_path, capsys):
    assert new("bigram", "--kind", "drafter", "--out", str(tmp_path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    folder = tmp_path / "specframe-bigram"
    assert found["folder"] == str(folder) and found["module"] == "specframe_bigram" and found["kind"] == "drafter"
    assert sorted(found["files"]) == sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert found["command"] == "specframe run small/falcon drafter.use=bigram"


@pytest.mark.full
def test_the_tests_of_every_package_pass_as_written(packages):
    paths = os.pathsep.join([*(str(folder / "src") for folder in packages), str(ROOT)])
    tests = [str(folder / "tests") for folder in packages]
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--disable-socket", "--allow-unix-socket"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-W", "error", "-W", "ignore::DeprecationWarning", *tests],
        cwd=packages[0].parent,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_what_is_written_is_clean_and_typed(packages):
    longest = "a" * LONGEST
    for kind in COMMANDS:
        assert new(longest, "--kind", kind, "--out", str(packages[0].parent.parent / f"long-{kind}")) == 0
    folders = [*packages, *packages[0].parent.parent.glob(f"long-*/specframe-{longest}")]
    assert len(folders) == 2 * len(KINDS)
    annotated = ["check", "--select", "ANN,D1,E,F,RUF,SIM", "--ignore", "ANN401,D104,D107", "--line-length", "120"]
    for command, part in ((["check"], ""), (annotated, "src"), (["format", "--check"], "")):
        places = [str(folder / part) for folder in folders]
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", *places]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    for folder in packages:
        lines = [path.read_text().count("\n") for path in folder.glob("src/*/*.py")]
        assert sum(lines) < 90, f"{folder.name}: {sum(lines)} lines"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The folder of the core as its wheel installs it."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for part in ("specframe", "recipes"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, folder], cwd=source, capture_output=True, check=True)
    with zipfile.ZipFile(*folder.glob("*.whl")) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.mark.full
def test_every_package_type_checks_against_the_installed_core(packages, installed, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("from specframe.plugin import Promise\n\nwrong: str = Promise()\n")
    places = [str(package / part) for package in packages for part in ("src", "tests")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", tmp_path, broken, *places],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [error.partition(":")[0] for error in errors] == ["broken.py"], done.stdout + done.stderr
    assert '"Promise"' in errors[0]


def test_an_editable_install_of_the_core_is_a_path_that_type_checkers_follow(tmp_path):
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    include, source = json.dumps(about["packages"]["find"]["include"]), about["package-dir"][""]
    project = f"""[project]\nname = "some"\nversion = "1"
[tool.setuptools]\npackage-dir = {{"" = "{source}"}}
[tool.setuptools.packages.find]\ninclude = {include}\n"""
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    (tmp_path / "specframe").mkdir()
    (tmp_path / "specframe" / "__init__.py").write_text("")
    build = "from setuptools import build_meta; build_meta.build_editable('.')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, check=True)
    with zipfile.ZipFile(*tmp_path.glob("*.whl")) as wheel:
        (path,) = [name for name in wheel.namelist() if "/" not in name]
        assert path.endswith(".pth") and wheel.read(path).decode().strip() == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["class"], "cannot be a plugin's name"),
        (["my plugin"], "cannot be a plugin's name"),
        (["Big"], "lower-case"),
        (["9lives"], "begin with a letter"),
        (["a" * (LONGEST + 1)], "at most"),
        (["../up"], "cannot be a plugin's name"),
        (["chain", "--kind", "tree"], "built-in tree 'chain'"),
        (["tensor"], "would be called Tensor"),
        (["mine", "--kind", "drafte"], "did you mean 'drafter'?"),
        (["there"], "exists already"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(arguments, pattern, tmp_path, capsys):
    (tmp_path / "specframe-there").mkdir()
    assert new(*arguments, "--out", str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert pattern in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["specframe-there"]


def test_the_next_commands_install_what_the_tests_need(tmp_path, capsys):
    assert main(["new", "plugin", "wren", "--out", str(tmp_path)]) == 0
    folder = tmp_path / "specframe-wren"
    assert f"  pip install -e '{folder}[test]'\n  pytest {folder}\n" in capsys.readouterr().out
    assert 'test = ["specframe[testing]"' in (folder / "pyproject.toml").read_text()


def test_only_plugins_are_written(capsys):
    assert main(["new", "drafter", "mine"]) == 2
    assert "specframe new plugin NAME" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert new("mine", "--out", str(tmp_path / "file")) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_names_take_either_form():
    for name in ("my-own", "my_own", "specframe-my-own"):
        words = name_parts(name, "loss")
        assert (words["name"], words["package"], words["Class"]) == ("my-own", "specframe-my-own", "MyOwn")
        assert (words["module"], words["snake"]) == ("specframe_my_own", "my_own")
    assert f'"specframe{series(__version__)}"' in render(words)["pyproject.toml"]


@pytest.mark.parametrize(
    ("wanted", "version", "outdated"),
    [
        ("specframe>=0.1,<0.2", "0.1.0", None),
        ("specframe", "7.0", None),
        ("Specframe>=9", "0.1.0", "specframe"),
        ("specframe[testing]>=9.0; extra == 'test'", "0.1.0", None),
        ("specframe>=0.1,<0.2", "0.3.0", "foo"),
        ("specframe~=1.2", "1.1.9", "specframe"),
        ("specframe~=1.2", "3.0", "foo"),
        ("specframe==1.*", "0.9", "specframe"),
        ("specframe==1.*", "2.0", "foo"),
        ("specframe>1.2,<3", "1.2", "specframe"),
        ("specframe>=0.2", "0.2.1.dev3", None),
        ("torch>=99", "0.1.0", None),
    ],
)
def test_a_plugin_names_what_it_needs_where_pip_reads_it(wanted, version, outdated):
    message = rf"needs specframe .*, this is {version}: pip install -U {outdated}$"
    with pytest.raises(PluginError, match=message) if outdated else nullcontext():
        require([wanted], version, "foo")


def test_requirements_are_checked_at_discovery(tmp_path):
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\nName: foo\nVersion: 1\nRequires-Dist: specframe>=9.0\n")
    (tmp_path / "entry_points.txt").write_text("[specframe]\nfoo = does_not_exist\n")
    registry = discover(list(Distribution.at(tmp_path).entry_points))
    assert registry.broken["foo"] == f"needs specframe >=9.0, this is {__version__}: pip install -U specframe"
    assert registry.find("tree", "chain").package == "specframe"


@pytest.mark.parametrize(
    ("version", "range_"),
    [("0.1.0", ">=0.1,<0.2"), ("0.9.3", ">=0.9,<0.10"), ("1.2.3", ">=1.2,<2"), ("2.0rc1", ">=2.0,<3")],
)
def test_a_series_is_what_keeps_the_interface(version, range_):
    assert series(version) == range_


def test_the_package_has_the_version_of_its_module():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert about["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "specframe._version.__version__"}
