"""Requests that no client would send: each is answered, and none with an error of the server's own."""

import json
import math
from threading import Event, Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import QUESTION, Serving

from specframe_serve.ollama.protocol import OllamaChat, OllamaGenerate, OllamaOptions
from specframe_serve.protocol import ChatRequest, CompletionRequest
from specframe_serve.responses import ResponseRequest

ROUTES = {
    "/v1/chat/completions": (ChatRequest, {"messages": QUESTION}),
    "/v1/completions": (CompletionRequest, {"prompt": "hello"}),
    "/v1/responses": (ResponseRequest, {"input": "hello"}),
    "/api/chat": (OllamaChat, {"model": "small", "messages": QUESTION}),
    "/api/generate": (OllamaGenerate, {"model": "small", "prompt": "hello"}),
}
NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 0.5, 1.0, 1e-40, 1e308, 2**63, -(2**70), 64, 10**400, math.nan, math.inf])
TEXTS = st.one_of(
    st.sampled_from(["", " ", "none", "auto", "text", "small", "user", "\ud800", "\0"]), st.text(max_size=8)
)
LEAVES = st.one_of(NUMBERS, TEXTS, st.booleans(), st.none())
TURNS = st.fixed_dictionaries({}, optional=dict.fromkeys(("role", "content", "name", "type", "text"), LEAVES))
VALUES = st.recursive(
    st.one_of(LEAVES, TURNS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(TEXTS, st.sampled_from(["1", "63", "64", "include_usage"])), inner, max_size=3),
    ),
    max_leaves=6,
)


@st.composite
def bodies(draw):
    path = draw(st.sampled_from(sorted(ROUTES)))
    kind, needed = ROUTES[path]
    names = st.sampled_from([*kind.model_fields, "unknown"])
    fields = draw(st.dictionaries(names, VALUES, max_size=4))
    if path.startswith("/api/") and draw(st.booleans()):
        options = st.dictionaries(st.sampled_from(sorted(OllamaOptions.model_fields)), LEAVES, max_size=4)
        fields["options"] = draw(options)
    return path, needed | fields


@pytest.fixture(scope="module")
def small(pipeline):
    """A server that is asked for its health all the while; `test_connections` has what it does not wait for."""
    asked, done = [], Event()
    with Serving(pipeline, context=60, queue=8) as running:

        def watch():
            while not done.wait(0.05):
                asked.append(running.get("/health").status_code)

        watcher = Thread(target=watch)
        watcher.start()
        yield running
        done.set()
        watcher.join()
    assert len(asked) > 2 and set(asked) == {200}


def check(serving, path, body):
    reply = serving.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert reply.status_code in (200, 400, 404, 422), (body, reply.text)
    assert '"code": "server_error"' not in reply.text and len(reply.text) < 200_000


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies())
def test_no_body_makes_the_server_fail(small, body):
    check(small, *body)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies())
def test_no_body_of_many_makes_the_server_fail(small, body):
    check(small, *body)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(ROUTES)), st.binary(max_size=40))
def test_no_bytes_make_the_server_fail(small, path, body):
    reply = small.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code in (400, 422)
