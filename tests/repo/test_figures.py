"""The pages' figures are those of one results file: the newest bench of a recipe on its target."""

import re

import pytest
import yaml

from tests.repo.repository import PAGES, ROOT, name

BLOCK = re.compile(r"<!-- (bench|papers)(?: (\S+))?\n(.*?)-->\n.*?<!-- /\1 -->", re.DOTALL)
INLINE = re.compile(r"<!-- (figure|best) [^>\n]+? -->.*?<!-- /\1 -->", re.DOTALL)
LINK = re.compile(r"\]\((?:\.\./|docs/)*benchmark/(?:([\w-]+)/)?report\.md\)")
INTERVAL = re.compile(r"\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\]")
PASSES = re.compile(r"(\d+\.\d) million\s+token-passes")
CARDS = "plugins/specframe-zoo/README.md"

WRITTEN = [page for page in PAGES if "benchmark/" not in name(page) and name(page) != "docs/methods/index.md"]
"""Pages by hand."""


def shown(text):
    """Yields every bench and recipe whose figures a text shows as its own."""
    for _, bench, named in BLOCK.findall(text):
        for recipe, note in yaml.safe_load(named).items():
            if not (isinstance(note, dict) and "here" in note):
                yield bench, recipe


def outdated(text, measured):
    """The recipes that a text shows by another bench than the newest one of their target; benches come newest first."""
    newest = {}
    for bench, entries in measured.items():
        for recipe, entry in entries.items():
            newest.setdefault((recipe, entry["target"]), bench)
    targets = [(bench, recipe, measured[bench][recipe]["target"]) for bench, recipe in shown(text)]
    return [(b, recipe) for b, recipe, target in targets if newest[recipe, target] != b]


def foreign(text, measured):
    """The intervals within sentences that refer to a bench's report and are not among its figures."""
    wrong = []
    for paragraph in INLINE.sub("", BLOCK.sub("", text)).split("\n\n"):
        linked = LINK.findall(paragraph)
        if linked and not paragraph.startswith("|"):
            own = {each for bench in linked for each in intervals(measured[bench])}
            wrong += [found for found in INTERVAL.findall(paragraph) if found not in own]
    return wrong


def intervals(measured):
    """Yields every figure of a bench that has an interval, as pages show it."""
    for entry in measured.values():
        for figures in (entry["overall"], *entry["tasks"].values()):
            for figure in figures.values():
                if isinstance(figure, dict) and figure.get("low") is not None:
                    yield f"{figure['value']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}]"


@pytest.fixture
def measured(generators):
    """Figures of every bench, the newest first."""
    return {bench.name: bench.measured for bench in generators("benches").read_benches()}


def test_pages_show_the_newest_bench_and_quote_no_other(measured):
    texts = {name(page): page.read_text(encoding="utf-8") for page in WRITTEN}
    assert not {page: found for page, text in texts.items() if (found := outdated(text, measured))}
    assert not {page: found for page, text in texts.items() if (found := foreign(text, measured))}
    older = "<!-- papers smollm2\neagle: a paper\nhass: {here: not measured}\n-->\n<!-- /papers -->"
    assert outdated(older, measured) == [("smollm2", "eagle")]
    assert not outdated(older.replace("smollm2", "smollm2-avx512"), measured)
    sentence = "It gains 1.11 [0.97, 1.29] times ([report](../benchmark/smollm2-avx512/report.md))."
    assert foreign(sentence, measured) == ["1.11 [0.97, 1.29]"]
    assert not foreign(sentence.partition(" (")[0], measured), "a figure of no report has its own command"


def test_what_training_cost_stands_on_the_drafter_cards():
    """No page or recipe repeats a number of token-passes that the drafter cards don't have."""
    cards = set(PASSES.findall((ROOT / CARDS).read_text(encoding="utf-8")))
    pages = [*PAGES, *(ROOT / "recipes").rglob("*.yaml")]
    claimed = {name(page): set(PASSES.findall(page.read_text(encoding="utf-8"))) for page in pages}
    assert not {page: found - cards for page, found in claimed.items() if found - cards}
    first = [page for page in ("README.md", "docs/index.md", "docs/explanation/measured.md") if claimed[page]]
    assert not first, "the methods' table has what training cost"


def test_no_line_begins_with_a_figure():
    """A comment at the start of a line would end its paragraph in Markdown."""
    pages = [page for page in WRITTEN if re.search(r"^<!-- (?:figure|best) ", page.read_text(encoding="utf-8"), re.M)]
    assert not pages


def test_a_sentence_takes_its_figure_from_the_bench(generators):
    pages = generators("measured")
    entries = {
        recipe: {"overall": {"speedup": {"value": value, "low": low, "high": 2.0}, "forward_seconds": {"target": 0.01}}}
        for recipe, value, low in (("plain", 1.0, 1.0), ("one", 1.2, 1.1), ("two", 1.3, 0.9))
    }
    entries["one"]["tasks"] = {"math": {"speedup": {"value": 1.5, "low": 1.0, "high": 2.0}}}
    assert pages.best_gain(entries) == "1.30 [0.90, 2.00]; for 1 of 2 recipes the whole interval is above 1"
    assert pages.format_inline(entries, "one", "speedup") == "1.20"
    assert pages.format_inline(entries, "one", "speedup", "math") == "1.50"
    assert pages.format_inline(entries, "one", "target") == "10 ms"
