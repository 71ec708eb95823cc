"""Adaptive drafts as deep as pays: in simulated texts, row by row, and certified over cycles that remember."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specframe.certify.compositions.emission import Comparison, Emission
from specframe.components.targets.table import TableTarget
from specframe.components.trees.recording import WatchedTree
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.session import Parts
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Observer, Verifier
from specframe.kernel.types import Context, Cycle, Draw, Prompts, TokenTree, Verdict
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter, GivenTarget, audit, check_tree
from specframe.testing.policies import cycle_of
from specframe_trees.adaptive import Adaptive
from specframe_trees.costs import cycle_costs
from tests.certify.traps.traps_drafting import own_law
from tests.components.path_drafter import Ranked

WARM = Sampling(temperature=1.0)
Q = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
DEPTH = 6


def begin(policy: Adaptive, rows: int) -> None:
    """A session of so many rows, admitted."""
    policy.open(rows, 100)
    root = torch.zeros(rows, dtype=torch.int64)
    first = TokenTree.root_only(root)
    verdict = Verdict(first.tokens[:, :0], root, root)
    policy.observe(cycle_of(first, verdict, 2, Prompts(root[:, None], root + 1)))


def observe(policy: Adaptive, draft: TokenTree, length: Tensor) -> None:
    """A cycle that accepted paths of these lengths."""
    policy.observe(cycle_of(draft, Verdict(draft.tokens[:, : draft.levels], length, length), 2))


def depth_of(draft: TokenTree) -> Tensor:
    return (draft.depth * draft.valid).amax(1)


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


def linear(node: float, forward: float) -> list[float]:
    """Costs of a chain: the target's forward is 1, a node more and a forward of the drafter some of that."""
    return [1 + (node + forward) * depth for depth in range(DEPTH + 1)]


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


# --- sessions -------------------------------------------------------------------------------------------


END = 3
LAW = torch.tensor([[0.5, 0.27, 0.2, 0.03], [0.1, 0.6, 0.27, 0.03], [0.3, 0.3, 0.37, 0.03]], dtype=torch.float64)
GUESS = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.2, 0.2, 0.6, 0.0], [0.3, 0.4, 0.3, 0.0]], dtype=torch.float64)


