"""The table of a bench's taus: their change is over the same prompts."""

import json

import pytest

pytestmark = pytest.mark.slow


def write(folder, cycles, accepted):
    """A bench of two recipes and plain decoding over two prompts."""
    names = ("one", "two")
    runs = [
        {
            "contestant": name,
            "prompt": prompt,
            "turn": 0,
            "repeat": 0,
            "cycles": cycles[name][place],
            "accepted": sum(accepted[name][place]),
            "reached": accepted[name][place],
        }
        for name in names
        for place, prompt in enumerate("ab")
    ]
    contestants = [{"name": name, "kind": "recipe", "error": None} for name in names]
    results = {
        "schema": 1,
        "settings": {"temperature": 0.0},
        "prompts": [{"id": "a"}, {"id": "b"}],
        "contestants": [{"name": "plain", "kind": "plain", "error": None}, *contestants],
        "runs": runs,
    }
    (folder / "results.json").write_text(json.dumps(results))


def test_a_change_is_paired_by_prompt(analysis, tmp_path, capsys):
    write(tmp_path, {"one": [10, 10], "two": [10, 10]}, {"one": [[5], [15]], "two": [[8], [15, 9]]})
    analysis("paired").main([str(tmp_path)])
    table = capsys.readouterr().out.splitlines()
    assert table[0].endswith("2 prompts, temperature 0.0")
    one, two = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table[4:6])
    assert one[0] == "`one`" and one[1].startswith("2.00 [") and one[2:] == ["", "1.00"]
    assert two[1].startswith("2.60 [") and two[2].startswith("+30.0% [") and two[3] == "1.15 0.45"


def test_what_makes_a_prompt_hard_cancels(analysis, tmp_path, capsys):
    write(tmp_path, {"one": [10, 10], "two": [10, 10]}, {"one": [[0], [10]], "two": [[2], [14]]})
    analysis("paired").main([str(tmp_path), "--against", "two"])
    line = capsys.readouterr().out.splitlines()[4]
    assert line.endswith("| -16.7% [-16.7%, -16.7%] | 0.50 |")


def test_an_unknown_recipe_is_refused(analysis, tmp_path):
    write(tmp_path, {"one": [1, 1], "two": [1, 1]}, {"one": [[1], [1]], "two": [[1], [1]]})
    with pytest.raises(SystemExit, match="there are one, two"):
        analysis("paired").main([str(tmp_path), "--against", "three"])
