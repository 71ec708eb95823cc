import pytest

from specframe.cli.main import main
from specframe.kernel.errors import RecipeError
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe

GOOD = """\
specframe: 1
target: {use: table, vocab: 5}
drafter: {use: lookup}
verifier: {use: match}
run: {prompts: [hello]}
"""


def problems(tmp_path, text, *overrides, local_code=True):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        plan(Recipe.read(path, list(overrides)), discover(), local_code)
    return str(caught.value)


def test_a_good_recipe_becomes_a_plan(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(GOOD)
    result = plan(Recipe.read(path), discover())
    assert result.parts["target"].options == {"vocab": 5}
    assert result.settings["run"].prompts == ["hello"]
    assert "train" not in result.settings and result.losses == []


def test_all_problems_come_at_once_with_file_and_line(tmp_path):
    text = GOOD.replace("vocab: 5", "vocb: 5").replace("use: lookup", "use: lookp").replace("verifier", "verifer")
    lines = problems(tmp_path, text + "sampling: {temperature: hot}\n").splitlines()
    assert len(lines) == 5
    assert any("r.yaml:2: target.vocb: unknown option; did you mean 'vocab'?" in line for line in lines)
    assert any("r.yaml:3: drafter.use: no drafter named 'lookp'; did you mean 'lookup'?" in line for line in lines)
    assert any("r.yaml:4: verifer: unknown section; did you mean 'verifier'?" in line for line in lines)
    assert any("missing section 'verifier'" in line for line in lines)
    assert any("r.yaml:6: sampling.temperature: expected number, not 'hot'" in line for line in lines)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("specframe=7", "version 1"),
        ("drafter=3", "drafter: expected {use: NAME"),
        ("tree={use: chain}", "builds its own tree"),
        ("target.use=hf", "target.model: missing: target 'hf' needs it"),
        ("sampling.max_new_tokens=0", "generates nothing"),
        ("sampling.top_p=0", "outside (0, 1]"),
        ("run.batch=0", "batch 0"),
        ("sampling=3", "expected a section of options"),
        ("loss=[{use: distillation, weight: heavy}]", "loss.0.weight: expected number"),
        ("drafter={use: './gone.py:Mine'}", "no such Python file"),
    ],
)
def test_one_wrong_value_gives_its_line(tmp_path, override, words):
    assert words in problems(tmp_path, GOOD, override)


def test_a_drafter_that_grows_a_policy_needs_one(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from specframe.plugin import Promise\n"
        "class Mine:\n    promise = Promise()\n    def __init__(self, *, block: int = 1): ...\n"
    )
    message = problems(tmp_path, GOOD, "drafter={use: './mine.py:Mine', block: 2}")
    assert "add `tree: {use: dynamic}`" in message


def test_parts_that_declare_nothing_are_named(tmp_path):
    (tmp_path / "mine.py").write_text("class Mine:\n    def __init__(self): ...\n")
    for section, wanted in (("drafter", "promise"), ("tree", "promise"), ("verifier", "needs")):
        overrides = [f"{section}={{use: './mine.py:Mine'}}", "drafter.use=falcon"]
        found = problems(tmp_path, GOOD, *overrides[: 1 + (section == "tree")])
        assert f"'Mine' has no `{wanted}`" in found


@pytest.mark.parametrize(
    ("drafter", "most"), [("{use: './mine.py:Mine'}", 4), ("{use: './mine.py:Mine', heads: 2}", 2)]
)
@pytest.mark.parametrize("use", ["{use: chain, depth: 5}", "{use: fixed, widths: [1, 2, 1, 1, 1]}"])
def test_a_drafter_that_goes_so_deep_refuses_a_deeper_tree(tmp_path, drafter, most, use):
    (tmp_path / "mine.py").write_text(
        "from specframe.plugin import Promise\n"
        "class Mine:\n"
        "    def __init__(self, *, heads: int = 4):\n        self.promise = Promise(depth=heads)\n"
    )
    message = problems(tmp_path, GOOD, f"drafter={drafter}", f"tree={use}")
    assert f"drafts no deeper than {most} levels, and the tree has 5: make the tree at most {most} deep" in message
    (tmp_path / "r.yaml").write_text(GOOD)
    plan(Recipe.read(tmp_path / "r.yaml", [f"drafter={drafter}", f"tree={{use: chain, depth: {most}}}"]), discover())


def test_local_code_can_be_forbidden(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemError('must not run')\n")
    message = problems(tmp_path, GOOD, "drafter={use: './mine.py:Mine'}", local_code=False)
    assert "--no-local-code forbids" in message


def test_local_code_that_fails_to_import_is_reported_with_the_reason(tmp_path):
    (tmp_path / "mine.py").write_text("import nowhere\n")
    assert "ModuleNotFoundError" in problems(tmp_path, GOOD, "drafter={use: './mine.py:Mine'}")


def test_a_verifier_that_needs_exact_laws_refuses_a_policy_without(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from specframe.plugin import Draw, Needs, Promise\n"
        "class Mine:\n    promise = Promise()\n    def __init__(self): ...\n"
        "class Loose:\n    promise = Promise(frozenset({Draw.IID}), nodes=3, exact=False)\n"
        "    def __init__(self): ...\n"
        "class TopOnly:\n    lossless = True\n    needs = Needs(frozenset({Draw.TOP}))\n"
        "    def __init__(self): ...\n"
    )
    mine = ["drafter={use: './mine.py:Mine'}", "tree={use: './mine.py:Loose'}"]
    assert "needs the exact distribution" in problems(tmp_path, GOOD, *mine, "verifier.use=recursive")
    message = problems(tmp_path, GOOD, *mine, "verifier={use: './mine.py:TopOnly'}")
    assert "not lossless for nodes drawn iid" in message and "use: match" in message


def test_the_command_line_prints_problems_and_exits_with_2(tmp_path, capsys):
    path = tmp_path / "r.yaml"
    path.write_text(GOOD)
    assert main(["validate", str(path)]) == 0
    assert main(["validate", str(path), "tree.dpth=3"]) == 2
    assert main(["validate", str(tmp_path / "gone.yaml")]) == 2
    assert "no such recipe" in capsys.readouterr().err
