import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specframe
from specframe.inspect.recorder import Bonus, TracedToken
from specframe_report.trace_drawing import draw_tree, lay_out
from specframe_report.trace_page import render

VOID = {"meta", "input", "br", "link"}


class Page(HTMLParser):
    """A page's elements; every tag that opens must close, in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, text):
        if not {"script", "style"} & set(self.open):
            self.words.append(text)

    def all(self, tag, **attributes):
        return [have for name, have in self.elements if name == tag and attributes.items() <= have.items()]

    def of_class(self, tag, *names):
        return [have for name, have in self.elements if name == tag and {*names} <= {*have.get("class", "").split()}]

    @property
    def text(self):
        return "".join(self.words)


@pytest.fixture(scope="module")
def found(sampled_recipe):
    return specframe.trace(specframe.load(sampled_recipe), "hello there")


parents = st.integers(0, 30).flatmap(lambda n: st.tuples(*(st.integers(0, node) for node in range(n))))


@given(parents)
def test_a_layout_is_tidy(above):
    above = [-1, *above]
    spots = lay_out(above)
    assert min(spot.row for spot in spots) == 0
    for node, spot in enumerate(spots):
        assert spot.level == (spots[above[node]].level + 1 if node else 0)
        rows = [spots[child].row for child in range(len(above)) if above[child] == node]
        assert rows == sorted(rows)
        if rows:
            assert spot.row == pytest.approx((rows[0] + rows[-1]) / 2)
    for level in {spot.level for spot in spots}:
        rows = sorted(spot.row for spot in spots if spot.level == level)
        assert all(below - row >= 1 - 1e-9 for row, below in pairwise(rows))


def test_a_layout_is_compact():
    # The root's first child has two grandchildren; the leaf next to it stands no lower for that.
    spots = lay_out([-1, 0, 0, 1, 1])
    assert [spot.row for spot in spots] == [1, 0.5, 1.5, 0, 1]


def test_the_page_is_whole_and_fetches_nothing(found):
    text = render(found)
    page = Page(text)
    assert len(page.all("article")) == len(found.cycles) > 2
    assert len(page.of_class("g", "node")) == sum(len(cycle.nodes) + 1 for cycle in found.cycles)
    assert len(page.all("tr")) == sum(len(cycle.nodes) + 2 for cycle in found.cycles)
    assert not [have for have in page.all("article") if "hidden" in have]  # all are listed without the script
    ids = {have["id"] for _, have in page.elements if "id" in have}
    for tag, have in page.elements:
        assert not {"src", "srcset", "action", "data", "xlink:href"} & have.keys(), tag
        assert have.get("href", "#trees")[1:] in ids
        assert not [name for name in have if name.startswith("on")]
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"^\s*//.*", "", text, flags=re.MULTILINE))
    assert "prefers-color-scheme: dark" in text
    assert page.all("meta", name="viewport") and page.all("input", type="range")


def test_headings_skip_no_level(found):
    levels = [int(level) for level in re.findall(r"<h([1-6])", render(found))]
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_the_page_shows_what_the_trace_holds(found):
    page = Page(render(found))
    assert f"{found.tau:.2f}" in page.text
    shown = {source: len(page.all("span", **{"class": source})) - 1 for source in ("draft", "bonus")}  # the legend's
    assert shown == {source: sum(piece.source == source for piece in found.pieces) for source in shown}
    for cycle in found.cycles:
        svg = Page(draw_tree(cycle))
        verdicts = [node.verdict for node in cycle.nodes] + ["bonus"]
        assert [have["class"].split()[1] for have in svg.of_class("g", "node")] == verdicts
        assert len(svg.of_class("path", "accepted")) == len(cycle.path)


def test_boxes_do_not_overlap_and_stay_inside(found):
    for cycle in found.cycles:
        svg = Page(draw_tree(cycle))
        places = [re.findall(r"[\d.]+", have["transform"]) for have in svg.of_class("g", "node")]
        sizes = svg.of_class("rect", "box")
        boxes = [
            (float(x), float(y), float(x) + float(size["width"]), float(y) + float(size["height"]))
            for (x, y), size in zip(places, sizes, strict=True)
        ]
        width, height = (float(svg.all("svg")[0][name]) for name in ("width", "height"))
        for number, (left, top, right, bottom) in enumerate(boxes):
            assert left >= 0 and top >= 0 and right <= width and bottom <= height
            for other in boxes[number + 1 :]:
                assert left >= other[2] or right <= other[0] or top >= other[3] or bottom <= other[1]


HOSTILE = "<script>alert(1)</script>&amp;\"' onload=x"


def test_tokens_are_text_and_nothing_else(found):
    cycle = found.cycles[0]
    evil = replace(
        found,
        recipe=HOSTILE,
        prompt=HOSTILE,
        parts={"drafter": HOSTILE},
        cycles=(
            replace(
                cycle,
                nodes=tuple(replace(node, text=HOSTILE) for node in cycle.nodes),
                bonus=Bonus(5, "<b>\x00\x1b", 0.5),
            ),
        ),
        pieces=(
            TracedToken(5, HOSTILE, "bonus", 0),
            TracedToken(5, "\n\t ", "draft", 1),
            TracedToken(6, "\x00", "bonus", 1),
        ),
    )
    text = render(evil)
    page = Page(text)
    assert len(page.all("script")) == 1
    assert not page.all("b", onload="x")
    assert page.text.count(HOSTILE) > 3
    assert "\x00" not in text and "\x1b" not in text
    assert "↵\n⇥\t " in page.text


def test_long_and_wide_tokens_are_shortened(found):
    cycle = found.cycles[0]
    for text in ("x" * 200, "世" * 50, "[bold]" * 9):
        svg = Page(draw_tree(replace(cycle, nodes=tuple(replace(node, text=text) for node in cycle.nodes))))
        assert all(float(have["width"]) < 140 for have in svg.of_class("rect", "box"))
        assert "…" in svg.text and text in svg.text  # whole in the title


def test_a_text_that_ends_within_a_cycle_is_marked(found):
    last = found.cycles[0]
    cut = replace(found, cycles=(replace(last, kept=len(last.path)),))
    assert "The text ended here, 1 of these tokens cut off." in Page(render(cut)).text
