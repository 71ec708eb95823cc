"""The replay of drafters that copy on the reference answers of `edits`."""

import pytest

from specframe.components.drafters.suffix import Suffix
from tests.repo.repository import ROOT

pytestmark = pytest.mark.slow


def test_a_recipe_is_replayed(analysis, capsys, monkeypatch):
    edits = analysis("edits")
    some = list(edits.edits())[:3]
    monkeypatch.setattr(edits, "edits", lambda: some)
    edits.main([str(ROOT / "recipes" / "small" / "lookup.yaml")])
    line = capsys.readouterr().out
    assert line.endswith(", 3 answers\n") and float(line.split("tau ")[1].split(",")[0]) > 2


def test_a_draft_is_accepted_as_far_as_the_answer_has_it(analysis):
    replay = analysis("edits").replay
    text = list(range(1, 13))
    assert replay(Suffix(cap=15), text, [1]) == 0, "the first token comes with the prompt"
    assert replay(Suffix(cap=15, doubt=0.1), text, text) == 1, "all of the rest is copied"
    changed = [*text[:6], 99, *text[7:]]
    assert replay(Suffix(cap=15, doubt=0.1), text, changed) == 3, "up to the change, one without a copy, and the rest"
    assert replay(Suffix(cap=3, doubt=0.1), text, text) == 3, "four tokens a cycle"


def test_a_drafter_that_reads_states_is_refused(analysis, capsys):
    with pytest.raises(SystemExit):
        analysis("edits").main([str(ROOT / "recipes" / "small" / "eagle.yaml")])
    assert "eagle.yaml: its drafter reads the target's states" in capsys.readouterr().err
