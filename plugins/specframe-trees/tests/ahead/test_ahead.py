"""A drafter that goes on while the target scores."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from chains_ahead import NOISE, WARM, ahead, emission, model, parts_of

from specframe.certify.compositions.audit import audit_drafts
from specframe.certify.compositions.controls import Captured, ReplayedStreams
from specframe.certify.compositions.enumeration import ForkedStreams
from specframe.components.drafters.fused import Fused
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.overlap import threads_of
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.decoding.settings import RunSettings
from specframe.kernel.costs import Costs
from specframe.kernel.errors import CompositionError, InputError, RecipeError
from specframe.kernel.interfaces import Target
from specframe.kernel.types import Committed, Draw
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling
from specframe.testing import check_drafter
from specframe_medusa.hydra import Hydra
from specframe_trees.ahead.ahead import Ahead
from specframe_trees.ahead.ready_chains import Chains
from tests.components.sessions import CONTEXT


@pytest.mark.parametrize("guesses", [None, 1, 2])
def test_conformance_of_chains_of_top_tokens(guesses: int | None) -> None:
    check_drafter(lambda: ahead(window=2, guesses=guesses))


@pytest.mark.sampled
def test_conformance_of_drawn_chains() -> None:
    check_drafter(lambda: ahead(window=1, draw=Draw.IID))


@pytest.mark.sampled
@pytest.mark.parametrize("verifier", [Recursive, Block, Match])
@pytest.mark.parametrize(("guesses", "window"), [(None, 1), (1, 1)])
def test_the_law_of_drawn_chains(verifier: type[Any], guesses: int | None, window: int) -> None:
    found = emission(verifier, lambda: ahead(window=window, guesses=guesses, draw=Draw.IID)).compare(budget=200_000)
    assert found.tv < NOISE and found.enumeration.exhausted


@pytest.mark.sampled
def test_the_distribution_of_what_was_drawn_ahead_is_recorded() -> None:
    def parts() -> Parts:
        return parts_of(Match(), ahead(window=2, guesses=1, draw=Draw.IID))

    found = audit_drafts(parts, WARM, prompt=(0, 1, 2, 0, 1))
    assert found.passed and found.slots > 3


def test_control_one_random_number_for_two_verifications() -> None:
    """PEARL's code tests the next token with the number that accepted the last one: 1.0 in place of .5."""
    differed: list[bool] = []
    found = emission(
        Recursive,
        lambda: ahead(window=1, draw=Draw.IID),
        streams=lambda forks: ReplayedStreams(ForkedStreams(forks), Captured(differed)),
    ).compare(budget=20_000)
    assert any(differed) and found.tv > 0.01


class Keeping(Ahead):
    """It keeps a chain although the token before it was refused."""

    def commit(self, committed: Committed) -> None:
        drafted = self._drafted
        super().commit(committed)
        if committed.prompt is None and drafted is not None:
            tokens, valid = drafted.chains.tokens[:, :, 0], drafted.chains.valid[:, :, 0]
            self._ready = Chains(tokens, valid)


def fresh_chains(kind: type[Ahead]) -> tuple[int, int]:
    """The number of drafts with a chain, and of those that the drafter itself drafts there, of a batch of one row."""
    drafter, alone = ahead(kind, window=2, guesses=1), model()
    parts = parts_of(Match(), drafter)
    alone.bind(parts.target)
    alone.open(1, 80)
    found = [0, 0]

    def compare(cycle: Any) -> None:
        if cycle.draft.levels:
            wanted = alone.propose(cycle.draft.tokens[:, 0], Chain(depth=2), CONTEXT)
            found[0] += 1
            found[1] += torch.equal(wanted.tokens, cycle.draft.tokens)
        alone.commit(cycle.committed)

    session = Session(parts, 1, 60 + parts.nodes, watch=compare)
    session.run([Request(tokens=[0, 1, 2], sampling=WARM, seed=3, max_new_tokens=50)])
    return found[0], found[1]


def test_a_chain_that_is_ready_is_the_one_that_would_be_drafted_now() -> None:
    chains, same = fresh_chains(Ahead)
    assert chains == same > 5


def test_control_a_chain_kept_though_the_token_before_it_was_refused() -> None:
    chains, same = fresh_chains(Keeping)
    assert same < chains


