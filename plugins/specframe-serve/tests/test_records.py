"""The log: a line for each request, and none for clients that leave."""

import gc
import json
import logging
import re
import socket

import pytest
from serving import QUESTION, Serving, until
from test_clients import listening
from test_connections import HEAD

from specframe_serve.web.records import JsonLines, log_to_stderr


def requests(caplog):
    return [record.own for record in caplog.records if hasattr(record, "own")]


def test_each_request_is_one_line_with_its_id(pipeline, caplog):
    caplog.set_level(logging.INFO, "specframe.serve")
    with Serving(pipeline) as serving:
        reply = serving.post("/v1/completions", json={"prompt": "hello", "seed": 1}, headers={"X-Request-Id": "mine"})
        serving.stream("/v1/chat/completions", messages=QUESTION)
        assert serving.complete(nonsense=1).status_code == 422
        made = serving.get("/v1/models", headers={"X-Request-Id": "two words"}).headers["x-request-id"]
        assert serving.get("/health").status_code == serving.get("/metrics").status_code == 200  # no lines of probes
    assert reply.headers["x-request-id"] == "mine" and re.fullmatch("[0-9a-f]{24}", made)
    first, stream, refused, models = requests(caplog)
    usage = reply.json()["usage"]
    assert (first["id"], first["status"], first["path"]) == ("mine", 200, "/v1/completions")
    assert (first["prompt"], first["tokens"]) == (5, usage["completion_tokens"]) and first["cached"] == 0
    assert 0 < first["first"] <= first["seconds"] and first["reason"] == reply.json()["choices"][0]["finish_reason"]
    assert stream["reason"] in ("stop", "length") and stream["tokens"] > 0
    assert refused["status"] == 422 and "tokens" not in refused and models["id"] == made


def test_a_line_is_text_or_json(capsys):
    log = logging.getLogger("specframe.serve")
    before = log.handlers, log.propagate, log.level
    try:
        for form in ("text", "json"):
            log_to_stderr("info", form)
            log.info("%s", "id=1", extra={"own": {"id": "1"}})
            log.debug("not shown")
        text, line = capsys.readouterr().err.splitlines()
    finally:
        log.handlers, log.propagate, _ = before
        log.setLevel(before[2])
    assert re.match(r"\d{4}-\d\d-\d\d .* INFO id=1", text)
    found = json.loads(line)
    assert found["id"] == "1" and found["level"] == "INFO" and found["time"]
    failed = logging.LogRecord("a", logging.ERROR, "", 1, "it %s", ("fell",), (ValueError, ValueError("x"), None))
    assert json.loads(JsonLines().format(failed)) | {"time": ""} == {
        "time": "",
        "level": "ERROR",
        "message": "it fell",
        "traceback": "ValueError: x",
    }


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_clients_that_leave_are_no_errors(pipeline, caplog):
    body = json.dumps({"prompt": "hello", "max_tokens": 2000, "ignore_eos": True})
    with listening(pipeline) as (server, address):
        host, port = address.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(40)]
        for client in clients:
            client.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: len(server.engine._running) == 4 and len(server.engine._queue) == 36)
        for client in clients:
            client.close()
        until(lambda: not server.engine._running and not server.engine._queue)
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
