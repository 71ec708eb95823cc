"""Published drafters by target, fetched from a Hub of this test: its client is answered at the wire."""

import importlib
import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.utils._http import default_client_factory

import specframe
from specframe.cli.main import main
from specframe.neural.weights.locate import find_place
from specframe_zoo.published import published_drafter

TARGET, DRAFTER = "Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3"
COMMIT = "0" * 40
httpx = importlib.import_module(type(huggingface_hub.get_session()).__module__.partition(".")[0])
"""The library by which the Hub's client speaks: httpx, or its successor."""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder of repositories, OWNER/NAME, that the Hub's client finds, with an empty cache."""

    def answer(request):
        path = request.url.path.removeprefix("/api/models")
        owner, name, *rest = path.strip("/").split("/")
        repository = tmp_path / "hub" / owner / name
        if not repository.is_dir():
            return httpx.Response(404, headers={"X-Error-Code": "RepoNotFound"})
        if path != request.url.path and rest[:1] == ["tree"] and len(rest) == 2:
            entry = {"type": "file", "oid": COMMIT}
            listed = [entry | {"path": file.name, "size": file.stat().st_size} for file in repository.iterdir()]
            return httpx.Response(200, json=listed)
        if path != request.url.path and rest[:1] not in ([], ["revision"]):
            return httpx.Response(404, headers={"X-Error-Code": "EntryNotFound"})
        if path != request.url.path:
            files = [{"rfilename": file.name} for file in repository.iterdir()]
            return httpx.Response(200, json={"id": f"{owner}/{name}", "sha": COMMIT, "siblings": files})
        file = repository / "/".join(rest[2:])
        if not file.is_file():
            return httpx.Response(404, headers={"X-Error-Code": "EntryNotFound"})
        content = file.read_bytes()
        about = {"ETag": f'"{file.name}"', "X-Repo-Commit": COMMIT, "Content-Length": str(len(content))}
        return httpx.Response(200, headers=about, content=b"" if request.method == "HEAD" else content)

    def client():
        return httpx.Client(transport=httpx.MockTransport(answer))

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    huggingface_hub.set_client_factory(client)
    yield tmp_path / "hub"
    huggingface_hub.set_client_factory(default_client_factory)


def test_a_published_drafter_decodes(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = find_place("zoo://talk-7m")
    shutil.copytree(target, hub / TARGET)
    assert main(["export", "small/families/eagle3", "--to", "speculators", "--out", str(hub / DRAFTER)]) == 0
    command = ["run", TARGET, "--prompt", "Do you like music?", "run.repeats=0", "sampling.max_new_tokens=24"]
    assert main([*command, "--drafter", "auto", "--json"]) == 0
    printed = capsys.readouterr()
    assert f"{TARGET}: the drafter is {DRAFTER}" in printed.err
    found = json.loads(printed.out.splitlines()[-1])
    plain = specframe.load(target, overrides=["drafter=none", "tree=null"])
    assert found["text"] == plain.generate("Do you like music?", max_new_tokens=24).texts
    assert found["tau"] > 1.5
    assert (tmp_path / "cache" / f"models--{DRAFTER.replace('/', '--')}").is_dir()


def test_every_row_is_a_drafter_and_a_tree():
    for target in ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-4B", TARGET):
        drafter, tree = (json.loads(value.partition("=")[2]) for value in published_drafter(target))
        assert {*drafter} == {"use", "weights"} and tree["use"] == "dynamic"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "Qwen/Qwen3-9B", "--drafter", "auto"], "no published drafter is known for Qwen/Qwen3-9B (known: "),
        (["run", "small/lookup", "--drafter", "auto"], "drafter=auto is for a model; small/lookup is a recipe"),
        (["bench", "Qwen/Qwen3-9B", "drafter=auto"], "no published drafter is known for Qwen/Qwen3-9B (known: "),
    ],
)
def test_without_a_drafter_it_is_one_line(words, message, capsys):
    assert main([*words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_offline_it_is_one_line(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(find_place("zoo://talk-7m"), hub / TARGET)
    command = ["run", TARGET, "--drafter", "auto", "--prompt", "Hi"]
    assert main(command) == 2
    assert DRAFTER in capsys.readouterr().err.splitlines()[-1], "the Hub has no such repository"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(command) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"no checkpoint {DRAFTER!r}" in last and not Path("runs").exists()
