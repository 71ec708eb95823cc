"""Shared parts of the server's tests: a pipeline, and a client within the process."""

import json
from dataclasses import replace
from threading import Event
from time import monotonic, sleep

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

import specframe
from specframe_serve.app import Server
from specframe_serve.settings import ServeSettings
from tests.small_model import make_model, make_tokenizer

QUESTION = [{"role": "user", "content": "hello there"}]


def long_model():
    """The small model with a context that is long to fill."""
    model = make_model().double()
    model.config.max_position_embeddings = 4096
    return model


def make_pipeline(**changes):
    """A pipeline over the small model; it drafts by copying, in chains of several lengths."""
    return specframe.compose(
        **{
            "target": long_model(),
            "tokenizer": make_tokenizer(),
            "drafter": {"use": "lookup", "ngram": 2, "length": 4},
            "verifier": "match",
            "sampling": {"max_new_tokens": 12, "temperature": 1.0},
            "run": {"chat": True},
            **changes,
        },
    )


def lone(pipeline, prompt, seed, chat=True, **sampling):
    """The text that `specframe run` would give for a prompt by itself."""
    settings = replace(pipeline.sampling, **sampling)
    return replace(pipeline, sampling=settings, run=replace(pipeline.run, chat=chat)).generate(prompt, seed=seed)


class Serving(TestClient):
    """A server that runs in this process, and a client for it."""

    def __init__(self, pipeline, **settings):
        given = {"name": "small", "slots": 4, "context": 200, "prompt_details": True} | settings
        self.server = Server(pipeline, ServeSettings(**given))
        self.engine = self.server.engine
        super().__init__(self.server.app, raise_server_exceptions=False)

    def chat(self, **fields):
        return self.post("/v1/chat/completions", json={"messages": QUESTION, "seed": 1} | fields)

    def complete(self, **fields):
        return self.post("/v1/completions", json={"prompt": "hello there", "seed": 1} | fields)

    def stream(self, path, **fields):  # type: ignore[override]
        """The events of a stream, its end checked."""
        reply = self.post(path, json={"seed": 1, "stream": True} | fields)
        assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream"), reply.text
        assert reply.headers["x-accel-buffering"] == "no", "nginx would hold the events back"
        *events, last = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
        assert last == "[DONE]"
        return [json.loads(event) for event in events]

    def counters(self):
        """The values of /metrics, by name and labels other than the model's."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics").text):
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sample.labels.items() if k != "model_name")
                found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
        return found


class Gate:
    """Holds the engine before its next cycle until it is opened."""

    def __init__(self, serving, monkeypatch):
        self.opened, self.reached = Event(), Event()
        drop = serving.engine._drop

        def held(session):
            self.reached.set()
            assert self.opened.wait(20)
            drop(session)

        monkeypatch.setattr(serving.engine, "_drop", held)


def until(condition, seconds=20.0):
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, "it did not happen in time"
        sleep(0.01)
