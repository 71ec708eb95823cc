"""A real server on loopback, and what clients do to it: OpenAI's own package, clients that vanish, SIGTERM."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Literal

import httpx
import pytest
from pydantic import BaseModel
from serving import QUESTION, lone, make_pipeline, until

from specframe.cli.main import main
from specframe_serve.app import Server
from specframe_serve.settings import ServeSettings
from specframe_serve.web.listener import Web, listen, web_config
from tests.small_model import make_json_tokenizer

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
RECEIVED = ("vllm:num_requests_waiting{", "vllm:num_requests_running{", "vllm:request_success_total{")
"""Metrics that together count the requests."""

PAGE = Path(__file__).parents[3] / "docs/howto/serve.md"
RAY = """
import json
import urllib.request

import ray

ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": PORT})
serve.run(app)
(found,) = serve.status().applications["default"].deployments.values()
texts = []
for _ in range(8):
    body = json.dumps({"prompt": "hello there", "seed": 1, "max_tokens": 12}).encode()
    address, kind = "http://127.0.0.1:PORT/v1/completions", {"Content-Type": "application/json"}
    asked = urllib.request.Request(address, body, kind)
    texts.append(json.load(urllib.request.urlopen(asked, timeout=60))["choices"][0]["text"])
print(json.dumps({"replicas": found.replica_states, "texts": texts}))
serve.shutdown()
ray.shutdown()
"""


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@contextmanager
def listening(pipeline, limits=None, **settings):
    """A server that listens on loopback, and its address."""
    server = Server(pipeline, ServeSettings(**{"name": "small", "slots": 4, "context": 3000} | settings))
    web = Web(web_config(server, limits), server)
    with listen("127.0.0.1", 0) as listener:
        thread = Thread(target=web.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            web.should_exit = True
            thread.join(30)
    assert not thread.is_alive() and not server.engine._thread.is_alive()


def test_openais_client_works_unmodified(pipeline):
    openai = pytest.importorskip("openai", reason="pip install openai")
    wanted = lone(pipeline, "hello there", 1).texts[0]
    with listening(pipeline) as (_, address), openai.OpenAI(base_url=f"{address}/v1", api_key="x") as client:
        assert [model.id for model in client.models.list()] == ["small"]
        ask = {"model": "small", "messages": QUESTION, "seed": 1}
        reply = client.chat.completions.create(**ask)
        assert reply.choices[0].message.content == wanted
        assert reply.metrics["speculative_decoding"]["num_spec_steps"] > 0
        chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == wanted
        assert chunks[-1].usage == reply.usage
        scored = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
        assert len(scored.choices[0].logprobs.content) == reply.usage.completion_tokens
        text = client.completions.create(model="small", prompt=["hello there", "a"], n=2, max_tokens=5, stop=["q"])
        assert len(text.choices) == 4
        with pytest.raises(openai.UnprocessableEntityError, match="does not know the field magic"):
            client.chat.completions.create(**ask, extra_body={"magic": 1})
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**ask | {"model": "other"})


class Sky(BaseModel):
    """A schema as OpenAI's client makes one of a class."""

    blue: bool
    kind: Literal["a", "b"]


def test_openais_client_reads_objects_and_calls():
    openai = pytest.importorskip("openai", reason="pip install openai")
    tokenizer = make_json_tokenizer()
    tokenizer.chat_template = "{% if tools %}<tool_call>{% endif %}{{ messages | tojson }}{{ tool_calls }}"
    pipeline = make_pipeline(tokenizer=tokenizer, sampling={"max_new_tokens": 200, "temperature": 1.0})
    tool = openai.pydantic_function_tool(Sky, name="sky")
    with listening(pipeline) as (_, address), openai.OpenAI(base_url=f"{address}/v1", api_key="x") as client:
        ask = {"model": "small", "messages": QUESTION, "seed": 1}
        reply = client.chat.completions.parse(**ask, response_format=Sky)
        assert isinstance(reply.choices[0].message.parsed, Sky)
        reply = client.responses.parse(model="small", input="hello", text_format=Sky)
        assert isinstance(reply.output_parsed, Sky)
        reply = client.chat.completions.parse(**ask, tools=[tool], tool_choice="required", parallel_tool_calls=False)
        message = reply.choices[0].message
        (call,) = message.tool_calls
        assert isinstance(call.function.parsed_arguments, Sky)
        with client.chat.completions.stream(
            **ask, tools=[tool], tool_choice="required", parallel_tool_calls=False
        ) as stream:
            found = stream.get_final_completion().choices[0].message.tool_calls
        assert [each.function.arguments for each in found] == [call.function.arguments]
        plain = client.chat.completions.create(**ask, tools=[tool], tool_choice="required", parallel_tool_calls=False)
        turns = [*QUESTION, plain.choices[0].message.model_dump()]
        turns.append({"role": "tool", "tool_call_id": plain.choices[0].message.tool_calls[0].id, "content": "yes"})
        reply = client.chat.completions.create(model="small", messages=turns, tools=[tool], max_tokens=5)
        assert reply.usage.completion_tokens == 5 or reply.choices[0].finish_reason == "stop"


