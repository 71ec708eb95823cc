"""The queue of the server: its limit, its order, and turns of short prompts and pieces of a long one."""

import asyncio
import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count, pairwise
from statistics import mean
from time import monotonic, process_time, sleep

import pytest
from serving import Gate, Serving, lone, make_pipeline, until
from test_clients import listening
from test_connections import whole

from specframe import Request, Session
from specframe_serve import answers
from specframe_serve.engine import Engine
from specframe_serve.errors import ApiError
from specframe_serve.jobs import Job, Queue
from specframe_serve.settings import ServeSettings


def test_a_full_queue_refuses_with_the_time_to_wait(pipeline, monkeypatch):
    with Serving(pipeline, slots=1, queue=2) as serving, ThreadPoolExecutor(4) as pool:
        gate = Gate(serving, monkeypatch)
        first = [pool.submit(serving.complete) for _ in range(2)]
        until(lambda: len(serving.engine._queue) == 2)
        refused = serving.complete()
        assert refused.status_code == 429 and 1 <= int(refused.headers["Retry-After"]) <= 6
        assert 0 < int(refused.headers["Retry-After-Ms"]) <= 6000
        assert refused.json()["error"]["code"] == "queue_full"
        assert serving.complete(n=2).status_code == 429, "all of a request's rows, or none"
        assert serving.complete(guided_regex="(").status_code == 429, "no grammar is compiled for it"
        gate.opened.set()
        assert [reply.result().status_code for reply in first] == [200, 200]
        assert serving.complete().status_code == 200
        assert serving.counters()["specframe:requests_refused_total"] == 3


@pytest.mark.parametrize(("slots", "seconds"), [(4, 0.5), (8, 2.0), (1, 0.3)])
def test_clients_that_obey_the_time_to_wait_finish_nearly_as_soon_as_without_refusals(pipeline, slots, seconds):
    """200 clients at once, by a clock of the test's own: at most 1.3 times what they take without a refusal."""
    random.seed(0)
    engine = Engine(pipeline, ServeSettings(name="small", slots=slots, queue=16))
    numbers, refused, now, running = count(), 0, 0.0, 0
    events = [
        (0.0, next(numbers), Job(Request(tokens=[1], max_new_tokens=1), lambda progress: None)) for _ in range(200)
    ]
    while events:
        now, _, job = heappop(events)
        if job.first is not None:
            running -= 1
            engine._finish(job, "length", now)
        else:
            try:
                engine.submit([job])
            except ApiError as full:
                refused += 1
                heappush(events, (now + int(full.headers["Retry-After"]), next(numbers), job))
        admitted = engine._queue.next_short(slots - running)
        running += len(admitted)
        for job in admitted:
            job.first = now
            heappush(events, (now + seconds * random.uniform(0.8, 1.2), next(numbers), job))
    assert refused >= 184 - slots and len(engine._queue) == 0
    assert now < 1.3 * 200 * seconds / slots


async def ask_until_answered(address, seed, refusals):
    """Asks over a connection of its own, and again after the seconds of `Retry-After`, until there is an answer."""
    body = json.dumps({"prompt": "hello there", "seed": seed, "max_tokens": 60, "ignore_eos": True})
    reader, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
    while True:
        writer.write(whole(body).encode())
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ") for line in lines if line)
        reply = await reader.readexactly(int(headers["content-length"]))
        if " 429 " not in status:
            assert " 200 " in status, reply
            return writer.close()
        refusals.append(seed)
        await asyncio.sleep(int(headers["retry-after"]))


def seconds_of_clients(server, address, refusals):
    """The processor seconds in which 200 clients get an answer each, and those in which no row was decoded."""

    async def ask():
        clients = asyncio.gather(*(ask_until_answered(address, seed, refusals) for seed in range(200)))
        idle, last = 0.0, monotonic()
        while not clients.done():
            await asyncio.sleep(0.02)
            idle, last = idle + (0 if server.engine._running else monotonic() - last), monotonic()
        await clients
        return idle

    begin = process_time()
    idle = asyncio.run(ask())
    return process_time() - begin + idle


@pytest.mark.slow
@pytest.mark.allow_hosts(["127.0.0.1"])
def test_so_do_they_over_http(pipeline):
    """By the default limits, in turns with a server in whose queue all fit; clients and servers share this process.

    A busy machine has more refusals for each answer, since clients wait by the clock.
    """
    with listening(pipeline, slots=8) as small, listening(make_pipeline(), slots=8, queue=256) as large:
        refusals, without, ratios = [], [], []
        seconds_of_clients(*large, without)
        for _ in range(2):
            ratios.append(seconds_of_clients(*small, refusals) / seconds_of_clients(*large, without))
    print(f"{len(refusals) / 2:.0f} refusals, times", *(f"{ratio:.2f}" for ratio in ratios))
    assert len(refusals) >= 2 * (200 - 8 - 64) and not without and mean(ratios) < 1.3


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
            until(lambda number=number: len(engine._queue) == number + 1)
        gate.opened.set()
        assert [reply.result().status_code for reply in replies] == [200] * 6
        assert [lengths for lengths in admitted if lengths] == [[10, 12], [8], [3, 3]], "40 is read in pieces"


