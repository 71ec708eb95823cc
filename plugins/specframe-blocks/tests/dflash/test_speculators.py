"""The package speculators as an oracle: its DFlash and DSpark on random weights, saved by it and read by us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dflash_texts as texts
import pytest
import torch
from torch import Tensor

from specframe.components.heads import Trimmed
from specframe.neural import layer_config
from specframe.testing import random_teacher
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.dspark import DSpark
from specframe_blocks.dflash.plan import KIND
from specframe_blocks.dflash.rollout import AnchoredBlocks
from tests.speculators_models import speculators_model

BLOCK, LAYERS, LENGTH, TAPS = 4, 2, 14, (1, 3, 6)
KINDS: list[tuple[type[DFlash], str, dict[str, Any]]] = [
    (DFlash, "dflash", {"sample_from_anchor": False}),
    (DFlash, "dflash", {"sample_from_anchor": True}),
    (DFlash, "dflash", {"sample_from_anchor": False, "draft_vocab_size": 6}),
    (DSpark, "dspark", {"markov_head_type": "vanilla"}),
    (DSpark, "dspark", {"markov_head_type": "vanilla", "draft_vocab_size": 6}),
    (DSpark, "dspark", {"markov_head_type": "gated", "sample_from_anchor": False}),
    (DSpark, "dspark", {"markov_head_type": "rnn", "confidence_head_with_markov": False}),
]


@pytest.fixture(autouse=True)
def _speculators() -> None:
    speculators_model("dflash.core")


REDUCED = torch.tensor([0, 2, 3, 5, 8, 9])
"""A draft vocabulary, where there is one."""


def theirs(kind: str, options: dict[str, Any]) -> Any:
    """Their model with random weights; embedding is the target's, and LM head unless there is a draft vocabulary."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dspark.config import DSparkSpeculatorConfig
    from speculators.models.dspark.core import DSparkDraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    options = dict(options)
    layer = layer_config(texts.target().config, KIND, LAYERS)
    layer._attn_implementation = "eager"
    config_of, model_of = {
        "dflash": (DFlashSpeculatorConfig, DFlashDraftModel),
        "dspark": (DSparkSpeculatorConfig, DSparkDraftModel),
    }[kind]
    config = config_of(
        transformer_layer_config=layer,
        draft_vocab_size=options.pop("draft_vocab_size", texts.VOCAB),
        block_size=BLOCK,
        aux_hidden_state_layer_ids=[tap + 1 for tap in TAPS],
        mask_token_id=3,
        speculators_config=SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **({"markov_rank": 3} if kind == "dspark" else {}),
        **options,
    )
    model = model_of(config).double().eval()
    chance, target = torch.Generator().manual_seed(1), texts.target()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=chance, dtype=torch.float64)
            weight.copy_((weight.ndim == 1) + 0.3 * noise)
        model.embed_tokens.weight.copy_(target.embed(torch.arange(texts.VOCAB)))
        if len(model.lm_head.weight) == texts.VOCAB:
            model.lm_head.weight.copy_(target.head(torch.eye(8, dtype=torch.float64)).T)
        else:
            model.d2t.copy_(REDUCED - torch.arange(len(REDUCED)))
            model.t2d.zero_()[REDUCED] = True
    return model


