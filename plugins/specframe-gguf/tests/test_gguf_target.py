"""A GGUF file as a target, and as safetensors; the error for a file that will not do."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from specframe import compose, convert_gguf
from specframe.cli.main import main
from specframe.components.targets import conversion
from specframe.components.targets import source as reading
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import InputError, WeightsError
from tests.small_gguf import VOCABULARY, write_gguf


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "small.gguf")


def test_a_gguf_file_is_a_target(file):
    target = HFTarget(model=str(file), device="cpu")
    assert (target.vocab_size, target.context, target.dtype) == (VOCABULARY, 128, torch.float32)
    assert target.ends == {VOCABULARY - 1}
    assert target.tokenizer is not None and target.tokenizer.decode(target.tokenizer("drab")["input_ids"]) == "drab"
    assert target.tokenizer.chat_template
    target.check()
    stored = next(t for t in gguf.GGUFReader(file).tensors if t.name == "blk.1.ffn_up.weight")
    weight = target.model.model.layers[1].mlp.up_proj.weight
    assert type(target.model.model.layers[1].mlp.up_proj) is torch.nn.Linear, "its blocks are unpacked"
    torch.testing.assert_close(weight, torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type)))


OTHERS = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
"""Architectures with biases, norms of queries and keys, norms after the parts, caps and windows."""


@pytest.mark.parametrize("architecture", OTHERS)
def test_files_of_other_architectures_are_targets_too(architecture, tmp_path):
    file = write_gguf(tmp_path / "small.gguf", architecture=architecture, context=256)
    target = HFTarget(model=str(file), device="cpu")
    assert type(target.model).__name__ == OTHERS[architecture]
    assert (target.vocab_size, target.context, target.ends) == (VOCABULARY, 256, {VOCABULARY - 1})
    assert target.tokenizer is not None and target.tokenizer.decode(target.tokenizer("drab")["input_ids"]) == "drab"
    target.check()  # a tree scores as its paths do
    parameters = dict(target.model.named_parameters())
    stored = {t.name: torch.tensor(gguf.dequantize(t.data, t.tensor_type)) for t in gguf.GGUFReader(file).tensors}
    torch.testing.assert_close(parameters["model.layers.1.mlp.up_proj.weight"], stored["blk.1.ffn_up.weight"])
    lines = [name for name in parameters if ".1." in name]
    assert len(lines) == len([name for name in stored if name.startswith("blk.1.")]), "every tensor has its place"


@pytest.mark.parametrize("architecture", OTHERS)
def test_drafts_for_them_leave_greedy_text_as_it_is(architecture, tmp_path):
    file = write_gguf(tmp_path / "small.gguf", architecture=architecture)
    target = HFTarget(model=str(file), device="cpu")
    prompt = target.tokenizer("a crab, a crab, a")["input_ids"]
    wanted = target.model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0)
    sampling = {"temperature": 0.0, "max_new_tokens": 24}
    found = compose(target=target, drafter="suffix-recycling", sampling=sampling).generate([prompt])
    assert found.tokens[0] == wanted[0, len(prompt) :].tolist()


@pytest.mark.parametrize("architecture", OTHERS)
def test_files_of_other_architectures_convert(architecture, tmp_path):
    file = write_gguf(tmp_path / "small.gguf", architecture=architecture)
    convert_gguf(file, tmp_path / "out")
    places = (file, tmp_path / "out")
    original, converted = (HFTarget(model=str(place), dtype="bfloat16", device="cpu") for place in places)
    for name, weight in original.model.state_dict().items():
        assert torch.equal(weight, converted.model.state_dict()[name]), name


def test_its_dtype_can_be_chosen(file):
    exact, rounded = (HFTarget(model=str(file), dtype=dtype, device="cpu") for dtype in ("float32", "bfloat16"))
    for name, weight in rounded.model.state_dict().items():
        assert torch.equal(weight, exact.model.state_dict()[name].bfloat16()), name


def test_it_converts_to_safetensors(file, tmp_path):
    convert_gguf(file, tmp_path / "out")
    converted = HFTarget(model=str(tmp_path / "out"), dtype="bfloat16", device="cpu")
    original = HFTarget(model=str(file), dtype="bfloat16", device="cpu")
    for name, weight in original.model.state_dict().items():
        assert torch.equal(weight, converted.model.state_dict()[name]), name
    assert original.tokenizer is not None and converted.tokenizer is not None
    text = "A drab crab, 42 times?"
    assert converted.tokenizer(text)["input_ids"] == original.tokenizer(text)["input_ids"]
    assert converted.tokenizer.chat_template == original.tokenizer.chat_template
    assert converted.ends == original.ends
    (tmp_path / "out" / "new").touch()
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1, "as the user's other files"
    assert not hasattr(converted.config, "quantization_config")


def test_a_conversion_that_wrote_something_else_is_refused(file, tmp_path, monkeypatch):
    compare = conversion._compare

    def spoil(wanted, folder):
        weights = load_file(folder / "model.safetensors")
        weights["model.norm.weight"] += 1
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        compare(wanted, folder)

    monkeypatch.setattr(conversion, "_compare", spoil)
    with pytest.raises(WeightsError, match=r"does not hold what was written: model\.norm\.weight differs"):
        convert_gguf(file, tmp_path / "out")


def test_a_folder_that_cannot_be_written(file, tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(WeightsError, match="out cannot be written"):
        convert_gguf(file, tmp_path / "out")


def test_a_file_without_a_tokenizer_decodes_token_ids(tmp_path):
    file = write_gguf(tmp_path / "bare.gguf", tokenizer=False)
    assert HFTarget(model=str(file), device="cpu").tokenizer is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: write_gguf(p, architecture="mystery"), "architecture mystery is not supported"),
        (lambda p: p.write_bytes(write_gguf(p).read_bytes()[:-5000]), "cannot be read as GGUF: .*; is the file whole"),
        (lambda p: p.write_bytes(write_gguf(p).read_bytes()[:700]), "cannot be read as GGUF: .*; is the file whole"),
        (lambda p: p.write_bytes(b"no such thing" * 99), "not a GGUF file"),
        (lambda p: p.write_bytes(b""), "cannot be read as GGUF: .*; is the file whole"),
        (lambda p: None, "there is no file"),
    ],
)
def test_a_file_that_will_not_do_is_one_line(make, message, tmp_path):
    make(tmp_path / "bad.gguf")
    with pytest.raises(InputError, match=message) as caught:
        HFTarget(model=str(tmp_path / "bad.gguf"))
    assert "\n" not in str(caught.value)


def test_no_further_package_is_needed_but_for_other_architectures(file, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "find_spec", lambda name: None)
    HFTarget(model=str(file), device="cpu")
    with pytest.raises(InputError, match=r'needs the package gguf: pip install "specframe\[gguf\]"'):
        HFTarget(model=str(write_gguf(tmp_path / "other.gguf", architecture="mystery")))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tokenizer": False}, "this target has no tokenizer"), ({"architecture": "mystery"}, "mystery is not supported")],
)
def test_the_command_line_reports_it_in_one_line(options, message, tmp_path, capsys):
    file = write_gguf(tmp_path / "bad.gguf", **options)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"target: {{use: hf, model: '{file}'}}\ndrafter: lookup\nverifier: match\nrun: {{prompts: [Hello]}}\n"
    )
    assert main(["run", str(recipe)]) == 2
    printed = capsys.readouterr().err
    assert message in printed.splitlines()[-1] and "Traceback" not in printed
