"""The health and the metrics wait for no work of other requests, however long it takes: it is done in other threads."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from serving import Serving, make_pipeline

from specframe import Pipeline
from specframe_serve.encoding import Encoder
from specframe_serve.engine import Engine
from specframe_serve.logprobs import PromptScores
from specframe_serve.web import bodies
from tests.small_model import make_json_tokenizer

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
def test_health_is_given_while(step, writer, monkeypatch):
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
