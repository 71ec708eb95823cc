"""The site's links to the glossary."""

import pytest

from tests.repo.repository import ROOT


@pytest.fixture
def terms(monkeypatch):
    import importlib

    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("terms")


def test_the_first_use_in_prose_is_a_link(terms):
    text = "# Tau\n\n<svg><text>tau</text></svg> `tau` [tau](a.md) and\n\n```\ntau\n```\n\nTau of a drafter, tau of drafters; tau-like.\n\n| tau |\n"
    linked = terms.link(text, {"tau": "term-tau", "drafter": "term-drafter", "draft": "term-draft"}, "../glossary.md")
    assert linked == text.replace("\nTau of a drafter,", "\n[Tau](../glossary.md#term-tau){ .term } of a "
                                  "[drafter](../glossary.md#term-drafter){ .term },")  # fmt: skip


def test_every_entry_has_a_place_of_its_own(terms):
    found = terms.read_terms(ROOT / "docs" / "glossary.md")
    assert found["sibling"] == "term-slot" and found["tree policy"] == "term-tree-policy"
    assert found.keys() >= terms.EVERYDAY - {"path"} and len(set(found.values())) > 20