class Noted(Adaptive):
    """Remembers how deep its drafts were, admissions left out."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.depths: list[list[int]] = []

    def grow(self, *args: object) -> TokenTree:
        draft = super().grow(*args)  # type: ignore[arg-type]
        self.depths.append(depth_of(draft).tolist())
        return draft


def nervous(**options: object) -> Noted:
    """A policy that changes its mind often."""
    return Noted(**({"costs": [1, 1.3, 1.6, 1.9], "depth": 3, "memory": 4.0, "draw": Draw.IID} | options))


def pipeline(tree: Adaptive, batch: int) -> Pipeline:
    return Pipeline(
        parts=Parts(GivenTarget(LAW[[0, 1, 2, 0]]), GivenDrafter(GUESS[[0, 1, 2, 0]]), tree, Recursive()),
        sampling=SamplingSettings(temperature=1.0, max_new_tokens=60),
        run=RunSettings(seed=5, batch=batch),
        tokenizer=None,
        ends=frozenset({END}),
        lossless=True,
    )


@pytest.mark.parametrize("draw", ["top", "iid", "without_replacement"])
def test_a_row_does_not_depend_on_its_neighbours_nor_on_earlier_sessions(draw: str) -> None:
    texts = [[0], [1, 2, 0], [2, 2], [1]]
    tree = nervous(draw=Draw[draw.upper()], widths=(2, 1), costs=[1, 1.2, 1.3, 1.4])
    together = pipeline(tree, 4)
    first = together.generate(texts).tokens
    assert any(len(set(depths)) > 1 for depths in tree.depths), "rows of a batch differ"
    assert min(map(len, tree.depths)) < 4, "rows leave the batch"
    assert together.generate(texts).tokens == first
    assert pipeline(tree, 1).generate(texts).tokens == first


def test_a_draft_of_no_levels_costs_no_forward_and_a_batch_is_no_deeper_than_its_deepest_row() -> None:
    calls = 0
    drafter = GivenDrafter(Q)

    def expand(frontier: object) -> object:
        nonlocal calls
        calls += 1
        return drafter.expand(frontier)  # type: ignore[arg-type]

    policy = Adaptive(costs=[1.0, 3.0, 5.0], depth=2)
    tree = policy.grow(expand, torch.tensor([0, 1]), Context(WARM, Ranked()))  # type: ignore[arg-type]
    assert (calls, tree.tokens.shape[1], tree.levels) == (0, 1, 0)
    policy = Adaptive(costs=linear(0.02, 0.1), depth=DEPTH)
    begin(policy, 2)
    length = torch.tensor([2, 0])
    for _ in range(8):
        calls = 0
        tree = policy.grow(expand, torch.tensor([0, 1]), Context(WARM, Ranked()))  # type: ignore[arg-type]
        observe(policy, tree, depth_of(tree) * (length > 0))
    deep, shallow = depth_of(tree).tolist()
    assert deep > shallow and calls == deep == tree.levels


def test_a_watched_observer_is_one() -> None:
    from specframe.components.trees.fixed import Chain

    for policy, observes in ((nervous(), True), (Chain(), False)):
        assert isinstance(policy, Observer) is observes
        assert isinstance(WatchedTree(policy, lambda expand: expand), Observer) is observes


# --- the certificate ------------------------------------------------------------------------------------


def certify(make: type[Noted], verifier: type[Verifier], length: int, **options: object) -> tuple[Comparison, set[int]]:
    """The law of the first tokens over cycles, and which depths were drafted on the way."""
    policies: list[Noted] = []

    def parts() -> Parts:
        policies.append(make(**({"costs": [1, 1.3, 1.6, 1.9], "depth": 3, "memory": 4.0, "draw": Draw.IID} | options)))
        return Parts(TableTarget(vocab=2, order=2, seed=3), GivenDrafter(Q), policies[-1], verifier())

    comparison = Emission("", parts, WARM, length).compare()
    assert comparison.enumeration.exhausted and comparison.enumeration.rows > 1
    return comparison, {depth for policy in policies for depths in policy.depths for depth in depths}


@pytest.mark.parametrize(("verifier", "length"), [(Recursive, 6), (Match, 6), (Block, 5), (Traversal, 5)])
def test_cycles_that_remember_are_lossless(verifier: type[Verifier], length: int) -> None:
    comparison, depths = certify(Noted, verifier, length)
    assert comparison.tv < 1e-12
    assert len(depths) > 2, "the past decided"


def test_trees_that_remember_are_lossless() -> None:
    options = {"widths": (2, 1), "draw": Draw.WITHOUT_REPLACEMENT, "costs": [1, 1.3, 1.65], "depth": 2}
    comparison, depths = certify(Noted, Recursive, 5, **options)
    assert comparison.tv < 1e-12
    assert depths == {1, 2}


class Peeking(Noted):
    """Leaves out drawn tokens, and all below, that it thinks less likely to be accepted than was usual lately."""

    def grow(self, *args: object) -> TokenTree:
        from dataclasses import replace

        tree = super().grow(*args)
        if tree.levels == 0:
            return tree
        usual = torch.nn.functional.pad(self._shares(tree.tokens[:, 0])[:, : tree.levels], (1, 0))
        return replace(tree, valid=tree.valid & (own_law(tree) >= usual).cummin(1).values)


def test_deciding_by_a_drawn_token_is_caught() -> None:
    comparison, _ = certify(Peeking, Recursive, 4)
    assert comparison.tv > 0.01
    assert not audit(
        lambda: GivenDrafter(GUESS[[0, 1, 2, 0]]), Peeking(costs=[1, 1.1, 1.2], depth=2, draw=Draw.IID), sampling=WARM
    ).passed


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
