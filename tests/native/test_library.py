"""The library: which one is loaded, who may have written it, what is compiled again, what may be lacking."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil

import pytest

from specframe.kernel.errors import InputError
from specframe.native import abi, build

OTHERS = ("multiply", "choose", "rank", "normalize", "recur", "draft", "move", "top_chunks", "copy", "argmax")
MARK = " ".join(f'extern "C" int specframe_{name}() {{ return 0; }}' for name in OTHERS)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A fresh cache, and a source that compiles at once."""
    source = tmp_path / "small.cpp"
    source.write_text(MARK + 'extern "C" int specframe_decode() { return 0; }')
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setattr(build, "COMMON", ("-shared", "-fPIC"))
    monkeypatch.setattr(build, "FLAGS", build.COMMON)
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(build.SWITCH, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def carried(cache, tmp_path, monkeypatch):
    """A library that came with specframe, for processors that have `wide` instructions, as this one now has."""
    group = build.Group("wide", (), frozenset({"wide"}))
    monkeypatch.setattr(build, "GROUPS", {platform.machine(): (group,)})
    monkeypatch.setattr(build, "FOLDER", tmp_path / "prebuilt")
    monkeypatch.setattr(build, "cpu_features", lambda: "flags\t: narrow wide")
    (library,) = build.compile_shipped(build.FOLDER, platform.machine())
    return library


def load():
    return build.load_native.__wrapped__()


def library(cache):
    (found,) = (cache / "native").glob("*.so")
    return found


def replace(cache, content):
    """Puts another file in the library's place; the one that is loaded stays as it is."""
    path = library(cache)
    path.unlink()
    path.write_bytes(content)


def refused(message):
    with pytest.raises(InputError, match=message) as caught:
        load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_what_is_compiled_only_its_user_can_write(umask, cache):
    before = os.umask(umask)
    try:
        load()
    finally:
        os.umask(before)
    for path in (library(cache), cache / "native", cache):
        assert not path.stat().st_mode & 0o022, path
    load()


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_file_or_folder_that_others_can_write_is_refused(mode, cache):
    load()
    kept = library(cache).stat().st_mode
    library(cache).chmod(mode)
    refused("others can write to .*so$")
    library(cache).chmod(kept)
    (cache / "native").chmod(mode)
    refused("others can write to .*native$")


def test_a_cache_that_all_users_can_write_is_refused_before_anything_is_there(cache):
    cache.mkdir()
    cache.chmod(0o777)
    refused("others can write to .*cache$")
    assert not list(cache.iterdir())
    cache.chmod(0o1777)  # as /tmp is: what one makes there another cannot move
    load()


def test_a_file_of_another_user_is_refused(cache, monkeypatch):
    load()
    if os.getuid() == 0:  # only the administrator gives files away
        os.chown(library(cache), 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    refused("is another user's")


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library at all" * 9])
def test_a_foreign_library_is_compiled_again(content, cache):
    load()
    replace(cache, content)
    load()
    assert build.is_whole(library(cache))


def test_a_cut_off_library_is_compiled_again(cache):
    load()
    whole = library(cache).read_bytes()
    replace(cache, whole[:-1])
    load()
    assert library(cache).read_bytes() == whole


def test_a_sealed_file_that_the_loader_refuses_is_compiled_again(cache, monkeypatch, tmp_path):
    load()
    folder = tmp_path / "other" / "native"  # where this process has loaded nothing yet
    folder.mkdir(parents=True)
    foreign = folder / library(cache).name
    foreign.write_bytes(b"for another machine")
    build.seal(foreign)
    monkeypatch.setenv("SPECFRAME_CACHE", str(folder.parent))
    load()
    assert foreign.read_bytes().startswith(b"\x7fELF")


def test_a_compiler_of_several_words_is_run(cache, monkeypatch):
    monkeypatch.setenv("CXX", f"env {shutil.which('g++') or shutil.which('clang++')}")
    load()


def test_an_absent_compiler_is_one_line(cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    refused("CXX names no-such-compiler, which is no program on this machine")


def test_a_compiler_that_takes_too_long_is_one_line(cache, monkeypatch, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\n[ $1 = --version ] || exec sleep 9\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build, "SECONDS", 0.2)
    refused("has not compiled the library within 0.2 seconds")
    assert not list((cache / "native").iterdir())


def test_another_version_of_the_compiler_has_its_own_library(cache, monkeypatch, tmp_path):
    compiler, version = tmp_path / "compiler", tmp_path / "version"
    real = shutil.which("g++") or shutil.which("clang++")
    compiler.write_text(f'#!/bin/sh\n[ $1 = --version ] && exec cat {version}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    for number in ("1.0", "1.0", "2.0"):
        version.write_text(number)
        load()
    assert len(list((cache / "native").glob("*.so"))) == 2


def test_no_memory_is_a_memory_error():
    loaded = build.load_native()
    weight = abi.Weight(None, None, 16, 32, 8)
    with pytest.raises(MemoryError):
        loaded.specframe_multiply(ctypes.byref(weight), None, 1 << 50, None)
    sizes = abi.DecoderSizes(layers=1, width=32, heads=2, kv_heads=1, head_size=16, rotary=16, mlp=32)
    layer = abi.Layer(qkv=abi.Weight(None, None, 64, 32, 8))
    for batch in (abi.Batch(rows=1 << 50, nodes=1, width=1), abi.Batch(rows=1, nodes=1, width=1 << 56)):
        with pytest.raises(MemoryError):
            loaded.specframe_decode(
                ctypes.byref(sizes), ctypes.byref(layer), ctypes.byref(batch), None, None, None, None, None
            )


def test_a_library_that_came_with_specframe_needs_neither_compiler_nor_cache(carried, cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert load()._name == str(carried)
    assert not cache.exists()


def test_it_is_compiled_on_the_spot_where_that_is_asked_for(carried, cache, monkeypatch):
    monkeypatch.setenv(build.SWITCH, "compile")
    assert load()._name == str(library(cache))
    monkeypatch.setenv(build.SWITCH, "no")
    refused("SPECFRAME_NATIVE is compile or nothing, not 'no'")


@pytest.mark.parametrize("content", [None, b"", b"\x7fELF for another machine"])
def test_what_cannot_be_loaded_is_compiled_on_the_spot(content, carried, cache):
    carried.unlink()
    if content is not None:
        carried.write_bytes(content)
    assert load()._name == str(library(cache))


def test_a_library_of_other_sources_is_passed_over(carried, cache):
    build.SOURCE.write_text(build.SOURCE.read_text() + "\n// changed since")
    assert load()._name == str(library(cache))


def test_a_processor_that_no_library_fits_compiles_one(carried, cache, monkeypatch):
    monkeypatch.setattr(build, "cpu_features", lambda: "flags\t: narrow")
    assert load()._name == str(library(cache))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    refused(r"there is no C\+\+ compiler \(g\+\+\), and no library for this processor came with specframe")


@pytest.mark.parametrize("machine", list(build.GROUPS))
def test_the_library_with_most_of_a_processor_s_instructions_is_taken(machine, tmp_path):
    groups = build.GROUPS[machine]
    assert build.fitting(machine, groups[0].features, tmp_path) is None
    for group in groups:
        group.library(tmp_path).touch()
    for group in groups:
        assert build.fitting(machine, group.features | {"more"}, tmp_path) == group.library(tmp_path)
        assert build.fitting("riscv64", group.features, tmp_path) is None
    assert build.fitting(machine, groups[-1].features - {"fma", "asimd"}, tmp_path) is None
