"""`compile: true`: few shapes, the same tokens, and transformers' own forward pass where it cannot be had.

Most tests trace the forward pass without generating code for it, which takes a tenth of the time.
"""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe.bench.contest.weights import weigh
from specframe.components.targets.forward.compiled import CompiledForward, StaticStep
from specframe.components.targets.forward.native import NativeForward
from specframe.components.targets.hf import HFTarget
from specframe.kernel.types import Verdict
from specframe.neural.compiled import power, width_of
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, SHAPES, accept, batch, random_tree

pytestmark = pytest.mark.filterwarnings("ignore:The distutils package:DeprecationWarning")  # which inductor imports
COUNT = 14
NEAR = {"sliding_window": 5}


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


def compiled(model, backend: str = "eager") -> HFTarget:
    target = HFTarget.from_model(model)
    target.computing.inner = CompiledForward(target.parts.eager, target.dtype, backend)
    return target


def shapes(target) -> set:
    assert not target.forward._steps.refused
    return {shape[-2:] for shape in target.forward._steps._checked}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("mistral", NEAR),
        ("gemma2", NEAR | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    ],
)
def test_trees_equal_generate_token_for_token(family, changes, build, continuation, decode):
    model = build(family, **changes)
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    target = compiled(model)
    found = decode(target, PROMPTS, expected)
    assert [row[:COUNT] for row in found] == expected
    assert shapes(target) == {(3, 8)}


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_generated_code_gives_the_same_tokens_and_features(dtype, build, continuation, decode):
    model = build("llama", num_hidden_layers=2).to(dtype)
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    seen: dict[str, list] = {"eager": [], "inductor": []}
    for backend, commits in seen.items():
        target = compiled(model, backend)
        target.request(frozenset({"last", "layer.0"}))
        found = decode(target, PROMPTS, expected, nodes=4, seen=commits)
        assert [row[:COUNT] for row in found] == expected
        assert shapes(target) == {(3, 4)}
    for (_, one), (_, other) in zip(*seen.values(), strict=True):
        for tap, features in one.features.items():
            torch.testing.assert_close(features, other.features[tap], atol=1e-5, rtol=1e-4)  # norms are in float32


def test_features_are_those_of_the_model_as_it_is(build):
    model, noise = build("qwen2"), torch.Generator().manual_seed(1)
    taps = frozenset({"last", "layer.0", "layer.2"})
    targets = [compiled(model), HFTarget.from_model(model)]
    for target in targets:
        target.request(taps)
        tree, scores = admitted(target, batch(PROMPTS), 20)
        committed = target.commit(tree, accept(tree, scores.logits))
    draft = random_tree(committed.root, [[1, 2]] * 3, 6, noise)
    found, wanted = (target.score(draft) for target in targets)
    assert found.features.keys() == taps
    torch.testing.assert_close(found.logits, wanted.logits)
    for tap in taps:
        torch.testing.assert_close(found.features[tap], wanted.features[tap])
    assert not any(module._forward_hooks for module in model.modules()), "the model is left as it is"


def test_rows_leave_and_change_places(build, continuation, decode):
    model = build("llama")
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    target = compiled(model)
    found = decode(target, PROMPTS, expected, nodes=6, drop={0: [2, 0, 1], 2: [0, 2], 3: [1]})
    assert found[1][:COUNT] == expected[1]
    assert found[0][:COUNT] == expected[0][: len(found[0])] and found[2][:COUNT] == expected[2][: len(found[2])]
    assert shapes(target) == {(3, 8), (2, 8), (1, 8)}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("drafter", "temperature"), [({"use": "lookup", "length": 3}, 0.0), ({"use": "recycling", "nodes": 6}, 1.0)]
)
def test_a_session_whose_rows_join_and_leave_gives_the_same_tokens(drafter, temperature, build):
    model = build("llama")
    sampling = {"temperature": temperature, "max_new_tokens": 20}
    prompts = [[5, 6, 7, 5, 6, 7, 5], [11, 12], *map(list, PROMPTS), [3] * 9]

    def tokens(target: HFTarget) -> list[list[int]]:
        run = {"batch": 3, "seed": 5}
        return specframe.compose(target=target, drafter=drafter, sampling=sampling, run=run).generate(prompts).tokens

    target = compiled(model)
    assert tokens(target) == tokens(HFTarget.from_model(model))
    assert {rows for rows, _ in shapes(target)} <= {1, 2, 3}
    assert all(nodes == power(nodes) for _, nodes in shapes(target))


def test_trees_of_many_sizes_have_few_shapes(build):
    target, noise = compiled(build("llama")), torch.Generator().manual_seed(2)
    tree, scores = admitted(target, batch(PROMPTS[:1]), 150)
    for nodes in (5, 8, 6, 7, 1, 8, 5):
        committed = target.commit(tree, accept(tree, scores.logits))
        tree = random_tree(committed.root, [[1, 2, 3]], nodes, noise)
        scores = target.score(tree)
        assert scores.logits.shape[:2] == (1, nodes)
    assert shapes(target) == {(1, 8), (1, 1)}


