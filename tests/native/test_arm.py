"""The passes on ARM64, by a cross compiler and an emulator: Debian's g++-aarch64-linux-gnu and qemu-user."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from specframe.native import abi, argmax, build, decoder, linear
from specframe.native.blocks import Floats, round_to_blocks
from specframe.native.visibility import Tree
from specframe.sampling.laws import first_argmax
from tests.native.layers import packed_layers, slots_for

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason="needs both"),
]
FUNCTIONS = ("multiply", "decode", "copy", "argmax")
BASE, NEAR = 1 << 37, 1 << 20
"""The address of the emulated memory, and the bytes that are carried over from an address on."""
MAIN = r"""
#include <cstdio>
#include <sys/mman.h>

int main(int, char** arguments) {
  using Call = int64_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
  const Call calls[] = {(Call)specframe_multiply, (Call)specframe_decode, (Call)specframe_copy, (Call)specframe_argmax};
  struct { int64_t function, given[8], base, bytes; } head;
  FILE* file = fopen(arguments[1], "r+b");
  if (!file || fread(&head, sizeof(head), 1, file) != 1) return 2;
  constexpr int KIND = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  void* memory = mmap((void*)head.base, head.bytes, PROT_READ | PROT_WRITE, KIND, -1, 0);
  if (memory != (void*)head.base || (int64_t)fread(memory, 1, head.bytes, file) != head.bytes) return 3;
  const int64_t* a = head.given;
  calls[head.function](a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
  fseek(file, sizeof(head), SEEK_SET);
  return (int64_t)fwrite(memory, 1, head.bytes, file) != head.bytes || fclose(file);
}
"""


class Emulated:
    """The library in an emulator, which gets a copy of the memory that a call's pointers lead to."""

    def __init__(self, program: Path) -> None:
        self.program = program
        for index, name in enumerate(FUNCTIONS):
            setattr(self, f"specframe_{name}", lambda *arguments, index=index: self.call(index, arguments))

    def call(self, index, arguments):
        """Runs a function, and takes over the bytes that it has written."""
        types = next(types for name, _, types in abi.functions() if name == f"specframe_{FUNCTIONS[index]}")
        given = [address(one) for one in arguments]
        pointers = [at for at, kind in zip(given, types, strict=True) if at and kind is not ctypes.c_int64]
        inner = [place for one in arguments for place in places_of(getattr(one, "_obj", one))]  # where pointers stand
        regions = merged([*pointers, *(ctypes.c_int64.from_address(place).value for place in inner)])
        moved, images, total = {}, [], 0
        for start, end in regions:
            total += (start - total) % 64
            moved[start] = BASE + total - start
            images.append((total, np.ctypeslib.as_array((ctypes.c_uint8 * (end - start)).from_address(start))))
            total += end - start

        def there(at):
            return at + next(moved[start] for start, end in regions if start <= at < end) if at else 0

        before = np.zeros(total, np.uint8)
        for offset, image in images:
            before[offset : offset + len(image)] = image
        for place in inner:
            offset, value = there(place) - BASE, there(ctypes.c_int64.from_address(place).value)
            before[offset : offset + 8] = np.frombuffer(value.to_bytes(8, "little"), np.uint8)
        passed = [at if kind is ctypes.c_int64 else there(at) for at, kind in zip(given, types, strict=True)]
        head = np.array([index, *passed, *[0] * (8 - len(passed)), BASE, total])
        file = self.program.with_name("memory")
        file.write_bytes(head.tobytes() + before.tobytes())
        command = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-cpu", "max", str(self.program), str(file)]
        subprocess.run(command, check=True)
        after = np.fromfile(file, np.uint8, offset=head.nbytes)
        for offset, image in images:
            part = slice(offset, offset + len(image))
            written = after[part] != before[part]
            image[written] = after[part][written]


def address(argument):
    """The integer that stands for an argument."""
    if argument is None or isinstance(argument, int):
        return argument or 0
    return ctypes.addressof(getattr(argument, "_obj", argument))


def places_of(value):
    """Yields the addresses of the pointers in a struct or an array, those that are null left out."""
    if isinstance(value, ctypes.Array):
        size = ctypes.sizeof(value._type_)
        for at in range(len(value)):
            if value._type_ is not ctypes.c_void_p:
                yield from places_of(value[at])
            elif value[at]:
                yield ctypes.addressof(value) + size * at
    for name, kind in getattr(value, "_fields_", ()):
        if kind is ctypes.c_void_p and getattr(value, name):
            yield ctypes.addressof(value) + getattr(type(value), name).offset
        elif isinstance(getattr(value, name), ctypes.Structure):
            yield from places_of(getattr(value, name))


def merged(pointers):
    """The memory near the pointers, as far as it is mapped: ranges that do not overlap."""
    mapped = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if mapped and mapped[-1][1] == start and line.split()[1].startswith("rw"):
            mapped[-1][1] = end
        elif line.split()[1].startswith("rw"):
            mapped.append([start, end])
    found = []
    for at in sorted(pointers):
        end = min(at + NEAR, next(end for start, end in mapped if start <= at < end))
        if found and found[-1][1] >= at:
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([at, end])
    return found


@pytest.fixture(scope="module", params=build.GROUPS["aarch64"], ids=lambda group: group.name)
def emulated(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm")
    (folder / "main.cpp").write_text('#include "passes.cpp"\n' + MAIN)
    flags = [flag for flag in build.COMMON if flag not in ("-shared", "-fPIC")]
    command = [COMPILER, *request.param.options, *flags, f"-I{build.SOURCE.parent}"]
    subprocess.run([*command, str(folder / "main.cpp"), "-o", str(folder / "main")], check=True)
    return Emulated(folder / "main")


@pytest.fixture(params=["4", "8", "16", "32"])
def layer(request):
    bits, weight = int(request.param), torch.randn(133, 96, generator=torch.Generator().manual_seed(1))
    floats = {16: torch.bfloat16, 32: torch.float32}
    return linear.QuantizedLinear(Floats(weight.to(floats[bits])) if bits in floats else round_to_blocks(weight, bits))


def test_products_are_those_of_x86_whatever_stands_next_to_a_row(emulated, layer, monkeypatch):
    x = torch.randn(19, 96, generator=torch.Generator().manual_seed(2))
    wanted = layer(x)
    monkeypatch.setattr(linear, "load_native", lambda: emulated)
    found = layer(x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for count in (1, 2, 7, 8, 9):
        assert torch.equal(layer(x[:count]), found[:count]), count


@pytest.mark.parametrize(("cache", "off"), [(torch.float32, 1e-3), (torch.bfloat16, 1e-2)])
def test_a_tree_of_nodes_is_decoded_as_text_is_bit_for_bit(cache, off, emulated, monkeypatch):
    """A chain of nodes in one pass, and the same nodes one by one."""
    packed, nodes = packed_layers(6, 2, 48, cache=cache), 7
    start = torch.randn(2, nodes, 288, generator=torch.Generator().manual_seed(3))

    def decode(parts):
        slots, hidden = slots_for(packed, 2, 16), start.clone()
        for first, end in parts:
            some, sees = hidden[:, first:end].contiguous(), torch.ones(2, end - first, end - first).tril().bool()
            positions = torch.arange(6 + first, 6 + end).expand(2, -1)
            packed.run(some, positions, Tree(sees, torch.tensor([6 + first] * 2), 6 + first), slots)
            hidden[:, first:end] = some
        return hidden, slots.tensor

    wanted, _ = decode([(0, nodes)])
    monkeypatch.setattr(decoder, "load_native", lambda: emulated)
    whole, single = decode([(0, nodes)]), decode([(at, at + 1) for at in range(nodes)])
    assert all(torch.equal(one, other) for one, other in zip(whole, single, strict=True))
    torch.testing.assert_close(whole[0], wanted, rtol=off, atol=off)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_bounded_argmax_is_the_largest_product(dtype, emulated, monkeypatch):
    noise = torch.Generator().manual_seed(4)
    monkeypatch.setattr(linear, "load_native", lambda: emulated)
    monkeypatch.setattr(argmax, "load_native", lambda: emulated)
    head = linear.QuantizedLinear(Floats(torch.randn(400, 64, generator=noise).to(dtype)))
    states = torch.randn(9, 64, generator=noise).to(dtype)
    assert torch.equal(argmax.BoundedHead(head).argmax(states), first_argmax(head.product(states)))
