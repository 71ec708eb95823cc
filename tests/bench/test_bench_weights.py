"""The weights a forward reads, against a count by hand."""

import pytest
import torch
from torch import nn

import specframe
from specframe.bench.contest.weights import weigh
from specframe_report.summary import summarise
from tests.bench.test_bench_contest import hold, runs_of
from tests.small_model import TINY

TREE = "tree: {use: dynamic, depth: 4, width: 3, nodes: 8}"


def matrices(module: nn.Module | None) -> int:
    """The parameters that stand in matrices, embeddings left out."""
    if module is None:
        return 0
    left_out = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    return sum(p.numel() for p in module.parameters() if p.dim() > 1 and id(p) not in left_out)


def build(folder, model, parts, dtype="float64"):
    path = folder / "weighed.yaml"
    path.write_text(f"target: {{use: hf, model: '{model}', dtype: {dtype}}}\n{parts}\nverifier: {{use: match}}\n")
    return specframe.load(path)


@pytest.mark.parametrize(
    ("parts", "heads"),
    [
        ("drafter: {use: lookup}", 0),
        (f"drafter: {{use: falcon, block: 2}}\n{TREE}", 1),
        (f"drafter: {{use: eagle}}\n{TREE}", 1),
        (f"drafter: {{use: medusa}}\n{TREE}", 0),  # it has heads of its own
    ],
    ids=["lookup", "falcon", "eagle", "medusa"],
)
def test_a_forwards_weights_are_its_matrices_and_the_head_it_shares(tmp_path, model_folder, parts, heads):
    pipeline = build(tmp_path, model_folder, parts)
    model = pipeline.parts.target.model
    head = model.lm_head.weight.numel()
    found = weigh(pipeline, [5, 6, 7, 8])
    assert found["target"] == matrices(model) == 29_696
    assert found["drafter"] == matrices(getattr(pipeline.parts.drafter, "module", None)) + heads * head


def test_a_copied_part_of_the_head_counts_as_that_part(tmp_path, model_folder):
    (tmp_path / "counts.json").write_text('{"40": 9, "41": 8}')
    heads = ("full", "trimmed, keep: 16", f"trimmed, keep: 16, counts: '{tmp_path / 'counts.json'}'")
    whole, shared, copied = (
        weigh(build(tmp_path, model_folder, f"drafter: {{use: eagle, head: {{use: {head}}}}}\n{TREE}"), [5, 6, 7])
        for head in heads
    )
    assert shared["drafter"] == copied["drafter"] == whole["drafter"] - (64 - 16) * 32


def test_of_a_mixture_the_experts_that_got_tokens_count(tmp_path):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    experts = {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2}
    config = Qwen3MoeConfig(**TINY, **experts, vocab_size=64, head_dim=8)
    model = Qwen3MoeForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "mixture")
    experts = sum(p.numel() for name, p in model.named_parameters() if "experts" in name)
    pipeline = build(tmp_path, tmp_path / "mixture", "drafter: {use: none}", "float32")  # a token a forward
    assert (
        weigh(pipeline, [5, 6, 7])["target"]
        == sum(p.numel() for name, p in model.named_parameters() if p.dim() > 1 and "embed" not in name)
        - experts * 6 // 8
    )


def test_who_cannot_be_weighed_takes_part_all_the_same(here, monkeypatch):
    monkeypatch.setattr("specframe.bench.contest.own.weigh", lambda *given: 1 / 0)
    results, contest = hold(here, "lookup.yaml")
    assert len(results["runs"]) == 4 and not contest.errors
    assert results["contestants"][0]["weights"] is None


def test_the_bench_predicts_by_sizes(here):
    results, _ = hold(here, "falcon.yaml", "plain")
    weights = {entry["name"]: entry["weights"] for entry in results["contestants"]}
    assert weights["falcon"]["target"] == 29_696 and weights["falcon"]["drafter"] > 0
    found = summarise(results)["contestants"][0]["overall"]
    steps = sum(run["drafter_calls"] for run in runs_of(results, "falcon")) / sum(
        run["target_calls"] for run in runs_of(results, "falcon")
    )
    size = weights["falcon"]["drafter"] / weights["falcon"]["target"]
    assert found["predicted"]["coral_6"] == pytest.approx(found["tau"]["value"] / (1 + steps * size))
