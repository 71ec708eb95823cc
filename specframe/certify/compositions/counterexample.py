"""A counter-example as a tree: a branch of an enumeration with an error, and the draws that led to it.

A branch whose tokens have too much probability is run again; its cycles are recorded in the format of `specframe show`,
with each random choice and the line of code that requested it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from specframe.certify.compositions.branches import Forks, HiddenState, Scripts
from specframe.certify.compositions.controls import Around
from specframe.certify.compositions.emission import END, Comparison, Emission, marginal
from specframe.certify.compositions.enumeration import Outcome, enumerate_outcomes
from specframe.decoding.requests import pad
from specframe.decoding.session import Session
from specframe.inspect.detokenise import Wording
from specframe.inspect.recorder import Trace, TracedCycle, TracedToken
from specframe.inspect.trace import traced_cycle
from specframe.kernel.errors import SpecframeError
from specframe.kernel.types import Cycle
from specframe.sampling.laws import History

METHODS = ("open", "observe", "keep", "verify", "grow", "propose", "commit", "bind", "admit", "score")
"""The calls of a session to its parts, by which a message names the one that failed or decided."""
FOLDERS = tuple(Path(__file__).parents[2] / name for name in ("certify", "sampling", "decoding"))
"""Code that passes draws on, or asks parts for them."""
MOST, ALONE = 4000, 200
"""The most branches that are run in search of some, side by side and one at a time."""
CANDIDATES = 24
"""The most branches that are run again."""


@dataclass(frozen=True)
class Place:
    """A line of a part."""

    call: str
    """The session's call to the part, such as `Match.verify`."""
    file: str
    line: int


@dataclass(frozen=True)
class DrawnOption:
    """A random choice between several options."""

    place: Place
    law: tuple[float, ...]
    """Probability of each option; of a coin, of tails and heads."""
    option: int


@dataclass(frozen=True)
class Counterexample:
    """A branch that emits a token with another probability than the target gives it."""

    case: str
    before: Outcome
    """The continuation before the token with the wrong probability; its own distribution is correct."""
    token: int
    """The token, or END where the text ends."""
    wanted: float
    """The target's probability of the token there."""
    got: float
    """The composition's probability, or a lower bound if some branches were not run."""
    node: int
    """The draft's node that the token follows."""
    draws: tuple[DrawnOption, ...]
    """The choices of the last cycle."""
    decided: Place
    """Line of the verifier that drew last in that cycle; the beginning of its `verify` where it drew nothing."""
    trace: Trace
    """The branch as `specframe show` draws it, up to the cycle that emits the token."""

    @property
    def cycle(self) -> TracedCycle:
        """The cycle that emits the token."""
        return self.trace.cycles[-1]

    def as_dict(self) -> dict[str, Any]:
        """The counter-example as JSON can hold it."""
        return asdict(self)


class DrawnForks(Forks):
    """Forks that record what is drawn, and where."""

    def __init__(self, scripts: Scripts) -> None:
        super().__init__(scripts)
        self.drawn: list[DrawnOption] = []

    def _choose(self, law: Tensor) -> Tensor:
        """The inner choice."""
        picks = super()._choose(law)
        if len(law) and int((law[0] > 0).sum()) > 1:
            self.drawn.append(DrawnOption(place_of(sys._getframe()), tuple(law[0].tolist()), int(picks[0])))
        return picks


def call_of(frames: Iterable[FrameType]) -> str | None:
    """The innermost call of a session to a part, as `Class.method`, of frames from the innermost on; None: none."""
    for frame in frames:
        part = frame.f_locals.get("self")
        if frame.f_code.co_name in METHODS and part is not None and not isinstance(part, Session | Around):
            return f"{type(part).__name__}.{frame.f_code.co_name}"
    return None


def place_of(frame: FrameType | None) -> Place:
    """The innermost line of a part that the frame was called from."""
    frames = [*_outwards(frame)]
    files = [Path(one.f_code.co_filename) for one in frames]
    own = (one for one, file in zip(frames, files, strict=True) if not any(map(file.is_relative_to, FOLDERS)))
    line = next(own, frames[-1])
    return Place(call_of(frames) or "", Path(line.f_code.co_filename).name, line.f_lineno)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def find_counterexample(emission: Emission, comparison: Comparison) -> Counterexample | None:
    """The counter-example of an emission that differs from the target's; None if no branch can be replayed alone.

    A branch cannot be replayed if its parts depend on more than their draws, such as on other branches of the batch.
    A branch that draws the token as its bonus is preferred: if a rule is wrong after a rejection, the accepted
    occurrences of a token that is emitted too often may be correct.
    """
    if not comparison.prefix:
        return None
    prefix, wanted, got = _excess(emission, comparison)
    found: list[Counterexample] = []
    for rows in dict.fromkeys((comparison.enumeration.rows, 1)):
        with torch.inference_mode(), suppress(SpecframeError):
            for scripts in _branches(emission, prefix, rows, comparison.enumeration.branches):
                example = _replay(emission, scripts, prefix, wanted, got)
                if example.node == (0, *example.cycle.path)[-1]:
                    return example
                found.append(example)
        if found:
            return found[0]
    return None


