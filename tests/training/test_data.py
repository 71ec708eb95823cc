"""Training data: what is read, what counts, how it is cut, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.kernel.errors import InputError, PluginError
from specframe.recipes.recipe import Recipe
from specframe.training import documents, texts
from specframe.training.settings import TrainSettings


def write(path, *records):
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records), encoding="utf-8")
    return str(path)


def settings(*sources, **more):
    return TrainSettings(**{"data": list(sources), "rollout": TeacherForced(), "validation": 0.0, "length": 8, **more})


def chat(*turns):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]}


def test_texts_of_a_plugin_go_by_their_name():
    found = list(documents.read(["zoo://smollm2-135m-answers"]))
    assert len(found) == 1652 and all(each.messages[-1]["role"] == "assistant" for each in found)
    with pytest.raises(PluginError, match="did you mean 'smollm2-135m-answers'"):
        list(documents.read(["zoo://smollm2-answers"]))


@pytest.mark.parametrize("name", ["falcon", "eagle", "eagle3", "coral-router", "hass", "medusa"])
def test_recipes_train_on_texts_that_come_with_the_package(name):
    data = Recipe.read(name).data["train"]["data"]
    assert data and all(each.startswith("zoo://") for each in data)
    assert all(len(list(documents.read([each]))) > 1000 for each in data)


def test_files_globs_and_blank_lines(tmp_path):
    write(tmp_path / "b.jsonl", {"text": "two"}, "", {"text": "three", "source": "x"})
    write(tmp_path / "a.jsonl", {"text": "one"})
    found = list(documents.read([str(tmp_path / "*.jsonl")]))
    assert [d.text for d in found] == ["one", "two", "three"]
    assert found[2].origin == f"{tmp_path / 'b.jsonl'}:3"
    assert [d.text for d in documents.read([str(tmp_path / "b.jsonl")])] == ["two", "three"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{nonsense", "not valid JSON"),
        ('["text"]', "it must be"),
        ('{"txt": "x"}', "it has txt"),
        ('{"text": 3}', "it must be"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "user"}]}', "needs `role` and `content`"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, complaint):
    path = write(tmp_path / "bad.jsonl", {"text": "good"}, line)
    with pytest.raises(InputError, match=complaint) as error:
        list(documents.read([path]))
    assert f"{path}:2" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_and_unreadable_sources(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "\xe9"}')
    for source, complaint in [
        (str(tmp_path / "no.jsonl"), "there is no file"),
        ("data/no.jsonl", "there is no file"),
        (str(tmp_path / "*.json"), "no file matches"),
        (str(tmp_path), "is a folder"),
        (str(tmp_path / "latin.jsonl"), "not UTF-8"),
    ]:
        with pytest.raises(InputError, match=complaint):
            list(documents.read([source]))


def test_hub_names_need_the_package_and_the_network(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'pip install "specframe\[data\]"'):
        list(documents.read(["some/name"]))

    class Datasets:
        @staticmethod
        def load_dataset(name, split):
            if name == "some/name":
                return [{"text": f"{name} {split}"}]
            raise ConnectionError("no network\nmore")

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    assert [d.text for d in documents.read(["some/name", "some/name:test"])] == [
        "some/name train",
        "some/name test",
    ]
    with pytest.raises(InputError, match=r"cannot be loaded \(ConnectionError: no network\)"):
        list(documents.read(["other/name"]))


def test_texts_that_the_template_refuses_are_left_out_and_counted(tmp_path, tokenizer, monkeypatch, caplog):
    refusing = "{% if m['content'] == 'no' %}{{ raise_exception('not this') }}{% endif %}"
    picky = "{% for m in messages %}" + refusing + "{{ m['content'] }}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", picky)
    path = write(tmp_path / "c.jsonl", chat("a", "b"), chat("no", "b"), chat("c", "d"))
    train, _ = texts.load(settings(path), tokenizer, 257)
    assert len(train) == 2
    (message,) = caplog.messages
    assert message.startswith("train.data: 1 of 3 texts are left out; the first: ") and f"{path}:2" in message
    with pytest.raises(InputError, match=r"c\.jsonl:2: .*not this"):
        texts.load(settings(path, skip=False), tokenizer, 257)
    with pytest.raises(InputError, match=r"d\.jsonl:1: .*not this"):
        texts.load(settings(write(tmp_path / "d.jsonl", chat("no", "b"), chat("c", "d"))), tokenizer, 257)


def test_texts_of_one_question_are_held_back_together(tmp_path, tokenizer):
    records = [chat(f"question {number % 10}", f"answer {number % 10}") for number in range(100)]
    train, held = texts.load(settings(write(tmp_path / "c.jsonl", *records), validation=0.1, length=64), tokenizer, 257)
    rows = [
        {tuple(part.tokens[a:b].tolist()) for a, b in zip(part.start, part.start[1:], strict=False)}
        for part in (train, held)
    ]
    assert len(rows[0]) == 9 and len(rows[1]) == 1 and not rows[0] & rows[1]


def test_the_mask_marks_positions_whose_next_token_is_an_answer(tmp_path, tokenizer):
    path = write(tmp_path / "chat.jsonl", chat("Hi", "Yes"))
    train, held = texts.load(settings(path, length=64), tokenizer, 257)
    assert len(train) == 1 and len(held) == 0
    tokens, mask = train.batch(torch.tensor([0]))
    count = int(train.counts[0])
    assert tokens.shape == (1, count) and tokens.dtype == torch.int64
    nexts = [int(tokens[0, i + 1]) for i in range(count) if mask[0, i]]
    assert tokenizer.decode(nexts) == "Yes</s>\n"
    assert not mask[0, count - 1 :].any() and not tokens[0, count:].any()


def test_long_texts_are_cut_and_short_ones_padded(tmp_path, tokenizer):
    path = write(tmp_path / "t.jsonl", {"text": "abcdefghijkl"}, {"text": "xy"})
    train, _ = texts.load(settings(path), tokenizer, 257)
    found = sorted(
        tokenizer.decode(train.tokens[a:b].tolist()) for a, b in zip(train.start, train.start[1:], strict=False)
    )
    assert found == ["abcdefgh", "ijkl</s>", "xy</s>"]
    assert int(train.mask.sum()) == 12 + 2, "everything but the last position of each document"
    tokens, mask = train.batch(torch.arange(3))
    for row in range(3):
        count = int(train.counts[row])
        assert torch.equal(tokens[row, :count].int(), train.tokens[train.start[row] : train.start[row + 1]])
        assert torch.equal(mask[row, :count], train.mask[train.start[row] : train.start[row + 1]])
        assert not mask[row, count:].any()


def test_packing_fills_rows(tmp_path, tokenizer):
    path = write(tmp_path / "t.jsonl", *({"text": letter * 5} for letter in "abcd"))
    train, _ = texts.load(settings(path, pack=True), tokenizer, 257)
    assert train.counts.tolist() == [8, 8, 8]
    assert len(train.tokens) == 24
    assert int(train.mask.sum()) == 20, "no document's last position counts"


def test_the_split_is_by_document_and_by_seed(tmp_path, tokenizer):
    path = write(tmp_path / "t.jsonl", *({"text": f"{i:02d}" * 8} for i in range(20)))

    def contents(part):
        return {tokenizer.decode(part.tokens[a : a + 2].tolist()) for a in part.start[:-1].tolist()} - {"</s>"}

    train, held = texts.load(settings(path, validation=0.25), tokenizer, 257)
    assert len(contents(held)) == 5 and not contents(train) & contents(held)
    again = texts.load(settings(path, validation=0.25), tokenizer, 257)
    assert (train.digest, held.digest) == (again[0].digest, again[1].digest)
    other = texts.load(settings(path, validation=0.25, seed=1), tokenizer, 257)
    assert other[1].digest != held.digest


def test_nothing_to_learn_from(tmp_path, tokenizer):
    with pytest.raises(InputError, match="no text"):
        texts.load(settings(write(tmp_path / "e.jsonl", "")), tokenizer, 257)
    users = write(tmp_path / "u.jsonl", {"messages": [{"role": "user", "content": "hello"}]})
    with pytest.raises(InputError, match="no answers"):
        texts.load(settings(users), tokenizer, 257)
    with pytest.raises(InputError, match="outside the target's vocabulary"):
        texts.load(settings(write(tmp_path / "t.jsonl", {"text": "abc"})), tokenizer, 50)


def test_variables_of_the_template_reach_every_chat_and_unknown_ones_are_refused(tmp_path, tokenizer, monkeypatch):
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ style | default('') }}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    own = chat("A", "B") | {"chat_template_kwargs": {"style": "C"}}
    file = write(tmp_path / "a.jsonl", chat("A", "B"), own)
    found, _ = texts.load(settings(file, chat_template_kwargs={"style": "D"}), tokenizer, len(tokenizer))
    rows = torch.split(found.tokens, found.counts.tolist())
    assert [tokenizer.decode(row) for row in rows] == ["ABD", "ABC"]
    with pytest.raises(InputError, match=r"train.chat_template_kwargs: .* does not read 'styl'"):
        texts.load(settings(file, chat_template_kwargs={"styl": "D"}), tokenizer, len(tokenizer))
