"""Architectures of transformers' registries that decode as `generate` does: a few here, all with `-m slow`."""

from __future__ import annotations

import re

import pytest

from tests.components.targets.registry.configs import names
from tests.components.targets.registry.page import PAGE, render
from tests.components.targets.registry.pictures import decodes_after_image
from tests.components.targets.registry.walk import Row, examine


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("exaone4", "identical"),
        ("gpt_oss", "identical"),
        ("modernbert-decoder", "identical"),
        ("llava", "identical"),
        ("smolvlm", "identical"),
        ("idefics3", "identical"),
        ("internvl", "identical"),
        ("mistral3", "identical"),
        ("qwen2_vl", "identical"),
        ("qwen2_5_vl", "identical"),
        ("qwen3_vl", "identical"),
        ("bert", "reads texts in both directions"),
        ("openai-gpt", "its forward pass fails where texts of several lengths"),
        ("deepseek_v32", "sparse attention"),
        ("jamba", "JambaMambaMixer keeps a recurrent state of a kind .* are off by 0"),
        ("recurrent_gemma", "RecurrentGemmaForCausalLM keeps a recurrent state"),
        ("minimax", "MiniMax uses cache of its own"),
        ("paligemma", "sees the tokens that come after a position"),
        ("blip-2", "reads pixel_values with every text"),
        ("kosmos-2", "reads pixel_values with every text"),
        ("idefics", "fails on text alone, .*pixel_values"),
        ("t5gemma2", "is an encoder-decoder model"),
        ("musicgen", "has several text models"),
    ],
)
def test_an_architecture_decodes_identically_or_is_refused(name, outcome):
    row = examine(name)
    if outcome == "identical":
        assert row == Row(name, "identical"), row
    else:
        assert row.outcome == "refused" and re.search(outcome, row.detail), row


@pytest.mark.parametrize(
    "name",
    [
        "bamba",
        "falcon_h1",
        "granitemoehybrid",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "mamba2",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5_text",
        "qwen3_next",
        "zamba2",
    ],
)
def test_an_architecture_with_recurrent_layers_decodes_identically_and_not_by_its_own_layers(name):
    row = examine(name)
    assert row.outcome == "identical", row
    assert "recurrent layers keep one state" in row.layers


@pytest.mark.parametrize("name", ["aya_vision", "internvl", "mistral3", "hyperclovax_vision_v2"])
def test_an_architecture_decodes_identically_after_an_image(name):
    assert decodes_after_image(name) == "identical"


def test_a_page_lists_what_decodes_after_images():
    rows = [
        Row("llava", "identical", images="identical"),
        Row("qwen2_vl", "identical"),
        Row("llama", "identical"),
        Row("paligemma", "refused", "its attention sees the tokens that come after a position"),
    ]
    page = render(rows)
    assert "| `llava` | identical |" in page and "| `qwen2_vl` | its texts are identical; no image was tried |" in page
    assert "| `llama`" not in page and "| `paligemma` | its attention sees" in page


def test_an_architecture_whose_layers_cannot_draft_is_listed():
    row = examine("gemma3n_text")
    assert row.outcome == "identical"
    assert "fails with some of them alone" in row.layers
    page = render([row, Row("llama", "identical"), Row("bert", "refused", "reads")])
    assert "Of these 2, 1 can" in page
    assert "| `gemma3n_text` | cannot draft with its own layers: its" in page


def test_the_page_knows_no_wrong_one():
    text = PAGE.read_text(encoding="utf-8")
    assert "## Wrong" not in text
    assert "decodes wrongly" not in text
    assert "`llama`" in text and "`llava`" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_no_architecture_of_the_registry_decodes_wrongly(name):
    row = examine(name)
    assert row.outcome != "wrong", row
    assert "wrongly" not in row.layers, row
