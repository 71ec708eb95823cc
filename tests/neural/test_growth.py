"""Drafts that are one native call: the trees, keys and values of the search that goes level by level, bit for bit."""

from __future__ import annotations

from ctypes import c_double
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specframe import Sampling
from specframe.components.heads import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fill import fill
from specframe.components.trees.fixed import Chain
from specframe.components.trees.recording import RecordingTree, WatchedTree
from specframe.kernel.costs import Costs, DraftRecord
from specframe.kernel.interfaces import TreePolicy
from specframe.kernel.types import Committed, Context, Draw, Prompts, TokenTree
from specframe.native import draft
from specframe.native.draft import NativeDraft
from specframe.native.values import NewPairs, check_pairs
from specframe.neural import NeuralDrafter
from specframe.neural.features import KeptFeatures
from specframe.sampling.random import SeededRandom
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3
from specframe_falcon.drafter import Falcon

VOCAB, SIZE, KEPT = 60, 64, 40
FIELDS = ("tokens", "parent", "valid", "draw", "depth", "ancestors")
METHODS = {
    "eagle": Eagle,
    "eagle3": partial(Eagle3, own_head=False),
    "falcon": Falcon,
    "falcon of three levels": partial(Falcon, block=3),
    "eagle3.1": partial(Eagle3, own_head=False, fc_norm=True, norm_output=True, norm_before_residual=True),
    "eagle of two layers": partial(Eagle, layers=2),
    "eagle3 of two layers": partial(Eagle3, own_head=False, layers=2),
    "falcon of two layers": partial(Falcon, layers=2),
    "falcon of three levels and layers": partial(Falcon, block=3, layers=3),
}
COSTS = Costs(((1, 1.0), (2, 1.1), (8, 1.3), (40, 4.0)), draft=0.05)


@lru_cache(maxsize=8)
def pair_of(method: str, dtype: torch.dtype) -> tuple[NeuralDrafter, NeuralDrafter]:
    """Two drafters of the same weights."""
    target = HFTarget.from_model(random_model(vocab=VOCAB, size=SIZE, layers=8).to(dtype), None)
    made = []
    for _ in range(2):
        drafter = METHODS[method](quantize="int8", head=Trimmed(keep=KEPT, quantize="int8"))
        drafter.bind(target)
        made.append(drafter)
    return made[0], made[1]


def committed(drafter: NeuralDrafter, counts: list[int], noise: torch.Generator, prompt: bool = False) -> Committed:
    """A commit of so many tokens of each row, with features of noise: of a prompt, or of the paths through a tree."""
    shape, longest = (len(counts), max(counts)), max(counts)
    tokens = torch.randint(0, VOCAB, shape, generator=noise)
    nodes = longest if prompt else longest + 3
    scored = {
        tap: torch.randn(len(counts), nodes, SIZE, generator=noise).to(drafter.target.dtype) for tap in drafter.taps
    }
    count = torch.tensor(counts)
    if prompt:
        return Committed(tokens, count, scored, tokens[:, -1], Prompts(tokens, count))
    rest = [torch.randperm(nodes - 1, generator=noise)[: count - 1].sort().values.tolist() for count in counts]
    paths = [[0, *(node + 1 for node in row)] for row in rest]
    places = torch.tensor([[*path, *[0] * (longest - len(path))] for path in paths])
    return Committed(tokens, count, KeptFeatures(scored, paths, lambda: places), tokens[:, -1])


def grown(drafter: NeuralDrafter, policy: TreePolicy, root: Tensor, costs: Costs | None, natively: bool) -> TokenTree:
    """The draft below root, by the drafter's own search or level by level."""
    context = Context(Sampling(), SeededRandom(0, 1).draft, costs)
    if natively:
        assert drafter._search is not None
        return drafter.propose(root, policy, context)
    return policy.grow(drafter.expand, root, context)


def differing(found: TokenTree, wanted: TokenTree) -> list[str]:
    """The fields in which a draft differs from the reference."""
    fields = [field for field in FIELDS if not torch.equal(getattr(found, field), getattr(wanted, field))]
    return fields if found.levels == wanted.levels else [*fields, "levels"]


