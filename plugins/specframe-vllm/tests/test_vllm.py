"""vLLM with a recipe's drafter: texts are vLLM's own, drafted and accepted tokens those of specframe's chain.

`.ci/vllm` makes an environment with vLLM, and runs these tests there.
"""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from vllm_process import speculative

import specframe
from specframe.cli.main import main

ROOT = Path(__file__).parents[3]
RECIPES, TUTORIAL = ROOT / "recipes", ROOT / "docs" / "tutorials" / "first-drafter.md"
PROMPTS = (
    "What do you like to do on a rainy day?",
    "Write a Python function that counts the vowels in a string.",
    "Tom reads 12 pages a day for 5 days, then 20 pages on Saturday. How many pages has he read?",
    "Name three primary colours.",
    "A B A B A B",
    "Explain why the sky is blue.",
    "Write a short poem about the sea.",
    "List the days of the week.",
    "What is 17 times 6? Think step by step.",
    "Translate to French: The cat sleeps on the chair.",
    "Sort these numbers in Python without the built-in sort: 5, 2, 9, 1.",
    "Give me three tips for a good night's sleep.",
)
TOKENS, LENGTH = 32, 3
CHAIN = [f"tree={{use: chain, depth: {LENGTH}}}"]
OWN = ["target.dtype=float32", "target.native=false", "run.costs=null"]
"""Overrides that give specframe vLLM's numbers: the checkpoint in float32, no choice by costs."""
FLOAT, FLOAT_HEAD = "drafter.quantize=null", "drafter.head.quantize=null"
"""In 8 bits a drafter's activations are rounded, too, and the last bits of a feature may change a draft."""
DRAFTERS = {
    "eagle3": ("eagle3.yaml", [FLOAT, FLOAT_HEAD]),
    "eagle": ("eagle.yaml", [FLOAT, FLOAT_HEAD]),
    "falcon": ("falcon.yaml", [FLOAT, FLOAT_HEAD]),
    "medusa": ("medusa.yaml", [FLOAT_HEAD]),
    "parallelspec": ("compositions/eagle-parallelspec.yaml", [FLOAT, FLOAT_HEAD]),
    "fastdraft": ("drafting-models/fastdraft.yaml", [FLOAT]),
    "suffix": ("suffix.yaml", [f"drafter.cap={LENGTH}"]),
    "recycling": ("recycling.yaml", ["drafter.ranks=1", f"drafter.nodes={LENGTH + 1}"]),
}
BUILD_THEIR_OWN = ("suffix", "recycling")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: see .ci/vllm"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def model():
    return str(specframe.model_folder("smollm2-135m"))


@pytest.fixture(scope="module")
def prompts():
    pipeline = specframe.load(RECIPES / "suffix.yaml", overrides=OWN)
    return [[*pipeline.encode(prompt)] for prompt in PROMPTS]


