"""A target that is made of packed weights in the cache is the one that was packed, bit for bit."""

from __future__ import annotations

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.native_model import LlamaModel
from specframe.kernel.errors import InputError
from specframe.neural.weights import weight_cache
from specframe.neural.weights.weight_cache import list_entries
from tests.components.targets.models import PROMPTS, accept, batch, random_tree
from tests.components.targets.quantized.test_target import BROAD, FAMILIES
from tests.small_gguf import write_gguf

PRECISIONS = {
    "int4": {"dtype": "bfloat16", "quantize": "int4"},
    "int8": {"dtype": "float32", "quantize": "int8"},
    "bfloat16": {"dtype": "bfloat16", "native": True},
    "float32": {"dtype": "float32", "native": True},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_cache, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(weight_cache, "SMALLEST", 0)
    return tmp_path / "cache" / "weights"


def scores(target):
    target.request(frozenset({"last", "layer.0"}))
    target.open(len(PROMPTS), 64)
    tree, prompts = target.admit(batch(PROMPTS))
    root = target.commit(tree, accept(tree, prompts.logits)).root
    found = target.score(random_tree(root, [[1, 2, 3]] * len(PROMPTS), 9, torch.Generator().manual_seed(1)))
    return [prompts.logits, found.logits, *(found.features[tap] for tap in sorted(found.features))]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_second_start_has_the_bits_of_the_first(family, precision, build, tmp_path):
    tied = family != "qwen2"  # which has biases, too
    build(family, **BROAD, tie_word_embeddings=tied).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    options = {"model": str(tmp_path / "model"), "device": "cpu", **PRECISIONS[precision]}
    first, second = HFTarget(**options), HFTarget(**options)
    assert isinstance(second.weights, LlamaModel)
    assert first.weights.packed is None and second.weights.packed is not None
    assert [(entry.model, entry.precision) for entry in list_entries()] == [(options["model"], precision)]
    for known, found in zip(scores(first), scores(second), strict=True):
        assert torch.equal(known, found)
    assert str(first.weights) == str(second.weights) and first.identify() == second.identify()
    known, found = first.model.state_dict(), second.model.state_dict()
    assert known.keys() == found.keys() and all(torch.equal(known[name], found[name]) for name in known)
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(first.model(tokens).logits, second.model(tokens).logits)
    assert torch.equal(first.head(first.embed(tokens)), second.head(second.embed(tokens)))
    head = second.model.get_output_embeddings()
    assert not (tied and precision in ("bfloat16", "float32")) or head.weight is second.model.model.embed_tokens.weight


def test_a_gguf_file_is_packed_once(tmp_path):
    options = {"model": str(write_gguf(tmp_path / "small.gguf", blocks="Q4_1")), "quantize": "int4"}
    first, second = HFTarget(**options), HFTarget(**options)
    assert second.weights.packed is not None
    for known, found in zip(scores(first), scores(second), strict=True):
        assert torch.equal(known, found)


def test_another_file_or_a_damaged_entry_is_packed_anew(tmp_path, caplog):
    file = write_gguf(tmp_path / "small.gguf", blocks="Q4_1")
    options = {"model": str(file), "quantize": "int4"}
    known = scores(HFTarget(**options))
    (entry,) = list_entries()
    entry.path.write_bytes(entry.path.read_bytes()[:-1])
    again = HFTarget(**options)
    assert again.weights.packed is None and "damaged" in caplog.text
    assert all(torch.equal(a, b) for a, b in zip(known, scores(again), strict=True))
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-64])
    with pytest.raises(InputError, match=r"small.gguf .*is the file whole\?"):
        HFTarget(**options)
    assert len(list_entries()) == 1
