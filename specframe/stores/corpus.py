"""A store of texts that were tokenized before: documents, and answers as they are finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target
from specframe.kernel.store import Continuations
from specframe.stores import folder as files
from specframe.stores.context_array import ContextArray

MERGED = 1 << 18
"""Arrays above this many tokens are never built again."""


class Corpus:
    """Finds what followed a text's last tokens in other texts, by sorted contexts (REST, He et al. 2024).

    With a folder, it holds what `specframe store build` wrote there, and appended texts go there, too. Without one it
    starts empty and lives in memory. Texts that are appended join small arrays, which are merged as they grow, so that
    an append takes time in proportion to the text on average and a query looks into few arrays.

    Options:
        path: the store's folder; none for a store in memory
    """

    def __init__(self, *, path: Path | None = None) -> None:
        self.path = path
        self._index = files.Index(vocabulary=0, tokenizer=None, segments={})
        self._arrays: dict[str, ContextArray] = {}
        self._unread = path is not None

    def __len__(self) -> int:
        """The number of tokens, one for the end of each text included."""
        self._read()
        return sum(map(len, self._arrays.values()))

    def untrained(self, vocab: int) -> Corpus:
        """A store in memory of a text of `vocab` tokens that repeats itself."""
        store = Corpus()
        store.append([[i % vocab for i in range(3 * vocab)]])
        return store

    def bind(self, target: Target) -> None:
        """Reads the folder, and checks that its texts were tokenized as the target's are; raises InputError if not."""
        self._read()
        mark = fingerprint(target)
        index = self._index
        if not self._arrays or not index.vocabulary:  # in memory, and not bound before
            self._index = replace(index, vocabulary=target.vocab_size, tokenizer=mark)
        elif index.vocabulary != target.vocab_size or (mark and index.tokenizer and mark != index.tokenizer):
            raise InputError(f"the store {self.path or 'in memory'} is of another tokenizer than the target's")

    def find(self, tail: Sequence[int], *, length: int, limit: int) -> Continuations:
        """What follows the longest suffix of `tail` that occurs: `limit` continuations of `length` tokens at most."""
        self._read()
        found = [(array, array.find(tail)) for array in self._arrays.values()]
        longest = max((match.length for _, match in found), default=0)
        if longest == 0:
            return Continuations(0, [])
        best = [(array, match) for array, match in found if match.length == longest]
        total = sum(len(match) for _, match in best)
        rows: list[list[int]] = []
        for array, match in best:  # each array by its share of the occurrences
            rows += array.behind(match, length=length, limit=max(1, limit * len(match) // total))
        return Continuations(longest, [self._whole(row) for row in rows[:limit]])

    def append(self, texts: Sequence[Sequence[int]]) -> None:
        """Adds texts, which later queries find. Raises InputError if they cannot be written; none is added then."""
        self._read()
        added = ContextArray.build(texts)
        if not len(added):
            return
        if self.path is None:
            self._index, self._arrays = _joined(self._index, self._arrays, added)
            return
        folder = self.path.expanduser()
        with files.writing(folder):
            index, arrays = files.read(folder)  # another process may have appended
            known = set(index.segments)
            index, arrays = _joined(index, arrays, added)
            files.write(folder, index, [(name, array) for name, array in arrays.items() if name not in known])
        self._index, self._arrays = index, arrays

    def _read(self) -> None:
        """Reads the folder, once. Raises InputError for one that holds no text, or another version's files."""
        if not self._unread or self.path is None:
            return
        self._index, self._arrays = files.read(self.path.expanduser())
        if not any(map(len, self._arrays.values())):
            raise InputError(f"the store {self.path} is empty; make it again with specframe store build")
        self._unread = False

    def _whole(self, row: list[int]) -> list[int]:
        """The tokens up to the end of their text."""
        for place, token in enumerate(row):
            if token >= self._index.vocabulary:
                return row[:place]
        return row


def build(folder: Path, texts: Sequence[Sequence[int]], target: Target) -> int:
    """Writes a store of texts that the target's tokenizer made; returns its tokens. Raises InputError for no text."""
    array = ContextArray.build(texts)
    if not len(array):
        raise InputError("there is no text to store")
    if int(array.tokens[array.tokens < 0xFFFFFFFF].max()) >= target.vocab_size:
        raise InputError(f"a text has a token outside the target's vocabulary of {target.vocab_size}")
    index = files.Index(target.vocab_size, fingerprint(target), {"0": len(array)})
    with files.writing(folder):
        files.write(folder, index, [("0", array)])
    return len(array)


def fingerprint(target: Target) -> str | None:
    """A mark of the target's tokenizer, equal for equal vocabularies; None if it has no tokenizer."""
    tokenizer: Any = getattr(target, "tokenizer", None)
    if tokenizer is None:
        return None
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()[:16]


def _joined(
    index: files.Index, arrays: dict[str, ContextArray], added: ContextArray
) -> tuple[files.Index, dict[str, ContextArray]]:
    """The index and arrays with one more; the last arrays are merged while they are not twice as large as the next."""
    name = str(max(map(int, arrays), default=-1) + 1)
    arrays = dict(arrays)
    while arrays:
        last = next(reversed(arrays))
        size = len(arrays[last])
        if size >= 2 * len(added) or size + len(added) > MERGED:
            break
        added = arrays.pop(last).joined(added)
    arrays[name] = added
    return replace(index, segments={name: len(array) for name, array in arrays.items()}), arrays