def _excess(emission: Emission, comparison: Comparison) -> tuple[Outcome, float, float]:
    """The shortest beginning with too much probability, and the target's and the composition's for its last token."""
    length = len(comparison.prefix)
    with torch.inference_mode():
        law = emission.target_law()
    wanted, got = marginal(law, length), marginal(comparison.enumeration.law, length)
    prefix = max(got, key=lambda one: got[one] - wanted.get(one, 0.0))
    reached = marginal(law, length - 1).get(prefix[:-1], 0.0) or 1.0
    return prefix, wanted.get(prefix, 0.0) / reached, got[prefix] / reached


def _branches(emission: Emission, prefix: Outcome, rows: int, budget: int) -> list[Scripts]:
    """Likely branches whose outcomes begin so, of those that run side by side in `rows`."""
    beginning = torch.tensor(prefix)
    found: list[Scripts] = []

    def program(forks: Forks, count: int) -> Tensor:
        outcomes = emission.program(forks, count)
        matching = (outcomes[:, : len(prefix)] == beginning).all(1).nonzero()[:, 0]
        whole = forks.whole()
        chosen = Scripts(whole.choices[matching], whole.length[matching], whole.weight[matching]).sorted()
        found.extend(chosen.pieces(1) if len(chosen) else ())
        return outcomes

    enumerate_outcomes(program, budget=min(budget, MOST if rows > 1 else ALONE), rows=rows)
    return found[:CANDIDATES]


def _replay(emission: Emission, scripts: Scripts, prefix: Outcome, wanted: float, got: float) -> Counterexample:
    """Runs the one branch, and records its cycles up to the one that emits the prefix's last token."""
    forks = DrawnForks(scripts)
    cycles: list[tuple[Cycle, tuple[DrawnOption, ...]]] = []

    def watch(cycle: Cycle) -> None:
        cycles.append((cycle, tuple(forks.drawn)))
        forks.drawn.clear()

    outcome = replace(emission, watch=watch).program(forks, 1)
    forks.finish()
    if tuple(outcome[0, : len(prefix)].tolist()) != prefix:
        raise HiddenState("a branch that is run once more has another outcome")
    emitted = [cycle.verdict.to_host(cycle.draft).tokens[0] for cycle, _ in cycles]
    counts = [*map(len, emitted)]
    due = sum(token != END for token in prefix) or 1
    last = next(number for number in range(len(counts)) if sum(counts[: number + 1]) >= due)
    text, traced = [*emission.prompt], list[TracedCycle]()
    for number, (cycle, _) in enumerate(cycles[: last + 1]):
        law = emission.sampling.following(History(*pad([text]))).law(cycle.scores.logits, cycle.draft)[0]
        traced.append(traced_cycle(number, cycle, law, lambda path: None, counts[number], Wording(None), text))
        text += emitted[number]
    draws = cycles[last][1]
    verdicts = [drawn.place for drawn in draws if drawn.place.call.endswith(".verify")]
    return Counterexample(
        case=emission.name,
        before=prefix[:-1],
        token=prefix[-1],
        wanted=wanted,
        got=got,
        node=(0, *traced[-1].path)[due - 1 - sum(counts[:last])],
        draws=draws,
        decided=verdicts[-1] if verdicts else definition(emission.parts().verifier.verify),
        trace=branch_trace(emission.name, emission.prompt, emission.sampling.temperature, traced),
    )


def definition(method: Any) -> Place:
    """The line that a part's method begins at; its name alone where it is no function of Python's."""
    name = getattr(method, "__qualname__", type(method).__name__)
    code = getattr(method, "__code__", None)
    return Place(name, "", 0) if code is None else Place(name, Path(code.co_filename).name, code.co_firstlineno)


def branch_trace(case: str, prompt: Sequence[int], temperature: float, cycles: Sequence[TracedCycle]) -> Trace:
    """The cycles of a branch as a trace, whose tokens are numbers."""
    accepted, drafted = sum(len(cycle.path) for cycle in cycles), sum(len(cycle.nodes) - 1 for cycle in cycles)
    pieces = []
    for cycle in cycles:
        tokens = {node.index: node.token for node in cycle.nodes}
        pieces += [TracedToken(tokens[node], f" {tokens[node]}", "draft", cycle.number) for node in cycle.path]
        pieces.append(TracedToken(cycle.bonus.token, f" {cycle.bonus.token}", "bonus", cycle.number))
    return Trace(
        recipe=case,
        parts={},
        prompt=" ".join(map(str, prompt)),
        temperature=temperature,
        read_at=temperature,
        lossless=False,
        ended="length",
        tau=1 + accepted / len(cycles),
        alpha=(),
        reached=(),
        drafted=drafted,
        accepted=accepted,
        cycles=tuple(cycles),
        pieces=tuple(pieces),
    )
