"""The header of a GGUF file: what is in it, and the error for one that is cut short or damaged."""

import gguf
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specframe.kernel.errors import InputError
from specframe_gguf.blocks import unpack
from specframe_gguf.header import GGUFFile
from tests.small_gguf import write_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", blocks="Q4_1")


def test_it_is_what_the_gguf_package_reads(file):
    found, wanted = GGUFFile.read(file), gguf.GGUFReader(file)
    assert found.architecture == "llama" and found.get("block_count") == 2
    for key, field in wanted.fields.items():
        if not key.startswith("GGUF."):
            value = field.contents()
            assert found.metadata[key] == (pytest.approx(value) if isinstance(value, float) else value), key
    assert list(found.tensors) == [tensor.name for tensor in wanted.tensors]
    for tensor in wanted.tensors:
        stored = found.tensors[tensor.name]
        assert stored.shape == tuple(map(int, reversed(tensor.shape))) and stored.kind == tensor.tensor_type.name
        numbers = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        assert torch.equal(unpack(found.raw(stored), stored.kind, torch.float32).view(numbers.shape), numbers)


def test_numbers_of_16_bits_are_the_shortest_that_they_can_be(file):
    assert GGUFFile.read(file).get("attention.layer_norm_rms_epsilon") == 1e-5


def refusal(path):
    with pytest.raises(InputError, match=r"cannot be read as GGUF: .*; is the file whole\?") as caught:
        GGUFFile.read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.9999))
def test_a_file_cut_short_anywhere_is_one_line(share, file, tmp_path):
    data = file.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(share * len(data))])
    refusal(tmp_path / "cut.gguf")


def test_the_last_byte_counts(file, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:-40])
    assert "after the file's end" in refusal(tmp_path / "cut.gguf")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(4, 400), byte=st.integers(0, 255))
def test_a_damaged_header_is_read_or_refused_and_nothing_else(place, byte, file, tmp_path):
    data = bytearray(file.read_bytes())
    data[place] = byte
    (tmp_path / "bad.gguf").write_bytes(data)
    try:
        GGUFFile.read(tmp_path / "bad.gguf")
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("place", "value", "message"), [(4, 1, "its version is 1, and 2 and 3 are read"), (0, 0, "not a GGUF file")]
)
def test_another_format_is_named(place, value, message, file, tmp_path):
    data = bytearray(file.read_bytes())
    data[place] = value
    (tmp_path / "other.gguf").write_bytes(data)
    assert message in refusal(tmp_path / "other.gguf")
