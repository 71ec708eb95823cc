"""Adaptive drafts as deep as pays: in simulated texts, row by row, and as its literal restatement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from adaptive_parts import DEPTH, Q, begin, depth_of, linear, observe
from torch import Tensor

from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Cycle, Draw
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter, check_tree
from specframe_trees.adaptive import Adaptive
from specframe_trees.costs import cycle_costs
from tests.components.path_drafter import Ranked


def test_it_keeps_its_contract_and_its_draws_stand_an_audit() -> None:
    check_tree(lambda: Adaptive(costs=[1, 1.2, 1.4, 1.6], depth=3))
    check_tree(lambda: Adaptive(costs=[1, 1.2, 1.4], depth=2, widths=(2, 1), draw=Draw.WITHOUT_REPLACEMENT))


class Sociable(Adaptive):
    """Counts what its rows did together."""

    def observe(self, cycle: Cycle) -> None:
        super().observe(cycle)
        assert self._tried is not None and self._accepted is not None
        self._tried, self._accepted = (
            count.mean(0).expand_as(count).clone() for count in (self._tried, self._accepted)
        )


class Resentful(Adaptive):
    """Never forgets its last row."""

    old: tuple[Tensor | None, Tensor | None] = (None, None)

    def open(self, slots: int, room: int) -> None:
        self.old = (self._tried, self._accepted)
        super().open(slots, room)

    def observe(self, cycle: Cycle) -> None:
        super().observe(cycle)
        if cycle.committed.prompt is not None and self.old[0] is not None and self.old[1] is not None:
            rows = len(cycle.verdict.length)
            self._tried, self._accepted = (
                count[-1:].expand(rows, -1).clone() for count in self.old if count is not None
            )


@pytest.mark.parametrize(("policy", "message"), [(Sociable, "neighbours"), (Resentful, "forget")])
def test_the_kit_finds_what_an_observer_must_not_do(policy: type[Adaptive], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_tree(lambda: policy(costs=[1, 1.3, 1.6, 1.9], depth=3, memory=4.0), audited=False)


# --- simulated texts ------------------------------------------------------------------------------------


Phase = tuple[int, list[float]]
"""Tokens of text, and how often each level of a draft is accepted there, given the one above."""


class Texts:
    """A workload: phases of text one after the other, and what cycles cost."""

    def __init__(self, phases: list[Phase], costs: list[float]) -> None:
        self.length = torch.tensor([length for length, _ in phases])
        self.shares = torch.tensor([shares for _, shares in phases], dtype=torch.float64)  # [P, D]
        self.tau = torch.nn.functional.pad(self.shares.cumprod(1).cumsum(1), (1, 0)) + 1  # [P, D + 1]
        self.costs = torch.tensor(costs, dtype=torch.float64)

    def fixed(self) -> Tensor:
        """Expected tokens per cost of each fixed depth, [D + 1]: all phases are to be written."""
        return self.length.sum() / (self.length[:, None] * self.costs / self.tau).sum(0)

    def adaptive(self, policy: Adaptive, rows: int, seed: int = 0) -> Tensor:
        """The lengths that the policy's depths would give, row by row, [rows]; acceptance itself is drawn."""
        generator = torch.Generator().manual_seed(seed)
        drafter, root = GivenDrafter(Q), torch.zeros(rows, dtype=torch.int64)
        ends = self.length.cumsum(0)
        done = torch.zeros(rows, dtype=torch.int64)
        tokens, cost = torch.zeros(2, rows, dtype=torch.float64)
        begin(policy, rows)
        while bool((done < ends[-1]).any()):
            phase = torch.searchsorted(ends, done, right=True)
            running = done < ends[-1]
            phase = phase.clamp(max=len(ends) - 1)
            draft = policy.grow(drafter.expand, root, Context(Sampling(), Ranked()))
            depth = depth_of(draft)
            noise = torch.rand(rows, self.shares.shape[1], generator=generator, dtype=torch.float64)
            drafted = torch.arange(1, noise.shape[1] + 1) <= depth[:, None]
            length = ((noise < self.shares[phase]) & drafted).cumprod(1).sum(1)
            observe(policy, draft, length)
            tokens += self.tau[phase, depth] * running
            cost += self.costs[depth] * running
            done += length + 1
        return tokens / cost


