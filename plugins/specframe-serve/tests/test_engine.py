"""Properties of serving many requests: no text depends on the others, and no row is lost."""

import random
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC

import numpy as np
import pytest
import torch
from serving import Gate, Serving, lone, make_pipeline, until

from specframe import Sampling
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.tiny import random_model
from specframe.training.online import Online
from specframe_serve.settings import ServeSettings
from specframe_text.retrieval.corpus import build

WORDS = ["hello there", "good day to you", "a", "what do you like to do on a rainy day?", "one two one two one two"]
DRAFTERS = {
    "lookup": {},
    "recycling": {"drafter": {"use": "suffix-recycling", "nodes": 8}},
    "none": {"drafter": "none"},
    "memory": {"drafter": {"use": "retrieval", "store": {"use": "corpus"}, "remember": True, "shortest": 1}},
}


def load(count, seed=0):
    """Requests of many kinds, each with the settings it has."""
    random.seed(seed)
    return [
        {
            "prompt": random.choice(WORDS),
            "seed": random.randrange(1000),
            "temperature": random.choice([0.0, 0.7, 1.0, 1.3]),
            "top_p": random.choice([0.9, 1.0]),
            "max_tokens": random.randint(1, 25),
            "ignore_eos": random.random() < 0.5,
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_texts_are_those_of_lone_runs_whatever_else_is_served(drafter):
    pipeline = make_pipeline(**DRAFTERS[drafter])
    asked = load(40)
    plain = make_pipeline(drafter="none")

    def alone(fields):
        sampling = {name: fields[name] for name in ("temperature", "top_p", "ignore_eos")}
        prompt, seed = fields["prompt"], fields["seed"]
        return lone(plain, prompt, seed, chat=False, max_new_tokens=fields["max_tokens"], **sampling).texts[0]

    wanted = [alone(fields) for fields in asked]

    def ask(fields):
        if fields["seed"] % 2:
            return "".join(event["choices"][0]["text"] for event in serving.stream("/v1/completions", **fields))
        return serving.complete(**fields).json()["choices"][0]["text"]

    with Serving(pipeline, prefill=40) as serving, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, asked)) == wanted
        found = serving.counters()
    assert found["vllm:generation_tokens_total"] >= sum(map(len, wanted))
    assert len(set(wanted)) > 20


def test_a_drafter_that_learns_while_it_serves_changes_no_text():
    """Under `match`, with requests that come and go between updates."""
    small = ModelDrafter.from_model(random_model(vocab=64, layers=1, seed=4, size=16))
    online = Online(drafter=small, every=2, steps=2, lr=1e-2, held=0)
    pipeline = make_pipeline(drafter=online, tree={"use": "chain", "depth": 3})
    plain = make_pipeline(drafter="none")
    asked = [{"prompt": WORDS[number % 5], "seed": number, "max_tokens": 8 + number} for number in range(10)]
    wanted = [
        lone(plain, fields["prompt"], fields["seed"], chat=False, max_new_tokens=fields["max_tokens"]).texts[0]
        for fields in asked
    ]
    with Serving(pipeline) as serving, ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda fields: serving.complete(**fields).json()["choices"][0]["text"], asked))
    assert found == wanted
    assert online.learner is not None and online.learner.run_state.step >= 3


def test_a_full_disk_under_a_store_that_remembers_fails_no_request(tmp_path, monkeypatch, caplog):
    store = {"use": "corpus", "path": str(tmp_path)}
    plain = make_pipeline(drafter="none")
    build(tmp_path, [[1, 2, 3, 4]], plain.parts.target)
    pipeline = make_pipeline(drafter={"use": "retrieval", "store": store, "remember": True, "shortest": 1})
    before = sorted(path.name for path in tmp_path.iterdir())
    wanted = [lone(plain, word, 1, chat=False).texts[0] for word in WORDS]

    def full(path, array):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with Serving(pipeline, slots=2) as serving, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda word: serving.complete(prompt=word), WORDS * 2))  # several sessions' requests
        assert serving.complete().status_code == 200
    assert [reply.json()["choices"][0]["text"] for reply in replies] == wanted * 2
    (warning,) = [record.message for record in caplog.records if record.name == "specframe.retrieval"]
    assert "remembered no more" in warning and "No space left on device; it is as it was before" in warning
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_row_without_any_token_left_ends_and_the_log_has_the_reason(pipeline, monkeypatch, caplog):
    monkeypatch.setattr(Sampling, "law_and_gaps", nothing_is_left(Sampling.law_and_gaps))
    with Serving(pipeline) as serving:
        assert serving.complete().status_code == 500
    assert "no token has any probability" in caplog.text