@pytest.mark.skipif(shutil.which("guidellm") is None, reason="pip install guidellm, into an environment of its own")
def test_guidellm_works_unmodified(pipeline, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "hello {name}", "output_tokens_count": 7}}\n' for name in "abcd"))
    with listening(pipeline) as (_, address):
        command = ["guidellm", "run", "--backend", f"kind=openai_http,target={address}"]
        command += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=4"]
        command += ["--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={tmp_path / 'found.json'}"]
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run([*command, "--disable-console"], env=offline, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "found.json").read_text())["benchmarks"]
    requests = found["requests"]["successful"]
    assert len(requests) == 4 and not found["requests"]["errored"]
    assert [request["output_metrics"]["text_tokens"] for request in requests] == [7] * 4, "ignore_eos is understood"


@pytest.mark.parametrize("stream", [False, True])
def test_rows_of_clients_that_vanish_are_given_up(pipeline, stream):
    with listening(pipeline, slots=2) as (server, address):
        body = json.dumps({"prompt": "hello", "max_tokens": 2900, "ignore_eos": True, "stream": stream, "n": 3})
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            until(lambda: len(server.engine._running) == 2)
            if stream:
                assert b"200 OK" in connection.recv(1000)
        until(lambda: not server.engine._running and not len(server.engine._queue))
        wanted = lone(make_pipeline(), "hello there", 1).texts[0]
        reply = httpx.post(f"{address}/v1/chat/completions", json={"messages": QUESTION, "seed": 1}, timeout=30)
        assert reply.json()["choices"][0]["message"]["content"] == wanted
        assert 'finished_reason="abort",model_name="small"} 3' in httpx.get(f"{address}/metrics").text


def test_malformed_requests_leave_the_server_as_it_was(pipeline):
    with listening(pipeline) as (_, address):
        host, port = address.removeprefix("http://").split(":")
        for junk in (b"\x00\xff\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", b"GET"):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(junk)
        reply = httpx.post(f"{address}/v1/completions", json={"prompt": "a" * 10}, timeout=30)
        assert reply.status_code == 200


def received(metrics):
    """The number of requests that wait, run or are done, by a server's metrics."""
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(RECEIVED))


def test_at_sigterm_what_runs_is_finished_and_what_comes_is_refused(recipe):
    command = [sys.executable, "-m", "specframe", "serve", str(recipe), "--port", "0", "--slots", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SPECFRAME_SERVE_KEY": "secret"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        assert line.startswith("small at http://127.0.0.1:") and "clients need the key" in line, process.stderr.read()
        address = line.split()[2].rstrip(",")
        body = {"prompt": "hello there", "max_tokens": 150, "ignore_eos": True}
        headers = {"Authorization": "Bearer secret"}

        def ask(seed):
            return httpx.post(f"{address}/completions", json=body | {"seed": seed}, headers=headers, timeout=120)

        with ThreadPoolExecutor(5) as pool:
            asked = [pool.submit(ask, seed) for seed in range(5)]
            metrics = address.replace("/v1", "/metrics")
            until(lambda: received(httpx.get(metrics).text) == 5, 60)
            process.send_signal(signal.SIGTERM)
            replies = [reply.result() for reply in asked]
        assert [reply.json()["usage"]["completion_tokens"] for reply in replies] == [150] * 5
        with pytest.raises(httpx.TransportError):
            httpx.get(metrics)
        assert process.wait(30) == 0
        lines = process.stderr.read().splitlines()
        assert len(lines) == 5 and all("status=200" in line for line in lines), "a line for each request alone"
    finally:
        process.kill()
        process.communicate()


def test_a_server_that_cannot_start_prints_the_reason_in_one_line(recipe, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, words in (
            (["--port", str(port)], f"cannot listen on 127.0.0.1 port {port}: Address already in use"),
            (["--port", "70000"], "a port is a number from 0 to 65535"),
            (["--slots", "0"], "--slots 0 serves nothing"),
            (["drafter.use=nothing"], "no drafter named 'nothing'"),
        ):
            assert main(["serve", str(recipe), *arguments]) == 2
            error = capsys.readouterr().err.strip()
            assert words in error and "Traceback" not in error


@pytest.mark.slow
def test_two_replicas_of_ray_serve_give_the_same_text(recipe, tmp_path):
    pytest.importorskip("ray.serve", reason='pip install "ray[serve]"')
    (lines,) = re.findall(r"```text\n(# replicas\.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert lines.count("\n") <= 15
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = tmp_path / "replicas.py"
    here = lines.replace('"suffix-recycling"', repr(str(recipe))).replace("2048", "200")
    script.write_text(here + RAY.replace("PORT", str(port)))
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "no_proxy": "127.0.0.1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"replicas"')]
    found = json.loads(line)
    assert found["replicas"] == {"RUNNING": 2} and len(found["texts"]) == 8
    assert len(set(found["texts"])) == 1 and found["texts"][0]
