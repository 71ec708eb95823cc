"""Drafts on a window of the text: the same natively and level by level, in a batch or alone, in constant memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specframe import InputError, Sampling
from specframe.components.heads import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.kernel.composition import misfits
from specframe.kernel.types import Committed, Context, Frontier, Prompts, TokenTree
from specframe.neural import NeuralDrafter
from specframe.neural.masks import TextWindow
from specframe.sampling.random import SeededRandom
from tests.neural.test_growth import METHODS, SIZE, VOCAB, committed, differing, grown

POLICY = Dynamic(depth=3, width=3, nodes=9)
NATIVE = {name: made for name, made in METHODS.items() if name != "eagle3.1"}
FLOATS = {name: made for name, made in NATIVE.items() if "three" not in name}


def target(dtype: torch.dtype = torch.float32) -> HFTarget:
    return HFTarget.from_model(random_model(vocab=VOCAB, size=SIZE, layers=8).to(dtype), None)


MODEL = target()


def natively(method: str, **options: int) -> NeuralDrafter:
    drafter = NATIVE[method](quantize="int8", head=Trimmed(keep=40, quantize="int8"), **options)
    drafter.bind(MODEL)
    return drafter


def in_floats(method: str, dtype: torch.dtype = torch.float64, **options: int) -> NeuralDrafter:
    drafter = FLOATS[method](**options)
    drafter.bind(target(dtype))
    return drafter


def text(drafter: NeuralDrafter, length: int, seed: int = 0) -> Committed:
    return committed(drafter, [length], torch.Generator().manual_seed(seed))


def piece(whole: Committed, start: int, end: int, prompt: bool = False) -> Committed:
    """The pairs start .. end - 1 of a text as a commit."""
    tokens, count = whole.tokens[:, start:end], torch.tensor([end - start])
    features = {tap: values[:, start:end] for tap, values in whole.features.items()}
    return Committed(tokens, count, features, tokens[:, -1], Prompts(tokens, count) if prompt else None)


def read(drafter: NeuralDrafter, whole: Committed, ends: list[int], drafts: bool = True) -> None:
    """Commits a text in pieces that end there, with a draft after each."""
    drafter.open(1, 4096)
    for start, end in zip([0, *ends], ends, strict=False):
        drafter.commit(piece(whole, start, end, prompt=start == 0))
        if drafts:
            POLICY.grow(drafter.expand, torch.tensor([3]), context())


def context() -> Context:
    return Context(Sampling(), SeededRandom(0, 1).draft)


def root_alone(root: Tensor) -> Frontier:
    """The frontier of a draft's beginning."""
    nodes = torch.zeros_like(root)[:, None]
    return Frontier(TokenTree(root[:, None], nodes - 1, torch.ones_like(nodes).bool(), nodes, levels=0), nodes)


def logits(drafter: NeuralDrafter) -> list[Tensor]:
    """The logits of a whole draft, level by level."""
    seen = []

    def expand(frontier):
        seen.append(drafter.expand(frontier))
        return seen[-1]

    POLICY.grow(expand, torch.tensor([3]), context())
    return [proposal.logits for proposal in seen]


