"""Logits processors of unknown kind, called along each path of a tree as `generate` calls them token by token."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from specframe import InputError

REMEMBERED = 128
"""Number of tokens after a text for which states are kept: no tree is deeper."""
PLAIN = (int, float, str, bytes, bool, type(None), list, tuple, dict, set)
"""Types of a function's variables in which a state is looked for."""

Text = tuple[int, ...]


@dataclass(frozen=True)
class _Asked:
    """A processor after it was called for a text; None if a banned token made that impossible."""

    processor: Any
    allowed: Tensor  # [V] bool


class Forked:
    """One row's copies of a processor that may keep a state: each node's copy continues that of its parent.

    `generate` calls a processor once for every token, with the row at its index in the batch. Each copy here sees
    exactly these calls: for all texts from the prompt to its node's and no others, with the batch's number of rows. The
    caller's object is not changed.

    Raises InputError for a processor that cannot be copied, that gives two answers to one call, or that fails.
    """

    def __init__(self, processor: Any, row: int, rows: int) -> None:
        """Creates the processor for a row of a batch of `rows` rows."""
        self._first = processor
        self._row = row
        self._rows = rows
        self._asked: dict[Text, _Asked] = {}

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Returns the processed scores [N, V] of nodes with tokens [N, T]."""
        texts = [tuple(text) for text in tokens.tolist()]
        self._forget(texts)
        return torch.stack([self._ask(text, *pair) for text, *pair in zip(texts, tokens, scores, strict=True)])

    def _ask(self, text: Text, tokens: Tensor, scores: Tensor) -> Tensor:
        parent = self._parent(text, tokens, scores)
        if parent is not None and parent.processor is None:
            self._asked[text] = parent  # below a banned token: never reached
            return scores
        if parent is None:
            self._try(tokens, scores)
        processor = fork(self._first if parent is None else parent.processor)
        try:
            answer = self._call(processor, tokens, scores)
        except InputError:
            raise
        except Exception as error:
            if parent is None or parent.allowed[text[-1]]:
                raise InputError(f"{self._name} failed: {type(error).__name__}: {error}") from error
            processor, answer = None, scores
        self._asked[text] = _Asked(processor, answer > -torch.inf)
        return answer

    def _try(self, tokens: Tensor, scores: Tensor) -> None:
        """Raises InputError for a processor whose copies differ, or that cannot be copied after its first call."""
        twins = fork(self._first), fork(self._first)
        try:
            answers = [self._call(twin, tokens, scores) for twin in twins]
        except InputError:
            raise
        except Exception:
            return  # the actual call will fail with the reason
        if not torch.equal(*answers):
            raise InputError(f"{self._name} gives two answers to one question, which no draft can be verified by")
        require_copies(twins[0])

    def _parent(self, text: Text, tokens: Tensor, scores: Tensor) -> _Asked | None:
        """Returns the processor after its call for the text before the last token; None for the very first text."""
        known = self._asked.get(text[:-1])
        if known is not None or not self._asked:
            return known
        if not any(text[:size] in self._asked for size in range(len(text))):
            return None
        # A drafter may skip levels. Its proposals are verified in any case, so scores on the way are arbitrary.
        self._ask(text[:-1], tokens[:-1], scores)
        return self._asked[text[:-1]]

    def _call(self, processor: Any, tokens: Tensor, scores: Tensor) -> Tensor:
        """Returns the processor's answer for this row, which is at its index in the batch: [V]."""
        batch = tokens.expand(self._rows, -1).clone(), scores.expand(self._rows, -1).clone()
        before = _variables(processor)
        answer: Tensor = processor(*batch)[self._row]
        if _variables(processor) != before:
            raise InputError(
                f"{self._name} is a function that changes variables around it, of which there can be no copy for every "
                "path of a draft; make it a class that keeps its state in attributes"
            )
        return answer

    def _forget(self, texts: list[Text]) -> None:
        """Drops the states of texts that can no longer be continued."""
        size = len(texts[0])
        restarts = len(texts) == 1 and any(len(known) > size for known in self._asked)
        self._asked = {
            known: asked
            for known, asked in self._asked.items()
            if len(known) >= size - REMEMBERED and (not restarts or known == texts[0][: len(known)])
        }

    @property
    def _name(self) -> str:
        kind = self._first if isinstance(self._first, FunctionType) else type(self._first)
        return f"the logits processor {kind.__name__}"


def fork(processor: Any) -> Any:
    """Copies a processor in its present state: by its `fork`, by `deepcopy`, or by copies of all that it contains.

    Its contents are forked if possible; objects without a copy, such as a compiled grammar, are shared.
    """
    if hasattr(processor, "fork"):
        return processor.fork()
    try:
        return copy.deepcopy(processor)
    except Exception:
        twin = copy.copy(processor)
        vars(twin).update({name: _fork_value(value) for name, value in vars(processor).items()})
        return twin


def require_copies(processor: Any) -> None:
    """Raises InputError for a processor that cannot be copied, and contains nothing that can be forked instead."""
    if hasattr(processor, "fork"):
        return
    try:
        copy.deepcopy(processor)
    except Exception as error:
        if hasattr(processor, "__dict__") and any(_holds_forkable(value) for value in vars(processor).values()):
            return
        name = type(processor).__name__
        raise InputError(
            f"the logits processor {name} cannot be copied ({error}), and a draft needs its state on every path: give "
            "it a method fork() that returns a copy"
        ) from error


def _holds_forkable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_forkable(each) for each in value)
    return hasattr(value, "fork")


def _fork_value(value: Any) -> Any:
    if hasattr(value, "fork"):
        return value.fork()
    if isinstance(value, list | tuple):
        return type(value)(_fork_value(each) for each in value)
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _variables(processor: Any) -> bytes:
    """Returns the plain values of a function's closure variables; empty for anything else."""
    if not isinstance(processor, FunctionType):
        return b""
    names = {name: processor.__globals__.get(name) for name in processor.__code__.co_names}
    cells = [cell.cell_contents for cell in processor.__closure__ or ()]
    found = [value for value in [*cells, *names.values()] if isinstance(value, PLAIN)]
    try:
        return pickle.dumps(found)
    except Exception:
        return b""
