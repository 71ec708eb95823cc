"""A head drafts as published: embedding first, a norm each, its own normed output fed back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specframe import WeightsError
from specframe.components.heads import Trimmed
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.rollouts.multi_step import MultiStep
from specframe.testing import (
    GivenSession,
    check_proposals,
    random_teacher,
    shake,
    tiny_target,
)
from specframe_blocks.mtp.drafter import MTP

VOCAB, LAYERS = 11, 2


def bound(kind: str = "qwen3", dtype: torch.dtype = torch.float64) -> MTP:
    drafter = MTP()
    drafter.bind(tiny_target(kind, layers=LAYERS, vocab=VOCAB, dtype=dtype))
    shake(drafter.module)
    return drafter


def stored(folder: Path, drafter: MTP) -> MTP:
    loaded = MTP(weights=str(folder))
    loaded.bind(drafter.target)
    return loaded


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@torch.no_grad()
def literal(drafter: MTP, features: Tensor, tokens: Tensor, path: Tensor) -> Tensor:
    """The logits below a path of drafted tokens, [V]: the layer over the whole sequence, again for every token."""
    weights, eps = drafter.network.state_dict(), drafter.target.config.rms_norm_eps
    for step in range(len(path) + 1):
        known = torch.cat([tokens, path[:step]])
        token = normed(drafter.target.embed(known), weights["token_layernorm.weight"], eps)
        hidden = normed(features, weights["hidden_layernorm.weight"], eps)
        x = torch.cat([token, hidden], -1) @ weights["input_proj.weight"].T
        out = drafter.network.layer(x[None], torch.arange(len(x))[None], None)[0]
        last = normed(out[-1], weights["final_layernorm.weight"], eps)
        features = torch.cat([features, last[None]])
    return drafter.target.head(last)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_proposals_are_the_literal_forward_pass_s(kind: str) -> None:
    drafter = bound(kind)

    def wanted(session: GivenSession, row: int, path: Tensor) -> Tensor:
        return literal(drafter, session.features[row], session.tokens[row], path)[None]

    check_proposals(drafter, lambda rows: GivenSession.random(rows, VOCAB, 8), wanted, expansions=3, close=1e-4)


def test_gradients_reach_every_weight_in_fast_mtp_s_training() -> None:
    drafter = bound(dtype=torch.float32)
    teacher = random_teacher(drafter.target, 2, 12)
    CrossEntropy(labels="text", decay=0.6)(MultiStep(steps=3)(drafter, teacher, 0.0), teacher).backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def names(drafter: MTP, form: str) -> dict[str, Tensor]:
    """The head's tensors as published, among others of the target."""
    parts = {
        "speculators": {
            part: part for part in ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
        },
        "qwen": {
            "input_proj": "mtp.fc",
            "token_layernorm": "mtp.pre_fc_norm_embedding",
            "hidden_layernorm": "mtp.pre_fc_norm_hidden",
            "final_layernorm": "mtp.norm",
        },
        "deepseek": {
            "input_proj": "eh_proj",
            "token_layernorm": "enorm",
            "hidden_layernorm": "hnorm",
            "final_layernorm": "shared_head.norm",
        },
    }[form]
    first = {"speculators": "mtp_layers.0.", "qwen": "", "deepseek": f"model.layers.{LAYERS}."}[form]
    layer = {"speculators": "mtp_layers.0.", "qwen": "mtp.layers.0.", "deepseek": f"model.layers.{LAYERS}."}[form]
    found = {}
    for name, tensor in drafter.network.state_dict().items():
        part, _, rest = name.partition(".")
        found[f"{first}{parts[part]}.{rest}" if part in parts else layer + name.removeprefix("layer.layer.")] = tensor
    if form != "speculators":
        found |= {"model.norm.weight": torch.ones(8), "model.layers.0.mlp.up_proj.weight": torch.ones(2, 2)}
    if form == "deepseek":
        found |= {
            f"model.layers.{LAYERS}.{name}.weight": torch.ones(2, 8) for name in ("embed_tokens", "shared_head.head")
        }
    return found


