"""The texts of SmolLM2's drafters: nothing of a benchmark is among them."""

import gzip
import importlib
import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TRAINING = Path(__file__).parents[1] / "training"

ASKED = "A farmer sells nine red apples and seven green pears on every market day."
SHORT = "Who wrote Emma?"


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def answered(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def test_texts_that_share_ten_words_with_a_benchmark_are_left_out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TRAINING))
    mixture = importlib.import_module("mixture")
    write(tmp_path / "bench/some/question.jsonl", [{"turns": [ASKED, SHORT]}])
    write(tmp_path / "bench/gsm8k/train.jsonl", [{"question": "How many?", "answer": "<<1+1=2>>2"}])
    own = [
        answered("Hello there", "Good day to you."),
        answered(SHORT, "Jane Austen."),
        answered("Write a story.", f"Once, {ASKED.lower()}"),
        answered("Write another.", " ".join(ASKED.split()[:9])),
    ]
    write(tmp_path / "smollm2/answers.jsonl.gz", own)
    for name in ("codegen-instruct.json", "roleplay-simple-deduped-roleplay-instruct.json"):
        (tmp_path / "instruct/gpteacher").mkdir(parents=True, exist_ok=True)
        (tmp_path / "instruct/gpteacher" / name).write_text("[]")  # one document, not lines
    query = {"user_query": f"Solve this. {ASKED}", "chatgpt_response": "Sixteen."}
    write(tmp_path / "instruct/halueval/general_data.json", [query])
    write(tmp_path / "none.jsonl.gz", [])
    monkeypatch.setattr(mixture, "OWN", tmp_path / "none.jsonl.gz")
    monkeypatch.setattr(sys, "argv", ["mixture.py", "--data", str(tmp_path), "--out", str(tmp_path / "out.jsonl")])
    mixture.main()
    written = [json.loads(line)["messages"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(turns[0]["content"] for turns in written) == ["Hello there", "How many?", "Write another."]


def test_another_targets_answers_take_the_place_of_smollm2s(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TRAINING))
    mixture = importlib.import_module("mixture")
    write(tmp_path / "bench/some/question.jsonl", [{"turns": [ASKED, SHORT]}])
    write(tmp_path / "bench/gsm8k/train.jsonl", [])
    for name in ("codegen-instruct.json", "roleplay-simple-deduped-roleplay-instruct.json"):
        (tmp_path / "instruct/gpteacher").mkdir(parents=True, exist_ok=True)
        (tmp_path / "instruct/gpteacher" / name).write_text("[]")
    write(tmp_path / "instruct/halueval/general_data.json", [])
    write(tmp_path / "cold.jsonl", [answered("Sort a list.", "Use the function sorted."), answered("A sum?", "4")])
    write(tmp_path / "warm.jsonl", [answered("Add one.", "x = x + 1"), answered(SHORT, "It was Jane Austen.")])
    files = [str(tmp_path / name) for name in ("cold.jsonl", "warm.jsonl")]
    given = ["--data", str(tmp_path), "--answers", *files, "--shortest", "3", "--out", str(tmp_path / "out.jsonl")]
    monkeypatch.setattr(sys, "argv", ["mixture.py", *given])
    mixture.main()
    written = [json.loads(line)["messages"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(turns[0]["content"] for turns in written) == ["Add one.", "Sort a list."]
