"""Cost of forward passes on this machine: read from a file, or timed once and kept."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
import torch

from specframe.decoding.clock import Clock
from specframe.decoding.exclusive import exclusive_use
from specframe.decoding.overlap import using
from specframe.decoding.requests import Request, budget
from specframe.decoding.session import Parts, Session
from specframe.decoding.settings import RunSettings
from specframe.decoding.timing import watch
from specframe.files.provenance import write_json
from specframe.kernel.capabilities import small_form
from specframe.kernel.composition import timed_in
from specframe.kernel.costs import Costs
from specframe.kernel.errors import InputError, SpecframeError
from specframe.kernel.interfaces import Observer, text_of
from specframe.kernel.types import GreedyScores, KnownPrefix, Prompts, TokenTree, Verdict
from specframe.native.build import processor
from specframe.recipes.folders import cache_folder
from specframe.sampling.laws import first_argmax

log = logging.getLogger(__name__)

EDITION = 11
"""Version of the timing method, raised when it changes: results of earlier versions are ignored."""
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Numbers of nodes of the timed forward passes."""
CONTEXT = 128
"""Number of committed tokens after which they are timed."""
LONGER = (1024, 4096, 8000)
"""Further numbers of committed tokens, within the target's context, timed with fewer sizes and repeats."""
LONGER_SIZES = (1, 2, 4, 8, 16)
ROUNDS = 3
"""Rounds over all sizes: a shared machine is faster for seconds at a time, and small passes, which are bound by memory
bandwidth, gain more by that than large ones."""
PASSES, LONGER_PASSES = 4, 1
"""Timed passes of each size in a round."""
SETTLING, LONGER_SETTLING = 0.1, 0.05
"""Seconds of untimed passes of a size before the timed ones: for this long a processor may be slower after larger
passes, and faster after smaller ones, than in the steady state."""
FURTHER = ("draft_row", "row", "row_drafted", "read")
"""Times of further rows and of reading, which a file may leave out."""
LARGEST = 2**30
"""Bytes of keys and values beyond which a number of committed tokens is not timed."""
DRAFTED, RUNS, SHORT = 16, 3, 16
"""Tokens decoded to time the drafter, number of timed runs, and tokens of the short prompt."""
MANY = 8
"""Number of rows with which target and drafter are timed, in addition to one."""
BUSY, GLANCE = 20.0, 0.2
"""Percentage of processor time taken by other programs that makes a machine busy, and seconds of its measurement."""


def costs_of(parts: Parts, run: RunSettings, drafter: object = None) -> Costs | None:
    """The costs that `run.costs` names. Raises InputError for a file without any.

    `drafter` identifies the drafter, as a recipe's section does; None: its class identifies it.

    They are for the current number of rows if a row's text does not depend on its drafts; otherwise for `run.batch`
    rows, so that a row's random numbers do not depend on its neighbours.
    """
    if run.costs is None:
        return None
    costs = read_costs(run.costs) if isinstance(run.costs, Path) else measured_costs(parts, drafter)
    by_position = parts.verifier.needs.by_position
    return costs if costs is None or by_position else replace(costs, rows=run.batch)


