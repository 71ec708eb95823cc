"""Logits processors of unknown kind, asked along each path of a tree as `generate` asks them token by token."""

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
"""Tokens after a text within which states are kept: no tree is deeper."""
PLAIN = (int, float, str, bytes, bool, type(None), list, tuple, dict, set)
"""Types of a function's variables in which a state is looked for."""

Text = tuple[int, ...]


@dataclass(frozen=True)
class _Asked:
    """A processor after it was asked about a text; None where a banned token made that impossible."""

    processor: Any
    allowed: Tensor  # [V] bool


class Forked:
    """One row's copies of a processor that may keep a state: each node's continues that of the node above it.

    `generate` asks a processor once for every token, with the row at its place in the batch. So is each copy here: it
    has been asked about all texts from the prompt to its node's and no others, each time with as many rows as the
    batch has. The caller's own object stays as it is.

    Raises InputError for a processor that cannot be copied, that gives two answers to one question, or that fails.
    """

    def __init__(self, processor: Any, row: int, rows: int) -> None:
        """The processor for a row of a batch of so many rows."""
        self._first = processor
        self._row = row
        self._rows = rows
        self._asked: dict[Text, _Asked] = {}

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """The processed scores [N, V] of nodes with tokens [N, T]."""
        texts = [tuple(text) for text in tokens.tolist()]
        self._forget(texts)
        return torch.stack([self._ask(text, *pair) for text, *pair in zip(texts, tokens, scores, strict=True)])

    def _ask(self, text: Text, tokens: Tensor, scores: Tensor) -> Tensor:
        parent = self._parent(text, tokens, scores)
        if parent is not None and parent.processor is None:
            self._asked[text] = parent  # after a banned token: never reached
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
        """Raises InputError for a processor whose copies differ, or that has none once it was asked."""
        twins = fork(self._first), fork(self._first)
        try:
            answers = [self._call(twin, tokens, scores) for twin in twins]
        except InputError:
            raise
        except Exception:
            return  # as the question itself will, which names the reason
        if not torch.equal(*answers):
            raise InputError(f"{self._name} gives two answers to one question, which no draft can be verified by")
        require_copies(twins[0])

    def _parent(self, text: Text, tokens: Tensor, scores: Tensor) -> _Asked | None:
        """The processor as it was asked about the text before the last token; None for the first text of all."""
        known = self._asked.get(text[:-1])
        if known is not None or not self._asked:
            return known
        if not any(text[:size] in self._asked for size in range(len(text))):
            return None
        # A drafter may skip levels. What it proposes is verified all the same, so any scores do on the way.
        self._ask(text[:-1], tokens[:-1], scores)
        return self._asked[text[:-1]]

    def _call(self, processor: Any, tokens: Tensor, scores: Tensor) -> Tensor:
        """The processor's answer for this row, which stands at its place of the batch: [V]."""
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
        """Forgets the states of texts that can no longer be continued."""
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
    """A copy of a processor in its present state: by its `fork`, by `deepcopy`, or by copies of all that it holds.

    What it holds is forked where it can be; what has no copy, such as a compiled grammar, is shared.
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
    """Raises InputError for a processor that has no copy, and holds nothing that can be forked in its place."""
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
    """The plain values of the variables that a function has taken from around it; empty for anything else."""
    if not isinstance(processor, FunctionType):
        return b""
    names = {name: processor.__globals__.get(name) for name in processor.__code__.co_names}
    cells = [cell.cell_contents for cell in processor.__closure__ or ()]
    found = [value for value in [*cells, *names.values()] if isinstance(value, PLAIN)]
    try:
        return pickle.dumps(found)
    except Exception:
        return b""
