"""Connections as raw sockets open them: silent ones, too many, bodies of doubtful length; and what health waits for."""

import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import pytest
from serving import Serving, make_pipeline
from test_clients import listening, until

from specframe import Pipeline
from specframe_serve.encoding import Encoder
from specframe_serve.engine import Engine
from specframe_serve.logprobs import PromptScores
from specframe_serve.web import bodies
from specframe_serve.web.connections import Limits
from tests.small_model import make_json_tokenizer

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"prompt": "hello", "max_tokens": 2, "seed": 1})


def connect(address):
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(20)
    return connection


def reply_to(address, *parts):
    """All that comes back for parts that are sent, until the server closes the connection."""
    with connect(address) as connection:
        for part in parts:
            connection.sendall(part.encode())
        found = b""
        while data := connection.recv(1000):
            found += data
    return found.decode()


def whole(body=BODY):
    return f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}"


@pytest.mark.parametrize("sent", ["", "POST /v1/comp", HEAD])
def test_a_connection_whose_headers_do_not_come_is_closed(pipeline, sent):
    with listening(pipeline, Limits(10, headers=0.3)) as (_, address):
        assert reply_to(address, sent) == ""


def test_so_is_one_whose_second_requests_headers_do_not_come(pipeline):
    limits = Limits(10, headers=60)
    with listening(pipeline, limits) as (_, address), connect(address) as connection:
        connection.sendall(whole().encode())
        assert b"200 OK" in connection.recv(1000)
        limits.headers = 0.3
        connection.sendall(b"POST /v1/comp")
        while connection.recv(1000):
            pass


def test_a_request_that_takes_longer_than_its_headers_may_is_answered(pipeline, monkeypatch):
    with listening(pipeline, Limits(10, headers=0.1)) as (server, address):
        drop = server.engine._drop

        def slowly(session):
            time.sleep(0.3)
            drop(session)

        monkeypatch.setattr(server.engine, "_drop", slowly)
        assert "200 OK" in reply_to(address, whole().replace("Host", "Connection: close\r\nHost"))


def test_connections_beyond_the_limit_are_refused_with_one_line_in_the_log(pipeline, caplog):
    caplog.set_level(logging.WARNING)
    with listening(pipeline, Limits(3, patience=0.05)) as (_, address):
        held = [connect(address) for _ in range(3)]
        for _ in range(20):
            assert "503 Service Unavailable" in reply_to(address)
        assert not _answers(address)
        held.pop().close()
        until(lambda: _answers(address))
        for connection in held:
            connection.close()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "3 connections are open" in record.message


@pytest.mark.parametrize("most", [3, 256])
def test_health_and_a_reason_are_given_beyond_the_limit(pipeline, most):
    """While connections that send half a request or half a body take all places, and more of them come.

    Health and metrics take less than a second of the processor, the client's part included.
    """
    with listening(pipeline, Limits(most, headers=60, patience=60)) as (_, address):
        held = [connect(address) for _ in range(most)]
        for number, connection in enumerate(held):
            connection.sendall((HEAD if number % 2 else whole()[: -len(BODY) // 2]).encode())
        until(lambda: httpx.post(f"{address}/v1/completions", json={}).status_code == 503)
        more = [connect(address) for _ in range(40)]
        for path in ("health", "metrics"):
            begin = time.process_time()
            reply = httpx.get(f"{address}/{path}")
            assert reply.status_code == 200 and reply.headers["connection"] == "close"
            assert time.process_time() - begin < 1.0
        refused = httpx.post(f"{address}/v1/completions", json={"prompt": "a" * 50_000})
        assert refused.json()["error"]["code"] == "too_many_connections" and refused.headers["retry-after"] == "1"
        for connection in [*held, *more]:
            connection.close()
        until(lambda: httpx.get(f"{address}/v1/models").status_code == 200)


def _answers(address):
    return httpx.get(f"{address}/v1/models").status_code == 200


def test_junk_leaves_no_line_in_the_log(pipeline, caplog):
    caplog.set_level(logging.WARNING, "specframe.serve")  # there is a line for each request, junk or not
    with listening(pipeline) as (_, address):
        for junk in (
            "\x00\xff\r\n\r\n",
            "GET / HTTP/1.1\r\n bad\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: upgrade, close\r\n\r\n",
        ):
            assert reply_to(address, junk).startswith("HTTP/1.1 4")
    assert not caplog.records


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_sent(pipeline):
    with listening(pipeline, body=1000) as (_, address):
        found = reply_to(address, f"{HEAD}Content-Length: 1001\r\n\r\n")
    assert found.startswith("HTTP/1.1 413") and "connection: close" in found.lower()


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/models", "/v1/completions"])
def test_what_is_refused_with_its_body_unread_ends_the_connection(pipeline, path):
    """A rest would be read as part of the body, or the body as the next request."""
    with listening(pipeline, keys={"": "secret"}) as (_, address):
        found = reply_to(address, f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
    assert found.startswith("HTTP/1.1 4") and "connection: close" in found.lower()


def test_two_lengths_are_refused(pipeline):
    with listening(pipeline) as (_, address):
        head = f"{HEAD}Content-Length: {len(BODY)}\r\nTransfer-Encoding: chunked\r\n\r\n"
        found = reply_to(address, f"{head}{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n")
    assert found.startswith("HTTP/1.1 400") and "not both" in found and "connection: close" in found.lower()


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
STEPS = {
    "a body is parsed": (bodies, "parse", CHAT),
    "a conversation is encoded": (Encoder, "_encode_turns", CHAT),
    "a text is encoded": (Encoder, "_encode", TEXT),
    "a grammar is compiled": (Pipeline, "requests", CHAT),
    "a prompt is read": (Engine, "_read", TEXT),
    "rows are decoded": (Engine, "_take_in", TEXT),
    "a prompt is scored": (PromptScores, "step", TEXT),
}


@pytest.fixture(scope="module")
def writer():
    return make_pipeline(tokenizer=make_json_tokenizer())


@pytest.mark.parametrize("step", STEPS)
def test_health_and_metrics_are_given_while(step, writer, monkeypatch):
    """They wait for no work of other requests, however long it takes: it is done in other threads."""
    owner, name, path = STEPS[step]
    ask = {"messages": [{"role": "user", "content": "a"}], "guided_regex": "a*"}
    if path == TEXT:
        ask = {"prompt": "a b c", "echo": True, "logprobs": 1}
    elif name == "requests":
        pytest.importorskip("llguidance", reason="pip install specframe-serve[grammar]")
    else:
        del ask["guided_regex"]
    reached, opened, work = Event(), Event(), getattr(owner, name)

    def stand_still(*given):
        reached.set()
        assert opened.wait(20)
        return work(*given)

    with Serving(writer) as serving, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(owner, name, stand_still)
        asked = pool.submit(serving.post, path, json=ask)
        assert reached.wait(20)
        try:
            assert serving.get("/health").status_code == serving.get("/metrics").status_code == 200
            assert not asked.done()
        finally:
            opened.set()
        assert asked.result().status_code == 200
