"""Counts of OpenVINO GenAI's speculation, from what a stand-in reports."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from specframe_transformers.genai import decode


class Pipeline:
    """Commits 1, 4, 1 and 2 tokens in its passes."""

    settings: Any = SimpleNamespace()

    def get_generation_config(self) -> Any:
        return self.settings

    def generate(self, inputs: Any, settings: Any) -> Any:
        raw = SimpleNamespace(m_batch_sizes=[1, 4, 1, 2])
        metrics = SimpleNamespace(main_model_metrics=SimpleNamespace(raw_metrics=raw))
        return SimpleNamespace(tokens=[[*range(8)]], extended_perf_metrics=metrics)


@pytest.mark.parametrize(("tokens", "accepted"), [(4, [3]), (5, [3]), (6, [3, 0]), (8, [3, 0, 1])])
def test_cycles_that_begin_within_the_text_are_counted(
    tokens: int, accepted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=lambda array: array.tolist()))
    monkeypatch.setitem(sys.modules, "openvino_genai", SimpleNamespace(TokenizedInputs=lambda ids, mask: (ids, mask)))
    pipeline = Pipeline()
    assert decode(pipeline, [5, 6], {"tokens": tokens, "length": 3}) == ([*range(tokens)], accepted)
    assert pipeline.settings.max_new_tokens == tokens + 4 and pipeline.settings.num_assistant_tokens == 3
