"""transformers as the engine of `specframe export --check`: cycles that the text's end would cut are counted whole."""

from __future__ import annotations

import pytest
from transformers.generation.candidate_generator import AssistedCandidateGenerator

import specframe
from specframe_transformers.engine import run


def test_a_model_that_assists_itself_has_everything_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "update_candidate_strategy"
    monkeypatch.setattr(AssistedCandidateGenerator, name, getattr(AssistedCandidateGenerator, name))  # put back
    folder = str(specframe.model_folder("talk-7m"))
    prompts = [[5, 9, 12], [7, 3]]
    found = run({"target": folder, "folder": folder, "prompts": prompts, "tokens": 10, "length": 3})
    assert found["engine"].startswith("transformers ")
    assert [len(text) for text in found["texts"]] == [10, 10]
    assert found["cycles"] == 6 and found["accepted"] == 18  # 1 + 4 + 4 + 4 tokens of each prompt, of which 10 count