def test_a_stream_has_no_chunk_before_its_first_token_and_shows_that_it_waits(pipeline, monkeypatch):
    monkeypatch.setattr(answers, "SILENCE", 0.05)
    silences, pieces = [], answers.Answers.pieces

    async def counted(these):
        async for piece in pieces(these):
            if piece is None:
                silences.append(piece)
            yield piece

    monkeypatch.setattr(answers.Answers, "pieces", counted)
    with Serving(pipeline, slots=1) as serving, ThreadPoolExecutor(1) as pool:
        gate = Gate(serving, monkeypatch)
        asked = pool.submit(serving.chat, stream=True, n=2)
        until(lambda: len(silences) >= 2)
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
            until(lambda: len(serving.engine._queue) == 2)
            sleep(0.3)
            gate.opened.set()
        assert late[0].result().status_code == 504 and "0.2 seconds" in late[0].result().json()["error"]["message"]
        assert '"code": "timeout"' in late[1].result().text and "[DONE]" not in late[1].result().text
        serving.engine.settings = replace(serving.engine.settings, timeout=60.0)
        assert serving.complete().status_code == 200
        assert serving.counters()["vllm:request_success_total{finished_reason=abort}"] == 2


def test_short_prompts_are_admitted_between_two_pieces_of_a_long_one(monkeypatch):
    """Also where no row is running; the long one has as many tokens read as those, and a slot is left for it."""
    pipeline = make_pipeline()
    long, shorts = "good day " * 20, [word * 2 for word in ("ab", "cd", "ef", "gh", "ij")]
    asked = [*shorts[:1], long, *shorts[1:]]
    wanted = [lone(pipeline, prompt, 5, chat=False, max_new_tokens=30).texts[0] for prompt in asked]
    turns = []
    admit, read_ahead = Session.admit, Session.read_ahead

    def admitted(self, requests):
        turns.append([len(request.tokens) for request in requests])
        return admit(self, requests)

    def read(self, prompt, limit, prefix):
        turns.append("piece")
        return read_ahead(self, prompt, limit, prefix)

    monkeypatch.setattr(Session, "admit", admitted)
    monkeypatch.setattr(Session, "read_ahead", read)
    with Serving(pipeline, prefill=10, slots=3, context=400) as serving, ThreadPoolExecutor(8) as pool:
        gate, replies = Gate(serving, monkeypatch), []
        for number, prompt in enumerate(asked):
            replies.append(pool.submit(serving.complete, prompt=prompt, seed=5, max_tokens=30))
            until(lambda number=number: len(serving.engine._queue) == number + 1)
        gate.opened.set()
        found = [reply.result().json()["choices"][0]["text"] for reply in replies]
    assert found == wanted
    assert turns[:3] == [[4, 4], "piece", "piece"], "a slot is left for the long one"
    assert turns.count("piece") == len(long) // 10 - 1, "nothing was read twice"
    place = turns.index([len(long)])
    assert sum(turn == [4] or turn == [4, 4] for turn in turns[:place]) >= 2, "short ones waited for the long one"
    for first, second in pairwise(turns[:place]):
        assert "piece" in (first, second), "the long one has a turn for each of theirs"


def test_a_stream_of_short_prompts_at_most_doubles_the_time_of_a_long_one():
    """The tokens that are read, turn by turn: a short prompt waits for a piece, the long one for as much as it has."""
    queue = Queue(prefill=20, piece=4)

    def job(size):
        return Job(Request(tokens=[0] * size, max_new_tokens=1), print)

    long = job(101)
    queue.put([long, *(job(size) for size in [6, 9, 9, 20, 1, 18, 7, 3, 3, 3, 19] * 2)])
    turns = []
    while long.unread > 1:
        if queue.next_long(3) is None:
            shorts = queue.next_short(3)
            assert 1 <= len(shorts) <= 2, "a slot is left"
            turns.append(max(len(job.request.tokens) for job in shorts) * len(shorts))
        else:
            long.read_tokens += 4
            turns.append("piece")
    assert turns[:7] == [18, *["piece"] * 5, 9], turns
    places = [place for place, turn in enumerate(turns) if turn != "piece"]
    for place, following in pairwise(places):
        assert turns[place + 1 : following] == ["piece"] * -(-turns[place] // 4)
    assert len(queue) > 1, "the stream went on"


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
