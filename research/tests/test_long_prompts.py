"""The prompt set `long`: lengths, cuts at paragraphs, no repeats, the same prompts every time."""

import json
import lzma
import random

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def long(analysis):
    return analysis("long_prompts")


def words(text):
    return len(text.split())


def joined(pieces):
    return "\n\n".join(pieces) + "\n\nSummarize."


def test_a_prompt_is_cut_at_a_paragraph_and_fills_its_length(long):
    pieces = tuple(" ".join(f"w{place}.{n}" for n in range(30)) for place in range(40))
    text = long.Text("summary", "title", pieces, joined)
    short, longer = (long.fit(text, length, words) for length in (100, 1000))
    assert short == joined(pieces[:3]) and longer == joined(pieces[:33])  # 91 and 991 words
    assert longer.startswith(short.removesuffix("\n\nSummarize."))
    assert long.fit(text, 29, words) is None  # the first paragraph alone is longer
    assert long.fit(text, 2000, words) is None  # the whole text is below 80 %
    assert long.fit(long.Text("summary", "title", pieces, joined), 110, words) == short


def test_repeated_counts_the_ngrams_that_stood_before(long):
    assert long.repeated(range(100)) == 0
    assert long.repeated([*range(20), *range(20)]) == pytest.approx(13 / 33)  # those that lie in the second half
    assert long.repeated([1] * 50) > 0.97
    assert long.repeated([1, 2]) == 0


def test_texts_that_repeat_themselves_or_are_too_short_are_left_out(long, monkeypatch):
    monkeypatch.setattr(long, "LENGTHS", (50, 100))
    fresh = tuple(" ".join(f"{place}.{n}" for n in range(10)) for place in range(20))
    texts = [
        long.Text("summary", "repeating", ("a b c d e f g h i j",) * 20, joined),
        long.Text("summary", "short", fresh[:7], joined),
        long.Text("summary", "fine", fresh, joined, ("an answer",)),
        long.Text("summary", "one too many", fresh, joined),
    ]

    def gram(text):
        return long.repeated(text.split())

    [found] = long.choose(iter(texts), words, gram, 1)
    assert set(found) == {50, 100}
    assert [record["source"] for record in found.values()] == ["fine", "fine"]
    assert found[50]["tokens"] == words(found[50]["prompt"]) == 41
    assert found[50]["answers"] == ("an answer",) and found[50]["repeated"] == 0


def question(number, asked, *passages):
    turns = ["\n".join([*passages, asked])]
    return {"question_id": number, "category": "rag", "turns": turns, "reference": [[f"answer {number}"]]}


def test_a_questions_passages_stand_among_others_in_one_order(long, tmp_path):
    path = tmp_path / "question.jsonl"
    records = [
        question(n, f"Question {n}?", *(f"Passage {n}.{place} " + "word " * 80 for place in range(4))) for n in range(9)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in [*records, {"category": "qa", "turns": ["no"]}]))
    made = list(long.passages(path, random.Random(2)))
    assert [text.source for text in made] == [str(n) for n in range(9)]
    places = set()
    for number, text in enumerate(made):
        assert text.answers == (f"answer {number}",)
        few, many = text.write(text.pieces[:4]), text.write(text.pieces)
        order = [line for line in many.split("\n\n") if line in few]
        assert order == few.split("\n\n") and few.endswith(f"Question {number}?")
        assert sum(f"Passage {number}." in line for line in order) == 4 == many.count(f"Passage {number}.")
        places.add(many.split("\n\n").index(next(line for line in many.split("\n\n") if f"Passage {number}." in line)))
    assert len(places) > 2
    assert [text.write(text.pieces) for text in made] == [
        text.write(text.pieces) for text in long.passages(path, random.Random(2))
    ]


def test_a_class_to_rewrite_begins_what_is_shown_of_its_module(long):
    body = "".join(f"    def method_{n}(self):\n        return {n}\n\n" for n in range(5))
    source = f"def first():\n    pass\n\n\n# about it\nclass Fits:\n{body}\nclass Small:\n    x = 1\n\nLAST = 1\n"
    [(name, opening, rest)] = long.excerpts(source)
    assert name == "Fits" and opening.startswith("# about it\nclass Fits:") and opening.endswith("return 4")
    assert rest.strip().startswith("class Small") and rest.endswith("LAST = 1")


def test_articles_and_stories_are_read_from_dumps(long, tmp_path):
    path = tmp_path / "part00.txt.xz"
    line = "A sentence of a story that is long enough to be kept, with nothing missing in it. " * 4
    story = "\n".join([line] * 4)
    holed = story + "\nThe president of , and so on."
    with lzma.open(path, "wt") as file:
        file.write("\n\n".join(["One", story, "Two", holed, "Three", story]) + "\n\n")
    assert [title for title, _ in long.articles(path)] == ["One", "Two", "Three"]
    [group] = long.stories(path, random.Random(1))
    assert sorted(piece.split("\n\n")[0] for piece in group.pieces if "\n\n" in piece) == ["One", "Three"]
    assert group.write(group.pieces[:1]).endswith("stories above.")
