"""The published target, where it is in the cache: greedy texts are those of `generate`, and the recipes decode it."""

from __future__ import annotations

import json

import pytest

import specframe
from specframe.cli.main import main
from specframe.decoding.baseline import find_divergences, generate_with_transformers
from specframe_zoo import smollm2
from tests.repo.repository import ROOT

pytestmark = pytest.mark.skipif(
    not smollm2.folder.is_dir(), reason="SmolLM2 is not cached: `specframe run recipes/lookup.yaml` fetches it"
)
PROMPTS = ["What is 12 + 7?", "Say hello, hello, hello.", "Name three colours.", "Who wrote Hamlet?"]


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.full), 4])
def test_its_texts_are_those_of_generate_in_float32(batch):
    pipeline = specframe.load(
        ROOT / "recipes" / "lookup.yaml",
        overrides=["target.dtype=float32", "sampling.max_new_tokens=12", f"run.batch={batch}"],
    )
    rows = [pipeline.encode(prompt) for prompt in PROMPTS]
    ours = pipeline.generate(rows).tokens
    model = pipeline.parts.target.model
    theirs = [generate_with_transformers(model, [row], pipeline.sampling, pipeline.ends)[0] for row in rows]
    assert ours == theirs


def test_in_bfloat16_its_texts_part_at_near_ties_alone():
    pipeline = specframe.load(ROOT / "recipes" / "lookup.yaml", overrides=["sampling.max_new_tokens=24"])
    rows = [pipeline.encode(prompt) for prompt in PROMPTS]
    model = pipeline.parts.target.model
    theirs = [generate_with_transformers(model, [row], pipeline.sampling, pipeline.ends)[0] for row in rows]
    assert all(
        found.tie for found in find_divergences(model, rows, pipeline.generate(rows).tokens, theirs, pipeline.sampling)
    )


@pytest.mark.parametrize("bits", [pytest.param("int8", marks=pytest.mark.full), "int4"])
def test_it_is_a_target_in_fewer_bits(bits):
    pipeline = specframe.load(ROOT / "recipes" / "lookup.yaml", overrides=[f"target.quantize={bits}"])
    pipeline.parts.target.check()  # its activations of 8 bits run apart on one of the check's senseless prompts
    assert "Red" in pipeline.generate("Name three colours.").texts[0]


def test_run_names_it(tmp_path, capsys):
    recipe = str(ROOT / "recipes" / "lookup.yaml")
    smoke = ["sampling.max_new_tokens=8", "run.repeats=0", "run.prompts=[Hello]"]
    assert main(["run", recipe, *smoke, "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == {"model": "zoo://smollm2-135m"}


def test_its_gguf_file_is_a_target_with_the_files_own_template():
    """The README's own command for a model of yours, on the file that the zoo's copy was made of."""
    (file,) = smollm2.folder.glob("*.gguf")
    pipeline = specframe.load(
        ROOT / "recipes" / "suffix-recycling.yaml",
        overrides=[f"target.model={file}", "target.dtype=float32", "sampling.max_new_tokens=12"],
    )
    row = pipeline.encode("Name three colours.")
    assert "<|im_start|>user" in pipeline.tokenizer.decode(row)
    model = pipeline.parts.target.model
    wanted = generate_with_transformers(model, [row], pipeline.sampling, pipeline.ends)
    assert pipeline.generate([row]).tokens == wanted
