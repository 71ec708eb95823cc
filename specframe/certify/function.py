"""The certificate of a single acceptance function: compares the law of its emitted tokens with the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import getfile, signature
from pathlib import Path
from typing import Any, Protocol

import torch

from specframe.certify.compositions.emission import Comparison, compare
from specframe.certify.compositions.enumeration import Enumeration, EnumerationProgress, Outcome
from specframe.components.targets.table import TableTarget
from specframe.files.text import counted
from specframe.kernel.errors import InputError, SpecframeError, raised_at
from specframe.recipes.discovery import discover
from specframe.recipes.registry import load_local

NEARLY = 1e-6
"""Total variation below this may be float32 rounding in the foreign code."""
LENGTHS = (3, 2)
"""The first tokens whose joint law is compared: fewer where more are out of the budget's reach."""
SEEDS = 3
COMMAND, PACKAGE = "specframe certify --against", "specframe-against"
VOCAB = 3


class ForeignFunction(Protocol):
    """An acceptance function over laws of the next token after a context: the extension `against`."""

    def enumerate(self, *, budget: int, progress: Callable[[EnumerationProgress], None] | None) -> Enumeration:
        """The law of the first tokens that the function emits."""

    def sample(self, samples: int, seed: int, progress: Callable[[int], None] | None) -> dict[str, Any]:
        """A test of the first tokens that `samples` runs emit."""

    def target_law(self) -> dict[Outcome, float]:
        """The law of the first tokens by sampling from the target."""


def certify_function(where: str, budget: int, listener: Callable[[str, EnumerationProgress], None]) -> dict[str, Any]:
    """The certificate of the function `path.py:function`; the listener is called with each case's progress."""
    accept = load_function(where)
    found: list[dict[str, Any]] = []
    for seed in range(SEEDS):
        for length in LENGTHS:
            name = f"laws {seed}" + (f", {length} tokens" if length < LENGTHS[0] else "")
            progress = partial(listener, name)
            comparison = compare_function(accept, seed=seed, length=length, budget=budget, progress=progress)
            run = comparison.enumeration
            if run.exhausted or run.interrupted or comparison.tv >= NEARLY:
                break
        found.append(
            {
                "name": name,
                "tokens": length,
                "tv": comparison.tv,
                "first_token_tv": comparison.first_tv,
                "exhausted": run.exhausted,
                "branches": run.branches,
                "mass": run.mass,
                "worst_sequence": list(comparison.worst),
                "wanted": comparison.wanted,
                "got": comparison.got,
            }
        )
    worst = max(found, key=lambda case: case["tv"])
    lossless = worst["tv"] < NEARLY and all(case["exhausted"] for case in found)
    summary = {"function": where, "lossless": lossless, "different": worst["tv"] >= NEARLY} | worst | {"cases": found}
    del summary["name"]
    return summary


def sample_function(where: str, samples: int, announce: Callable[[str], None]) -> dict[str, Any]:
    """Tests the function `path.py:function` by runs with random numbers of its own, for code that cannot be enumerated.

    Raises what `certify_function` raises.
    """
    accept = load_function(where)
    found: list[dict[str, Any]] = []
    for seed in range(SEEDS):
        name, foreign = f"laws {seed}", _foreign(accept, seed, LENGTHS[0])
        with _failures(foreign):
            found.append({"name": name, **foreign.sample(samples, seed, partial(_announce, announce, name))})
    return {"function": where, "different": any(case["refused"] for case in found), "cases": found}


def compare_function(
    accept: Callable[..., Any],
    *,
    seed: int = 0,
    length: int = 3,
    budget: int = 200_000,
    progress: Callable[[EnumerationProgress], None] | None = None,
) -> Comparison:
    """The law of the first tokens that a function emits over iterated cycles, compared with the target's.

    Raises InputError for a function that fails or cannot be enumerated, and PluginError without specframe-against.
    """
    foreign = _foreign(accept, seed, length)
    with _failures(foreign):
        run = foreign.enumerate(budget=budget, progress=progress)
    return compare(foreign.target_law(), run)


def _announce(announce: Callable[[str], None], name: str, done: int) -> None:
    announce(f"{name}: {counted(done, 'run')}")


def _foreign(accept: Callable[..., Any], seed: int, length: int) -> ForeignFunction:
    """The function over random laws."""
    kind: Callable[..., ForeignFunction]
    kind = discover().extension("against", COMMAND, PACKAGE)
    return kind(accept, table_law(seed), table_law(seed + 1000), vocab=VOCAB, length=length, tolerance=NEARLY)


@contextmanager
def _failures(foreign: ForeignFunction) -> Iterator[None]:
    """Raises InputError, with the place in the function's file, for what the function raises."""
    try:
        yield
    except SpecframeError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"the function failed at {raised_at(error, Path(getfile(type(foreign))).parent)}") from error


def table_law(seed: int) -> Callable[[Outcome], tuple[float, ...]]:
    """The law of the next token after a context, by a random table."""
    table = TableTarget(vocab=VOCAB, seed=seed)

    def law(context: Outcome) -> tuple[float, ...]:
        logits = table.logits_after(torch.tensor([context]))[0]
        return tuple(logits.double().softmax(-1).tolist())

    return law


def load_function(where: str) -> Callable[..., Any]:
    """The function of `path.py:function`. Raises InputError or PluginError when there is none."""
    file, colon, name = where.rpartition(":")
    if not colon or not file:
        raise InputError(f"'{where}' is not of the form path.py:function")
    function = load_local(Path(file), name)
    if not callable(function):
        raise InputError(f"'{name}' of {file} is not a function")
    accept: Callable[..., Any] = function
    try:
        signature(accept).bind(None, None, None)
    except TypeError as error:
        raise InputError(f"{where} is called with (paths, p, q), which it does not take: {error}") from None
    except ValueError:
        pass  # a function in C has no signature to look at
    return accept


def certify_server(
    url: str,
    samples: int,
    model: str | None,
    texts: Sequence[str],
    body: Mapping[str, Any],
    announce: Callable[[str], None],
) -> dict[str, Any]:
    """Tests the tokens that a running server emits; raises PluginError without specframe-against."""
    probe = discover().extension("server", COMMAND, PACKAGE)
    found: dict[str, Any] = probe(url, samples, model, texts, body, announce)
    return found
