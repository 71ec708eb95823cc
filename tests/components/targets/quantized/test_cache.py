"""Keys and values in 16 bits: a part of the target's law, kept by native passes alone."""

from __future__ import annotations

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError
from specframe.kernel.types import KnownPrefix, Prompts
from tests.components.targets.models import PROMPTS, VOCABULARY, accept, batch, random_tree
from tests.components.targets.quantized.test_target import BROAD
from tests.small_gguf import write_gguf

LONG = [torch.randint(VOCABULARY, (300,), generator=torch.Generator().manual_seed(1)).tolist(), [1, 2, 3]]


def native(model, cache: str | None) -> HFTarget:
    target = HFTarget.from_model(model)
    target.cache = cache
    target._take_native()
    return target


@pytest.fixture
def model(build):
    return build("llama", **BROAD).float()


def read(target: HFTarget, prompts, slots: int = 3) -> torch.Tensor:
    target.open(slots, 400)
    tree, scores = target.admit(batch(prompts))
    target.commit(tree, accept(tree, scores.logits))
    return scores.logits


def test_its_law_is_that_of_rounded_keys_and_values(model):
    """Near that of exact ones, and never the same."""
    rounded, exact = native(model, "bfloat16"), native(model, None)
    found, wanted = read(rounded, LONG), read(exact, LONG)
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 2e-2 * wanted.norm()
    keys, others = rounded.memory().keys, exact.memory().keys
    assert (keys.dtype, others.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(keys[0, 0, :, :300], others[0, 0, :, :300].bfloat16()), "the first layer's input is the same"


def test_other_forms_are_other_targets(model):
    rounded, exact = native(model, "bfloat16"), native(model, None)
    assert rounded.fingerprint() != exact.fingerprint()
    assert rounded.sibling().fingerprint() == rounded.fingerprint()
    assert rounded.sibling().cache == "bfloat16"


def test_rows_grow_leave_and_begin_with_a_prefix(model):
    """Storage is doubled, rows move, and a row that begins with another's keys and values has the bits of its text."""
    target, noise = native(model, "bfloat16"), torch.Generator().manual_seed(3)
    target.open(3, 2200)
    tree, scores = target.admit(batch([*LONG, PROMPTS[0]]))
    texts = [*LONG, list(PROMPTS[0])]
    for cycle in range(4):
        verdict = accept(tree, scores.logits)
        committed = target.commit(tree, verdict)
        for row, (path, bonus) in enumerate(zip(verdict.path.tolist(), verdict.bonus.tolist(), strict=True)):
            texts[row] = texts[row] + [int(tree.tokens[row, node]) for node in path if node >= 0] + [bonus]
        root = committed.root
        if cycle == 1:
            rows = torch.tensor([2, 0])
            target.keep(rows)
            texts, root = [texts[row] for row in rows.tolist()], root[rows]
        tree = random_tree(root, [[1, 2, 3]] * len(texts), 9, noise)
        scores = target.score(tree)
    prefix = KnownPrefix(LONG[0][:200], target.memory().copy(1, 200), {})
    assert prefix.memory.dtype == torch.bfloat16
    alone, other = target.sibling(), target.sibling()
    for row, text in enumerate(texts):
        assert torch.equal(scores.logits[row, 0], read(alone, [text])[0, 0])
    other.open(1, 400)
    prompts = batch([LONG[0]])
    found = other.admit(Prompts(prompts.tokens, prompts.count, prefixes=(prefix,)))[1].logits
    assert torch.equal(found, read(alone, [LONG[0]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "cache: bfloat16 is kept by native passes alone: add `native: true` or `quantize`, on a CPU"),
        ({"compile": True}, "add `native: true` or `quantize`"),
        ({"native": True, "dtype": "float64"}, "alone, and its weights are neither in bfloat16 nor in float32"),
    ],
)
def test_other_passes_refuse_it_in_one_line(options, message, tmp_path):
    file = str(write_gguf(tmp_path / "small.gguf", blocks="Q8_0"))
    with pytest.raises(CompositionError, match=message) as caught:
        HFTarget(model=file, device="cpu", cache="bfloat16", **options)
    assert "\n" not in str(caught.value)