@pytest.mark.parametrize("method", NATIVE)
@given(
    prompts=st.lists(st.integers(1, 90), min_size=3, max_size=3),
    cycles=st.lists(st.lists(st.integers(1, 5), min_size=3, max_size=3), min_size=1, max_size=8),
    window=st.tuples(st.integers(1, 40), st.integers(0, 4)),
    batch=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_a_native_search_in_a_window_is_the_one_level_by_level(method, prompts, cycles, window, batch, seed) -> None:
    one = natively(method, window=window[0], sinks=window[1])
    other = natively(method, window=window[0], sinks=window[1])
    noise = torch.Generator().manual_seed(seed)
    commits = [committed(one, prompts[:batch], noise, prompt=True)]
    commits += [committed(one, counts[:batch], noise) for counts in cycles]
    for drafter in {one, other}:
        drafter.open(3, 4096)
    for number, commit in enumerate(commits):
        for drafter in {one, other}:
            drafter.commit(commit)
        root = torch.randint(0, VOCAB, (batch,), generator=noise)
        found = grown(one, POLICY, root, None, natively=True)
        assert differing(found, grown(other, POLICY, root, None, natively=False)) == [], number
        assert one._session.counts == other._session.counts
        assert max(one._session.counts) <= TextWindow(*window).most


@pytest.mark.parametrize("method", FLOATS)
@pytest.mark.parametrize("length", [30, 200])
def test_a_window_as_long_as_the_text_changes_no_bit(method: str, length: int) -> None:
    plain, wide = in_floats(method, torch.float32), in_floats(method, torch.float32, window=length + 4, sinks=2)
    whole = text(plain, length + 4)
    for drafter in (plain, wide):
        read(drafter, whole, [length, length + 1, length + 4])
    assert all(map(torch.equal, logits(plain), logits(wide)))
    narrow = in_floats(method, torch.float32, window=8, sinks=2)
    read(narrow, whole, [length, length + 1, length + 4])
    assert not torch.equal(logits(plain)[0], logits(narrow)[0])


@pytest.mark.parametrize("method", FLOATS)
@given(
    steps=st.lists(st.integers(1, 30), min_size=2, max_size=12),
    window=st.integers(1, 40),
    sinks=st.integers(0, 4),
    drafts=st.booleans(),
)
def test_what_a_window_holds_follows_from_the_text_alone(method, steps, window, sinks, drafts) -> None:
    """A text that was committed piece by piece, and the same one as a prompt."""
    drafter = in_floats(method, window=window, sinks=sinks)
    ends = torch.tensor(steps).cumsum(0).tolist()
    whole = text(drafter, ends[-1])
    read(drafter, whole, ends, drafts)
    pieces = logits(drafter)
    read(drafter, whole, ends[-1:])
    for one, other in zip(pieces, logits(drafter), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_draft_sees_the_first_pairs_and_the_newest_alone(method: str) -> None:
    """The first level equals one literal forward pass over these pairs, at the positions that they have."""
    drafter = in_floats(method, window=20, sinks=3)
    length = 75
    whole = text(drafter, length)
    read(drafter, whole, [length])
    held = TextWindow(20, 3).cached(length)
    assert 23 < held <= TextWindow(20, 3).most
    kept = torch.tensor([0, 1, 2, *range(length - 20, length)])
    positions = torch.tensor([[0, 1, 2, *range(held - 20, held)]])
    features = torch.cat([whole.features[tap] for tap in drafter.spec.reads], -1)
    network = drafter.network
    pairs = torch.cat([drafter.target.embed(whole.tokens), network.fuse(features)], -1)
    with torch.no_grad():
        literal = network(pairs[:, kept], positions, torch.ones(1, 1, 23, 23, dtype=torch.bool).tril())
        wanted = drafter.logits(network.predicted(literal[:, -1:, None]).hidden)[:, 0]
    torch.testing.assert_close(logits(drafter)[0][:, 0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", FLOATS)
def test_memory_is_constant(method: str) -> None:
    drafter = in_floats(method, torch.float32, window=24, sinks=2)
    whole = text(drafter, 1500)
    sizes = []
    for prompt in (100, 1400):
        read(drafter, whole, [prompt, *range(prompt + 5, prompt + 96, 5)])
        session = drafter._session
        sizes.append((session.cache.capacity, session.windowed._values.shape))
    assert sizes[0] == sizes[1]
    assert sizes[0][0] < 100 + TextWindow(24, 2).most + 512


@pytest.mark.parametrize("method", FLOATS)
def test_rows_that_come_and_leave_draft_as_they_do_alone(method: str) -> None:
    """Rows drop pairs at different times; one leaves, another joins. EAGLE's drafts are the same bit for bit."""
    exact = "falcon" not in method  # PyTorch computes an LSTM
    together, alone = (
        natively(method, window=18, sinks=2) if exact else in_floats(method, window=18, sinks=2) for _ in range(2)
    )
    texts = [text(alone, 200, seed) for seed in range(3)]
    ends, live = {0: 20, 1: 41, 2: 33}, [0, 1]

    def commit(starts: list[int], counts: list[int], prompt: bool = False) -> None:
        parts = [piece(texts[row], start, start + max(counts)) for row, start in zip(live, starts, strict=True)]
        tokens, count = torch.cat([part.tokens for part in parts]), torch.tensor(counts)
        features = {tap: torch.cat([part.features[tap] for part in parts]) for tap in alone.taps}
        prompts = Prompts(tokens, count) if prompt else None
        together.commit(Committed(tokens, count, features, tokens[:, 0], prompts))

    together.open(3, 300)
    commit([0, 0], [20, 41], prompt=True)
    for number in range(30):
        if number == 12:
            together.keep(torch.tensor([1]))
            live = [1]
        if number == 15:
            together.commit(piece(texts[2], 0, ends[2], prompt=True))
            live = [1, 2]
        elif number:
            more = {row: 1 + (number * (row + 2)) % 4 for row in live}
            commit([ends[row] for row in live], [more[row] for row in live])
            ends = {row: end + more.get(row, 0) for row, end in ends.items()}
        root = torch.tensor([5 + row for row in live])
        found = grown(together, POLICY, root, None, natively=exact and number % 3 != 1)
        if number % 7 != 6 and number not in (12, 15):
            continue
        first = together.expand(root_alone(root)).logits
        for place, row in enumerate(live):
            alone.open(1, 300)
            alone.commit(piece(texts[row], 0, ends[row], prompt=True))
            if exact:
                single = grown(alone, POLICY, root[place : place + 1], None, natively=True)
                assert torch.equal(found.tokens[place], single.tokens[0]), (number, row)
                assert torch.equal(found.parent[place], single.parent[0]), (number, row)
            own = alone.expand(root_alone(root[place : place + 1])).logits
            torch.testing.assert_close(first[place], own[0], rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)


@pytest.mark.parametrize(("window", "sinks"), [(0, 4), (-1, 0), (8, -1)])
@pytest.mark.parametrize("method", FLOATS)
def test_a_window_that_is_none_is_refused(method: str, window: int, sinks: int) -> None:
    with pytest.raises(InputError, match="window must be at least 1 and sinks at least 0"):
        FLOATS[method](window=window, sinks=sinks)


@pytest.mark.parametrize("method", FLOATS)
def test_a_window_below_the_tree_is_refused(method: str) -> None:
    found = list(misfits(FLOATS[method](window=4), Chain(depth=4), Match(), names=(method, "match")))
    assert [section for section, _ in found] == ["drafter"]
    assert "a window of 4 tokens, and the tree is 4 deep: make the window 5 or more" in found[0][1]
    assert list(misfits(FLOATS[method](window=5), Chain(depth=4), Match(), names=(method, "match"))) == []