def nothing_is_left(law_and_gaps):
    def found(self, logits, tree, nodes=None):
        return law_and_gaps(self, torch.full_like(logits, -torch.inf), tree, nodes)

    return found


def test_an_error_while_decoding_ends_its_requests_and_not_the_server(monkeypatch, caplog):
    pipeline = make_pipeline()
    with Serving(pipeline) as serving:
        wanted = serving.complete().json()["choices"]
        verify, broken = pipeline.parts.verifier.verify, []

        def fail(*args):
            broken.append(True)
            raise RuntimeError("a secret of the server")

        monkeypatch.setattr(pipeline.parts.verifier, "verify", fail)
        reply = serving.complete()
        assert reply.status_code == 500 and broken and "secret" not in reply.text and "Traceback" not in reply.text
        monkeypatch.setattr(pipeline.parts.verifier, "verify", verify)
        assert serving.complete().json()["choices"] == wanted
    assert "a secret of the server" in caplog.text, "the log has it"


def test_a_session_that_cannot_be_opened_fails_its_requests(pipeline, monkeypatch, caplog):
    with Serving(pipeline) as serving:
        monkeypatch.setattr(serving.engine, "_pipeline", None)
        assert serving.complete().status_code == 500
        monkeypatch.undo()
        assert serving.complete().status_code == 200
    assert "decoding failed" in caplog.text


def test_closing_finishes_what_was_asked_and_takes_no_more(pipeline, monkeypatch):
    serving = Serving(pipeline, slots=1)
    with serving, ThreadPoolExecutor(4) as pool:
        gate = Gate(serving, monkeypatch)
        asked = [pool.submit(serving.complete, seed=seed) for seed in range(3)]
        until(lambda: len(serving.engine._queue) == 3)
        closing = pool.submit(serving.engine.close)
        until(lambda: serving.engine._queue.closed)
        assert serving.complete().status_code == 503
        assert serving.get("/health").status_code == 503
        gate.opened.set()
        closing.result(20)
        assert [reply.result().status_code for reply in asked] == [200] * 3


def test_when_time_runs_out_what_is_left_ends_with_a_sentence(pipeline, monkeypatch):
    serving = Serving(pipeline, slots=1)
    with serving, ThreadPoolExecutor(3) as pool:
        gate = Gate(serving, monkeypatch)
        asked = [pool.submit(serving.complete), pool.submit(serving.complete, stream=True)]
        until(lambda: len(serving.engine._queue) == 2)
        serving.engine.give_up()
        gate.opened.set()
        whole, stream = (reply.result() for reply in asked)
    assert whole.status_code == 503 and whole.json()["error"]["code"] == "shutting_down"
    assert '"code": "shutting_down"' in stream.text and "[DONE]" not in stream.text


def test_memory_of_finished_requests_is_let_go(serving):
    for _ in range(3):
        serving.chat(n=2)
    engine = serving.engine
    until(lambda: engine._session is None)
    assert not engine._running and not len(engine._queue)


def test_a_request_after_a_pause_takes_the_storage_of_those_before(serving):
    """To zero the storage of all slots again takes longer than to read a short prompt."""
    state = []
    for _ in range(3):
        serving.complete()
        until(lambda: serving.engine._session is None)
        state.append(serving.engine._pipeline.parts.target._state.cache._blocks[0])
    assert state[0] is state[1] is state[2]


@pytest.mark.parametrize("field", ["slots", "queue", "context", "prefill", "body", "timeout"])
def test_settings_that_serve_nothing_are_refused(field):
    from specframe import InputError

    with pytest.raises(InputError, match=f"--{field} 0"):
        ServeSettings(name="small", **{field: 0})
