"""A GGUF file in parts: read by any part's name or by the folder; the absent part is named."""

import re
import shutil

import pytest
import torch

from specframe import compose, convert_gguf
from specframe.cli.main import main
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import InputError
from tests.small_gguf import write_gguf


@pytest.fixture
def first(tmp_path):
    return write_gguf(tmp_path / "parts" / "small.gguf", split=8)


@pytest.fixture(autouse=True)
def folder(tmp_path):
    (tmp_path / "parts").mkdir()


def weights(place):
    return HFTarget(model=str(place), device="cpu").model.state_dict()


def part(first, number):
    return first.with_name(first.name.replace("-00001-", f"-{number:05}-"))


def test_any_part_and_the_folder_are_the_whole_model(first, tmp_path):
    assert first.name == "small-00001-of-00003.gguf"
    wanted = weights(write_gguf(tmp_path / "whole.gguf"))
    for place in (first, part(first, 2), first.parent):
        found = weights(place)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), place


def test_its_blocks_are_taken_over(first, tmp_path):
    whole = write_gguf(tmp_path / "whole.gguf")
    found, wanted = (HFTarget(model=str(place), device="cpu", quantize="int8") for place in (first, whole))
    for name, buffer in wanted.model.named_buffers():
        assert torch.equal(dict(found.model.named_buffers())[name], buffer), name


def test_it_converts(first, tmp_path):
    convert_gguf(first, tmp_path / "out", dtype="float32")
    wanted = weights(first)
    assert all(torch.equal(weight, wanted[name]) for name, weight in weights(tmp_path / "out").items())


@pytest.mark.parametrize("absent", [1, 2, 3])
def test_an_absent_part_is_named(absent, first):
    part(first, absent).unlink()
    others = [part(first, number) for number in (1, 2, 3) if number != absent]
    for place in (*others, first.parent):
        with pytest.raises(
            InputError, match=rf"part {absent} of 3: .*-0000{absent}-of-00003\.gguf is absent"
        ) as caught:
            HFTarget(model=str(place), device="cpu")
        assert "\n" not in str(caught.value)


def renamed(first):
    return first.rename(first.with_name("mine.gguf"))


def another(first):
    shutil.copy(part(first, 3), part(first, 2))


def cut(first):
    part(first, 2).write_bytes(part(first, 2).read_bytes()[:-99])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed, r"mine\.gguf is part 1 of 3, and the others cannot be found"),
        (another, r"small-00002-of-00003\.gguf is not part 2 of 3 of its model"),
        (cut, r"small-00002-of-00003\.gguf cannot be read as GGUF: .* after the file's end"),
    ],
)
def test_a_part_that_will_not_do_is_one_line(change, message, first):
    with pytest.raises(InputError, match=message) as caught:
        HFTarget(model=str(change(first) or first), device="cpu")
    assert "\n" not in str(caught.value)


def test_parts_of_an_architecture_that_transformers_reads_are_refused(tmp_path):
    first = write_gguf(tmp_path / "other.gguf", architecture="starcoder2", split=8)
    with pytest.raises(InputError, match=r"is in 3 parts, and transformers, .* starcoder2, takes whole ones"):
        HFTarget(model=str(first), device="cpu")


def test_several_models_in_a_folder_are_listed(first, capsys):
    write_gguf(first.parent / "other.gguf", architecture="qwen2")
    message = "holds 2 models: name one of other.gguf, small-00001-of-00003.gguf"
    with pytest.raises(InputError, match=re.escape(message)):
        HFTarget(model=str(first.parent), device="cpu")
    assert main(["run", "recipes/suffix-int4.yaml", f"target.model={first.parent}"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_command_line_takes_the_folder(first, capsys):
    assert main(["run", str(first.parent), "run.prompts=[a drab crab]", "sampling.max_new_tokens=4"]) == 0
    part(first, 2).unlink()
    assert main(["run", str(first.parent), "run.prompts=[a drab crab]"]) == 2
    assert "part 2 of 3" in capsys.readouterr().err.splitlines()[-1]


def test_a_drafting_model_may_be_in_parts(first, tmp_path):
    target = str(write_gguf(tmp_path / "target.gguf"))
    drafter = {"use": "model", "model": str(first)}
    pipeline = compose(target=target, drafter=drafter, tree="chain", sampling={"max_new_tokens": 9})
    assert pipeline.generate(["a crab"]).acceptance.tau > 3