def level(share: float, fall: float = 1.0) -> list[float]:
    return [share * fall**depth for depth in range(DEPTH)]


STEADY = {
    "poor": level(0.0),
    "hard": level(0.3),
    "fair": level(0.6),
    "easy": level(0.9),
    "falling": level(0.8, 0.85),
    "rising": [0.4, *level(0.8)[1:]],
}


@pytest.mark.sampled
@pytest.mark.parametrize("costs", [linear(0.02, 0.1), linear(0.02, 0.25)], ids=["cheap", "dear"])
@pytest.mark.parametrize("text", STEADY)
def test_on_steady_text_it_is_as_good_as_the_best_depth(text: str, costs: list[float]) -> None:
    texts = Texts([(400, STEADY[text])], costs)
    ratios = texts.adaptive(Adaptive(costs=costs, depth=DEPTH), rows=48) / texts.fixed().max()
    assert ratios.mean() > 0.97
    assert ratios.min() > 0.85, "and noise misleads no run by much"


@pytest.mark.parametrize("costs", [linear(0.02, 0.1), linear(0.02, 0.25)], ids=["cheap", "dear"])
def test_on_changing_text_it_is_as_good_and_with_long_phases_better_than_every_depth(costs: list[float]) -> None:
    short = Texts([(50, level(0.85)), (50, level(0.3))] * 4, costs)
    assert short.adaptive(Adaptive(costs=costs, depth=DEPTH), rows=48).mean() > 0.97 * short.fixed().max()
    long = Texts([(300, level(0.9)), (300, level(0.2))], costs)
    assert long.adaptive(Adaptive(costs=costs, depth=DEPTH), rows=48).mean() > 1.02 * long.fixed().max()


def test_a_depth_that_was_given_up_is_tried_again() -> None:
    costs = linear(0.02, 0.1)
    texts = Texts([(300, level(0.0)), (300, level(0.95))], costs)
    assert texts.adaptive(Adaptive(costs=costs, depth=DEPTH), rows=16).min() > 1.2 * texts.fixed().max()


def profiled(path: Path, costs: list[float], acceptance: list[list[float]]) -> Path:
    """A file as `specframe profile` writes it, for chains with these costs."""
    cycle = {depth + 1: cost for depth, cost in enumerate(costs)}
    path.write_text(
        json.dumps({"draft_seconds": 0.0, "block": 1, "cycle_seconds": cycle, "acceptance": acceptance}),
        encoding="utf-8",
    )
    return path


def test_a_profile_sets_where_short_answers_begin(tmp_path: Path) -> None:
    """The first level is dear here: who gives it up after two failures has lost an answer of 100 tokens."""
    costs = [1.0, 1.43, 1.72, 1.86, 2.0, 2.2, 2.41]
    file = profiled(tmp_path / "profile.json", costs, [[share] for share in level(0.75)])
    for share in (0.65, 0.75, 0.85):
        texts = Texts([(100, level(share))], costs)
        ratios = texts.adaptive(Adaptive(costs=file, depth=DEPTH), rows=96) / texts.fixed().max()
        assert ratios.mean() > 0.97
    poor = Texts([(400, level(0.1))], costs)
    ratios = poor.adaptive(Adaptive(costs=file, depth=DEPTH), rows=48) / poor.fixed().max()
    chosen = Adaptive(costs=file, depth=DEPTH).expected(torch.zeros(1, dtype=torch.int64)).argmax()
    assert poor.fixed()[chosen] < 0.6 * poor.fixed().max()
    assert ratios.mean() > 0.8, "and what the profile got wrong is found out"


def test_a_session_begins_with_the_profile_s_figures_of_the_shape(tmp_path: Path) -> None:
    timed = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    file = profiled(tmp_path / "profile.json", timed, [[0.5, 0.2, 0.1], [0.6, 0.3]])
    root = torch.zeros(1, dtype=torch.int64)
    tree = Adaptive(costs=file, depth=3, widths=(2, 1))
    beyond = 0.6 + (1 - 0.6) / 4
    tokens = torch.tensor([1, 1.7, 1.7 + 0.7 * 0.6, 1.7 + 0.7 * 0.6 * (1 + beyond)], dtype=torch.float64)
    assert torch.allclose(tree.expected(root)[0], tokens / torch.tensor([1.0, 1.2, 1.4, 1.6]))


