"""What transformers' registry decodes as `generate` does: a few of it here, all of it with `-m slow`."""

from __future__ import annotations

import re

import pytest

from tests.components.targets.registry import PAGE, examine, names


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("exaone4", "identical"),
        ("gpt_oss", "identical"),
        ("bert", "reads texts in both directions"),
        ("openai-gpt", "its forward pass fails where texts of several lengths"),
        ("deepseek_v32", "sparse attention"),
        ("lfm2", "recurrent state .conv."),
    ],
)
def test_an_architecture_decodes_identically_or_is_refused(name, outcome):
    row = examine(name)
    assert row.outcome == "identical" if outcome == "identical" else re.search(outcome, row.detail), row


def test_the_page_knows_no_wrong_one():
    text = PAGE.read_text(encoding="utf-8")
    assert "## Wrong" not in text
    assert "`llama`" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_no_architecture_of_the_registry_decodes_wrongly(name):
    row = examine(name)
    assert row.outcome != "wrong", row
