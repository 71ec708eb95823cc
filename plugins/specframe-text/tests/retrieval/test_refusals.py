"""Stores that are damaged, empty or of another tokenizer: each is refused in a line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specframe.components.targets.table import TableTarget
from specframe.kernel.errors import InputError
from specframe_text.retrieval.corpus import Corpus, build


def part(folder: Path, name: str) -> Path:
    """The file of the store's one array."""
    (found,) = folder.glob(f"*.{name}.npy")
    return found


def named(folder: Path) -> str:
    """The name of the store's one array."""
    return part(folder, "order").name.split(".")[0]


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "store.json").unlink(), "there is no store in .*; make one with specframe store build"),
        (lambda f: (f / "store.json").write_text("{"), "is broken: .*; make it again"),
        (lambda f: (f / "store.json").write_text("[]"), "is broken: "),
        (lambda f: (f / "store.json").write_text('{"format": 2}'), "is broken: "),
        (lambda f: change(f / "store.json", format=7), "is a store of format 7, this release reads 2; make it again"),
        (
            lambda f: change(f / "store.json", segments={part(f, "order").name.split(".")[0]: 4}),
            "is broken: .*is not of 4 tokens",
        ),
        (lambda f: change(f / "store.json", segments={}), "is empty; make it again"),
        (lambda f: part(f, "order").unlink(), r"is broken: \d+\.order\.npy is missing"),
        (lambda f: part(f, "order").write_bytes(b""), "is broken: "),
        (lambda f: part(f, "tokens").write_bytes(part(f, "tokens").read_bytes()[:-4]), "is broken: "),
        (lambda f: np.save(part(f, "tokens"), np.array([None])), "is broken: "),
    ],
)
def test_a_damaged_store_is_refused_in_one_line(tmp_path: Path, damage, message: str) -> None:
    build(tmp_path, [[0, 1]], TableTarget(vocab=3))
    damage(tmp_path)
    with pytest.raises(InputError, match=message) as refused:
        len(Corpus(path=tmp_path))
    assert "\n" not in str(refused.value)


def test_damage_inside_an_array_proposes_no_foreign_token(tmp_path: Path) -> None:
    build(tmp_path, [[0, 1, 2, 0, 1, 2]], TableTarget(vocab=3))
    broken = np.load(part(tmp_path, "tokens"))
    broken[2] = 70_000
    np.save(part(tmp_path, "tokens"), broken)
    found = Corpus(path=tmp_path).find([0, 1], length=3, limit=9)
    assert all(token < 3 for row in found.tokens for token in row)


class Tokenizer:
    def __init__(self, words: dict[str, int]) -> None:
        self._words = words

    def get_vocab(self) -> dict[str, int]:
        return self._words


def test_a_store_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    mine, other = TableTarget(vocab=3), TableTarget(vocab=3)
    mine.tokenizer = Tokenizer({"a": 0, "b": 1})  # type: ignore[attr-defined]
    other.tokenizer = Tokenizer({"a": 1, "b": 0})  # type: ignore[attr-defined]
    build(tmp_path, [[0, 1]], mine)
    store = Corpus(path=tmp_path)
    store.bind(mine)
    for wrong in (other, TableTarget(vocab=4)):
        with pytest.raises(InputError, match="is of another tokenizer than the target's"):
            store.bind(wrong)


def test_no_text_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no text to store"):
        build(tmp_path, [[]], TableTarget(vocab=3))
    with pytest.raises(InputError, match="outside the target's vocabulary of 3"):
        build(tmp_path, [[3]], TableTarget(vocab=3))