def publish(folder: Path, drafter: MTP, form: str, **changes: Any) -> None:
    shape = {"hidden_size": 8, "vocab_size": VOCAB, "model_type": "qwen3", **changes}
    wrapped = {"speculators_model_type": "mtp", "transformer_layer_config": shape}
    (folder / "config.json").write_text(json.dumps(wrapped if form == "speculators" else shape))
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in names(drafter, form).items()},
        folder / "model.safetensors",
    )


@pytest.mark.parametrize("form", ["speculators", "qwen", "deepseek"])
def test_published_heads_load_as_they_are(form: str, tmp_path: Path) -> None:
    drafter = bound()
    publish(tmp_path, drafter, form)
    loaded = stored(tmp_path, drafter)
    for name, tensor in drafter.network.state_dict().items():
        assert torch.equal(tensor, loaded.network.state_dict()[name]), name


def test_a_head_in_one_of_several_files_is_found(tmp_path: Path) -> None:
    drafter = bound()
    publish(tmp_path, drafter, "qwen")
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00002.safetensors")
    places = dict.fromkeys(names(drafter, "qwen"), "model-00002.safetensors") | {"lm_head.weight": "absent.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    loaded = stored(tmp_path, drafter)
    assert torch.equal(loaded.network.input_proj.weight, drafter.network.input_proj.weight)
    (tmp_path / "model-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"part 2 of 2: .*model-00002\.safetensors is absent"):
        stored(tmp_path, drafter)


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    drafter = bound()
    drafter.network.bfloat16().double()
    drafter.save(tmp_path)
    loaded = stored(tmp_path, drafter)
    for name, tensor in drafter.network.state_dict().items():
        assert torch.equal(tensor, loaded.network.state_dict()[name]), name


@pytest.mark.parametrize("form", ["speculators", "qwen", "deepseek"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_exports_come_back_bit_by_bit(form: str, dtype: torch.dtype, tmp_path: Path) -> None:
    drafter = bound(dtype=torch.float32)
    drafter.network.to(dtype).float()
    drafter.dtype = dtype
    made = drafter.export(form)
    made.write(tmp_path / "one")
    loaded = stored(tmp_path / "one", drafter)
    for name, tensor in drafter.network.state_dict().items():
        assert torch.equal(tensor, loaded.network.state_dict()[name]), name
    assert loaded.dtype == dtype
    again = loaded.export(form)
    assert again.tensors.keys() == made.tensors.keys()
    assert all(torch.equal(again.tensors[name], made.tensors[name]) for name in made.tensors)
    loaded.save(tmp_path / "own")
    own = stored(tmp_path / "own", drafter)
    assert own.dtype == dtype
    for name, tensor in drafter.network.state_dict().items():
        assert torch.equal(tensor, own.network.state_dict()[name]), name
    wanted = {"deepseek": "model.layers.2.eh_proj.weight", "qwen": "mtp.fc.weight"}
    assert wanted.get(form, "mtp_layers.0.input_proj.weight") in made.tensors
    assert ("model.layers.2.shared_head.head.weight" in made.tensors) == (form == "deepseek")
    assert dict(made.checklist)["dtype"] == str(dtype).removeprefix("torch.")


def test_a_head_over_a_draft_vocabulary_has_no_form() -> None:
    drafter = MTP(head=Trimmed(keep=6))
    drafter.bind(tiny_target("qwen3", layers=LAYERS, vocab=VOCAB))
    with pytest.raises(WeightsError, match="a draft vocabulary is not known there"):
        drafter.export("qwen")


def test_what_speculators_reads_of_our_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = pytest.importorskip("speculators.models.mtp.core", reason="speculators is not installed")
    monkeypatch.setattr(core.MTPDraftModel, "load_verifier_weights", lambda self: None)
    drafter = bound(dtype=torch.float32)
    drafter.network.bfloat16().float()
    drafter.export("speculators").write(tmp_path)
    model = core.MTPDraftModel.from_pretrained(tmp_path)
    stored = model.state_dict()
    for name, tensor in names(drafter, "speculators").items():
        assert torch.equal(stored[name].float(), tensor), name


def test_a_folder_of_pickles_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    drafter = bound()
    publish(tmp_path, drafter, "qwen")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="convert them once: specframe import RECIPE"):
        stored(tmp_path, drafter)


def test_a_value_that_is_no_number_is_refused(tmp_path: Path) -> None:
    drafter = bound()
    with torch.no_grad():
        drafter.network.input_proj.weight[0, 0] = torch.nan
    publish(tmp_path, drafter, "deepseek")
    with pytest.raises(WeightsError, match=r"input_proj\.weight: holds values that are not finite"):
        stored(tmp_path, drafter)


@pytest.mark.parametrize("entry", [("hidden_size", 16), ("vocab_size", 12), ("model_type", "llama")])
def test_another_target_s_head_is_refused(entry: tuple[str, Any], tmp_path: Path) -> None:
    drafter = bound()
    publish(tmp_path, drafter, "qwen", **dict([entry]))
    with pytest.raises(WeightsError, match=f"{entry[0]}: the checkpoint has {entry[1]!r}"):
        stored(tmp_path, drafter)


def test_a_checkpoint_without_a_head_or_with_a_part_missing_is_refused(tmp_path: Path) -> None:
    drafter = bound()
    publish(tmp_path, drafter, "qwen")
    save_file({"model.norm.weight": torch.ones(8)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="holds no head for multi-token prediction"):
        stored(tmp_path, drafter)
    tensors = {name: tensor.contiguous().clone() for name, tensor in names(drafter, "qwen").items()}
    tensors["mtp.fc.weight"] = tensors.pop("mtp.norm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        stored(tmp_path, drafter)
    for line in ("final_layernorm.weight: missing", "input_proj.weight: has shape [8]"):
        assert line in str(caught.value)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(WeightsError, match=r"cannot read .*model\.safetensors"):
        stored(tmp_path, drafter)


def theirs(drafter: MTP, steps: int) -> Any:
    """The model of the package speculators with the drafter's weights."""
    core = pytest.importorskip(
        "speculators.models.mtp.core", reason="speculators is not installed: pip install --no-deps speculators"
    )
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.mtp.config import MTPSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    config = MTPSpeculatorConfig(
        transformer_layer_config=drafter.target.config,
        speculators_config=SpeculatorsConfig(
            algorithm="mtp",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=steps)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
    )
    model = core.MTPDraftModel(config).to(drafter.target.dtype).eval()
    width = drafter.target.config.hidden_size
    with torch.no_grad():
        assert not model.load_state_dict(names(drafter, "speculators"), strict=False).unexpected_keys
        model.embed_tokens.weight.copy_(drafter.target.embed(torch.arange(VOCAB)))
        model.lm_head.weight.copy_(drafter.target.head(torch.eye(width, dtype=drafter.target.dtype)).T)
    return model


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")  # speculators gives it so
def test_speculators_computes_the_same_for_three_steps() -> None:
    """Their steps attend to their own entries alone, at the positions of the first, so ours are unrolled so here."""
    drafter, steps = bound(), 3
    teacher = random_teacher(drafter.target, 1, 12)
    features = teacher.features["last"]
    with torch.no_grad():
        wanted = theirs(drafter, steps)(teacher.tokens, features)[0]
        assert len(wanted) == steps
        for step, logits in enumerate(wanted):
            n = logits.shape[1]
            made = drafter.unroll(features[:, :n], teacher.tokens[:, step + 1 : step + 1 + n])
            torch.testing.assert_close(drafter.read(made)[:, :, 0], logits, rtol=1e-5, atol=1e-5)
            assert made.features is not None
            features = made.features[:, :, 0]  # the normed output is fed back


def test_what_speculators_saves_is_read(tmp_path: Path) -> None:
    drafter = bound(dtype=torch.float32)
    theirs(drafter, 3).save_pretrained(tmp_path)
    loaded = stored(tmp_path, drafter)
    assert loaded.dtype == torch.float32
    for name, tensor in drafter.network.state_dict().items():
        assert torch.equal(tensor, loaded.network.state_dict()[name]), name
