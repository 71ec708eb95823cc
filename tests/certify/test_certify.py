"""The certificate of a recipe, and the command that prints it."""

import json
from dataclasses import replace

import pytest

from specframe.certify.certificate import REDUCED, Certificate
from specframe.certify.certify import certify_plan
from specframe.certify.compositions.small import SmallComposition
from specframe.cli.main import main
from specframe.cli.render.certificate import print_certificate
from specframe.components.targets.tiny import random_model
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe

GREEDY = """
specframe: 1
target: {use: table}
drafter: {use: lookup, length: 3}
verifier: match
"""
SAMPLED = """
specframe: 1
target: {use: table}
drafter: {use: falcon}
tree: {use: chain, depth: 1, draw: iid}
verifier: recursive
sampling: {temperature: 0.8, top_k: 50}
"""
BROKEN = '''
from specframe.components.verifiers.recursive import Recursive
from specframe.kernel.types import Verdict


class Careless:
    """Draws the bonus from the target's law, refusals or not."""

    lossless = True
    needs = Recursive.needs
    needs_exact = True

    def verify(self, tree, laws, random):
        p, verdict = laws.all, Recursive().verify(tree, laws, random)
        last = verdict.slots.gather(1, verdict.length[:, None])
        law = p.gather(1, last[..., None].expand(-1, -1, p.shape[-1]))[:, 0]
        return Verdict(path=verdict.path, length=verdict.length, bonus=random.categorical(law))


class Open(Careless):
    """The same, and it declares it."""

    lossless = False
'''


def read(folder, text):
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    (folder / "broken.py").write_text(BROKEN, encoding="utf-8")
    return plan(Recipe.read(path), discover())


