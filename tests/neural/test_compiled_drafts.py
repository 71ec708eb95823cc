"""A drafter's option `compile`: the same drafts, of few shapes, or a line that gives the reason why not.

Most tests trace the decoder layers without generating code for them, which takes a tenth of the time.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

import specframe
from specframe import CompositionError
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.kernel.types import Committed, Context, Frontier, PairSpec, Proposal
from specframe.neural import LastFeature, NeuralDrafter
from specframe.neural.compiled import CompiledLayers
from specframe.neural.network import with_options
from specframe.sampling.random import SeededRandom
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3
from specframe_falcon.drafter import Falcon
from specframe_parallelspec.drafter import ParallelSpec
from tests.neural.test_growth import SIZE, VOCAB, committed
from tests.small_model import make_model

METHODS = {
    "falcon of two layers": partial(Falcon, layers=2),
    "eagle": Eagle,
    "eagle in a window": partial(Eagle, window=6, sinks=1),
    "eagle3 of two layers": partial(Eagle3, own_head=False, layers=2),
    "parallelspec": partial(ParallelSpec, masks=2),
}
PROMPTS = [[5, 6, 7, 8, 5, 6], [11, 12, 13], [9] * 7]


def target(dtype: torch.dtype = torch.float64) -> HFTarget:
    return HFTarget.from_model(random_model(vocab=VOCAB, size=SIZE, layers=8).to(dtype), None)


def shapes(drafter: NeuralDrafter) -> set:
    """The rows and queries of the shapes that were compiled."""
    _, steps = drafter.compiled._made
    assert not steps.refused
    return {shape[-2:] for shape in steps._checked}


def proposals(drafter: NeuralDrafter, batch: bool = True) -> list[Proposal]:
    """The proposals of drafts after ragged commits of rows that join, change places and leave, or of one row alone."""
    noise, policy, found = torch.Generator().manual_seed(0), Dynamic(depth=3, width=2, nodes=6), []

    def expand(frontier: Frontier) -> Proposal:
        found.append(drafter.expand(frontier))
        return found[-1]

    def advance(committed: Committed) -> None:
        drafter.commit(committed)
        policy.grow(expand, committed.root, Context(specframe.Sampling(), SeededRandom(0, 1).draft))

    drafter.open(3 if batch else 1, 300)
    if not batch:
        for counts in ([7], [2], [2]):
            advance(committed(drafter, counts, noise, prompt=counts == [7]))
        return found
    advance(committed(drafter, [7, 2], noise, prompt=True))
    for counts in ([1, 3], [3, 2], [1, 1]):
        advance(committed(drafter, counts, noise))
    drafter.commit(committed(drafter, [5], noise, prompt=True))
    for counts in ([2, 2, 1], [1, 4, 1]):
        advance(committed(drafter, counts, noise))
    drafter.keep(torch.tensor([2, 0]))
    advance(committed(drafter, [1, 2], noise))
    return found


@pytest.mark.parametrize(("method", "batch"), [("eagle", False), *((method, True) for method in METHODS)])
def test_a_compiled_drafter_proposes_what_it_proposes_as_it_is(method: str, batch: bool) -> None:
    torch._dynamo.reset()
    drafter = METHODS[method]()
    drafter.bind(target())
    expected = proposals(drafter, batch)
    drafter.compiled = CompiledLayers(f"drafter {method}", "eager")
    for found, wanted in zip(proposals(drafter, batch), expected, strict=True):
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-6, rtol=1e-6)
    assert shapes(drafter) and all(rows in (1, 2, 3) and nodes in (1, 2, 4, 8, 16) for rows, nodes in shapes(drafter))


def decoded(target: HFTarget, **options: object) -> tuple[object, list[list[int]], object]:
    sampling = {"max_new_tokens": 12, "ignore_eos": True}
    torch.manual_seed(0)
    pipeline = specframe.compose(
        target=target,
        drafter={"use": "eagle", **options},
        tree={"use": "chain", "depth": 3},
        sampling=sampling,
        run={"batch": 2},
    )
    answer = pipeline.generate(PROMPTS)
    return pipeline.parts.drafter, answer.tokens, answer.acceptance.tau


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The distutils package:DeprecationWarning")  # which inductor imports
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_generated_code_and_graphs_give_the_same_tokens_in_as_many_cycles(device: str) -> None:
    torch._dynamo.reset()
    target = HFTarget.from_model(make_model().double().to(device))
    _, *expected = decoded(target)
    drafter, *found = decoded(target, compile=True)
    assert found == expected
    assert shapes(drafter)


def test_native_passes_leave_nothing_to_compile() -> None:
    drafter = Eagle(quantize="int8", compile=True)
    with pytest.raises(CompositionError, match="drafter eagle: native code runs what `quantize` rounds; leave compile"):
        drafter.bind(target(torch.float32))


def test_a_session_without_layers_is_refused() -> None:
    session = LastFeature(lambda features, frontier: None, PairSpec())
    with pytest.raises(CompositionError, match="drafter medusa: compile fits sessions over pairs alone; leave it out"):
        with_options(session, "medusa", None, CompiledLayers("drafter medusa"))


def test_certificates_run_a_drafter_as_it_is() -> None:
    assert Eagle(compile=True).untrained(VOCAB).compiled is None
