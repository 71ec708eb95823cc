"""The site's links to the glossary."""

import pytest

from tests.repo.repository import ROOT


@pytest.fixture
def terms(monkeypatch):
    import importlib

    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("terms")


KEPT = "# Tau\n\n<svg><text>tau</text></svg> `tau` [tau](a.md) and\n\n```\ntau\n```\n\n| tau |\n"


def test_the_first_use_in_prose_is_a_link(terms):
    places = {"tau": "term-tau", "drafter": "term-drafter", "draft": "term-draft"}
    linked = terms.link(KEPT + "\nTau of a drafter, tau of drafters; a draft, tau-like.", places, "../glossary.md")
    tau, drafter = (f"(../glossary.md#term-{name}){{ .term }}" for name in ("tau", "drafter"))
    assert linked == KEPT + f"\n[Tau]{tau} of a [drafter]{drafter}, tau of drafters; a draft, tau-like."


def test_every_entry_has_a_place_of_its_own(terms):
    found = terms.read_terms(ROOT / "docs" / "glossary.md")
    assert found["sibling"] == "term-child-slot" and found["tree policy"] == "term-tree-policy"
    assert found.keys() >= terms.EVERYDAY - {"path"} and len(set(found.values())) > 20