def run(capsys, *arguments):
    status = main(["certify", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_a_greedy_recipe_is_certified_at_temperature_1_too(tmp_path):
    certificate = certify_plan(read(tmp_path, GREEDY))
    assert certificate.lossless and certificate.promised and certificate.exhausted and certificate.batches
    assert {case.name.split(",")[0] for case in certificate.cases} == {"temperature 0", "temperature 1"}
    assert any("end of sequence" in case.name for case in certificate.cases)
    assert len(certificate.controls) == 4 and certificate.control_failed
    assert all(case.comparison.tv > 1e-3 for case in certificate.controls)


def test_a_sampled_recipe_is_certified(tmp_path):
    certificate = certify_plan(read(tmp_path, SAMPLED), seeds=1)
    assert certificate.lossless
    assert certificate.audit is not None and certificate.audit.passed and certificate.audit.slots > 0
    labels = {case.name.split(",")[0]: case.name for case in certificate.cases}
    assert labels.keys() == {"temperature 0.8", "temperature 0"}
    assert labels["temperature 0"] == "temperature 0, among sampled rows"


TRIED = {("nodes 10 -> 7",), ("nodes 10 -> 5",), ("nodes 10 -> 3",)}


def test_a_tree_out_of_reach_is_made_smaller_until_it_is_exhausted(tmp_path):
    wide = SAMPLED.replace("chain, depth: 1", "fixed, widths: [3, 2]")
    certificate = certify_plan(read(tmp_path, wide), seeds=1, budget=3000)
    small = [case for case in certificate.cases if case.name.endswith(REDUCED)]
    assert small and all(case.reduced in TRIED and case.tokens == 3 for case in small)
    assert certificate.exhausted and certificate.lossless
    assert not all(case.comparison.enumeration.exhausted for case in certificate.cases)


@pytest.mark.sampled
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("truncation", ["top_k: 1", "top_p: 0.2", "top_p: 0.5"])
def test_sharp_truncation_is_certified(temperature, truncation, tmp_path):
    sharp = SAMPLED.replace("temperature: 0.8, top_k: 50", f"temperature: {temperature}, {truncation}")
    certificate = certify_plan(read(tmp_path, sharp), seeds=1)
    assert certificate.lossless and len(certificate.controls) >= 3
    if truncation != "top_p: 0.5":  # the others leave no token but one
        assert any(case.name.startswith("temperature 1") for case in certificate.cases)
    assert sum(case.comparison.enumeration.branches for case in certificate.cases) > 50


ACROSS = """
from tests.certify.test_batch import *


class OwnOrder(ForgetsOrder):
    def __init__(self):
        super().__init__(Q)
"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("verifier", "CutToTheShortest"),
        ("verifier", "FirstRowsLaws"),
        pytest.param("verifier", "MeanLaws", marks=pytest.mark.full),
        pytest.param("verifier", "NextRowsBonus", marks=pytest.mark.full),
        pytest.param("verifier", "NoTwins", marks=pytest.mark.full),  # it is right in batches of two to five rows
        ("tree", "SharedDraws"),
        ("tree", "NeighboursLaw"),
        ("drafter", "OwnOrder"),
    ],
)
def test_what_is_wrong_across_rows_is_refused_by_the_first_cases(kind, name, tmp_path):
    (tmp_path / "across.py").write_text(ACROSS, encoding="utf-8")
    parts = {"drafter": "falcon", "tree": "chain", "verifier": "recursive"} | {kind: f"./across.py:{name}"}
    lines = [f"drafter: {{use: {parts['drafter']}}}", f"tree: {{use: {parts['tree']}, depth: 2, draw: iid}}"]
    text = ["specframe: 1", "target: {use: table}", *lines, f"verifier: {{use: {parts['verifier']}}}"]
    text += ["sampling: {temperature: 0.8, top_k: 50}", ""]
    certificate = certify_plan(read(tmp_path, "\n".join(text)), budget=10_000)
    assert not certificate.lossless and certificate.as_dict()["tv"] > 0.005
    assert (
        len(certificate.cases) <= (10 if name == "NoTwins" else 4)
        and not certificate.controls
        and certificate.control_failed is None
    )
    assert all(case.among_others for case in certificate.cases)
    assert sum(case.comparison.enumeration.branches for case in certificate.cases) < 60_000


def test_the_small_form_of_a_class_that_is_extended_does_not_take_its_place(tmp_path):
    (tmp_path / "across.py").write_text(ACROSS, encoding="utf-8")
    text = SAMPLED.replace("use: chain, depth: 1", "use: ./across.py:SharedDraws, depth: 3")
    small = replace(SmallComposition.of(read(tmp_path, text)), small=True)
    assert type(small.make_tree()).__name__ == "SharedDraws"
    whole = SmallComposition.of(read(tmp_path, SAMPLED.replace("depth: 1", "depth: 3")))
    assert replace(whole, small=True).make_tree().promise.depth == 2


CROWDED = """
from specframe.components.verifiers.match import Match


class Crowded(Match):
    def verify(self, tree, laws, random):
        p = laws.all
        for _ in range(4 * (len(p) - 1)):  # draws for each neighbour, which change nothing
            random.categorical(p[:, 0])
        return super().verify(tree, laws, random)
"""


@pytest.mark.full
def test_what_cannot_be_enumerated_among_other_rows_is_not_certified_for_a_batch(tmp_path, capsys):
    (tmp_path / "crowded.py").write_text(CROWDED, encoding="utf-8")
    read(tmp_path, GREEDY.replace("verifier: match", "verifier: {use: ./crowded.py:Crowded}") + "run: {batch: 3}\n")
    status, printed = run(capsys, tmp_path / "recipe.yaml", "--json", "--budget", 20)
    found = json.loads(printed)
    assert status == 1 and not found["lossless"] and found["tv"] < 1e-9 and not found["batches"]
    among = [case for case in found["cases"] if "among other rows" in case["name"]]
    assert among and not any(case["exhausted"] or case["side_by_side"] for case in among)
    assert len(among) < len(found["cases"])
    print_certificate(found, "recipe.yaml")
    assert "nothing is shown for rows of one batch" in " ".join(capsys.readouterr().out.split())


def test_a_broken_verifier_is_not_certified(tmp_path, capsys):
    text = SAMPLED.replace("verifier: recursive", "verifier: {use: ./broken.py:Careless}")
    certificate = certify_plan(read(tmp_path, text), seeds=1)
    assert certificate.promised and not certificate.lossless
    assert certificate.as_dict()["tv"] > 1e-3
    status, printed = run(capsys, tmp_path / "recipe.yaml")
    assert status == 1
    assert "not lossless: total variation 0." in printed and "worst sequence [" in printed


def test_a_declared_lossy_verifier_is_no_failure(tmp_path, capsys):
    read(tmp_path, SAMPLED.replace("verifier: recursive", "verifier: {use: ./broken.py:Open}"))
    status, printed = run(capsys, tmp_path / "recipe.yaml")
    assert status == 0
    assert "as its verifier declares" in printed


def test_a_certificate_whose_control_passes_is_refused(tmp_path):
    certificate = certify_plan(read(tmp_path, GREEDY), seeds=1)
    fooled = replace(certificate, controls=certificate.cases)
    assert fooled.control_failed is False and not fooled.lossless
    assert not replace(certificate, controls=()).lossless


def test_an_interrupt_certifies_nothing(tmp_path):
    def interrupt(name, progress):
        raise KeyboardInterrupt

    certificate = certify_plan(read(tmp_path, GREEDY), listener=interrupt)
    assert isinstance(certificate, Certificate)
    assert certificate.interrupted and not certificate.lossless and len(certificate.cases) == 1


def test_json_is_one_object(tmp_path, capsys):
    read(tmp_path, GREEDY)
    status, printed = run(capsys, tmp_path / "recipe.yaml", "--json")
    found = json.loads(printed)
    assert status == 0 and found["lossless"] is True and found["control_failed"] is True
    wanted = {"lossless", "tv", "exhausted", "branches", "mass", "control_failed", "worst_sequence", "real"}
    assert wanted <= found.keys()
    assert found["real"] is None and found["branches"] > 100


def test_a_small_budget_shows_nothing(tmp_path, capsys):
    read(tmp_path, GREEDY)
    status, printed = run(capsys, tmp_path / "recipe.yaml", "--budget", 20)
    assert status == 1
    assert "not shown" in printed or "refused" in printed


def test_the_recipes_own_model_is_asked(tmp_path, capsys):
    random_model(vocab=32, seed=3).float().save_pretrained(tmp_path / "model")
    own = GREEDY.replace("table", f"hf, model: {tmp_path / 'model'}").replace("lookup, length: 3", "lookup")
    read(tmp_path, own)
    status, printed = run(capsys, tmp_path / "recipe.yaml")
    assert status == 0 and "own model" not in printed  # without prompts there is nothing to ask


def test_a_function_is_certified_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "theirs.py"
    path.write_text(
        "import torch\ndef accept(c, p, q):\n    return 0, torch.multinomial(p[0, 0] ** 2, 1)\naccept.widths = [1]\n"
    )
    status, printed = run(capsys, "--against", f"{path}:accept")
    assert status == 1 and "not lossless" in printed
    status, printed = run(capsys, "--against", f"{path}:accept", "--json")
    assert status == 1 and json.loads(printed)["tv"] > 0.01


def test_bad_arguments_are_explained(capsys):
    for words, reason in ((["certify"], "--against"), (["certify", "recipe.yaml", "--budget", "0"], "budget")):
        assert main(words) == 2
        assert reason in capsys.readouterr().err
