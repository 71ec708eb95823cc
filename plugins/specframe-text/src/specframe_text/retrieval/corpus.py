"""A store of tokenized texts: documents, and answers as they finish."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specframe import InputError
from specframe.plugin import Continuations, Target, text_of
from specframe_text.retrieval import folder as files
from specframe_text.retrieval.context_array import ContextArray, SuffixMatch

SMALL = 1 << 14
"""Arrays of fewer tokens are merged with the next, which takes no longer than writing them."""
FEWEST = 1_000
"""The smallest limit of a store."""


class Corpus:
    """Finds continuations of a text's last tokens in other texts, by sorted contexts (REST, He et al. 2024).

    With a folder, it contains the texts that `specframe store build` wrote there, and appended texts are written there,
    too. Without one, it starts empty and stays in memory. Arrays of similar size are merged, as in a log-structured
    store, so that a query searches few of them: each is at least twice as large as the next. Most appends take
    milliseconds; one that merges 10 million tokens takes some seconds.

    Options:
        path: the store's folder; none for a store in memory
        limit: maximum number of tokens; an append beyond it drops the oldest texts, an eighth of the limit at a time
    """

    def __init__(self, *, path: Path | None = None, limit: int | None = None) -> None:
        if limit is not None and limit < FEWEST:
            raise InputError(f"a store needs a limit of at least {FEWEST} tokens, got {limit}")
        self.path = path
        self.limit = limit
        self._index = files.Index(vocabulary=0, tokenizer=None, segments={})
        self._arrays: dict[str, ContextArray] = {}
        self._unread = path is not None

    def __len__(self) -> int:
        """Returns the number of tokens, with one for the end of each text."""
        self._read()
        return sum(map(len, self._arrays.values()))

    def untrained(self, vocab: int) -> Corpus:
        """Returns a store in memory with a repetitive text of `vocab` tokens."""
        store = Corpus()
        store.append([[i % vocab for i in range(3 * vocab)]])
        return store

    def bind(self, target: Target) -> None:
        """Reads the folder and checks its texts' tokenizer against the target's; raises InputError if they differ."""
        self._read()
        mark = fingerprint(target)
        index = self._index
        if not self._arrays or not index.vocabulary:  # in memory and not yet bound
            self._index = replace(index, vocabulary=target.vocab_size, tokenizer=mark)
        elif index.vocabulary != target.vocab_size or (mark and index.tokenizer and mark != index.tokenizer):
            raise InputError(f"the store {self.path or 'in memory'} is of another tokenizer than the target's")

    def find(self, tail: Sequence[int], *, length: int, limit: int) -> Continuations:
        """Finds up to `limit` continuations, of at most `length` tokens, of the longest suffix of `tail` found."""
        self._read()
        best: list[tuple[ContextArray, SuffixMatch]] = []
        longest = 0
        for array in self._arrays.values():
            match = array.find(tail, longest)
            if match.length > longest:
                best, longest = [], match.length
            if match.length:
                best.append((array, match))
        total = sum(len(match) for _, match in best)
        rows: list[list[int]] = []
        for array, match in best:  # each array in proportion to its occurrences
            rows += array.after(match, length=length, limit=max(1, limit * len(match) // total))
        return Continuations(longest, [self._whole(row) for row in rows[:limit]])

    def append(self, texts: Sequence[Sequence[int]]) -> None:
        """Adds texts, which later queries find. Raises InputError if they cannot be written; then none is added."""
        self._read()
        if self.limit is not None:  # keep only the end of a text that would fill the store
            texts = [text[-(self.limit // 2) :] for text in texts]
        added = ContextArray.build(texts)
        if not len(added):
            return
        if self.path is None:
            self._arrays = _joined(self._arrays, added, self.limit)
            return
        folder = self.path.expanduser()
        with files.writing(folder):
            index, known = files.read(folder, self._arrays)  # another process may have appended
            arrays = _joined(known, added, self.limit)
            index = replace(index, segments={name: len(array) for name, array in arrays.items()})
            files.write(folder, index, [(name, array) for name, array in arrays.items() if name not in known])
        self._index, self._arrays = index, arrays

    def _read(self) -> None:
        """Reads the folder, once. Raises InputError for a folder without texts, or with files of another version."""
        if not self._unread or self.path is None:
            return
        self._index, self._arrays = files.read(self.path.expanduser())
        if not any(map(len, self._arrays.values())):
            raise InputError(f"the store {self.path} is empty; make it again with specframe store build")
        self._unread = False

    def _whole(self, row: list[int]) -> list[int]:
        """Returns the tokens up to the end of their text."""
        for place, token in enumerate(row):
            if token >= self._index.vocabulary:
                return row[:place]
        return row


def build(folder: Path, texts: Sequence[Sequence[int]], target: Target) -> int:
    """Writes a store of texts in the target's tokens; returns their number. Raises InputError for no text."""
    array = ContextArray.build(texts)
    if not len(array):
        raise InputError("there is no text to store")
    if int(array.tokens[array.tokens < 0xFFFFFFFF].max(axis=0)) >= target.vocab_size:
        raise InputError(f"a text has a token outside the target's vocabulary of {target.vocab_size}")
    name = next(files.new_names())
    index = files.Index(target.vocab_size, fingerprint(target), {name: len(array)})
    with files.writing(folder):
        files.write(folder, index, [(name, array)])
    return len(array)


def fingerprint(target: Target) -> str | None:
    """Returns a fingerprint of the target's tokenizer, equal for equal vocabularies; None without a tokenizer."""
    tokenizer: Any = text_of(target).tokenizer
    if tokenizer is None:
        return None
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()[:16]


def _joined(arrays: dict[str, ContextArray], added: ContextArray, limit: int | None) -> dict[str, ContextArray]:
    """Adds an array and returns all, oldest first; new ones get new names.

    The last arrays are merged while they are small, or not twice as large as the next.
    """
    names = files.new_names(arrays)
    remaining = _shortened(arrays | {next(names): added}, limit, names)
    last = [remaining.popitem()[1]]
    while remaining and len(remaining[next(reversed(remaining))]) < max(SMALL, 2 * sum(map(len, last))):
        last.insert(0, remaining.popitem()[1])
    return remaining | {next(names): ContextArray.join(last) if len(last) > 1 else last[0]}


def _shortened(arrays: dict[str, ContextArray], limit: int | None, names: Iterator[str]) -> dict[str, ContextArray]:
    """Drops the oldest texts if the arrays have more tokens than the limit."""
    size = sum(map(len, arrays.values()))
    if limit is None or size <= limit:
        return arrays
    remaining: dict[str, ContextArray] = {}
    excess = size - limit * 7 // 8  # more than necessary, so that the next appends drop nothing
    for name, array in arrays.items():
        if excess <= 0:
            remaining[name] = array
        elif len(rest := array.without(excess)):
            remaining[next(names)] = rest
        excess -= len(array)
    return remaining
