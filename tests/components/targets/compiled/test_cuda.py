"""On a CUDA device: the same tokens, captured graphs, and a host that waits once a cycle."""

from __future__ import annotations

import warnings

import pytest
import torch

import specframe
from specframe.components.targets.forward.compiled import CompiledForward
from specframe.components.targets.hf import HFTarget
from specframe.decoding.clock import Clock
from tests.small_model import make_model

pytestmark = pytest.mark.gpu
PROMPTS = [[5, 6, 7, 8, 5, 6], [11, 12, 13], [9] * 7, [21, 22, 23, 24], [30, 31]]
FALCON = {
    "drafter": {"use": "falcon", "block": 2},
    "tree": {"use": "dynamic", "depth": 4, "width": 3, "nodes": 8},
}


def cuda_target(compiled: bool) -> HFTarget:
    target = HFTarget.from_model(make_model().double().cuda())
    if compiled:
        target.computing.inner = CompiledForward(target.parts.eager, target.dtype)
    return target


def composed(target: HFTarget, temperature: float = 0.0, drafter: bool = True):
    sampling = {"temperature": temperature, "max_new_tokens": 40, "ignore_eos": True}
    torch.manual_seed(0)
    return specframe.compose(target=target, sampling=sampling, run={"batch": 3}, **(FALCON if drafter else {}))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_eager_and_captured_cycles_give_plain_decodings_tokens(temperature):
    plain = composed(cuda_target(False), temperature, drafter=False).generate(PROMPTS).tokens
    for compiled in (False, True):
        target = cuda_target(compiled)
        assert composed(target, temperature).generate(PROMPTS).tokens == plain
        assert not compiled or not target.forward._steps.refused


def test_a_cpu_gives_the_same_tokens():
    texts = [
        composed(HFTarget.from_model(make_model().double().to(device))).generate(PROMPTS).tokens
        for device in ("cpu", "cuda")
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_host_waits_once_a_greedy_cycle(compiled):
    pipeline = composed(cuda_target(compiled))
    requests = pipeline.requests(PROMPTS[:3], seed=0)
    with pipeline.open(requests, slots=3) as session:
        session.admit(requests)
        session.step()
        session.step()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")  # which warns that it is a prototype
            try:
                session.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    waits = [f"{w.filename}:{w.lineno}" for w in caught if "called a synchroniz" in str(w.message)]
    assert len(waits) == 1, waits


def test_a_devices_clock_has_its_own_time():
    pipeline = composed(cuda_target(False))
    requests, clock = pipeline.requests(PROMPTS[:3], seed=0), Clock.on(torch.device("cuda"))
    with clock.phase("session"), pipeline.open(requests, slots=3, clock=clock) as session:
        session.run(requests)
    clock.settle()
    assert clock.seconds["target"] > 0 and clock.seconds["session"] >= clock.seconds["target"]
