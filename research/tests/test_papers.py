"""The table of the recipes to the letter of their papers: which take part, with which drafter and rule."""

import json

import pytest

pytestmark = pytest.mark.slow


def trained(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "model.safetensors").touch()


def test_recipes_take_part_with_the_drafter_that_was_trained_for_them(analysis, tmp_path):
    papers = analysis("papers")
    trained(tmp_path, "eagle", "coral")
    found = {path.stem: papers.overrides(path, tmp_path, 0.0) for path in papers.RECIPES.glob("*.yaml")}
    assert {name for name, given in found.items() if given} == {"eagle", "eagle2", "coral", *papers.UNTRAINED}
    assert f"drafter.weights={tmp_path / 'eagle'}" in found["eagle2"]
    assert not any("weights" in each for name in papers.UNTRAINED for each in found[name])
    trained(tmp_path, "coral-router")
    router = papers.overrides(papers.RECIPES / "coral-router.yaml", tmp_path, 0.0)
    assert {f"drafter.weights={tmp_path / 'coral'}", f"drafter.head.weights={tmp_path / 'coral-router'}"} <= {*router}


def test_trees_of_a_given_shape_draw_at_a_temperature(analysis, tmp_path):
    papers = analysis("papers")
    trained(tmp_path, "eagle")
    drawn = [name for name in ("eagle", "eagle2", "sps", "pld") if "tree.draw=iid" in sampled(papers, tmp_path, name)]
    assert drawn == ["eagle", "sps"]
    assert "tree.draw=iid" not in papers.overrides(papers.RECIPES / "eagle.yaml", tmp_path, 0.0)


def sampled(papers, folder, name):
    return papers.overrides(papers.RECIPES / f"{name}.yaml", folder, 1.0)


def test_a_row_has_tau_with_its_interval_and_acceptance_by_depth(analysis, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Count to {n}, and again to {n}."}) + "\n" for n in (3, 4)))
    analysis("papers").main([str(prompts), "--recipes", "pld", "--max-new-tokens", "12"])
    name, tau, change, levels = (cell.strip() for cell in capsys.readouterr().out.split("|")[1:-1])
    assert name == "`pld`" and not change and float(tau.split()[0]) >= 1 and len(levels.split()) <= 10
