"""Completions of a shell, asked of click's own classes: commands, recipes, components, options and paths."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from specframe.cli.group import COMMANDS, COMPLETE, PROGRAM, specframe
from specframe.cli.main import main
from specframe.recipes.folders import shipped_recipes

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


def complete(words, incomplete="", shell="zsh"):
    """The values that are offered after the words."""
    completer = SHELLS[shell](specframe, {}, PROGRAM, COMPLETE)
    return [item.value for item in completer.get_completions(list(words), incomplete)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("specframe: 1\n")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "kept" / "deep").mkdir(parents=True)
    (tmp_path / "kept" / "recipe.yaml").write_text("specframe: 1\n")
    (tmp_path / ".hidden.yaml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_of_plugins_are_completed_like_the_others():
    assert set(complete([])) == {*COMMANDS, "distill-data", "judge", "scaling", "serve", "store"}
    assert complete([], "ser") == ["serve"]
    assert complete([], "--v") == ["--version"]


def test_options_of_a_command(here):
    assert complete(["run", "lookup"], "--pro") == ["--prompt", "--prompts"]
    assert {"--port", "--no-local-code"} <= set(complete(["serve", "lookup"], "--"))
    assert complete(["bench", "--engine"]) == ["inprocess", "ray"]


@pytest.mark.parametrize("command", ["run", "certify", "bench", "serve", "recipes", "train"])
def test_recipes_by_name_and_path(command, here):
    names = [name for name, _ in shipped_recipes()]
    assert complete([command]) == [*names, "kept/", "mine.yaml"]
    assert complete([command], "small/look") == ["small/lookup"]
    assert complete([command], "mi") == ["mine.yaml"]
    assert complete([command], "ke") == ["kept/deep/", "kept/recipe.yaml"], "one folder alone is opened"
    assert complete([command], "kept/r") == ["kept/recipe.yaml"]
    assert complete([command], f"{here}/m") == [f"{here}/mine.yaml"]
    assert complete([command], ".h") == [".hidden.yaml"]


def test_nothing_where_a_folder_cannot_be_read(here, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert complete(["run"], "kept/") == complete(["run"]) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_in_a_folder_that_is_gone_shows_no_traceback(shell, tmp_path):
    gone = tmp_path / "gone"
    script = f"mkdir {gone} && cd {gone} && rmdir {gone} && exec {sys.executable} -P -m specframe"
    asked = {COMPLETE: f"{shell}_complete", "COMP_WORDS": "specframe run ./x", "COMP_CWORD": "2"}
    done = subprocess.run(["sh", "-c", script], env=os.environ | asked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_components_after_use(shell, here):
    trees = complete(["run", "small/falcon"], "tree.use=d", shell)
    assert trees == ["tree.use=dynamic", "tree.use=dyspec"]
    assert "verifier=match" in complete(["run", "small/falcon"], "verifier=", shell), "the short form"
    assert "drafter.head.use=trimmed" in complete(["run", "small/falcon", "--json"], "drafter.head.use=", shell)
    assert "drafter.use=falcon" in complete(["run", "small/lookup", "run.seed=3"], "drafter.use=f", shell)
    assert complete(["run", "small/lookup"], "nonsense.use=") == []


def test_bash_splits_words_at_the_equals_sign(here):
    assert complete(["run", "small/falcon", "tree.use", "="], "d", "bash") == ["dynamic", "dyspec"]
    assert complete(["run", "small/falcon", "tree.use"], "=", "bash") == complete(
        ["run", "x", "tree.use", "="], "", "bash"
    )
    given = ["run", "small/falcon", "drafter.use", "=", "lookup"]
    assert complete(given, "drafter.ng", "bash") == ["drafter.ngram="]
    assert complete([*given, "tree.use", "="], "cha", "bash") == ["chain"]


def test_options_of_the_component_in_question(here):
    lookup = complete(["run", "small/lookup"], "drafter.")
    assert set(lookup) == {"drafter.use=", "drafter.length=", "drafter.ngram="}
    assert "drafter.ngram=" not in complete(["run", "small/falcon"], "drafter.")
    assert complete(["run", "small/falcon", "drafter.use=lookup"], "drafter.n") == ["drafter.ngram="]
    assert "drafter.head.use=" in complete(["run", "small/falcon"], "drafter.h")
    assert complete(["run", "small/lookup"], "sampling.te") == ["sampling.temperature="]
    assert set(complete(["run", "small/lookup"], "dra")) == set(lookup), "one section alone is opened"
    assert {"target.", "tree.", "verifier.", "run.", "sampling."} <= set(complete(["run", "small/lookup"]))


def test_what_cannot_be_read_is_not_completed(here):
    Path("torn.yaml").write_text("specframe: [")
    for recipe in ("torn.yaml", "gone.yaml", "kept"):
        assert complete(["run", recipe], "drafter.l") == []
        assert complete(["run", recipe], "tree.use=d") == ["tree.use=dynamic", "tree.use=dyspec"]
    assert complete(["nonsense"], "x") == complete(["run", "small/lookup"], "a.b.c.") == []


def test_components_to_explain():
    assert {"dynamic", "dyspec"} <= set(complete(["explain"], "dy"))


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_the_script_is_clicks(shell, words, capsys):
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip() == SHELLS[shell](specframe, {}, PROGRAM, COMPLETE).source().rstrip() and words in printed