@pytest.mark.parametrize(("positions", "width"), [(1, 256), (256, 256), (257, 512), (1025, 2048)])
def test_storage_has_few_widths(positions, width):
    assert width_of(positions) == width


def test_a_text_beyond_the_first_width_gets_the_next(build, decode, continuation):
    model = build("llama", max_position_embeddings=600)
    prompts = [[*range(1, 50)] * 5, [3, 4, 5]]
    expected = [continuation(model, prompt, COUNT) for prompt in prompts]
    target = compiled(model)
    assert [row[:COUNT] for row in decode(target, prompts, expected)] == expected
    widths = {shape[3] for shape in target.forward._steps._checked}
    assert widths == {256, 512}


def test_what_was_read_ahead_of_a_prompt_is_no_padding(build, continuation):
    """A batch of three in four slots is padded to four rows, of which the last holds the prompt that is to join."""
    model = build("llama")
    late = [*range(1, 30)]
    target = compiled(model)
    target.open(4, 100)
    tree, scores = target.admit(batch(PROMPTS))
    committed = target.commit(tree, accept(tree, scores.logits))
    assert target.read_ahead(late, 20) == 20
    for _ in range(3):
        tree = random_tree(committed.root, [[1]] * 3, 7, torch.Generator().manual_seed(3))
        committed = target.commit(tree, accept(tree, target.score(tree).logits))
    assert not target.forward._steps._checked
    tree, scores = target.admit(batch([late]))
    expected = continuation(model, late, 2)
    first = accept(tree, scores.logits).bonus
    target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(1).long(), first))
    roots = torch.cat([committed.root, first])
    tree = random_tree(roots, [[1]] * 4, 1, torch.Generator())
    assert [int(first), int(target.score(tree).logits[3, 0].argmax())] == expected
    assert shapes(target) == {(4, 1)}


def test_what_cannot_be_compiled_runs_as_it_is(build, continuation, decode, caplog, monkeypatch):
    model = build("llama")
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    mlp = type(model.model.layers[0].mlp)
    forward = mlp.forward

    def breaking(self, x):
        torch._dynamo.graph_break()
        return forward(self, x)

    monkeypatch.setattr(mlp, "forward", breaking)
    found = decode(compiled(model), PROMPTS, expected)
    assert [row[:COUNT] for row in found] == expected
    refused = [line for line in caplog.messages if "its forward pass is not compiled" in line]
    assert len(refused) == 1 and refused[0].startswith("compile: the model cannot be compiled (Unsupported: ")
    assert "\n" not in refused[0]


def test_what_computes_something_else_is_not_used(build, continuation, decode, caplog, monkeypatch):
    model = build("llama")
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    forward = StaticStep.forward

    def wrong(self, tokens, positions, sees, length, *planes):
        return forward(self, tokens, positions.flip(1), sees, length, *planes)

    monkeypatch.setattr(StaticStep, "forward", wrong)
    found = decode(compiled(model), PROMPTS, expected)
    assert [row[:COUNT] for row in found] == expected
    assert caplog.text.count("computes something else when it is compiled") == 1


def test_who_counts_operators_sees_them(build):
    """As the bench does, which counts the weights that are multiplied by."""
    target = compiled(build("llama"))
    sampling = {"max_new_tokens": 4}
    pipeline = specframe.compose(target=target, drafter={"use": "lookup"}, sampling=sampling)
    weights = sum(p.numel() for name, p in target.model.named_parameters() if p.dim() > 1 and "embed" not in name)
    assert weigh(pipeline, [5, 6, 7, 5, 6, 7]) == {"target": weights, "drafter": 0}
    assert not target.forward._steps._checked


def test_the_option_is_a_targets(model_folder):
    target = HFTarget(model=str(model_folder), device="cpu", compile=True)
    assert isinstance(target.forward, CompiledForward) and target.computing.inner is target.forward
    other = target.sibling()
    assert isinstance(other.forward, CompiledForward) and other.forward._steps is target.forward._steps


@pytest.mark.parametrize(("dtype", "forward"), [("float32", NativeForward), ("float64", CompiledForward)])
def test_native_passes_come_first(dtype, forward, build, tmp_path):
    build("llama", hidden_size=64, head_dim=16, intermediate_size=96).float().save_pretrained(tmp_path)
    target = HFTarget(model=str(tmp_path), device="cpu", dtype=dtype, compile=True, native=True)
    assert isinstance(target.forward, forward)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(SHAPES))
def test_every_family_compiles(family, build, continuation, decode):
    model = build(family)
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    target = compiled(model, "inductor")
    assert [row[:COUNT] for row in decode(target, PROMPTS, expected)] == expected
    assert shapes(target) == {(3, 8)}