def read_costs(path: Path) -> Costs:
    """The costs in a file of `specframe profile --out`, or in a cached one. Raises InputError for any other file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        longer = {int(tokens): _sizes(passes) for tokens, passes in found.get("longer", {}).items()}
        costs = Costs.of(_sizes(found["cycle_seconds"]), float(found["draft_seconds"]))
        draft_row, row, row_drafted, read = (float(found.get(f"{name}_seconds", 0.0)) for name in FURTHER)
        costs = replace(costs, draft_row=draft_row, row=row, row_drafted=row_drafted, read=read)
        return _with_longer(costs, longer)
    except OSError as error:
        raise InputError(f"cannot read the costs in {path}: {error.strerror}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}; time it with `specframe profile --sizes 1,2,4,8,16`") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no costs: expected what `specframe profile --out` writes") from error


def _sizes(passes: Mapping[str, Any]) -> dict[int, float]:
    return {int(size): float(seconds) for size, seconds in passes.items()}


def _with_longer(costs: Costs, longer: Mapping[int, Mapping[int, float]]) -> Costs:
    """The costs with those of passes after more committed tokens."""
    passes = tuple((tokens, Costs.of(seconds).passes) for tokens, seconds in sorted(longer.items()))
    return replace(costs, context=CONTEXT, longer=passes) if passes else costs


def measured_costs(parts: Parts, drafter: object = None) -> Costs | None:
    """The costs of forward passes of target and drafter on this machine, timed once and cached.

    They are stored in specframe's cache folder, by kind of model, drafter, processor and number of threads. The
    target's are also stored separately, so that only a new drafter is timed. Times of a busy machine are taken again
    once it is idle. None where costs do not decide a tree's size: on an accelerator, and for targets without a
    fingerprint.
    """
    target = parts.target
    text = text_of(target)
    model = text.fingerprint()
    if model is None or text.device is None or text.device.type != "cpu":
        return None
    name = json.dumps(drafter or type(parts.drafter).__name__, sort_keys=True, default=str)
    with using(parts.threads.target if parts.threads else None):
        machine_key = (processor(), torch.get_num_threads())
        notes, machine = cache_folder() / "costs", Machine()
        note = notes / f"{_digest(EDITION, model, name, MANY, *machine_key)}.json"
        if (cached := _cached_costs(note, machine)) is not None:
            return cached
        busy = machine.busy  # before anything is timed
        passes = _passes(target, notes / "passes" / f"{_digest(EDITION, model, *machine_key)}.json", machine)
        (one, short), (many, _) = (_draft_seconds(parts, rows, SHORT) for rows in (1, MANY))
        length = min(CONTEXT, parts.target.context // 2)
        read = max(_draft_seconds(parts, 1, length)[1] - short, 0.0) / max(length - SHORT, 1)
        costs = replace(passes, draft=one, draft_row=max(many - one, 0.0) / (MANY - 1), read=read)
    _keep(note, costs, busy)
    return costs


class Machine:
    """The state of the machine, measured once, at the first access."""

    @cached_property
    def busy(self) -> float:
        """Percentage of processor time that other programs take; the measurement sleeps for `GLANCE` seconds."""
        share: float = psutil.cpu_percent(GLANCE)
        return share


def _cached_costs(note: Path, machine: Machine) -> Costs | None:
    """The costs in a cache file; None if it is missing or damaged, or was timed while the now idle machine was busy."""
    try:
        costs = read_costs(note)
        then = float(json.loads(note.read_text(encoding="utf-8")).get("busy", 0.0))
    except (InputError, OSError, ValueError, TypeError):
        return None
    if then >= BUSY > machine.busy:
        log.info("costs were timed when other programs took %.0f%% of the processors; they are timed again", then)
        return None
    return costs


def _passes(target: Any, note: Path, machine: Machine) -> Costs:
    """The costs of a target's forward passes, cached for all drafters."""
    if (cached := _cached_costs(note, machine)) is not None:
        return cached
    with exclusive_use(target):
        seconds = time_forwards(target, [size for size in SIZES if size <= max(target.context // 4, 1)])
        longer = time_longer(target)
        together = time_forwards(target, (1, 2), MANY)
    costs = _with_longer(Costs.of(seconds, 0.0), longer)
    plain, drafted = (
        max(together[n] - costs.single_row.score(n * MANY) * costs.passes[0][1], 0.0) / (MANY - 1) for n in (1, 2)
    )
    costs = replace(costs, row=plain, row_drafted=max(drafted - plain, 0.0))
    _keep(note, costs, machine.busy)
    return costs


def _keep(note: Path, costs: Costs, busy: float) -> None:
    """Writes a cache file; if the cache cannot be written, only the next start is slower."""
    with suppress(SpecframeError):
        longer = {tokens: dict(passes) for tokens, passes in costs.longer}
        times = {"cycle_seconds": dict(costs.passes), "longer": longer, "draft_seconds": costs.draft}
        times |= {f"{name}_seconds": getattr(costs, name) for name in FURTHER}
        write_json(note, {**times, "busy": busy})


def time_forwards(target: Any, sizes: Iterable[int], rows: int = 1) -> dict[int, float]:
    """The seconds of a forward pass by number of nodes of each row, after texts of 128 tokens.

    With a shorter context the text takes half of it.
    """
    length = min(CONTEXT, target.context // 2)
    text = (torch.arange(1, length + 1, device=target.device)[None] % target.vocab_size).repeat(rows, 1)
    prompts = Prompts(text, torch.full((rows,), length, device=target.device))
    return _timed(target, prompts, sizes, PASSES, SETTLING)


def time_longer(target: Any) -> dict[int, dict[int, float]]:
    """The seconds after more committed tokens, by random keys and values without reading a text, where they fit."""
    found: dict[int, dict[int, float]] = {}
    for length in LONGER:
        if length + max(LONGER_SIZES) >= target.context:
            break
        with suppress(SpecframeError):
            found[length] = _timed(target, _imagined(target, length), LONGER_SIZES, LONGER_PASSES, LONGER_SETTLING)
    return found


@torch.inference_mode()
def _imagined(target: Any, length: int) -> Prompts:
    """A prompt of `length` tokens, all but the last of which have random keys and values as a known prefix."""
    text = torch.arange(1, length + 1, device=target.device)[None] % target.vocab_size
    target.open(1, 4)
    tree, scores = target.admit(Prompts(text[:, :1], torch.ones(1, dtype=torch.int64, device=target.device)))
    features = {tap: values[:, :1].expand(-1, length - 1, -1) for tap, values in scores.features.items()}
    target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros_like(text[:, 0]), tree.tokens[:, 0]))
    keys = target.memory().copy(0, 1)  # [2 * layers, heads of keys, 1, D]
    if keys.nbytes * length > LARGEST:
        raise InputError(f"{length} tokens' keys and values are too large to be made up")
    noise = torch.Generator().manual_seed(0)
    memory = torch.randn(*keys.shape[:2], length - 1, keys.shape[3], generator=noise).to(keys)
    prefix = KnownPrefix(text[0, :-1].tolist(), memory, features)
    return Prompts(text, torch.tensor([length], device=target.device), prefixes=[prefix])


@torch.inference_mode()
def _timed(target: Any, prompt: Prompts, sizes: Iterable[int], passes: int, settling: float) -> dict[int, float]:
    """The seconds of a forward pass after a prompt by number of nodes: the median of the rounds' minima.

    In a round the passes of one size follow each other, as in decoding; alternating sizes would seem to cost nearly
    the same. The minimum is taken since, within a round, other programs make a pass slower, never faster.
    """
    times: dict[int, list[float]] = {size: [] for size in sorted(sizes)}
    target.open(len(prompt.tokens), prompt.tokens.shape[1] + 1 + max(times))
    tree, _ = target.admit(prompt)
    nothing = torch.zeros(len(prompt.tokens), dtype=torch.int64, device=target.device)
    target.commit(tree, Verdict(tree.tokens[:, :0], nothing, tree.tokens[:, 0]))
    for size in [*times] * ROUNDS:
        begin, found = perf_counter(), list[float]()
        while len(found) < passes:
            start = perf_counter()
            _likeliest(target, _chain(tree.tokens[:, 0], size)).tolist()
            if start > begin + settling:
                found.append(perf_counter() - start)
        times[size].append(min(found))
    return {size: median(found) for size, found in times.items()}


def _likeliest(target: Any, tree: TokenTree) -> torch.Tensor:
    """The argmax tokens after a tree's nodes, as a cycle of greedy decoding finds them."""
    scores = text_of(target).choose(tree)
    return scores.best if isinstance(scores, GreedyScores) else first_argmax(scores.logits)


def _chain(root: torch.Tensor, nodes: int) -> TokenTree:
    tokens = root[:, None].expand(-1, nodes).contiguous()
    parent = torch.arange(-1, nodes - 1, device=root.device).expand_as(tokens)
    return TokenTree(tokens, parent, torch.ones_like(tokens).bool(), torch.zeros_like(tokens), levels=nodes - 1)


def _draft_seconds(parts: Parts, rows: int, length: int) -> tuple[float, float]:
    """The seconds of a drafter's forward pass after prompts of that length, and of the passes of its first cycle.

    Both are 0 if no tree policy is grown. The first cycle reads the prompts; later ones differ in what is accepted.

    Several rows are timed with the small form of the tree, since rows that choose together draft few nodes.

    A wrapper of other drafters is timed by one of them: see `timed_in`. A drafter that learns from or remembers decoded
    text is not timed.
    """
    target, (drafter, tree) = parts.target, timed_in(parts.drafter, parts.tree)
    if tree is None or isinstance(drafter, Observer):
        return 0.0, 0.0
    untimed = replace(parts, drafter=drafter, tree=tree if rows == 1 else small_form(tree), costs=None)
    prompt = [token % target.vocab_size for token in range(1, min(length, target.context // 2) + 1)]
    request = Request(tokens=prompt, max_new_tokens=DRAFTED)
    room = len(prompt) + budget(request, target.context, 0) + untimed.nodes
    found, first = list[float](), list[float]()
    for _ in range(1 + RUNS):  # the first warms up
        clock, sums = Clock(), list[float]()
        with exclusive_use(target), watch(untimed, clock) as timed:
            session = Session(timed, rows, room, clock=clock)
            session.admit([request] * rows)
            while session.live:
                session.step()
                sums.append(clock.seconds["drafter"])
        first.append(sums[0] if sums else 0.0)
        found.append(clock.seconds["drafter"] / max(clock.calls["drafter"], 1))
    return median(found[1:]), median(first[1:])


def _digest(*parts: object) -> str:
    """A file name derived from a hash of the parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
