"""The laws, the throughput and the plan in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specframe import InputError
from specframe.plugin import counted
from specframe_scaling.laws import Judged, Logit, TauLaw, judge
from specframe_scaling.planning import PlannedDrafter, Planner, Size
from specframe_scaling.points import Results
from specframe_scaling.resampling import interval, resample
from specframe_scaling.throughput import Knee, predictions


class ScalingReport:
    """Fitted results, and their presentation."""

    def __init__(self, results: Results, choices: int = 200) -> None:
        self.results = results
        sums = resample(results, choices)
        self.judged: Sequence[Judged] = judge(sums)
        logit = self.named("logit")
        assert isinstance(logit, Logit)
        self.planner = Planner(results, self.law, logit)

    @property
    def law(self) -> TauLaw:
        """The law with the least error at held-out points."""
        return self.judged[0].law

    def named(self, name: str) -> TauLaw:
        """Returns the law of a name."""
        return next(each.law for each in self.judged if each.law.name == name)

    def laws(self) -> str:
        """Returns a line for each law: its errors at held-out points, and its formula."""
        lines = ["law         error at the most tokens, held out   at the largest of them   formula"]
        for each in self.judged:
            lines.append(f"{each.law.name:<10}  {each.held_out:>36.1%}   {each.largest:>22.1%}   {each.law.words()}")
        return "\n".join(lines)

    def throughput(self) -> str:
        """Returns the law of tokens per second for each size, with its error and that of the measured pass times."""
        lines, passes = [], self.results.passes
        for size in self.results.sizes():
            speeds = [speed for speed in self.results.speeds if (speed.layers, speed.width) == size]
            if len(speeds) < 3:
                continue
            speeds.sort(key=lambda speed: speed.batch)
            measured = [speed.tokens_per_second for speed in speeds]
            knee = Knee.fit([speed.batch for speed in speeds], measured)
            line = (
                f"{words_of(size)}: tokens/s = {knee.a:.0f} {knee.b:+.0f} log2(batch) up to batch {knee.knee:.1f} "
                f"(off by {knee.error:.1%})"
            )
            if passes is not None:
                pairs = zip(predictions(passes, speeds), measured, strict=True)
                off = [abs(predicted / rate - 1) for predicted, rate in pairs]
                line += f"; by the times of passes, no fit: off by {np.mean(off):.1%}"
            lines.append(line)
        return "\n".join(lines)

    def extrapolation(self, tokens: float) -> str:
        """Returns the tau of each size after this number of tokens, and its distance from the measured ones."""
        lines = []
        for size, parameters in self.results.sizes().items():
            tau = self.law.tau(np.array([tokens]), np.array([float(parameters)]))[:, 0]
            low, high = interval(tau)
            lines.append(f"{words_of(size)} ({parameters:,} parameters): tau {tau[0]:.2f} [{low:.2f}, {high:.2f}]")
        return "\n".join([f"after {count(tokens)} tokens, by the law {self.law.name}:", *lines, self.distance(tokens)])

    def distance(self, tokens: float) -> str:
        """Returns a sentence about the measured range."""
        low, high = self.results.tokens.min(), self.results.tokens.max()
        measured = f"the measured {count(low)} to {count(high)} tokens"
        if low <= tokens <= high:
            return f"within {measured}"
        factor = tokens / high if tokens > high else low / tokens
        return f"OUTSIDE {measured}, by a factor of {factor:.1f}: an extrapolation"

    def plan(self, seconds: float) -> str:
        """Describes the drafter to train in a given time, and its predicted performance."""
        planner, batches = self.planner, self.planner.batches
        if not batches:
            raise InputError("the results have no cycles with every size, so no plan: measure with --batch 1,2,4,8,16")
        tokens = planner.within(seconds)
        best = planner.best(tokens, batches[0])
        size = best.size
        return "\n".join(
            [
                f"in {seconds / 60:.0f} minutes, at {self.results.tokens_per_second(size):,.0f} tokens/s: train "
                f"{count(best.tokens)} tokens at {words_of(size)}",
                f"expected tau {taus(best)}, {gain(best)} at batch {best.batch}, drafts of "
                f"{counted(best.depth, 'level')}",
                self._rest(best, batches[1:], tokens),
                self.distance(best.tokens),
            ]
        )

    def _rest(self, best: PlannedDrafter, batches: Sequence[int], tokens: object) -> str:
        found = [self.planner.plan(best.size, best.tokens, batch) for batch in batches]
        others = "; ".join(f"batch {each.batch}: {gain(each)}, {counted(each.depth, 'level')}" for each in found)
        last = self.planner.last_gain(best)
        if last is None:
            end = f"a gain at every batch that was timed, up to {self.planner.batches[-1]}"
        elif last == 0:
            end = "no gain at any batch"
        else:
            end = f"no gain beyond batch {last:.0f}"
        return f"{others}; {end}" if others else end


def words_of(size: Size) -> str:
    """Returns the size in words."""
    return f"{size[0]} layer{'s' if size[0] != 1 else ''} of width {size[1]}"


def count(tokens: float) -> str:
    """Formats a number of tokens."""
    for unit, least in (("M", 1e6), ("k", 1e3)):
        if tokens >= least:
            return f"{tokens / least:.3g}{unit}"
    return f"{tokens:.0f}"


def taus(choice: PlannedDrafter) -> str:
    """Formats tau and its interval."""
    low, high = choice.tau_interval
    return f"{choice.tau:.2f} [{low:.2f}, {high:.2f}]"


def gain(choice: PlannedDrafter) -> str:
    """Formats the speedup and its interval."""
    low, high = choice.speedup_interval
    return f"{choice.speedup:.2f} x [{low:.2f}, {high:.2f}]"
