"""Every drafter that reads checkpoints refuses those that do not fit, and its message names what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specframe import CompositionError, WeightsError
from specframe.components.heads import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.components.trees.fixed import Chain
from specframe.kernel.types import Committed, Context, Prompts
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import tiny_target
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.dspark import DSpark
from specframe_blocks.mtp.drafter import MTP
from specframe_chimera.drafter import Chimera
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.parallel.drafter import PEagle
from specframe_falcon.drafter import Falcon
from specframe_medusa.hydra import Hydra
from specframe_medusa.medusa import Medusa
from specframe_parallelspec.drafter import ParallelSpec

LAYERS = 8
READERS: dict[str, tuple[Callable[..., Any], str]] = {
    "eagle": (Eagle, "vllm"),
    "eagle3": (Eagle3, "vllm"),
    "eagle3 in speculators' form": (Eagle3, "speculators"),
    "peagle": (PEagle, "vllm"),
    "peagle in speculators' form": (PEagle, "speculators"),
    "dflash": (DFlash, "vllm"),
    "dflash in speculators' form": (DFlash, "speculators"),
    "dspark": (DSpark, "sglang"),
    "dspark in speculators' form": (DSpark, "speculators"),
    "mtp in a target of Qwen's": (MTP, "qwen"),
    "mtp in a target of DeepSeek's": (MTP, "deepseek"),
    "mtp in speculators' form": (MTP, "speculators"),
    "medusa": (Medusa, ""),
    "hydra": (Hydra, ""),
    "parallelspec": (ParallelSpec, ""),
    "falcon": (Falcon, ""),
    "chimera": (Chimera, ""),
}
"""Each drafter, and the published form that it is tried in; none: the one that specframe writes."""
PUBLISHED = [name for name, (_, form) in READERS.items() if form]
REDUCED = [name for name in PUBLISHED if name.startswith(("eagle3", "peagle", "dspark in"))]
OPTIONS: dict[Callable[..., Any], dict[str, Any]] = {Eagle: {"bias": False}, DFlash: {}, DSpark: {"rank": 2}}


@lru_cache(maxsize=4)
def target(vocab: int = 11, layers: int = LAYERS, size: int = 8) -> HFTarget:
    if size == 8:
        return tiny_target("llama", layers=layers, vocab=vocab, dtype=torch.float32)
    return tiny_target("llama", layers=layers, vocab=vocab, dtype=torch.float32, size=size)


def stored(name: str, folder: Path, vocab: int = 11, **options: Any) -> Path:
    """A drafter's checkpoint."""
    kind, form = READERS[name]
    drafter = kind(**OPTIONS.get(kind, {}), **options)
    drafter.bind(target(vocab))
    if form:
        drafter.export(form).write(folder)
    else:
        drafter.save(folder)
    return folder


def refusal(name: str, folder: Path, other: HFTarget | None = None) -> str:
    """The error message when the drafter of the folder is bound."""
    with pytest.raises((WeightsError, CompositionError)) as caught:
        READERS[name][0](weights=str(folder)).bind(other or target())
    return str(caught.value)


