"""The libraries of a wheel: they compute the bits of one that is compiled on the spot for such a processor."""

from __future__ import annotations

import platform

import pytest
import torch

from specframe.native import argmax, build, decoder, linear, modules
from specframe.native.blocks import Floats, round_to_blocks
from specframe.native.visibility import Tree
from tests.native.layers import packed_layers, slots_for

PROCESSORS = {
    "x86-64-amx": "sapphirerapids",
    "x86-64-bf16": "cooperlake",
    "x86-64-vnni": "cascadelake",
    "x86-64-avx2": "haswell",
}
"""A processor of each group."""
GROUPS = build.GROUPS.get(platform.machine(), ())
FEATURES = frozenset(build.cpu_features().split())
FITTING = [group for group in GROUPS if group.features <= FEATURES]


CASES = [
    pytest.param(group, id=group.name, marks=pytest.mark.full if group is FITTING[0] else pytest.mark.slow)
    for group in FITTING
]
"""Those that this processor can run; that of its own first, and the others only with `-m slow`."""


def layer(weight, bits):
    floats = {16: torch.bfloat16, 32: torch.float32}
    return linear.QuantizedLinear(Floats(weight.to(floats[bits])) if bits in floats else round_to_blocks(weight, bits))


def outputs():
    """Products, layers, norms and choices of the library that is loaded."""
    noise = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(*shape, generator=noise) for shape in ((533, 96), (19, 96)))
    for bits in (4, 8, 16, 32):
        yield layer(weight, bits)(x)
        head = argmax.BoundedHead(layer(weight, bits)) if bits in (16, 32) else None
        if head is not None:
            yield head.argmax(x)
    for size, cache in ((16, torch.float32), (32, torch.bfloat16), (48, torch.float32)):
        packed = packed_layers(4, 2, size, cache=cache)
        tree = Tree(torch.ones(2, 5, 5).tril().bool(), torch.tensor([3, 6]), 6)
        slots, hidden = slots_for(packed, 2, 12), torch.randn(2, 5, 288, generator=noise)
        packed.run(hidden, torch.arange(6, 11).expand(2, 5), tree, slots)
        yield from (hidden, slots.tensor)
    values, columns = argmax.rank(torch.randn(3, 200, generator=noise), 7)
    yield from (values, columns)


@pytest.mark.parametrize("group", CASES)
def test_it_computes_what_a_library_compiled_on_the_spot_does(group, tmp_path, monkeypatch):
    monkeypatch.delenv(build.SWITCH, raising=False)
    own = group is FITTING[0]
    flags = build.FLAGS if own else (f"-march={PROCESSORS[group.name]}", *build.FLAGS[1:])
    compiled = build.load_native(flags)
    monkeypatch.setattr(build, "GROUPS", {platform.machine(): (group,)})
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    (made,) = build.compile_shipped(tmp_path, platform.machine())
    loaded = build.load_native.__wrapped__()
    assert loaded._name == str(made)

    def computed(library):
        for module in (argmax, decoder, linear, modules):
            monkeypatch.setattr(module, "load_native", lambda: library)
        return list(outputs())

    wanted = computed(compiled)
    found = computed(loaded)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
