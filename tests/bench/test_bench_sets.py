import gzip
import json
import re
import sys
import types
from collections import Counter
from difflib import SequenceMatcher
from itertools import islice

import pytest

from specframe.bench.contest.datasets import FOLDER, MISSPELT, Question, edits, read_questions, read_sets, spread
from specframe.components.drafters.automaton import SuffixAutomaton
from specframe.files.prompts import read_prompts, read_records
from specframe.kernel.errors import InputError


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def test_a_record_keeps_its_turns_and_task(tmp_path):
    path = write(tmp_path / "q.jsonl", {"turns": ["one", "two"], "category": "writing"}, {"prompt": "three"})
    assert [(record.turns, record.task) for record in read_records(path)] == [
        (("one", "two"), "writing"),
        (("three",), None),
    ]
    assert read_prompts(path) == ["one", "three"]


def test_rare_line_ends_within_a_text_are_no_line_ends(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b\x85c"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_prompts(path) == ["a\u2028b\x85c"]


def test_published_sets_are_found_by_name(data):
    write(data / "bench" / "spec_bench" / "question.jsonl", {"turns": ["a", "b"], "category": "writing"})
    write(data / "gsm8k" / "test.jsonl", {"question": "two and two?"}, {"question": "three?"})
    folder = data / "bench" / "humaneval"
    folder.mkdir()
    with gzip.open(folder / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps({"task_id": "HumanEval/0", "prompt": "def f():"}) + "\n")
    assert read_questions(["spec_bench", "gsm8k", "humaneval"]) == [
        Question("spec_bench/0", "spec_bench", "writing", ("a", "b")),
        Question("gsm8k/0", "gsm8k", "math", ("two and two?",)),
        Question("gsm8k/1", "gsm8k", "math", ("three?",)),
        Question("humaneval/0", "humaneval", "code", ("def f():",)),
    ]


def test_a_long_set_is_found_by_its_length(data):
    write(data / "long" / "long-4000.jsonl", {"task": "stories", "prompt": "a long text", "tokens": 4000})
    assert read_questions(["long-4000"]) == [Question("long-4000/0", "long-4000", "stories", ("a long text",))]
    with pytest.raises(InputError, match=r"expected long/long-7500\.jsonl there"):
        read_questions(["long-7500"])


def test_the_shipped_set_needs_no_folder(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    questions = read_questions(["specframe"])
    assert len({question.id for question in questions}) == len(questions) > 5
    assert len({question.task for question in questions}) > 2


def test_files_of_one_name_get_different_names(tmp_path):
    paths = [str(write(tmp_path / name / "question.jsonl", {"prompt": name})) for name in ("a", "b")]
    assert [question.set for question in read_questions(paths)] == ["question", paths[1]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("humanevl", "did you mean 'humaneval'"),
        ("no/such/file.jsonl", "no such file"),
        ("mt_bench", "not below SPECFRAME_DATA"),
        ("hub:owner/name", "hub:owner/name:split:column"),
    ],
)
def test_sets_that_are_not_there(data, name, words):
    with pytest.raises(InputError, match=words):
        read_questions([name])


def test_published_sets_need_the_folder(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(InputError, match="set SPECFRAME_DATA"):
        read_questions(["gsm8k"])


def test_broken_empty_and_repeated_sets(tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(InputError, match=r"broken\.jsonl:2: not valid JSON"):
        read_questions([str(broken)])
    empty = write(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="there is no prompt in it"):
        read_questions([str(empty)])
    fine = str(write(tmp_path / "fine.jsonl", {"prompt": "a"}))
    with pytest.raises(InputError, match="given twice"):
        read_questions([fine, fine])


class Rows(dict):
    @property
    def column_names(self):
        return list(self)


def test_sets_from_the_hub(monkeypatch):
    asked = []
    fake = types.ModuleType("datasets")
    fake.load_dataset = lambda name, split: asked.append((name, split)) or Rows(text=["one", " ", "two"], id=[0, 1, 2])
    monkeypatch.setitem(sys.modules, "datasets", fake)
    questions = read_questions(["hub:owner/name:test:text"])
    assert asked == [("owner/name", "test")]
    assert [question.turns for question in questions] == [("one",), ("two",)]
    with pytest.raises(InputError, match=r"no column 'txt'; did you mean 'text'"):
        read_questions(["hub:owner/name:test:txt"])


def test_the_hub_needs_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'pip install "specframe\[data\]"'):
        read_questions(["hub:owner/name:test:text"])


def some(count, **tasks):
    return [Question(f"s/{t}{i}", "s", t, ("x",)) for t, n in tasks.items() for i in range(n)][: count or None]


def test_any_beginning_of_a_sample_is_spread_over_tasks():
    questions = some(None, a=50, b=5, c=20)
    order = spread(questions, seed=3)
    assert sorted(map(repr, order)) == sorted(map(repr, questions))
    for count in (3, 6, 9, 15):
        assert set(Counter(q.task for q in order[:count]).values()) == {count // 3}
    assert Counter(q.task for q in order[:25]) == {"a": 10, "b": 5, "c": 10}  # b is used up


def test_the_seed_decides_the_sample():
    questions = some(None, a=50, b=50)
    assert spread(questions, 1) == spread(questions, 1) != spread(questions, 2)


def test_edits_are_functions_whose_answer_is_the_prompt_lightly_changed():
    made = list(edits())
    assert len(made) >= 20 and len({edit.module for edit in made}) == len(made)
    assert [question.turns for question in read_questions(["edits"])] == [(edit.prompt,) for edit in made]
    for edit in made:
        compile(edit.answer, edit.module, "exec")
        before, after = edit.prompt.split(), edit.answer.split()
        assert len(after) > 20 and sum(before.count(word) for word in MISSPELT.values()) >= 1
        shared = SequenceMatcher(None, before, after, autojunk=False).ratio()
        assert shared > 0.75, edit.module


def test_a_copy_of_the_prompt_is_most_of_an_edits_answer():
    """Suffix decoding commits more than five tokens a cycle, if the target writes what was asked for."""
    for edit in islice(edits(), 12):
        prompt, answer = (re.findall(r"\w+|\W", text) for text in (edit.prompt, edit.answer))
        known = {word: token for token, word in enumerate(dict.fromkeys([*prompt, *answer]))}
        tokens = [known[word] for word in answer]
        text = SuffixAutomaton([*(known[word] for word in prompt), tokens[0]])
        place, cycles = 1, 0
        while place < len(tokens):
            copied = text.copy(cap=15).tokens
            right = next(
                (n for n, (a, b) in enumerate(zip(copied, tokens[place:], strict=False)) if a != b), len(copied)
            )
            committed = tokens[place : place + right + 1]
            text.extend(committed)
            place, cycles = place + len(committed), cycles + 1
        assert (len(tokens) - 1) / cycles > 5, edit.module


def test_a_set_is_asked_for_by_task_and_count(data):
    records = [{"turns": [f"{task} {n}"], "category": task} for n in range(4) for task in ("qa", "rag")]
    write(data / "spec_bench" / "question.jsonl", *records)
    qa, rag = read_sets(["spec_bench/qa=2", "spec_bench/rag"])
    assert (qa.count, rag.count) == (2, None)
    assert [question.id for question in qa.questions] == [
        "spec_bench/0",
        "spec_bench/2",
        "spec_bench/4",
        "spec_bench/6",
    ]
    assert {question.task for question in rag.questions} == {"rag"}
    for words, problem in (
        (["spec_bench/qua"], "has no task 'qua'; did you mean 'qa'"),
        (["spec_bench", "spec_bench/qa"], "spec_bench is given twice"),
        (["spec_bench=1", "spec_bench=2"], "spec_bench is given twice"),
        (["spec_bench=0"], "decodes nothing"),
    ):
        with pytest.raises(InputError, match=problem):
            read_sets(words)
