import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import specframe
from specframe.cli.main import main
from specframe.cli.render.trees import colour, draw
from specframe.inspect.drawing import draw_tree, lay_out
from specframe.inspect.page import render
from specframe.inspect.recorder import Bonus, TracedToken
from specframe.inspect.trace import trace

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
def found(model_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float64}}\n"
        "drafter: {use: falcon, block: 2}\n"
        "tree: {use: fixed, widths: [3, 2, 1], draw: iid}\n"
        "verifier: {use: recursive}\n"
        "sampling: {temperature: 1.0, max_new_tokens: 20}\n"
    )
    return trace(specframe.load(path), "hello there")


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
    console = Console(width=100)
    with console.capture() as captured:
        console.print(draw(evil.cycles[0]), colour(evil, brackets=True))
    assert "\x1b" not in captured.get() and "\\u0000" in captured.get()
    assert "<script>alert(1)</script>" in captured.get()


def test_long_and_wide_tokens_are_shortened(found):
    cycle = found.cycles[0]
    for text in ("x" * 200, "世" * 50, "[bold]" * 9):
        svg = Page(draw_tree(replace(cycle, nodes=tuple(replace(node, text=text) for node in cycle.nodes))))
        assert all(float(have["width"]) < 140 for have in svg.of_class("rect", "box"))
        assert "…" in svg.text and text in svg.text  # whole in the title


def test_the_terminal_shows_path_and_sources(found):
    console = Console(width=100)
    with console.capture() as captured:
        for cycle in found.cycles:
            console.print(draw(cycle))
    lines = captured.get().splitlines()
    assert sum(line.count("✓ ") for line in lines) == sum(len(cycle.path) for cycle in found.cycles)
    assert sum("+ " in line for line in lines) == len(found.cycles)
    nodes = sum(len(cycle.nodes) for cycle in found.cycles)
    assert len(lines) == nodes + 2 * len(found.cycles)  # and a heading and a bonus each
    text = "".join(piece.text for piece in found.pieces)
    assert colour(found, brackets=False).plain == text
    marked = colour(found, brackets=True).plain
    assert marked.replace("[", "").replace("]", "") == text
    drafted = "".join(piece.text for piece in found.pieces if piece.source == "draft")
    assert "".join(re.findall(r"\[(.*?)\]", marked, re.DOTALL)) == drafted


def test_a_text_that_ends_within_a_cycle_is_marked(found):
    last = found.cycles[0]
    cut = replace(found, cycles=(replace(last, kept=len(last.path)),))
    assert "The text ended here, 1 of these tokens cut off." in Page(render(cut)).text
    console = Console(width=100)
    with console.capture() as captured:
        console.print(draw(cut.cycles[0]))
    assert "1 cut off: the text ended here" in captured.get()


def test_show_prints_the_first_cycles_and_writes_the_page(recipe, tmp_path, capsys):
    page = tmp_path / "new" / "show.html"
    assert main(["show", str(recipe), "--prompt", "what?", "--cycles", "1", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "> what?" in out and "cycle 1" in out and "cycle 2" not in out and "tau" in out
    cycles = int(re.search(r"\((\d+) cycles\)", out)[1])
    assert f"{cycles - 1} more: --cycles {cycles} prints them" in out
    assert f"written to {page}" in out
    assert len(Page(page.read_text(encoding="utf-8")).all("article")) == cycles


def test_show_takes_the_first_prompt_of_the_recipe(recipe, capsys):
    assert main(["show", str(recipe), "--cycles", "0"]) == 0
    out = capsys.readouterr().out
    assert "> hello there" in out and "good morning" not in out and "cycle 1" not in out


def test_show_gives_the_trace_as_json(recipe, capsys):
    assert main(["show", str(recipe), "--json", "sampling.max_new_tokens=5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [piece["token"] for piece in found["pieces"]] == specframe.load(recipe).generate("hello there").tokens[0][:5]
    assert found["cycles"][0]["nodes"][0]["verdict"] == "root"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt", ""],
        ["--prompt", "a" * 500],
        ["run.prompts=[]"],
        ["--cycles", "-1"],
        ["--html", "{folder}"],
        ["--html", "{recipe}/page.html"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_clear_line_and_exit_status_2(recipe, tmp_path, arguments, capsys):
    before = recipe.read_text()
    arguments = [argument.format(folder=tmp_path, recipe=recipe) for argument in arguments]
    assert main(["show", str(recipe), *arguments]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1 and not captured.out
    assert recipe.read_text() == before


def test_a_missing_recipe_is_one_clear_line(tmp_path, capsys):
    assert main(["show", str(tmp_path / "none.yaml")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_failed_run_leaves_an_old_page_and_makes_no_new_one(recipe, tmp_path):
    old, new = tmp_path / "old.html", tmp_path / "new.html"
    old.write_text("kept")
    for page in (old, new):
        assert main(["show", str(recipe), "--prompt", "a" * 500, "--html", str(page)]) == 2
    assert old.read_text() == "kept" and not new.exists()