def run_vllm(folder, model, prompts, arguments, *runs):
    """The figures of some runs of vLLM with these arguments."""
    task = {"model": model, "arguments": arguments, "prompts": prompts, "tokens": TOKENS, "runs": runs}
    process, out = Path(__file__).with_name("vllm_process.py"), folder / "figures.json"
    done = subprocess.run(
        [sys.executable, process, out], input=json.dumps(task), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(out.read_text())


def drafting(recipe, overrides):
    given = {"recipe": str(RECIPES / recipe), "overrides": overrides}
    return {"speculative_config": speculative(LENGTH), "additional_config": {"specframe": given}}


def own_figures(recipe, overrides, prompts):
    """Texts of specframe, one prompt at a time, and how many tokens were drafted and accepted."""
    pipeline = specframe.load(RECIPES / recipe, overrides=[*OWN, *overrides])
    results = [pipeline.generate([prompt], max_new_tokens=TOKENS) for prompt in prompts]
    counts = [result.acceptance for result in results]
    texts = [text for result in results for text in result.tokens]
    return texts, [sum(count.drafted for count in counts), sum(count.accepted for count in counts)]


@pytest.fixture(scope="module")
def plain(model, prompts, tmp_path_factory):
    """vLLM's own texts."""
    return run_vllm(tmp_path_factory.mktemp("plain"), model, prompts, {}, "single")["single"]["texts"]


@pytest.mark.parametrize("name", DRAFTERS)
def test_texts_and_counts_are_those_of_a_chain(name, model, prompts, plain, tmp_path):
    recipe, overrides = DRAFTERS[name]
    chain = [] if name in BUILD_THEIR_OWN else CHAIN
    texts, wanted = own_figures(recipe, [*overrides, *chain], prompts)
    assert texts == plain and wanted[1] > 0
    runs = ("single", "together", "cancel")
    found = run_vllm(tmp_path, model, prompts, drafting(recipe, overrides), *runs)
    for batch in ("single", "together"):
        assert found[batch]["texts"] == plain
        assert found[batch]["counts"][1:] == wanted
    assert found["cancel"]["texts"] == [text for number, text in enumerate(plain) if number != 1]
    assert found["preempted"] == 0


def test_the_tutorials_network_drafts_within_vllm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r'title="(wren\.\w+)"\n(.*?)```', TUTORIAL.read_text(encoding="utf-8"), re.DOTALL):
        Path(name).write_text(text.replace("extends: recipes", f"extends: {RECIPES}"), encoding="utf-8")
    recipe, trained = tmp_path / "wren.yaml", [f"drafter.weights={tmp_path / 'runs' / 'wren'}"]
    assert main(["train", str(recipe), "run.prompts=[]"]) == 0
    pipeline = specframe.load(recipe, overrides=[*OWN, *trained])
    prompts = [[*pipeline.encode(prompt)] for prompt in PROMPTS]
    texts, wanted = own_figures(recipe, [*trained, *CHAIN], prompts)
    model, runs = str(specframe.model_folder("talk-7m")), ("single", "together")
    found = run_vllm(tmp_path, model, prompts, drafting(recipe, trained), *runs)
    for batch in runs:
        assert found[batch]["texts"] == texts and found[batch]["counts"][1:] == wanted
    assert wanted[1] > 0


@pytest.mark.parametrize("name", ["eagle3", "suffix"])
def test_preempted_requests_draft_again(name, model, prompts, plain, tmp_path):
    recipe, overrides = DRAFTERS[name]
    scarce = {"num_gpu_blocks_override": 12, "block_size": 32, "max_model_len": 160}
    found = run_vllm(tmp_path, model, prompts, drafting(recipe, overrides) | scarce, "together")
    assert found["preempted"] > 0
    assert found["together"]["texts"] == plain
    assert found["together"]["counts"][2] > 0


def test_prompts_are_read_in_pieces(model, prompts, plain, tmp_path):
    recipe, overrides = DRAFTERS["eagle3"]
    pieces = {"max_num_batched_tokens": 40, "max_num_seqs": 4}
    found = run_vllm(tmp_path, model, prompts, drafting(recipe, overrides) | pieces, "together")
    _, wanted = own_figures(recipe, CHAIN, prompts)
    assert found["together"]["texts"] == plain and found["together"]["counts"][1:] == wanted


def test_a_temperature_is_refused_by_request(model, prompts, tmp_path):
    found = run_vllm(tmp_path, model, prompts, drafting("suffix.yaml", []), "sampled", "single")
    assert "set temperature=0" in found["sampled"]
    assert len(found["single"]["texts"]) == len(prompts)


@pytest.mark.parametrize(
    ("recipe", "arguments", "sentence"),
    [
        ("eagle.yaml", {"enable_prefix_caching": True}, "set enable_prefix_caching=False"),
        ("small/eagle.yaml", {}, "and vLLM's model .* is another one"),
        ("recycling.yaml", {}, "the trees that drafter recycling builds may branch"),
    ],
)
def test_what_does_not_fit_is_refused_at_load(recipe, arguments, sentence, model, prompts, tmp_path):
    with pytest.raises(RuntimeError, match=sentence):
        run_vllm(tmp_path, model, prompts, drafting(recipe, []) | arguments, "single")


def test_an_exported_drafter_arrives(tmp_path, capsys):
    recipe = RECIPES / "small" / "families" / "eagle3.yaml"
    arguments = ["--to", "vllm", "--check", "--out", str(tmp_path / "eagle3"), "sampling.max_new_tokens=16"]
    assert main(["export", str(recipe), *arguments]) == 0
    assert capsys.readouterr().out.endswith("arrives exactly\n")