@pytest.mark.parametrize("known", [[], [0.55]], ids=["guessed", "profiled"])
def test_it_is_its_literal_restatement(known: list[float], tmp_path: Path) -> None:
    """The same choices, one row at a time in plain Python."""
    costs, memory = linear(0.02, 0.2), 5.0
    generator = torch.Generator().manual_seed(1)
    file = profiled(tmp_path / "profile.json", costs, [[share] for share in known])
    policy, drafter = Adaptive(costs=file if known else costs, depth=DEPTH, memory=memory), GivenDrafter(Q)
    begin(policy, 3)
    captured: list[list[tuple[int, int]]] = [[], [], []]  # (drafted, accepted) of every cycle, row by row
    for _ in range(30):
        draft = policy.grow(drafter.expand, torch.zeros(3, dtype=torch.int64), Context(Sampling(), Ranked()))
        for row, depth in enumerate(depth_of(draft).tolist()):
            tau, way, guess, rates = 1.0, 1.0, 0.5, [1 / costs[0]]
            for at in range(1, DEPTH + 1):
                tried = accepted = 0.0
                for age, (drafted, length) in enumerate(reversed(captured[row])):
                    tried += (1 - 1 / memory) ** age * (at <= drafted and at <= length + 1)
                    accepted += (1 - 1 / memory) ** age * (at <= length)
                worth = 8 if at <= len(known) else 2
                share = (accepted + worth * (known[at - 1] if at <= len(known) else guess)) / (tried + worth)
                guess = share + (1 - share) / 4
                way *= share
                tau += way
                rates.append(tau / costs[at])
            assert depth == rates.index(max(rates))
        length = torch.randint(0, DEPTH + 1, (3,), generator=generator).minimum(depth_of(draft))
        observe(policy, draft, length)
        for row, pair in enumerate(zip(depth_of(draft).tolist(), length.tolist(), strict=True)):
            captured[row].append(pair)
    assert len({drafted for drafted, _ in captured[0]}) > 3, "else this compares nothing"


# --- costs ----------------------------------------------------------------------------------------------


def test_a_forward_over_more_nodes_never_costs_less():
    timed = {1: 10.0, 2: 13.0, 3: 19.0, 4: 16.0, 5: 13.0, 6: 20.0}
    assert cycle_costs([1, 2, 3, 4, 5, 6], draft_seconds=0.0, cycle_seconds=timed) == [10, 13, 16, 16, 16, 20]
    falling = {1: 3.0, 2: 2.0, 3: 1.0}
    assert cycle_costs([1, 2, 3], draft_seconds=0.5, cycle_seconds=falling) == [2.0, 2.5, 3.0]


def test_costs_are_read_off_between_the_sizes_that_were_timed(tmp_path: Path) -> None:
    timed = {4: 10.0, 2: 8.0, 8: 18.0}
    costs = cycle_costs([1, 2, 3, 4, 6], draft_seconds=1.0, cycle_seconds=timed, block=2)
    assert costs == [8.0, 9.0, 10.0, 12.0, 16.0]
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"draft_seconds": 1.0, "block": 2, "cycle_seconds": timed, "acceptance": []}))
    tree = Adaptive(costs=file, depth=2, widths=(1, 2))
    listed = Adaptive(costs=[8.0, 9.0, 11.0], depth=2, widths=(1, 2))
    root = torch.zeros(1, dtype=torch.int64)
    assert torch.equal(tree.expected(root), listed.expected(root))
    with pytest.raises(InputError, match="no cycle with more than 8 was timed"):
        Adaptive(costs=file, depth=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"costs": [1.0], "depth": 0}, "at least 1"),
        ({"costs": [1.0, 2.0], "depth": 1, "widths": ()}, "width of at least 1"),
        ({"costs": [1.0, 2.0], "depth": 1, "widths": (0,)}, "at least 1"),
        ({"costs": [1.0, 2.0], "depth": 2}, "3 positive numbers"),
        ({"costs": [1.0, 0.0], "depth": 1}, "2 positive numbers"),
        ({"costs": [1.0, 2.0], "depth": 1, "memory": 0.5}, "at least 1"),
        ({"costs": Path("nowhere.json")}, "cannot read the costs"),
    ],
)
def test_broken_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Adaptive(**options)
    assert Adaptive(costs=[1.0, 2.0], depth=1, memory=1.0).promise.nodes == 2, "the smallest options are options"
