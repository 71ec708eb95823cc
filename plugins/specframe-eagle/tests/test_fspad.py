"""FSPAD: which half does what, checkpoints as published, and drafting and training with everything else as it was."""

from __future__ import annotations

import json
from pathlib import Path

import eagle_texts as texts
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPTNeoXConfig

from specframe import CompositionError, WeightsError
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.feature_regression import FeatureRegression
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.testing import check_decoding, check_drafter, check_training, random_teacher
from specframe_eagle.drafter import Eagle
from specframe_eagle.fspad import SplitLayer
from specframe_falcon.glancing import Glancing

H, INNER = 8, 12
SECTION = "{use: eagle, feature_sampling: true, partial_alignment: true}"
LOSSES = "[{use: feature-regression, weight: 1.0}, {use: cross-entropy, weight: 0.1}]"


@pytest.mark.parametrize("rollout", [TeacherForced(), MultiStep(steps=2), Glancing(first=True)])
def test_each_loss_trains_its_own_half(rollout: object) -> None:
    drafter, teacher = texts.bound(**texts.FSPAD), random_teacher(texts.target(), 2, 10)
    down = drafter.module.layer.layer.mlp.down_proj.weight  # [2H, I]
    student = rollout(drafter, teacher, 0.0)
    assert student.features.shape[-1] == H and student.logits.shape[-1] == texts.VOCAB
    for loss, trained in ((CrossEntropy(), slice(0, H)), (FeatureRegression(), slice(H, 2 * H))):
        (reach,) = torch.autograd.grad(loss(student, teacher), down, retain_graph=True)
        assert (reach[trained].abs().sum(1) > 0).all()
        reach[trained] = 0
        assert not reach.any()


def test_the_head_reads_the_first_half_and_the_feature_is_the_second() -> None:
    drafter, teacher = texts.bound(**texts.FSPAD), random_teacher(texts.target(), 2, 8)
    pairs = torch.cat([texts.target().embed(teacher.tokens[:, 1:]), teacher.features["last"][:, :-1]], -1)
    predicted = drafter.network(pairs)  # [B, 7, 2H]
    student = TeacherForced(noise=0.0)(drafter, teacher, 0.0)
    assert predicted.shape[-1] == 2 * H
    assert torch.equal(student.features, predicted[..., H:])
    assert torch.equal(student.hidden, predicted[..., :H])
    assert torch.equal(student.logits, texts.target().head(predicted[..., :H]))


def publish(folder: Path, **config: object) -> dict[str, Tensor]:
    """Writes a checkpoint as FSPAD's authors lay theirs out, once it is safetensors."""
    chance = torch.Generator().manual_seed(3)
    layer = "layers.0."
    shapes = {
        "embed_tokens.weight": (texts.VOCAB, H),
        "fc.fc.weight": (H, 2 * H),
        "fc.fc.bias": (H,),
        "fc.mlp.gate_proj.weight": (INNER, H),
        "fc.mlp.up_proj.weight": (INNER, H),
        "fc.mlp.down_proj.weight": (H, INNER),
        "fc.post_attention_layernorm.weight": (H,),
        f"{layer}self_attn.q_proj.weight": (8, H),
        f"{layer}self_attn.k_proj.weight": (4, H),
        f"{layer}self_attn.v_proj.weight": (4, H),
        f"{layer}self_attn.o_proj.weight": (H, 8),
        f"{layer}mlp.gate_proj.weight": (INNER, H),
        f"{layer}mlp.up_proj.weight": (INNER, H),
        f"{layer}mlp.down_proj.weight": (2 * H, INNER),
        f"{layer}post_attention_layernorm.weight": (H,),
    }
    tensors = {name: torch.randn(shape, generator=chance).half() for name, shape in shapes.items()}
    tensors["embed_tokens.weight"] = texts.target(dtype=torch.float32).embed(torch.arange(texts.VOCAB)).half()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(texts.PUBLISHED | config))
    return tensors


@pytest.mark.parametrize("config", [{}, {"bias": False}])  # as in EAGLE's configs for Llama 3; FSPAD has one still
def test_a_published_checkpoint_comes_in_and_goes_out_bit_by_bit(config: dict[str, bool], tmp_path: Path) -> None:
    published = publish(tmp_path / "theirs", **config)
    drafter = Eagle(weights=str(tmp_path / "theirs"))  # the tensors show what it is
    drafter.bind(texts.target(dtype=torch.float32))
    ours = drafter.module.state_dict()
    assert len(ours) == len(published) - 1
    for name, tensor in published.items():
        if name != "embed_tokens.weight":
            assert torch.equal(ours[name.replace("layers.0", "layer.layer")], tensor.float()), name
    drafter.save(tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == published.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in published.items())
    configs = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("theirs", "again")]
    assert configs[1].pop("trained_for").keys() == {"name", "fingerprint"}
    assert configs[0] == configs[1]


@pytest.mark.parametrize("lacking", ["feature_sampling", "partial_alignment"])
def test_what_is_saved_comes_back_and_what_it_lacks_is_named(lacking: str, tmp_path: Path) -> None:
    options = {**texts.FSPAD, lacking: False}
    drafter = texts.bound(dtype=torch.float32, bias=False, **options)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(weight.bfloat16())
    drafter.save(tmp_path)
    again = Eagle(weights=str(tmp_path), **options)
    again.bind(texts.target(dtype=torch.float32))
    for name, weight in drafter.module.state_dict().items():
        assert torch.equal(weight, again.module.state_dict()[name]), name
    with pytest.raises(WeightsError, match=lacking):
        Eagle(weights=str(tmp_path), **texts.FSPAD).bind(texts.target(dtype=torch.float32))


def test_a_layer_without_a_map_to_widen_is_refused() -> None:
    config = GPTNeoXConfig(hidden_size=8, intermediate_size=16, num_attention_heads=2, vocab_size=11)
    with pytest.raises(CompositionError, match=r"'gpt_neox' has no mlp\.down_proj"):
        SplitLayer(config)


def test_it_keeps_the_contract_of_drafters() -> None:
    check_drafter(lambda: Eagle(feature_sampling=True, partial_alignment=True))


def test_it_trains_by_recipe() -> None:
    check_training(SECTION, LOSSES, rollout="teacher-forced")


@pytest.mark.parametrize(
    "tree",
    ["{use: dynamic, depth: 4, width: 3, nodes: 10}", "{use: chain, depth: 3, draw: without_replacement}"],
)
def test_it_decodes_by_recipe(tree: str) -> None:
    check_decoding(SECTION, tree)
