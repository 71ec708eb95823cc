"""The tau that P-EAGLE's training simulates is the one that decoding has."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.trees.fixed import Chain
from specframe.testing import fit, tiny_target
from specframe.training.validation import measure
from specframe_eagle.parallel.drafter import PEagle
from specframe_eagle.parallel.rollout import COD

PROMPT, NEW, ROWS, HELD, LEVELS = 3, 40, 32, 16, 3


def test_simulated_tau_is_what_decoding_has() -> None:
    target = tiny_target("llama", vocab=24, size=16, layers=2, dtype=torch.float32)
    drafter = PEagle(levels=LEVELS, layers=2)
    drafter.bind(target)
    pipeline = specframe.compose(target=target, drafter=drafter, tree=Chain(depth=LEVELS), verifier="match")
    prompts = torch.randint(24, (ROWS, PROMPT), generator=torch.Generator().manual_seed(3)).tolist()
    written = pipeline.plain().generate(prompts, max_new_tokens=NEW).tokens
    rows = [(prompt, new) for prompt, new in zip(prompts, written, strict=True) if len(new) == NEW]
    assert len(rows) > HELD
    texts = torch.tensor([prompt + list(new) for prompt, new in rows])
    mask = torch.arange(texts.shape[1]).expand_as(texts) >= PROMPT
    torch.manual_seed(0)
    lesson = target.teach(texts[HELD:], mask[HELD:])
    course = fit(drafter, [lesson], COD(), [(CrossEntropy(), 1.0)], steps=60)
    assert course[-1] < 0.8 * course[0]
    drafter.module.eval()
    simulated = measure(
        drafter, [target.teach(texts[:HELD], mask[:HELD])], [(CrossEntropy(), 1.0, "cross-entropy")], COD()
    )
    result = pipeline.generate([prompt for prompt, _ in rows[:HELD]], max_new_tokens=NEW)
    assert [list(tokens) for tokens in result.tokens] == [list(new) for _, new in rows[:HELD]]
    tau = 1 + result.acceptance.accepted / result.acceptance.cycles
    assert tau > 1.3, "nothing was learned, so nothing is compared"
    assert simulated["tau"] == pytest.approx(tau, rel=0.03)