def change(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    places = [place for place in (config, config.get("transformer_layer_config")) if place]
    for name, value in entries.items():
        for place in [place for place in places if name in place] or [config]:
            place[name] = value
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("name", READERS)
def test_a_checkpoint_of_a_target_of_another_vocabulary(name: str, tmp_path: Path) -> None:
    assert "11" in (message := refusal(name, stored(name, tmp_path), target(vocab=12))) and "12" in message


TABLES = ["dspark", "dspark in speculators' form", "peagle in speculators' form"]
"""Checkpoints with a table of all tokens, which another padding does not fit."""
ADDED = [(name, 8) for name in READERS if name not in TABLES]
CUT = [(name, -8) for name, _ in ADDED if not name.startswith(("eagle3", "peagle", "dflash"))]


@pytest.mark.parametrize(("name", "more"), [*ADDED, *CUT])
def test_a_checkpoint_of_the_same_vocabulary_with_another_padding(name: str, more: int, tmp_path: Path) -> None:
    """It proposes tokens that both have; LM heads of its own propose what they do for their own target."""
    vocab = 1000
    folder, drafts = stored(name, tmp_path, vocab), []
    for size in (vocab, vocab + more):
        drafter = READERS[name][0](weights=str(folder))
        drafter.bind(target(size))
        drafter.open(1, 32)
        features = {tap: torch.linspace(-1, 1, 24).view(1, 3, 8) for tap in drafter.taps}
        tokens, count = torch.tensor([[5, 6, 7]]), torch.tensor([3])
        drafter.commit(Committed(tokens, count, features, tokens[:, -1], Prompts(tokens, count)))
        drafts.append(drafter.propose(tokens[:, -1], Chain(depth=1), Context(Sampling(), SeededRandom(0, 1).draft)))
    tree = drafts[1]
    assert tree.tokens.max() < min(vocab, vocab + more) and tree.valid.all()
    if name in ("medusa", "hydra"):  # the others read the embeddings of the target, which is another model here
        assert drafts[0].tokens.tolist() == tree.tokens.tolist()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_all_tokens_of_another_padding(name: str, tmp_path: Path) -> None:
    message = refusal(name, stored(name, tmp_path, 1000), target(1008))
    assert "1000" in message and "1008" in message


@pytest.mark.parametrize("name", READERS)
def test_a_checkpoint_of_a_target_of_another_width(name: str, tmp_path: Path) -> None:
    message = refusal(name, stored(name, tmp_path), target(size=16))
    assert "hidden_size" in message or "[" in message


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith(("eagle3", "peagle", "df", "ds"))])
def test_a_checkpoint_of_a_target_of_more_layers(name: str, tmp_path: Path) -> None:
    assert "and the target has 0 to 1" in refusal(name, stored(name, tmp_path), target(layers=2))


@pytest.mark.parametrize("name", REDUCED)
def test_a_draft_vocabulary_without_its_tokens(name: str, tmp_path: Path) -> None:
    path = stored(name, tmp_path, head=Trimmed(keep=6)) / "model.safetensors"
    save_file({part: tensor for part, tensor in load_file(path).items() if part not in ("d2t", "t2d")}, path)
    assert "a draft vocabulary of 6 of 11 tokens and no d2t" in refusal(name, tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_value_that_is_no_number(name: str, tmp_path: Path) -> None:
    (path,) = stored(name, tmp_path).glob("*.safetensors")
    tensors = load_file(path)
    part = next(each for each in sorted(tensors) if tensors[each].is_floating_point() and "embed" not in each)
    tensors[part].view(-1)[0] = torch.nan
    save_file(tensors, path)
    assert "holds values that are not finite" in refusal(name, tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_truncated_file(name: str, tmp_path: Path) -> None:
    (path,) = stored(name, tmp_path).glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-40])
    message = refusal(name, tmp_path)
    assert "cannot read" in message and "\n" not in message


@pytest.mark.parametrize("name", READERS)
def test_a_pickled_file(name: str, tmp_path: Path) -> None:
    (path,) = stored(name, tmp_path).glob("*.safetensors")
    torch.save(load_file(path), tmp_path / "pytorch_model.bin")
    path.unlink()
    message = refusal(name, tmp_path)
    assert "onver" in message and "\n" not in message, "with the command that converts it"
    assert any(command in message for command in ("specframe import", "python -m specframe_eagle", "save_file"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_another_architecture(name: str, tmp_path: Path) -> None:
    _, form = READERS[name]
    change(stored(name, tmp_path), architectures=["BertModel"], model_type="bert")
    if form == "speculators":
        change(tmp_path, speculators_model_type="medusa")
    message = refusal(name, tmp_path)
    assert "\n" not in message and any(word in message for word in ("known here", "bert", "no head", "BertModel"))