def cycles_of(target: Target, drafter: Ahead, sampling: Sampling) -> list[Any]:
    """The cycles of a row, after the prompt's."""
    drafter.bind(target)
    found: list[Any] = []
    session = Session(Parts(target, drafter, None, Match()), 1, 100, watch=found.append)
    session.run([Request(tokens=[0, 1, 2], sampling=sampling, seed=3, max_new_tokens=30)])
    return found[1:]


def test_a_chain_that_is_accepted_whole_is_followed_by_a_ready_one() -> None:
    """Post-verify (PEARL): the drafter's best token after the whole chain is the target's, and its chain is there."""
    first, *later = cycles_of(HFTarget.from_model(tiny_llama(3, seed=7)), ahead(window=2), Sampling(temperature=0.0))
    assert first.draft.levels == 0, "nothing was drafted while the prompt was read"
    assert [cycle.draft.levels for cycle in later] == [2] * len(later) and len(later) > 5


def test_a_chain_that_is_accepted_in_part_is_followed_by_a_ready_one() -> None:
    """SSD guesses after each prefix: of three tokens the refused one is not the bonus, so two guesses always hit."""
    cycles = cycles_of(TableTarget(vocab=3, order=2, seed=0), ahead(window=2, guesses=2), WARM)
    partly = [
        after.draft.levels
        for before, after in pairwise(cycles)
        if before.draft.levels and int(before.verdict.length[0]) < before.draft.levels
    ]
    assert partly == [2] * len(partly) and len(partly) > 5


def test_the_window_is_the_ratio_of_the_speeds() -> None:
    drafter = ahead(most=6)
    seconds = {1: 9.0, 8: 12.0}
    for draft, window in ((2.0, 4), (0.5, 6), (20.0, 1), (0.0, 6)):
        assert drafter._window(Costs.of(seconds, draft)) == window
    assert drafter._window(None) == 4 and ahead(most=2)._window(None) == 2 and ahead(window=3)._window(None) == 3


def test_what_is_refused() -> None:
    for options in ({"window": 0}, {"guesses": 0}, {"most": 0}):
        with pytest.raises(InputError, match="a window and guesses of at least 1"):
            ahead(**options)
    with pytest.raises(InputError, match="drawn `top` or `iid`"):
        ahead(draw=Draw.WITHOUT_REPLACEMENT)
    with pytest.raises(CompositionError, match="cannot run the target's own layers"):
        Ahead(drafter=OwnLayers(exit=1))
    with pytest.raises(CompositionError, match="cannot run the target's own layers"):
        Ahead(drafter=ModelDrafter(model="zoo://talk-7m", layers=[0]))
    with pytest.raises(CompositionError, match="builds its own trees"):
        Ahead(drafter=Lookup())
    with pytest.raises(CompositionError, match="drafts no deeper than 3 levels, and a chain after a chain needs 9"):
        Ahead(drafter=Hydra(heads=3), window=4)
    with pytest.raises(CompositionError, match="stands alone"):
        Fused(first=ahead(), second=Lookup())
    with pytest.raises(InputError, match="put the drafter into `ahead`"):
        threads_of({"target": 1, "drafter": 1}, Lookup())


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        ({"target": 1}, "each at least 1"),
        ({"target": 0, "drafter": 1}, "each at least 1"),
        ({"target": 4096, "drafter": 1}, "cores"),
    ],
)
def test_numbers_of_threads(threads: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunSettings(threads=threads)


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        ({"use": "falcon"}, 2),
        ({"use": "parallelspec"}, 5),
        ({"use": "medusa", "heads": 20}, 20),
        ({"use": "dflash", "block_size": 8}, 7),
        ({"use": "peagle"}, 8),
        ({"use": "flash"}, 5),
        ({"use": "model", "model": "zoo://talk-7m", "masks": 7}, 8),
        ({"use": "tli", "drafter": {"use": "model", "model": "zoo://talk-7m", "masks": 7}}, 8),
    ],
)
def test_a_drafter_of_several_levels_a_forward_pass_is_refused_with_the_recipe(
    options: dict[str, Any], levels: int
) -> None:
    data = {"specframe": 1, "target": {"use": "table"}, "drafter": {"use": "ahead", "drafter": options}}
    with pytest.raises(RecipeError, match=f"proposes {levels} levels a forward pass"):
        plan(Recipe(Path("recipe.yaml"), data | {"verifier": {"use": "match"}}), discover())
