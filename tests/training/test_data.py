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
from specframe.training.encoding import encode
from specframe.training.settings import TrainSettings


def write(path, *records):
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records), encoding="utf-8")
    return str(path)


def settings(*sources, **more):
    return TrainSettings(**{"data": list(sources), "rollout": TeacherForced(), "validation": 0.0, "length": 8, **more})


def chat(*turns):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]}


def marked(tokenizer, ids, flags, wanted=True):
    return tokenizer.decode([i for i, flag in zip(ids, flags, strict=True) if flag == wanted])


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


@pytest.mark.parametrize("fast", [True, False])
def test_only_the_assistant_s_turns_are_answers(tokenizer, fast, monkeypatch):
    if not fast:
        monkeypatch.setattr(type(tokenizer), "is_fast", property(lambda self: False))
    document = documents.as_document(chat("Hi", "Hello you", "Bye", "So long"), "x:1")
    ids, answer = encode(document, tokenizer)
    text = "<user>Hi</s>\n<assistant>Hello you</s>\n<user>Bye</s>\n<assistant>So long</s>\n"
    assert tokenizer.decode(ids) == text
    assert marked(tokenizer, ids, answer) == "Hello you</s>\nSo long</s>\n"


def test_a_template_that_rewrites_history_still_finds_the_answers(tokenizer, monkeypatch):
    forgetful = (
        "{% for m in messages %}<{{ m['role'] }}>"
        "{% if loop.last %}(thinking){% endif %}{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", forgetful)
    ids, answer = encode(documents.as_document(chat("a", "Hi", "b", "Hello"), "x:1"), tokenizer)
    assert marked(tokenizer, ids, answer) == "HiHello"


def test_plain_texts_count_whole_and_end(tokenizer):
    ids, answer = encode(documents.Document("x:1", text="abc"), tokenizer)
    assert tokenizer.decode(ids) == "abc</s>" and all(answer)


def test_messages_without_a_template_and_refusing_templates(tokenizer, monkeypatch):
    document = documents.as_document(chat("a", "b"), "file.jsonl:7")
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match=r"file\.jsonl:7: the chat template refuses .*roles must alternate"):
        encode(document, tokenizer)
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(InputError, match=r"file\.jsonl:7: .*no chat template"):
        encode(document, tokenizer)


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
