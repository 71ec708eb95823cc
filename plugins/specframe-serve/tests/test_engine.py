"""What holds when many requests are served: no text depends on the others, and no row is lost."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import ENOSPC
from itertools import pairwise
from threading import Event
from time import monotonic, sleep

import numpy as np
import pytest
import torch
from serving import Serving, lone, make_pipeline

from specframe import Sampling, Session
from specframe.components.drafters.model import ModelDrafter
from specframe.components.stores.corpus import build
from specframe.components.targets.tiny import random_model
from specframe.training.online import Online
from specframe_serve import answers
from specframe_serve.settings import ServeSettings

WORDS = ["hello there", "good day to you", "a", "what do you like to do on a rainy day?", "one two one two one two"]
DRAFTERS = {
    "lookup": {},
    "recycling": {"drafter": {"use": "suffix-recycling", "nodes": 8}},
    "none": {"drafter": "none"},
    "memory": {"drafter": {"use": "retrieval", "store": {"use": "corpus"}, "remember": True, "shortest": 1}},
}


def until(condition, seconds=20.0):
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, "it did not happen in time"
        sleep(0.01)


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
    assert online.learner is not None and online.learner.ledger.step >= 3


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


def test_a_full_queue_refuses_with_the_time_to_wait(pipeline, monkeypatch):
    with Serving(pipeline, slots=1, queue=2) as serving, ThreadPoolExecutor(4) as pool:
        gate = Gate(serving, monkeypatch)
        first = [pool.submit(serving.complete) for _ in range(2)]
        until(lambda: serving.engine.waiting == 2)
        refused = serving.complete()
        assert refused.status_code == 429 and 1 <= int(refused.headers["Retry-After"]) <= 60
        assert refused.json()["error"]["code"] == "queue_full"
        assert serving.complete(n=2).status_code == 429, "all of a request's rows, or none"
        gate.opened.set()
        assert [reply.result().status_code for reply in first] == [200, 200]
        assert serving.complete().status_code == 200
        assert serving.counters()["specframe:requests_refused_total"] == 2


def test_prompts_are_read_in_order_and_no_more_than_the_budget_at_a_time(pipeline, monkeypatch):
    with Serving(pipeline, slots=4, prefill=30) as serving, ThreadPoolExecutor(8) as pool:
        gate, engine, admitted = Gate(serving, monkeypatch), serving.engine, []
        following = engine._queue.next_short

        def recorded(free):
            jobs = following(free)
            admitted.append([len(job.request.tokens) for job in jobs])
            return jobs

        monkeypatch.setattr(engine._queue, "next_short", recorded)
        replies = []
        for number, length in enumerate([10, 12, 8, 40, 3, 3]):
            replies.append(pool.submit(serving.complete, prompt="a" * length, max_tokens=20, ignore_eos=True))
            until(lambda number=number: engine.waiting == number + 1)
        gate.opened.set()
        assert [reply.result().status_code for reply in replies] == [200] * 6
        assert [lengths for lengths in admitted if lengths] == [[10, 12], [8], [3, 3]], "40 is read in pieces"


def test_a_stream_has_no_chunk_before_its_first_token_and_shows_that_it_waits(pipeline, monkeypatch):
    monkeypatch.setattr(answers, "SILENCE", 0.05)
    with Serving(pipeline, slots=1) as serving, ThreadPoolExecutor(1) as pool:
        gate = Gate(serving, monkeypatch)
        asked = pool.submit(serving.chat, stream=True, n=2)
        assert gate.reached.wait(20)
        sleep(0.3)
        gate.opened.set()
        parts = [part for part in asked.result().text.split("\n\n") if part]
    waited = parts.index(next(part for part in parts if part.startswith("data:")))
    assert waited >= 2 and set(parts[:waited]) == {": waiting"}
    chunks = [json.loads(part.removeprefix("data: "))["choices"][0] for part in parts if part.startswith("data: {")]
    for index in (0, 1):
        roles = [chunk["delta"].get("role") for chunk in chunks if chunk["index"] == index]
        assert roles[0] == "assistant" and not any(roles[1:])
    assert chunks[0]["delta"]["content"]


def test_what_takes_too_long_is_given_up(pipeline, monkeypatch):
    with Serving(pipeline, slots=1, timeout=0.2) as serving:
        gate = Gate(serving, monkeypatch)
        with ThreadPoolExecutor(2) as pool:
            late = [pool.submit(serving.complete), pool.submit(serving.chat, stream=True)]
            until(lambda: serving.engine.waiting == 2)
            sleep(0.3)
            gate.opened.set()
        assert late[0].result().status_code == 504 and "0.2 seconds" in late[0].result().json()["error"]["message"]
        assert '"code": "timeout"' in late[1].result().text and "[DONE]" not in late[1].result().text
        serving.engine.settings = replace(serving.engine.settings, timeout=60.0)
        assert serving.complete().status_code == 200
        assert serving.counters()["vllm:request_success_total{finished_reason=abort}"] == 2


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
        verify, broken = pipeline.parts.verifier.verify_on_demand, []

        def fail(*args):
            broken.append(True)
            raise RuntimeError("a secret of the server")

        monkeypatch.setattr(pipeline.parts.verifier, "verify_on_demand", fail)
        reply = serving.complete()
        assert reply.status_code == 500 and broken and "secret" not in reply.text and "Traceback" not in reply.text
        monkeypatch.setattr(pipeline.parts.verifier, "verify_on_demand", verify)
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
        until(lambda: serving.engine.waiting == 3)
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
        until(lambda: serving.engine.waiting == 2)
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
    assert not engine._running and not engine.waiting


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


def test_short_prompts_are_admitted_between_two_pieces_of_a_long_one(monkeypatch):
    """Also where no row is running; the long one has every second turn, and a slot is left for it."""
    pipeline = make_pipeline()
    long, shorts = "good day " * 20, [word * 2 for word in ("ab", "cd", "ef", "gh", "ij")]
    asked = [*shorts[:1], long, *shorts[1:]]
    wanted = [lone(pipeline, prompt, 5, chat=False, max_new_tokens=30).texts[0] for prompt in asked]
    turns = []
    admit, read_ahead = Session.admit, Session.read_ahead

    def admitted(self, requests):
        turns.append([len(request.tokens) for request in requests])
        return admit(self, requests)

    def read(self, prompt, limit):
        turns.append("piece")
        return read_ahead(self, prompt, limit)

    monkeypatch.setattr(Session, "admit", admitted)
    monkeypatch.setattr(Session, "read_ahead", read)
    with Serving(pipeline, prefill=10, slots=3, context=400) as serving, ThreadPoolExecutor(8) as pool:
        gate, replies = Gate(serving, monkeypatch), []
        for number, prompt in enumerate(asked):
            replies.append(pool.submit(serving.complete, prompt=prompt, seed=5, max_tokens=30))
            until(lambda number=number: serving.engine.waiting == number + 1)
        gate.opened.set()
        found = [reply.result().json()["choices"][0]["text"] for reply in replies]
    assert found == wanted
    assert turns[:4] == ["piece", [4, 4], "piece", "piece"], "a slot is left for the long one"
    assert turns.count("piece") == len(long) // 10 - 1, "nothing was read twice"
    place = turns.index([len(long)])
    assert sum(turn == [4] or turn == [4, 4] for turn in turns[:place]) >= 2, "short ones waited for the long one"
    for first, second in pairwise(turns[:place]):
        assert "piece" in (first, second), "the long one has every second turn"


def test_a_long_prompt_is_read_in_pieces_while_others_go_on(monkeypatch):
    pipeline = make_pipeline()
    long = "good day " * 15
    wanted = lone(pipeline, long, 5, chat=False, max_new_tokens=8).texts[0]
    events = []

    def noted(name, method):
        def call(self, *arguments):
            events.append(name)
            return method(self, *arguments)

        return call

    monkeypatch.setattr(Session, "read_ahead", noted("piece", Session.read_ahead))
    monkeypatch.setattr(Session, "step", noted("step", Session.step))
    with Serving(pipeline, prefill=16, context=400) as serving, ThreadPoolExecutor(2) as pool:
        running = pool.submit(serving.complete, prompt="a", max_tokens=150, ignore_eos=True)
        until(lambda: "step" in events)
        assert serving.complete(prompt=long, seed=5, max_tokens=8).json()["choices"][0]["text"] == wanted
        assert running.result().status_code == 200
    first, last = events.index("piece"), len(events) - 1 - events[::-1].index("piece")
    assert events.count("piece") >= 5, "the prompt was read in one piece"
    assert events[first:last].count("step") >= events.count("piece") - 1, "the other row waited"
