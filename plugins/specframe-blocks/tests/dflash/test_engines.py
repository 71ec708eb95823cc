"""Exports: what an engine reads is what was trained, bit by bit, and what it would drop is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dflash_texts as texts
import pytest
import torch
from safetensors.torch import load_file

from specframe import WeightsError
from specframe.components.heads import Trimmed
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.dspark import DSpark

GOES: list[tuple[type[DFlash], dict[str, Any], str]] = [
    *((DFlash, {}, form) for form in ("vllm", "sglang", "speculators")),
    (DFlash, {"causal": True}, "vllm"),
    (DFlash, {"from_anchor": True}, "speculators"),
    *((DSpark, {}, form) for form in ("vllm", "sglang", "speculators")),
    *((DSpark, {"markov": "gated", "from_anchor": False}, form) for form in ("vllm", "speculators")),
    *((DSpark, {"head": Trimmed(keep=6)}, form) for form in ("vllm", "speculators")),
]


def rounded(kind: type[DFlash], options: dict[str, Any]) -> DFlash:
    drafter = texts.bound(kind, torch.float32, block_size=4, **options)
    with torch.no_grad():
        for weight in drafter.network.parameters():
            weight.copy_(weight.bfloat16())
    return drafter


@pytest.mark.parametrize(("kind", "options", "form"), GOES)
def test_what_an_engine_reads_is_what_was_trained(
    kind: type[DFlash], options: dict[str, Any], form: str, tmp_path: Path
) -> None:
    drafter = rounded(kind, options)
    made = drafter.export(form)
    made.write(tmp_path / "one")
    given = {name: value for name, value in options.items() if name in ("causal", "from_anchor")}
    again = kind(weights=str(tmp_path / "one"), block_size=4, **given)
    again.bind(texts.target(torch.float32))
    assert again.layout.plan == drafter.layout.plan
    if "head" in options:  # the rows of the target's LM head are rounded on the way
        assert again.support.tolist() == list(range(6))
        torch.testing.assert_close(texts.proposed(again), texts.proposed(drafter), rtol=2e-2, atol=2e-2)
    else:
        assert torch.equal(texts.proposed(again), texts.proposed(drafter))
    again.save(tmp_path / "two")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_what_the_configs_hold() -> None:
    drafter = rounded(DSpark, {"taps": [1, 4]})
    native, wrapped = drafter.export("sglang").config, drafter.export("speculators").config
    assert native["dflash_config"]["target_layer_ids"] == [1, 4] and native["architectures"] == ["Qwen3DSparkModel"]
    assert wrapped["aux_hidden_state_layer_ids"] == [2, 5] and wrapped["architectures"] == ["DSparkDraftModel"]
    assert wrapped["sliding_window_non_causal"] is True, "vLLM takes false for causal"
    assert wrapped["draft_vocab_size"] == texts.VOCAB and wrapped["speculators_model_type"] == "dspark"
    assert wrapped["markov_head_type"] == "vanilla" and "dflash_config" not in wrapped["transformer_layer_config"]
    reduced = rounded(DSpark, {"head": Trimmed(keep=6)}).export("vllm")
    assert reduced.config["draft_vocab_size"] == 6 and reduced.tensors["lm_head.weight"].shape == (6, 8)
    checklist = dict(reduced.checklist)
    assert checklist["LM head"] == "its own, 6 of 11 tokens" and checklist["bias"] == "vanilla, rank 3"
    after = dict(rounded(DFlash, {"head": Trimmed(keep=6)}).export("vllm").checklist)
    assert after["left out"] == "the recipe's draft vocabulary of 6 tokens"
    assert '"method": "dflash"' in rounded(DFlash, {}).export("vllm").command
    assert '"num_speculative_tokens": 3' in rounded(DFlash, {}).export("vllm").command


@pytest.mark.parametrize(
    ("kind", "options", "form", "message"),
    [
        *((DFlash, {"taps": [1, 7]}, form, "the output of layer 7, the target's last") for form in DFlash.forms),
        (DSpark, {"taps": [1, 7]}, "speculators", "the output of layer 7, the target's last"),
        (DFlash, {"from_anchor": True}, "vllm", "from_anchor is not known there"),
        (DFlash, {"from_anchor": True}, "sglang", "from_anchor is taken for false there"),
        (DSpark, {"from_anchor": False}, "sglang", "from_anchor is taken for true there"),
        (DSpark, {"from_anchor": False, "markov": "rnn"}, "vllm", "the state goes through the root's row there"),
        (DFlash, {"causal": True}, "sglang", "read in both directions"),
        (DFlash, {"causal": True}, "speculators", "read in both directions"),
        (DSpark, {"head": Trimmed(keep=6)}, "sglang", "over a draft vocabulary is not read there"),
    ],
)
def test_what_an_engine_would_drop_is_refused(
    kind: type[DFlash], options: dict[str, Any], form: str, message: str
) -> None:
    with pytest.raises(WeightsError, match=message):
        rounded(kind, options).export(form)


def test_a_tap_of_the_last_layer_is_stored_as_it_is_read_here(tmp_path: Path) -> None:
    drafter = rounded(DFlash, {"taps": [1, 7]})
    drafter.save(tmp_path)
    again = DFlash(weights=str(tmp_path), block_size=4)
    again.bind(texts.target(torch.float32))
    assert again.taps == {"layer.1", "layer.7"}, "before the final norm; `last` is after it"
    assert torch.equal(texts.proposed(again), texts.proposed(drafter))
