"""Python and C++ read the same declarations: a library with another layout, or of other sources, is refused."""

from __future__ import annotations

import subprocess

import pytest

from specframe.kernel.errors import InputError
from specframe.native import abi, build


def compiled(folder, header, digest="0" * abi.DIGEST):
    """A library that exports the layout of the structs in a header."""
    source, library = folder / "layout.cpp", folder / "library.so"
    source.write_text(abi.layout_source(digest))
    subprocess.run(["g++", "-shared", "-fPIC", f"-I{header.parent}", str(source), "-o", str(library)], check=True)
    loaded = build._open(library)
    assert loaded is not None
    return loaded


@pytest.fixture
def header(tmp_path):
    """A copy of the declarations."""
    copy = tmp_path / "abi.h"
    copy.write_text(abi.HEADER.read_text())
    return copy


def refused(library, digest="0" * abi.DIGEST):
    with pytest.raises(InputError) as caught:
        abi.check_layout(library, "the library", digest)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_declared_struct_has_a_class_and_every_function_a_signature():
    assert list(abi.declared_structs()) == [one.__name__ for one in abi.STRUCTS]
    assert len([*abi.functions()]) == abi.HEADER.read_text().count("specframe_") - 1  # one is named in a comment


def test_the_same_declarations_are_accepted(tmp_path, header):
    abi.check_layout(compiled(tmp_path, header), "the library", "0" * abi.DIGEST)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("int64_t first, width;", "int64_t width, first;", "offsetof(Batch, first) is 24 there, not 16"),
        ("double gain;", "float gain;", "sizeof(((Search*)0)->gain) is 4 there, not 8"),
        ("const float *lost, *kept;", "const float *kept, *lost;", "offsetof(BoundedWeight, lost) is 88 there, not 80"),
        ("int64_t* verdict;", "int64_t* verdict; int64_t more;", "sizeof(GreedyChoice) is 104 there, not 96"),
    ],
)
def test_another_order_or_size_of_fields_is_refused_by_name(before, after, what, tmp_path, header):
    text = header.read_text()
    assert text.count(before) == 1
    header.write_text(text.replace(before, after))
    assert what in refused(compiled(tmp_path, header))


def test_a_library_of_other_sources_is_refused(tmp_path, header):
    library = compiled(tmp_path, header)
    assert refused(library, "1" * abi.DIGEST) == (
        "the library was compiled from other sources than those of this specframe: remove it"
    )


def test_a_library_without_a_layout_is_refused(tmp_path):
    source, path = tmp_path / "empty.cpp", tmp_path / "empty.so"
    source.write_text("")
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    assert "other sources" in refused(build._open(path))


def test_the_declarations_are_c(tmp_path):
    subprocess.run(["g++", "-x", "c", "-Wall", "-Werror", "-fsyntax-only", str(abi.HEADER)], check=True)
