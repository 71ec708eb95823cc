"""A quantized target: its weights, its own forward pass next to transformers', and what cannot be quantized."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import specframe
from specframe.cli.main import main
from specframe.components.targets import pack as replacement
from specframe.components.targets import probe
from specframe.components.targets.forward.native import CHUNK, NativeForward
from specframe.components.targets.forward.transformers import TransformersForward
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError, InputError
from specframe.native.linear import QuantizedLinear
from tests.components.targets.models import PROMPTS, VOCABULARY, accept, batch, random_tree
from tests.small_gguf import write_gguf

BROAD = {
    "hidden_size": 64,
    "head_dim": 16,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 600,
}
NATIVE = {"native": torch.bfloat16, "native in float32": torch.float32}
CACHED = ["int4 cache bfloat16", "native cache bfloat16"]
KINDS = ["int4", *NATIVE, *CACHED]
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


@pytest.fixture
def quantized(build):
    """A tiny random model as a quantized target in float32; or in bfloat16 or float32 as it is, with native code.

    After `cache` stands the form in which keys and values are kept.
    """

    def make(family: str = "llama", quantization: str = "int4", **changes) -> HFTarget:
        model = build(family, **(BROAD | changes))
        quantization, _, cache = quantization.partition(" cache ")
        target = HFTarget.from_model(model.to(NATIVE.get(quantization, torch.float32)))
        target.cache = cache or None
        if quantization in NATIVE:
            target._take_native()
        else:
            target._quantize(quantization)
        return target

    return make


def layers(target):
    return {name: module for name, module in target.model.named_modules() if isinstance(module, QuantizedLinear)}


@pytest.mark.parametrize(("blocks", "quantization"), [("Q4_0", "int4"), ("Q4_1", "int4"), ("Q8_0", "int8")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_files_blocks_are_its_weights(blocks, quantization, dtype, tmp_path):
    file = str(write_gguf(tmp_path / "small.gguf", blocks=blocks))
    unpacked = HFTarget(model=file, dtype="float32", device="cpu").model
    target = HFTarget(model=file, dtype=dtype, device="cpu", quantize=quantization)
    assert target.quantization == quantization
    found = layers(target)
    assert len(found) == 2 * 7 + 1
    for name, layer in found.items():
        assert torch.equal(layer.blocks.values(), unpacked.get_submodule(name).weight), name
    assert target.model.get_input_embeddings().weight.dtype == getattr(torch, dtype)


def test_a_converted_file_gives_its_blocks_from_the_folder(tmp_path):
    file = write_gguf(tmp_path / "small.gguf", blocks="Q4_1")
    specframe.convert_gguf(file, tmp_path / "model")
    file.rename(tmp_path / "model" / file.name)
    target = HFTarget(model=str(tmp_path / "model"), dtype="bfloat16", device="cpu", quantize="int4")
    exact = HFTarget(model=str(tmp_path / "model" / file.name), dtype="float32", device="cpu").model
    for name, layer in layers(target).items():
        assert torch.equal(layer.blocks.values(), exact.get_submodule(name).weight), name


def test_weights_of_another_size_are_rounded(tmp_path):
    file = str(write_gguf(tmp_path / "small.gguf", blocks="Q8_0"))
    exact = HFTarget(model=file, dtype="float32", device="cpu").model
    for name, layer in layers(HFTarget(model=file, device="cpu", quantize="int4")).items():
        assert layer.bits == (8 if name == "lm_head" else 4)
        error = (layer.blocks.values() - exact.get_submodule(name).weight).norm() / exact.get_submodule(
            name
        ).weight.norm()
        assert error < (1e-6 if name == "lm_head" else 0.12), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantization", ["int8", *KINDS])
def test_its_forward_pass_is_transformers_over_the_same_weights(family, quantization, quantized):
    target = quantized(family, quantization)
    assert isinstance(target.forward, NativeForward)
    limit = 1e-4 if target.dtype == torch.float32 and quantization in NATIVE else 2e-2
    assert probe.deviation(target) < limit, "activations that differ by an ulp may round to another of 255 steps"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantization", KINDS)
def test_its_features_are_transformers(family, quantization, quantized):
    target = quantized(family, quantization)
    target.request(frozenset({"last", "layer.0", "layer.2"}))
    prompts = batch(PROMPTS)
    target.open(3, 20)
    _, scores = target.admit(prompts)
    wanted = target.teach(prompts.tokens, prompts.tokens > 0).features
    for tap, features in scores.features.items():
        for row, count in enumerate(prompts.count.tolist()):
            difference = (features[row, :count] - wanted[tap][row, :count]).norm() / wanted[tap][row, :count].norm()
            assert difference < 2e-2, tap


@pytest.mark.parametrize("quantization", KINDS)
def test_a_tree_gets_the_very_bits_of_each_path_alone(quantization, quantized):
    target, noise = quantized(quantization=quantization), torch.Generator().manual_seed(3)
    target.request(frozenset({"last", "layer.1"}))
    target.open(3, 64)
    tree, scores = target.admit(batch(PROMPTS))
    texts = [list(prompt) for prompt in PROMPTS]
    for _ in range(4):
        verdict = accept(tree, scores.logits)
        committed = target.commit(tree, verdict)
        for text, path, bonus in zip(texts, verdict.path.tolist(), verdict.bonus.tolist(), strict=True):
            text += [int(tree.tokens[texts.index(text), node]) for node in path if node >= 0] + [bonus]
        tree = random_tree(committed.root, [[1, 2, 3]] * 3, 9, noise)
        scores = target.score(tree)
        alone = target.sibling()
        alone.request(frozenset({"last", "layer.1"}))
        for row, text in enumerate(texts):
            for node in range(9):
                path = tree.ancestors[row, node].nonzero()[1:, 0]
                alone.open(1, 64)
                _, wanted = alone.admit(batch([[*text, *tree.tokens[row, path].tolist()]]))
                assert torch.equal(scores.logits[row, node], wanted.logits[0, 0])
                for tap, features in wanted.features.items():
                    assert torch.equal(scores.features[tap][row, node], features[0, -1]), tap


@pytest.mark.parametrize("quantization", KINDS)
def test_a_long_prompt_is_read_in_chunks_without_changing_a_bit(quantization, quantized, monkeypatch):
    target = quantized(quantization=quantization)
    prompt = batch([torch.randint(VOCABULARY, (CHUNK + 50,)).tolist(), [1, 2, 3]])

    def read():
        target.open(2, 400)
        return target.admit(prompt)[1].logits

    whole = read()
    for chunk in (7, 1000):
        monkeypatch.setattr("specframe.components.targets.forward.native.CHUNK", chunk)
        assert torch.equal(read(), whole), chunk


def test_no_prompt_waits_for_a_longer_one(quantized):
    """A batch of prompts takes as many tokens as they have, and gives what each of them alone does."""
    target = quantized(quantization="int8")
    target.request(frozenset({"last", "layer.0"}))
    prompts = [torch.randint(VOCABULARY, (length,)).tolist() for length in (3, 2, 40, 17, 1, 300)]
    read = []
    run = target.forward.decode

    def counted(nodes, *rest):
        read.append(nodes.tokens.shape)
        return run(nodes, *rest)

    target.forward.decode = counted
    target.open(len(prompts), 400)
    together = target.admit(batch(prompts))[1]
    assert [tuple(shape) for shape in read] == [(2, 3), (1, 40), (1, 17), (1, 1), (1, 256), (1, 44)]
    for row, prompt in enumerate(prompts):
        target.open(1, 400)
        alone = target.admit(batch([prompt]))[1]
        assert torch.equal(together.logits[row], alone.logits[0])
        for tap, features in alone.features.items():
            assert torch.equal(together.features[tap][row, : len(prompt)], features[0]), tap


@pytest.mark.sampled
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["lookup", {"use": "recycling", "nodes": 8}])
@pytest.mark.parametrize("quantization", KINDS)
def test_speculative_texts_are_plain_texts(temperature, drafter, quantization, quantized):
    target = quantized(quantization=quantization)
    sampling = {"temperature": temperature, "max_new_tokens": 40}
    prompts = [list(prompt) for prompt in PROMPTS]
    plain = specframe.compose(target=target, sampling=sampling).generate(prompts).tokens
    for rows in (1, 3):
        run = {"batch": rows}
        assert (
            specframe.compose(target=target, drafter=drafter, sampling=sampling, run=run).generate(prompts).tokens
            == plain
        )


def test_other_decoders_run_transformers_forward_pass(quantized, caplog):
    target = quantized("gemma", hidden_act="gelu_pytorch_tanh")
    assert isinstance(target.forward, TransformersForward)
    assert caplog.messages == [
        "quantize: the layers of gemma are not Llama's, so its forward pass is transformers' own"
    ]
    assert probe.deviation(target) < 2e-2


@pytest.mark.parametrize(
    ("family", "dtype", "changes", "reason"),
    [
        ("llama", torch.float64, {}, "its weights are neither in bfloat16 nor in float32"),
        ("gemma", torch.bfloat16, {"hidden_act": "gelu_pytorch_tanh"}, "the layers of gemma are not Llama's"),
        ("gpt2", torch.bfloat16, {}, "the layers of gpt2 are not Llama's"),
        ("mistral", torch.bfloat16, {"sliding_window": 8}, "its attention has a window"),
        ("llama", torch.bfloat16, {"intermediate_size": 104}, "inputs that 32 does not divide"),
    ],
)
def test_what_native_code_does_not_compute_is_transformers(family, dtype, changes, reason, build, caplog):
    target = HFTarget.from_model(build(family, **(BROAD | changes)).to(dtype))
    target._take_native()
    assert isinstance(target.forward, TransformersForward)
    assert reason in caplog.text and caplog.text.count("so its forward pass is transformers' own") == 1


def test_the_model_of_a_target_with_native_passes_stays_transformers(tmp_path):
    file = str(write_gguf(tmp_path / "small.gguf", blocks="Q4_1"))
    target = HFTarget(model=file, dtype="bfloat16", device="cpu", native=True)
    assert isinstance(target.forward, NativeForward) and not layers(target)
    assert HFTarget(model=file, dtype="bfloat16", device="cpu", native=True, quantize="int4").quantization == "int4"
    assert isinstance(target.sibling().forward, NativeForward)


def test_drafters_share_its_embedding_and_head(quantized):
    target = quantized()
    features = torch.randn(2, 64)
    rows = torch.tensor([4, 40, 7])
    assert target.embed(torch.tensor([3])).shape == (1, 64)
    assert torch.equal(target.head_for(rows)(features), target.head(features)[:, rows])
    leaf = features.clone().requires_grad_()
    target.head(leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.abs().sum() > 0


def test_where_nothing_is_trained_native_code_computes_the_shared_head(quantized):
    target = quantized(quantization="native")
    features = torch.randn(3, 64).bfloat16()
    rows = torch.tensor([4, 40, 7])
    part = target.head_for(rows)
    exact, some = target.head(features), part(features)
    with torch.inference_mode():
        fast, few = target.head(features), part(features)
    assert torch.equal(few, fast[:, rows]) and torch.equal(some, exact[:, rows])
    assert fast.dtype == torch.float32, "as native code adds it up: no bit of it is lost"
    torch.testing.assert_close(fast, exact.float(), atol=0.02, rtol=0.02)
    assert type(target._shared._head) is QuantizedLinear


def test_without_a_compiler_the_weights_are_unpacked(build, monkeypatch, caplog):
    def refuse():
        raise InputError("there is no C++ compiler (g++)")

    exact = HFTarget.from_model(build("llama", **BROAD).float())
    wanted = replacement.round_to_blocks(exact.model.model.layers[0].mlp.up_proj.weight, 4).values()
    monkeypatch.setattr(replacement, "load_native", refuse)
    exact._quantize("int4")
    assert "there is no C++ compiler (g++): the int4 weights are unpacked, which is no faster" in caplog.messages
    assert isinstance(exact.forward, TransformersForward)
    assert torch.equal(exact.model.model.layers[0].mlp.up_proj.weight, wanted)
    exact.check()


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gpt2", {}, "its layers have weights in Conv1D"),
        ("llama", BROAD | {"intermediate_size": 100}, r"down_proj has 100 inputs, which blocks of 32 do not divide"),
    ],
)
def test_what_cannot_be_quantized_is_one_line(family, changes, message, build):
    target = HFTarget.from_model(build(family, **changes).float())
    with pytest.raises(CompositionError, match=message) as caught:
        target._quantize("int4")
    assert "\n" not in str(caught.value)


def test_float64_is_refused(build):
    with pytest.raises(CompositionError, match="dtype: float64 is more than it can keep"):
        HFTarget.from_model(build("llama", **BROAD))._quantize("int8")


def test_a_device_that_is_no_cpu_is_refused(build):
    target = HFTarget.from_model(build("llama", **BROAD).float().to("meta"))
    with pytest.raises(CompositionError, match="computes on a CPU, and this target is on meta"):
        target._quantize("int8")


def test_run_reports_it(tmp_path: Path, capsys):
    file = write_gguf(tmp_path / "small.gguf", blocks="Q4_1")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"target: {{use: hf, model: '{file}', quantize: int4}}\ndrafter: lookup\nverifier: match\n"
        "sampling: {max_new_tokens: 8}\nrun: {prompts: [abab], repeats: 1}\n"
    )
    assert main(["run", str(recipe), "--out", str(tmp_path / "out")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"target: {file}, quantized to int4: its distribution is the one kept"
    assert '"quantize": "int4"' in (tmp_path / "out" / "run.json").read_text()
    assert main(["run", str(recipe), "target.cache=bfloat16", "--out", str(tmp_path / "out")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"target: {file}, quantized to int4, keys and values in bfloat16: its distribution is the one kept"
    assert '"cache": "bfloat16"' in (tmp_path / "out" / "run.json").read_text()
    assert main(["run", str(recipe), "target.quantize=int3", "--out", str(tmp_path / "out")]) == 2
    assert "quantize" in capsys.readouterr().err


@pytest.mark.parametrize("quantization", ["int4", *NATIVE])
def test_its_forward_passes_are_timed(quantization, quantized):
    target = quantized(quantization=quantization)
    found = specframe.compose(target=target, drafter="lookup", sampling={"max_new_tokens": 8}).generate([[1, 2, 3]])
    assert found.clock.calls["target"] == found.clock.calls["score"] > 0
    assert 0 < found.clock.seconds["target"] <= found.clock.seconds["score"]