def asked(model: Any, taps: Tensor, tokens: Tensor, anchor: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The logits of one block [S, V] and its confidences [S], or None, by their forward pass."""
    import speculators.models.dflash.core as core
    import speculators.models.dspark.core as spark

    found: dict[str, Any] = {}

    def caught(logits: Tensor, targets: Tensor, third: Any, *rest: Any, **more: Any) -> Any:
        found["logits"], found["third"] = logits[0], third
        return torch.zeros(()), {}

    chosen = torch.tensor([anchor]), torch.tensor([True])
    monkeypatch.setattr(core, "select_anchors", lambda *given: chosen)
    monkeypatch.setattr(core, "compute_metrics", caught)
    monkeypatch.setattr(spark, "compute_metrics", caught)
    with torch.no_grad():
        model(
            taps[None],
            tokens[None],
            torch.ones(1, len(tokens), dtype=torch.long),
            torch.zeros(1, len(tokens), 8, dtype=torch.float64),
            torch.zeros(1, len(tokens), dtype=torch.long),
            max_anchors=1,
        )
    spoken = type(model).__name__ == "DSparkDraftModel"
    return found["logits"], found["third"][0].sigmoid() if spoken else None


@pytest.mark.parametrize(("kind", "name", "options"), KINDS)
def test_we_read_what_it_saves_and_compute_the_same(
    kind: type[DFlash], name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = theirs(name, options)
    model.save_pretrained(tmp_path)
    from_anchor = options.get("sample_from_anchor", name == "dspark")
    drafter = kind(weights=str(tmp_path), block_size=BLOCK, from_anchor=from_anchor)
    drafter.bind(texts.target())
    assert drafter.layout.plan.taps == TAPS and drafter.layout.plan.mask == 3
    compare(drafter, model, monkeypatch)


def compare(drafter: DFlash, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our logits and confidences of every block against those of their forward pass."""
    teacher = random_teacher(drafter.target, 1, LENGTH)
    with torch.no_grad():
        student = AnchoredBlocks()(drafter, teacher, 0.0)
    taps = torch.cat([teacher.features[tap] for tap in drafter.spec.taps], -1)[0]
    levels = drafter.promise.depth
    logits = student.logits[0].view(LENGTH - 1, levels, -1)
    skipped = BLOCK - levels
    for anchor in range(2, LENGTH - BLOCK):
        wanted, confidence = asked(model, taps, teacher.tokens[0], anchor, monkeypatch)
        torch.testing.assert_close(logits[anchor - 1], wanted[skipped:], rtol=1e-5, atol=1e-5)
        if confidence is not None:
            ours = student.confidence[0].view(LENGTH - 1, levels)[anchor - 1]
            torch.testing.assert_close(ours, confidence[skipped:], rtol=1e-5, atol=1e-5)


def loaded(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Their model from a folder, made once more with plain attention: what they take by default needs a GPU."""
    from speculators.models.dflash import DFlashDraftModel
    from speculators.models.dspark.core import DSparkDraftModel

    model_of = {"dflash": DFlashDraftModel, "dspark": DSparkDraftModel}[kind]
    monkeypatch.setattr(model_of, "load_verifier_weights", lambda self: None)
    read = model_of.from_pretrained(folder).float()
    config = read.config
    config.transformer_layer_config._attn_implementation = "eager"
    model, target = model_of(config).double().eval(), texts.target()
    model.load_state_dict(read.state_dict())
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.embed(torch.arange(texts.VOCAB)))
        if len(model.lm_head.weight) == texts.VOCAB:
            model.lm_head.weight.copy_(target.head(torch.eye(8, dtype=torch.float64)).T)
    return model


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (DFlash, {}),
        (DFlash, {"from_anchor": True}),
        (DSpark, {}),
        (DSpark, {"markov": "rnn"}),
        (DSpark, {"from_anchor": False}),
        (DSpark, {"markov": "gated", "head": Trimmed(keep=6)}),
    ],
)
def test_it_reads_our_export_and_computes_the_same(
    kind: type[DFlash], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = texts.bound(kind, block_size=BLOCK, layers=LAYERS, taps=list(TAPS), mask_token=3, **options)
    made.export("speculators").write(tmp_path)
    given = {"from_anchor": options["from_anchor"]} if "from_anchor" in options else {}
    drafter = kind(weights=str(tmp_path), block_size=BLOCK, **given)
    drafter.bind(texts.target())
    compare(drafter, loaded(made.name, tmp_path, monkeypatch), monkeypatch)