policies = st.builds(Chain, depth=st.integers(1, 6)) | st.builds(
    lambda depth, width, nodes, gain, powers: Dynamic(
        depth=depth, width=width, nodes=nodes, gain=gain, calibration=powers
    ),
    st.integers(1, 6),  # the third block of a drafter of two levels stands at a position of its own
    st.integers(1, 6),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.0, 0.02, 0.2]),
    st.sampled_from([None, None, [0.5], [2.0, 8.0]]),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
@given(
    policy=policies,
    cycles=st.lists(st.lists(st.integers(1, 5), min_size=3, max_size=3), min_size=1, max_size=4),
    costs=st.sampled_from([None, COSTS, replace(COSTS, rows=3, taken=2)]),
    apart=st.booleans(),
    batch=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_a_search_in_one_call_is_the_search_level_by_level(
    method, dtype, policy, cycles, costs, apart, batch, seed
) -> None:
    one, other = pair_of(method, dtype)
    if costs is COSTS and batch > 1:
        costs = costs.together([9] * batch, DraftRecord(), apart)
    noise = torch.Generator().manual_seed(seed)
    for drafter in {one, other}:
        drafter.open(4, 64)
    first = committed(one, [7, 3, 5][:batch], noise, prompt=True)
    for drafter in {one, other}:
        drafter.commit(first)
    for number, counts in enumerate(cycles):
        root = torch.randint(0, VOCAB, (batch,), generator=noise)
        # The first cycle drafts natively twice: the second time, nothing new is to be taken in.
        for _ in range(1 + (number == 0)):
            found = grown(one, policy, root, costs, natively=True)
        wanted = grown(other, policy, root, costs, natively=False)
        assert differing(found, wanted) == []
        keys, others = (each._session.cache.storage(torch.empty(0)) for each in (one, other))
        assert one._session.counts == other._session.counts
        for row, held in enumerate(one._session.counts):
            assert torch.equal(keys[:, row, :, :held], others[:, row, :, :held])
        more = committed(one, counts[:batch], noise)
        for drafter in {one, other}:
            drafter.commit(more)


def under_the_grandparent(tree: TokenTree, node: Tensor) -> TokenTree:
    above = tree.parent.gather(1, tree.parent[:, node])
    return replace(tree, parent=tree.parent.index_copy(1, node, above))


def without_the_parent(tree: TokenTree, node: Tensor) -> TokenTree:
    marks = tree.ancestors.clone()
    marks[0, node, tree.parent[0, node]] = False
    altered = replace(tree)
    vars(altered).update(depth=tree.depth, ancestors=marks)
    return altered


SPOILED = {
    "tokens": lambda tree, node: replace(tree, tokens=tree.tokens.index_add(1, node, torch.ones(1, 1).long())),
    "parent": under_the_grandparent,
    "valid": lambda tree, node: replace(tree, valid=tree.valid.index_fill(1, node, False)),
    "ancestors": without_the_parent,
}


@pytest.mark.parametrize("field", SPOILED)
def test_a_native_search_that_differs_in_one_deep_node_is_found(field, monkeypatch) -> None:
    one, other = pair_of("eagle", torch.bfloat16)
    grow, policy = NativeDraft.grow, Dynamic(depth=4, width=2, nodes=8)

    def spoiled(*parts, **options):
        tree, passes = grow(*parts, **options)
        return SPOILED[field](tree, tree.depth.argmax(1)), passes

    first = committed(one, [7], torch.Generator().manual_seed(2), prompt=True)
    for drafter in (one, other):
        drafter.open(1, 64)
        drafter.commit(first)
    wanted = grown(other, policy, torch.tensor([3]), None, natively=False)
    assert differing(grown(one, policy, torch.tensor([3]), None, natively=True), wanted) == []
    monkeypatch.setattr(NativeDraft, "grow", spoiled)
    assert wanted.depth.max() >= 3
    assert field in differing(grown(one, policy, torch.tensor([3]), None, natively=True), wanted)


@pytest.mark.parametrize("depths", [[0, 0], [3, 3], [1, 3], [2, 0]])
def test_chains_of_other_lengths_in_each_row_are_searched_in_one_call(depths) -> None:
    drafts, shape = [], Chain(depth=4).shape
    one, other = pair_of("eagle", torch.bfloat16)
    first = committed(one, [7, 4], torch.Generator().manual_seed(2), prompt=True)
    for drafter, natively in ((one, True), (other, False)):
        drafter.open(2, 64)
        drafter.commit(first)
        context = Context(Sampling(), SeededRandom(0, 2).draft, search=drafter._search if natively else None)
        drafts.append(fill(shape, Draw.TOP, drafter.expand, torch.tensor([3, 5]), context, depths))
    assert differing(*drafts) == []


@pytest.mark.parametrize("policy", [Dynamic(depth=4, width=3, nodes=9), Chain(depth=4)])
def test_equally_likely_tokens_are_taken_in_the_order_of_birth(policy) -> None:
    """The LM head has every row twice, so each token comes with a twin of the same value, on every level."""
    model = random_model(vocab=VOCAB, size=SIZE, layers=2).float()
    model.lm_head.weight.data[1::2] = model.lm_head.weight.data[::2]
    target = HFTarget.from_model(model, None)
    first = None
    drafts = []
    for natively in (True, False):
        drafter = Eagle(quantize="int8", head=Trimmed(keep=KEPT, quantize="int8"))
        drafter.bind(target)
        drafter.open(2, 64)
        first = first or committed(drafter, [7, 4], torch.Generator().manual_seed(2), prompt=True)
        drafter.commit(first)
        drafts.append(grown(drafter, policy, torch.tensor([3, 5]), None, natively))
    assert differing(*drafts) == []
    tokens = drafts[0].tokens[0, 1:].tolist()
    assert isinstance(policy, Chain) or sum(token ^ 1 in tokens for token in tokens) >= 4


def test_rows_that_come_and_go_keep_their_drafts() -> None:
    """A row joins with pairs of its own while others have none, and one leaves; native and other drafts alternate."""
    one, other = pair_of("eagle", torch.bfloat16)
    noise, policy = torch.Generator().manual_seed(3), Dynamic(depth=3, width=3, nodes=9)
    for drafter in (one, other):
        drafter.open(3, 64)
    events = [
        (committed(one, [4, 2], noise, prompt=True), 2),
        (committed(one, [1, 3], noise), 2),
        (committed(one, [6], noise, prompt=True), 3),
        (torch.tensor([2, 0]), 2),
        (committed(one, [2, 2], noise), 2),
        (torch.tensor([1]), 1),
    ]
    for turn, (event, rows) in enumerate(events):
        for drafter in (one, other):
            (drafter.keep if isinstance(event, Tensor) else drafter.commit)(event)
        root = torch.arange(rows)
        found = grown(one, policy, root, None, natively=turn % 3 != 1)
        wanted = grown(other, policy, root, None, natively=False)
        assert differing(found, wanted) == [], turn


def test_only_what_native_code_computes_is_searched_by_them() -> None:
    target = HFTarget.from_model(random_model(vocab=VOCAB, size=SIZE, layers=8).float(), None)
    options = {
        "whole": {"quantize": "int8", "head": Trimmed(keep=KEPT, quantize="int8")},
        "floats": {"head": Trimmed(keep=KEPT, quantize="int8")},
        "float head": {"quantize": "int8"},
        "sampled features": {"quantize": "int8", "feature_sampling": True, "head": Trimmed(keep=KEPT, quantize="int8")},
    }
    taken = {}
    for name, given_options in options.items():
        drafter = Eagle(**given_options)
        drafter.bind(target)
        drafter.open(1, 64)
        taken[name] = drafter._search is not None
    assert taken == {"whole": True, "floats": False, "float head": False, "sampled features": False}


def test_a_policy_that_watches_levels_is_asked_level_by_level() -> None:
    """The native search has no proposals to record; timing it counts every forward pass."""
    one, _ = pair_of("eagle", torch.float32)
    noise = torch.Generator().manual_seed(1)
    one.open(1, 64)
    one.commit(committed(one, [5], noise, prompt=True))
    context = Context(Sampling(), SeededRandom(0, 1).draft)
    policy = Dynamic(depth=3, width=2, nodes=6)
    recording = RecordingTree(policy)
    drafted = one.propose(torch.tensor([3]), recording, context)
    assert recording.records[0].logits_after(()) is not None
    seen: list[int] = []

    def wrap_search(search):
        def run(plan, root):
            tree, passes = search(plan, root)
            seen.append(passes)
            return tree, passes

        return run

    again = one.propose(torch.tensor([3]), WatchedTree(policy, lambda expand: expand, wrap_search), context)
    assert seen == [3] and torch.equal(again.tokens, drafted.tokens)


def test_what_native_code_would_misread_is_refused() -> None:
    one, _ = pair_of("eagle", torch.float32)
    one.open(1, 64)
    one.commit(committed(one, [5], torch.Generator().manual_seed(1), prompt=True))
    plan = Dynamic(depth=2, width=2, nodes=3).plan()
    with pytest.raises(ValueError, match="roots are contiguous int64"):
        one._search(plan, torch.tensor([3.0]))
    search = one._search
    wide = torch.zeros(1, 5, dtype=torch.int64), torch.zeros(1, 5, 2 * SIZE)
    (pending,) = one._session._commits
    one._session._commits = [replace(pending, entries=wide)]
    with pytest.raises(ValueError, match="pairs are contiguous"):
        search(plan, torch.tensor([3]))


@pytest.mark.parametrize("method", ["eagle", "eagle3", "falcon"])
def test_the_cache_has_room_for_a_prompt_longer_than_states_are_wide(method: str) -> None:
    one, other = pair_of(method, torch.float32)
    noise = torch.Generator().manual_seed(3)
    for drafter in (one, other):
        drafter.open(1, 1)
    for count, prompt in ((8 * SIZE, True), (2, False)):
        given = committed(one, [count], noise, prompt)
        for drafter in (one, other):
            drafter.commit(given)
        root = given.tokens[:, count - 1].contiguous()
        found = grown(one, Dynamic(depth=3, width=3, nodes=8), root, None, natively=True)
        wanted = grown(other, Dynamic(depth=3, width=3, nodes=8), root, None, natively=False)
        for field in FIELDS:
            assert torch.equal(getattr(found, field), getattr(wanted, field)), field


@pytest.mark.parametrize(
    "given, message",
    [
        ({"places": [[0, 1, 7]]}, "as many nodes as new pairs, from 0 to 6"),
        ({"places": [[0, 1]]}, "as many nodes as new pairs, from 0 to 6"),
        ({"tokens": [[0, 1, 2]]}, "pairs are contiguous torch.float32"),
        ({"embeddings": torch.zeros(9, SIZE), "tokens": [[0, 9, 2]]}, "as many tokens as new pairs, from 0 to 8"),
        ({"fresh": [0]}, "each has one or more"),
        ({"features": [torch.zeros(1, 7, SIZE)] * 2}, "does not read 2 features"),
        ({"features": [torch.zeros(1, 7, SIZE).bfloat16()]}, "pairs are contiguous torch.float32"),
        ({"features": [torch.zeros(1, 7, 2 * SIZE)[..., ::2]]}, "pairs are contiguous torch.float32"),
    ],
)
def test_pairs_that_native_code_would_misread_are_refused(given: dict[str, Any], message: str) -> None:
    fitting: dict[str, Any] = {
        "embeddings": torch.zeros(1, 3, SIZE),
        "features": [torch.zeros(1, 7, SIZE)],
        "fresh": [3],
    }
    check_pairs(NewPairs(0, **fitting, places=[[0, 1, 6]]), 1, SIZE, torch.float32, None)
    with pytest.raises(ValueError, match=message):
        check_pairs(NewPairs(0, **(fitting | given)), 1, SIZE, torch.float32, None)


def test_a_search_that_is_used_again_keeps_the_costs_that_native_code_reads() -> None:
    kept = draft._search(Dynamic(depth=2, width=2, nodes=4).plan(COSTS))
    wanted = [0.0, *(COSTS.score(count) for count in range(1, 7))]
    draft._scores.cache_clear()
    others = [(c_double * len(wanted))() for _ in range(1000)]  # one of them takes the place of what was freed
    assert [*(c_double * len(wanted)).from_address(kept.scores)] == wanted
    assert len(others) == 1000
