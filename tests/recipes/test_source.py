"""Recipes that are hostile, or no recipes at all: one clear line each, quickly."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specframe.cli.main import main
from specframe.kernel.errors import RecipeError
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe

GOOD = "target: {use: table, vocab: 5}\ndrafter: {use: lookup}\nverifier: match\n"
SECRET = "token-12345"


def bomb(levels, open="[", close="]"):
    """YAML that grows ninefold with every level."""
    lines = [f"a0: &a0 {open}x{close}"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def references(levels):
    """Texts that grow tenfold with every level."""
    lines = ["a0: ha"] + [f"a{n}: '{f'${{a{n - 1}}}' * 10}'" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(9), r"a.yaml:\d: it is too large for a recipe: more than 100000 values"),
        (bomb(40), "too large for a recipe"),
        ("a: &a {b: *a}\n", r"a.yaml:1: an alias stands for something that it is a part of"),
        ("a: &a [*a]\n", "an alias stands for something that it is a part of"),
        (f"a: {'[' * 200}{']' * 200}\n", "nested too deeply"),
        (f"a: {'[' * 20_000}{']' * 20_000}\n", "nested too deeply"),
        ("? [a, b]\n: c\n", "a.yaml:1: a key must be a plain name"),
        ("a:\n  ? {b: c}\n  : d\n", "a.yaml:2: a key must be a plain name"),
        (references(9), r"a.yaml:\d: a\d: it is too long once its references are written out"),
        (references(60), "too long once its references are written out"),
        ("a: ${b}\nb: ${a}\n", r"a.yaml:\d: .: it refers to itself"),
        ("a: {b: '${.b}'}\n", r"a.yaml:1: a.b: it refers to itself"),
        ("a: ${a}\n", "it refers to itself"),
        ('a: "\\ud800"\n', "a.yaml:1: a text holds half a character"),
        ("a: \0\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
        ("a: *b\n", "a.yaml:1: not valid YAML: found undefined alias"),
        (f"a: 1{'0' * 5000}\n", "not valid YAML"),
        ("a: !!int x\n", "not valid YAML"),
        ("a: !!int ''\n", "not valid YAML"),
        ("a: !!bool maybe\n", "not valid YAML"),
        ("a: !!timestamp x\n", "not valid YAML"),
        ("a: !!timestamp 2026-13-45\n", "not valid YAML"),
        ("#" + "x" * (1 << 20), "it is too large for a recipe: more than 1024 KiB"),
    ],
    ids=lambda value: value[:12].strip(),
)
@pytest.mark.timeout(20)
def test_a_hostile_recipe_is_refused_in_one_line(tmp_path, text, words, capsys):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(RecipeError, match=words):
        Recipe.read(tmp_path / "a.yaml")
    assert main(["validate", str(tmp_path / "a.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("value", [f"1{'0' * 5000}", "!!int x", "!!int ''", "!!bool maybe", "!!timestamp 2026-13-45"])
def test_a_hostile_override_is_refused_in_one_line(tmp_path, value, capsys):
    (tmp_path / "a.yaml").write_text(GOOD)
    assert main(["validate", str(tmp_path / "a.yaml"), f"target.vocab={value}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.timeout(20)
def test_a_recipe_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "zero"):
        with pytest.raises(RecipeError, match=f"{name}.yaml: a recipe is a regular file"):
            Recipe.read(tmp_path / f"{name}.yaml")
        (tmp_path / "child.yaml").write_text(f"extends: {name}.yaml\n")
        with pytest.raises(RecipeError, match=f"{name}.yaml: a recipe is a regular file"):
            Recipe.read(tmp_path / "child.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(RecipeError, match="it is not UTF-8 text"):
        Recipe.read(tmp_path / "latin.yaml")


@pytest.mark.timeout(20)
def test_parents_cannot_multiply(tmp_path):
    (tmp_path / "a0.yaml").write_text(GOOD)
    for n in range(1, 30):
        (tmp_path / f"a{n}.yaml").write_text(f"extends: [{', '.join([f'a{n - 1}.yaml'] * 9)}]\n")
    assert Recipe.read(tmp_path / "a15.yaml").data["drafter"] == {"use": "lookup"}
    with pytest.raises(RecipeError, match=r"a\d.yaml: it is the parent of too many recipes"):
        Recipe.read(tmp_path / "a29.yaml")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "secret.env",
            f"KEY={SECRET}\n",
            r"r.yaml:1: extends names a recipe file or a list of them, which end in .yaml or .yml",
        ),
        ("secret.yaml", f"KEY={SECRET}\n", "a recipe is a mapping of sections"),
        ("secret.yaml", f"{SECRET}: [\n", r"secret.yaml:2: not valid YAML$"),
        ("secret.yaml", f"a: !{SECRET} b\n", r"secret.yaml:1: not valid YAML$"),
        ("secret.yaml", f"a: *{SECRET}\n", r"secret.yaml:1: not valid YAML$"),
        ("secret.yaml", f"{SECRET}: 1\n{SECRET}: 2\n", r"secret.yaml:2: not valid YAML$"),
    ],
)
def test_what_a_parent_holds_is_not_echoed(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    (tmp_path / "r.yaml").write_text(f"extends: {name}\n")
    with pytest.raises(RecipeError, match=words) as refused:
        Recipe.read(tmp_path / "r.yaml")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:SECRET}",
        "a ${ oc.env : SECRET } b",
        "${oc.decode:'${oc.env:SECRET}'}",
        "${oc.${a}:SECRET}",
        "${${a}:SECRET}",
        "\\\\\\\\${oc.env:SECRET}",
        "${oc.create:{a: 1}}",
    ],
)
def test_resolvers_are_off_unless_asked_for(tmp_path, text, monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)
    (tmp_path / "r.yaml").write_text(f'a: env\nrun:\n  prompts: [hello, "{text}"]\n')
    with pytest.raises(
        RecipeError, match=r"r.yaml:3: run.prompts.1: only \$\{section.key\} can stand here.*--allow-env"
    ):
        Recipe.read(tmp_path / "r.yaml")


def test_resolvers_that_are_asked_for_resolve(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SEED", "7")
    (tmp_path / "r.yaml").write_text(GOOD + "run: {seed: '${oc.decode:${oc.env:SEED}}'}\n")
    assert Recipe.read(tmp_path / "r.yaml", environment=True).data["run"]["seed"] == 7
    assert main(["validate", str(tmp_path / "r.yaml")]) == 2
    assert "--allow-env" in capsys.readouterr().err
    assert main(["validate", str(tmp_path / "r.yaml"), "--allow-env"]) == 0


def test_references_in_every_form_resolve(tmp_path):
    (tmp_path / "r.yaml").write_text(
        "a: {b: 3, c: '${.b}', d: ['${..b}', '${a.b}-${ a.c }', \"\\\\${oc.env:HOME}\"]}\nl: [5]\ne: '${l[0]}'\n"
    )
    data = Recipe.read(tmp_path / "r.yaml").data
    assert data["a"]["c"] == 3 and data["a"]["d"] == [3, "3-3", "${oc.env:HOME}"] and data["e"] == 5


def test_local_code_lies_in_the_folder_of_the_file_that_names_it(tmp_path):
    code = "from specframe.plugin import Promise\nclass Mine:\n    promise = Promise(frozenset(), 1)\n    name = {!r}\n"
    code += "    def __init__(self): ...\n"
    for folder in ("parent", "child"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(code.format(folder))
    (tmp_path / "parent" / "r.yaml").write_text(GOOD.replace("{use: lookup}", "{use: './mine.py:Mine'}"))
    (tmp_path / "child" / "r.yaml").write_text("extends: ../parent/r.yaml\nrun: {seed: 1}\n")
    (tmp_path / "child" / "own.yaml").write_text("extends: ../parent/r.yaml\ndrafter: ./mine.py:Mine\n")

    def found(name, *overrides):
        return plan(Recipe.read(tmp_path / "child" / name, list(overrides)), discover()).parts["drafter"].component

    parents, childs = found("r.yaml"), found("own.yaml")
    assert (parents.name, childs.name) == ("parent", "child")
    assert parents.__module__ != childs.__module__, "one would replace the other where modules are looked up"
    for override in ("drafter.use=./mine.py:Mine", "drafter=./mine.py:Mine"):
        assert found("r.yaml", override).name == "child"


@pytest.mark.parametrize("override", ["drafter.use=./mine.py:Mine", "drafter=./mine.py:Mine"])
def test_local_code_of_the_command_line_lies_in_the_working_folder(override, tmp_path, monkeypatch):
    for folder in ("recipes", "work"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(
            "from specframe.plugin import Promise\nclass Mine:\n    promise = Promise(frozenset(), 1)\n"
            f"    name = {folder!r}\n    def __init__(self): ...\n"
        )
    (tmp_path / "recipes" / "r.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path / "work")
    read = Recipe.read(tmp_path / "recipes" / "r.yaml", [override])
    assert plan(read, discover()).parts["drafter"].component.name == "work"


def test_local_code_without_the_component_is_one_sentence(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("class Other: ...\n")
    (tmp_path / "r.yaml").write_text(GOOD.replace("{use: lookup}", "{use: './mine.py:Mine'}"))
    assert main(["validate", str(tmp_path / "r.yaml")]) == 2
    assert "mine.py has no 'Mine'\n" in capsys.readouterr().err


def test_local_code_that_exits_does_not_end_the_command_with_success(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "r.yaml").write_text(GOOD.replace("{use: lookup}", "{use: './mine.py:Mine'}"))
    assert main(["validate", str(tmp_path / "r.yaml")]) == 2
    assert "mine.py:Mine cannot be loaded: SystemExit" in capsys.readouterr().err


def test_a_home_folder_may_stand_in_every_path(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "base.yaml").write_text(GOOD + "train: {data: [x.jsonl], rollout: {use: teacher-forced}, out: ~/out}\n")
    (tmp_path / "mine.py").write_text(
        "from specframe.plugin import Promise\n"
        "class Mine:\n    promise = Promise(frozenset(), 1)\n    def __init__(self): ...\n"
    )
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "r.yaml").write_text("extends: ~/base.yaml\ndrafter: {use: '~/mine.py:Mine'}\n")
    result = plan(Recipe.read("~/deep/r.yaml"), discover())
    assert result.settings["train"].out == tmp_path / "out"
    assert main(["validate", "~/deep/r.yaml"]) == 0
    assert main(["validate", "~no-such-user/r.yaml"]) == 2
    assert main(["validate", "~/deep/r.yaml", "train.out=~no-such-user/out"]) == 2
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 2 and all("there is no such home folder" in line for line in output)


PIECES = [
    "a",
    "b: ",
    "- ",
    "\n",
    "\n  ",
    "[",
    "]",
    "{",
    "}",
    "*a",
    "&a ",
    "${a}",
    "${",
    "}",
    "'",
    '"',
    "? ",
    "!!",
    "<<: ",
    "#",
    "|",
    "\t",
    "é",
    ":",
    ".",
    "0x1",
    "extends: ",
    "use: ",
    "null",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_recipe_or_one_line(tmp_path, text):
    (tmp_path / "any.yaml").write_text(text)
    try:
        Recipe.read(tmp_path / "any.yaml")
    except RecipeError as refused:
        assert len(str(refused).splitlines()) == 1
