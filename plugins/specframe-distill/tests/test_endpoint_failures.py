import socket
from contextlib import contextmanager, suppress
from threading import Barrier, Event, Thread

import pytest
from distill_server import answers_of, chat_reply, make, serving

from specframe.kernel.errors import InputError, SpecframeError
from specframe_distill.dialogue import Dialogue
from specframe_distill.endpoint import ATTEMPTS, PATIENCE, Endpoint, read_key

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def of(body):
    """The user's message in a request."""
    return body["messages"][0]["content"]


def refuse(body, content="this prompt is blocked"):
    return (400, {"error": {"message": content}}) if of(body) == "bad" else (200, chat_reply("yes"))


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_prompt_that_is_refused_is_recorded_and_the_rest_goes_on(status):
    with serving(lambda path, body: (status, *refuse(body)[1:]) if of(body) == "bad" else refuse(body)) as (url, _):
        done = answers_of(make(url, concurrency=1), Dialogue(1, ("bad",)), Dialogue(2, ("one",)), Dialogue(3, ("bad",)))
        again = answers_of(make(url, answered=True), Dialogue(1, ("bad",)))
    assert [done[line].stopped for line in (1, 2, 3)] == [
        f"refused: HTTP {status}: this prompt is blocked",
        None,
        done[1].stopped,
    ]
    assert done[2].answers and not done[1].answers and again[1].stopped == done[1].stopped


def test_settings_that_are_refused_are_not_blamed_on_every_prompt():
    with serving(lambda path, body: (400, {"detail": "top_k is unknown"})) as (url, captured):
        with pytest.raises(InputError, match="top_k is unknown"):
            answers_of(make(url, concurrency=1), *(Dialogue(line, ("one",)) for line in range(10 * PATIENCE)))
        assert PATIENCE <= len(captured) <= PATIENCE + 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b'{"choices": [{"mess', r"a reply that is no JSON: '\{\"choices"),
        (b"<html>busy</html>", "a reply that is no JSON: '<html>busy</html>'"),
        (b"[" * 100_000, "a reply that is no JSON"),
        ({"error": {"message": "the model is loading"}}, "an error: the model is loading"),
        ({"error": "out of memory\x1b[2J"}, r"an error: out of memory\\x1b\[2J"),
    ],
)
def test_a_reply_that_is_broken_is_tried_again_and_its_message_shown(reply, words):
    replies = iter([(200, reply), (200, chat_reply("yes"))])
    with serving(lambda path, body: next(replies)) as (url, _):
        assert answers_of(make(url), Dialogue(1, ("one",)))[1].answers[0].text == "yes"
    with serving(lambda path, body: (200, reply)) as (url, captured):
        with pytest.raises(SpecframeError, match=f"{words}.*, {ATTEMPTS} times in a row"):
            answers_of(make(url), Dialogue(1, ("one",)))
        assert len(captured) == ATTEMPTS


