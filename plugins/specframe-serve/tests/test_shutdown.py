"""The end of a server: at a signal, at a second one, and when the time to finish has run out."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest

from specframe.cli.main import main

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
LONG = {"prompt": "hello there", "max_tokens": 3000, "ignore_eos": True, "seed": 1}


@contextmanager
def serving(recipe, *options):
    """A server in a process of its own, and the address of its API."""
    command = [sys.executable, "-m", "specframe", "serve", str(recipe), "--port", "0", "--slots", "2"]
    command += ["--log-level", "warning", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        yield process, line.split()[2].rstrip(",")
    finally:
        process.kill()
        process.communicate()


def running(address, rows, state="running"):
    metrics = address.replace("/v1", "/metrics")
    end = time.monotonic() + 200
    while f'num_requests_{state}{{model_name="small"}} {rows}.0' not in httpx.get(metrics).text:
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def wait_until_it_takes_no_more(address):
    with suppress(httpx.TransportError):
        while True:
            httpx.get(f"{address}/models", timeout=300)
            time.sleep(0.02)


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_what_is_not_finished_in_time_ends_with_a_sentence(recipe, signals):
    """The time is `--drain`, or until a second signal."""
    drain = "60" if len(signals) == 2 else "0.3"
    with serving(recipe, "--drain", drain) as (process, address), ThreadPoolExecutor(3) as pool:
        url = f"{address}/completions"
        whole = pool.submit(httpx.post, url, json=LONG, timeout=300)
        stream = pool.submit(httpx.post, url, json=LONG | {"stream": True}, timeout=300)
        running(address, 2)
        waiting = pool.submit(httpx.post, url, json=LONG, timeout=300)
        running(address, 1, "waiting")
        for number in signals:
            process.send_signal(number)
            wait_until_it_takes_no_more(address)  # a second signal before the first was handled is one with it
        for reply in (whole.result(), waiting.result()):
            assert reply.status_code == 503 and reply.json()["error"]["code"] == "shutting_down"
        assert '"code": "shutting_down"' in stream.result().text
        assert process.wait(120) == 0 and process.stderr.read() == ""


def test_a_client_that_takes_no_answer_does_not_keep_the_server(recipe):
    with (
        serving(recipe) as (process, address),
        httpx.stream("POST", f"{address}/completions", json=LONG | {"stream": True, "logprobs": 20}, timeout=300),
    ):
        running(address, 1)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            wait_until_it_takes_no_more(address)
        assert process.wait(120) == 0 and "Traceback" not in process.stderr.read()


def test_a_server_that_others_reach_without_a_key_warns(recipe, monkeypatch):
    monkeypatch.delenv("SPECFRAME_SERVE_KEY", raising=False)
    with serving(recipe, "--host", "0.0.0.0") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        (line,) = process.stderr.read().splitlines()
    assert "anyone who reaches 0.0.0.0 can use this server" in line


@pytest.mark.parametrize("drain", ["nan", "inf", "-1"])
def test_a_time_to_drain_that_is_none_is_refused(recipe, drain, capsys):
    assert main(["serve", str(recipe), f"--drain={drain}"]) == 2
    assert "is no number of seconds" in capsys.readouterr().err
