import gzip
import json

import pytest

from specframe.files.prompts import read_prompts, read_records
from specframe.kernel.errors import InputError


def test_published_layouts_are_read(tmp_path):
    records = [
        {"question_id": 1, "turns": ["first turn", "second turn"]},
        {"task_id": "HumanEval/0", "prompt": "def f():"},
        {"question": "How many?", "answer": "3"},
        {"task_id": 2, "text": "Write a function.", "code": "..."},
    ]
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    assert read_prompts(path) == ["first turn", "def f():", "How many?", "Write a function."]
    assert read_prompts(path, 2) == ["first turn", "def f():"]
    with gzip.open(tmp_path / "set.jsonl.gz", "wt") as file:
        file.write(path.read_text())
    assert read_prompts(tmp_path / "set.jsonl.gz", 1) == ["first turn"]


def test_a_table_is_read_by_column(tmp_path):
    path = tmp_path / "set.csv"
    path.write_text('id,question,category\n1,"How many,\n\n""exactly""?",math\n2,Why?,\n', encoding="utf-8-sig")
    assert [(record.turns, record.task) for record in read_records(path)] == [
        (('How many,\n\n"exactly"?',), "math"),
        (("Why?",), None),
    ]
    (tmp_path / "set.tsv").write_text("prompt\tnote\nHello, you\tx\n")
    assert read_prompts(tmp_path / "set.tsv") == ["Hello, you"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,ask\n1,Why?\n", r"none of its columns \(id, ask\) is called turns, prompt"),
        ("id,prompt\n1,\n", r"set\.csv:2: no prompt in it"),
        ("id,prompt\n", "there is no prompt in it"),
        ("", r"none of its columns \(\) is called"),
    ],
)
def test_a_table_without_prompts_is_refused(text, words, tmp_path):
    refused(tmp_path / "set.csv", text, words)


def refused(path, text, words):
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_prompts(path)


def test_a_text_file_has_a_prompt_a_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo\n")
    assert read_prompts(path) == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": "a"}\n{"prompt": ', "set.jsonl:2: not valid JSON"),
        ('{"prompt": "a"}\n[1]', "set.jsonl:2: no prompt in it"),
        ('{"answer": "a"}', "set.jsonl:1: no prompt in it"),
        ('{"turns": [], "prompt": " "}', "set.jsonl:1: no prompt in it"),
        ("", "there is no prompt in it"),
    ],
)
def test_bad_files_name_the_line(tmp_path, text, words):
    refused(tmp_path / "set.jsonl", text, words)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone.jsonl: cannot be read"):
        read_prompts(tmp_path / "gone.jsonl")