@contextmanager
def dripping(start, drop):
    """The address of a server that takes half a minute and more: it sends a beginning, then drop after drop."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = Event()

    def drip(connection):
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(start)
            for _ in range(3000):
                if ended.wait(0.01):
                    break
                connection.sendall(drop)

    def accept():
        with suppress(OSError):
            while True:
                Thread(target=drip, args=server.accept()[:1], daemon=True).start()

    Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    finally:
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize(
    ("start", "drop"),
    [(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"a"), (b"HTTP/1.1 200 OK\r\nX: ", b"a"), (b"", b"")],
)
def test_the_time_limit_bounds_a_whole_answer_also_a_dripping_one(start, drop):
    with dripping(start, drop) as url, pytest.raises(SpecframeError, match="timed out, "):
        answers_of(make(url, timeout=0.1), Dialogue(1, ("one",)))


def test_a_reply_without_end_is_not_read_without_end(monkeypatch):
    monkeypatch.setattr("specframe_distill.endpoint.LARGEST", 1 << 20)
    refused = pytest.raises(SpecframeError, match="a reply of more than 1 MiB")
    with serving(lambda path, body: (200, b" " * (3 << 20))) as (url, _), refused:
        answers_of(make(url), Dialogue(1, ("one",)))


@pytest.mark.parametrize("count", ["NaN", "-1", '"many"', "1e400", "true", "[3]", "1.5", "9" * 5000])
def test_counts_that_are_none_are_unknown(count):
    content = f'{{"choices": [{{"message": {{"content": "yes"}}}}], "usage": {{"completion_tokens": {count}}}}}'
    replies = iter([(200, content.encode()), (200, chat_reply("yes", tokens=None))])
    with serving(lambda path, body: next(replies)) as (url, _):
        done = answers_of(make(url), Dialogue(1, ("one",)))
    assert done[1].describe()["tokens"] is None


@pytest.mark.parametrize("usage", ["null", "3", '"x"', "[]"])
def test_odd_accounts_are_unknown(usage):
    content = f'{{"choices": [{{"message": {{"content": "yes"}}}}], "usage": {usage}}}'
    with serving(lambda path, body: (200, content.encode())) as (url, _):
        assert answers_of(make(url), Dialogue(1, ("one",)))[1].answers[0].tokens is None


def test_an_answer_in_parts_is_put_together_and_is_unicode():
    parts = [{"type": "text", "text": "yes, "}, {"type": "text", "text": "\ud800 and"}, {"type": "text", "text": None}]
    with serving(lambda path, body: (200, chat_reply(parts))) as (url, _):
        text = answers_of(make(url), Dialogue(1, ("one",)))[1].answers[0].text
    assert text == "yes, ? and"


@pytest.mark.parametrize("after", ["²", "-1", "1e9", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "", "0" * 400])
def test_a_strange_retry_after_is_no_accident(after):
    replies = iter([(429, {}, {"Retry-After": after.encode().decode("latin-1")}), (200, chat_reply("yes"))])
    with serving(lambda path, body: next(replies)) as (url, _):
        assert answers_of(make(url), Dialogue(1, ("one",)))[1].answers


def test_answers_in_flight_are_kept_when_another_fails(monkeypatch):
    both, failed, ask = Barrier(2, timeout=60), Event(), Endpoint._ask

    async def asked(*given):
        try:
            await ask(*given)
        except InputError:
            failed.set()
            raise

    monkeypatch.setattr(Endpoint, "_ask", asked)

    def reply(path, body):
        both.wait()
        if of(body) == "bad":
            return 404, {"error": "gone"}
        assert failed.wait(60)
        return 200, chat_reply("late, and kept")

    kept = []
    with serving(reply) as (url, captured):
        with pytest.raises(InputError, match="gone"):
            for dialogue in make(url, concurrency=2).answer(
                [Dialogue(n, (w,)) for n, w in enumerate(["slow", "bad", "more"])]
            ):
                kept.append(dialogue)
        assert [dialogue.answers[0].text for dialogue in kept] == ["late, and kept"]
        assert len(captured) == 2, "nothing more is asked"


def test_the_key_is_stripped_and_never_shown(monkeypatch):
    assert read_key({"SPECFRAME_API_KEY": " sk-123\r\n"}) == "sk-123"
    assert read_key({"SPECFRAME_API_KEY": "\r\n"}) is None and read_key({}) is None
    with pytest.raises(InputError) as refused:
        read_key({"SPECFRAME_API_KEY": "sk-12\n3"})
    assert "sk-12" not in str(refused.value)
    content = {"error": {"message": "Incorrect API key provided: sk-123."}}
    with serving(lambda path, body: (401, content)) as (url, _):
        endpoint = make(url, key="sk-123")
        assert "sk-123" not in repr(endpoint)
        with pytest.raises(InputError, match=r"provided: \*\*\*\.; set SPECFRAME_API_KEY"):
            answers_of(endpoint, Dialogue(1, ("one",)))


@pytest.mark.parametrize(
    "url",
    [
        "http://user:pw-7@host/v1",
        "http://host/v1?api_key=pw-7",
        "http://host/v1#pw-7",
        "user:pw-7@host",
        "http://[pw-7",
    ],
)
def test_addresses_with_secrets_are_refused_without_showing_them(url):
    with pytest.raises(InputError, match=r"^--endpoint takes an address without user, password or query") as refused:
        make(url)
    assert "pw-7" not in str(refused.value)


def test_a_proxy_that_cannot_be_used_does_not_show_its_password(monkeypatch):
    monkeypatch.setenv("http_proxy", "ftp://user:pw-7@127.0.0.1:1")
    with pytest.raises(InputError, match="proxy that the environment names cannot be used") as refused:
        make("http://example.org/v1").check()
    assert "pw-7" not in str(refused.value)
