"""The load generator: it sends the given prompts, and its figures are those of the server."""

import json
import sys

import httpx2
import pytest

from tests.repo.repository import ROOT

sys.path += [str(ROOT / "plugins/specframe-serve/tests"), str(ROOT / "research/analysis")]

from load import ask_metrics, main
from serving import make_pipeline
from test_clients import listening, without_proxy

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
without_proxy = without_proxy


@pytest.fixture(scope="module")
def pipeline():
    return make_pipeline()


def run(capsys, tmp_path, address, concurrency, name, *arguments):
    prompts, texts = tmp_path / "prompts.jsonl", tmp_path / name
    prompts.write_text('{"prompt": "hello there"}\n{"turns": ["good day", "and you"]}\n')
    command = [f"{address}/v1", "--prompts", str(prompts), "--requests", "8", "--concurrency", str(concurrency)]
    status = main([*command, "--temperature", "1", "--max-tokens", "12", "--texts", str(texts), *arguments])
    return status, json.loads(capsys.readouterr().out), texts.read_text()


def test_texts_do_not_depend_on_the_load(pipeline, capsys, tmp_path):
    with listening(pipeline) as (_, address):
        status, alone, texts = run(capsys, tmp_path, address, 1, "alone.jsonl", "--ignore-eos")
        _, together, others = run(capsys, tmp_path, address, 8, "together.jsonl", "--ignore-eos")
    assert status == 0 and texts == others and alone["digest"] == together["digest"]
    assert alone["requests"] == 8 and alone["failed"] == 0
    assert alone["tokens"] == sum(1 + 12 * (1 + number % 4) // 4 for number in range(8))
    assert 0 < alone["first_token_ms"]["median"] <= alone["first_token_ms"]["p95"]
    assert alone["tokens_per_second"] > 0 and alone["acceptance_length"] >= 1


def test_failures_are_counted(pipeline, capsys, tmp_path):
    with listening(pipeline, context=14) as (_, address):
        status, found, _ = run(capsys, tmp_path, address, 2, "texts.jsonl")
    assert status == 1 and found["failed"] > 0 and found["failures"] == ["HTTP 400"]


def test_a_server_that_is_not_there_is_one_line(capsys, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}')
    assert main(["http://127.0.0.1:9/v1", "--prompts", str(prompts)]) == 2
    assert main(["http://127.0.0.1:9/v1", "--prompts", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    ("status", "text", "found"), [(501, '{"error": {"code": 501}}', {}), (200, "a_total 2\n", {"a_total": 2.0})]
)
def test_a_server_without_metrics_has_none(status, text, found, monkeypatch):
    monkeypatch.setattr(httpx2, "get", lambda url: httpx2.Response(status, text=text))
    assert ask_metrics("http://127.0.0.1:1/v1") == found
