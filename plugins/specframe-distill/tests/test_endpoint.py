import time
from dataclasses import replace
from threading import Barrier

import pytest
from distill_server import answers_of, chat_reply, make, serving, text_reply

from specframe.decoding.settings import SamplingSettings
from specframe.kernel.errors import InputError, SpecframeError
from specframe_distill.dialogue import Dialogue
from specframe_distill.endpoint import ATTEMPTS
from specframe_distill.replies import is_too_long

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_conversation_is_asked_turn_by_turn():
    with serving(lambda path, body: (200, chat_reply(f"to {body['messages'][-1]['content']}"))) as (url, captured):
        done = answers_of(make(url), Dialogue(1, ("one", "two"), system="be kind"), Dialogue(2, ("three",)))
    assert [m["content"] for m in done[1].messages] == ["be kind", "one", "to one", "two", "to two"]
    assert [answer.tokens for answer in done[1].answers] == [3, 3]
    assert done[2].done and {path for path, _, _ in captured} == {"/v1/chat/completions"}
    assert len({body["seed"] for _, body, _ in captured}) == 3


def test_openings_of_texts_are_completed():
    with serving(lambda path, body: (200, text_reply(", there was", reason="length"))) as (url, captured):
        done = answers_of(make(url), Dialogue(1, ("Once upon a time",), chat=False))
    assert captured[0][0] == "/v1/completions" and captured[0][1]["prompt"] == "Once upon a time"
    assert done[1].describe()["text"] == "Once upon a time, there was"
    assert not done[1].describe()["finished"]


def test_the_recipes_sampling_is_what_is_asked_for():
    sampling = SamplingSettings(temperature=0.7, top_k=5, max_new_tokens=9, stop=["\n"])
    with serving(lambda path, body: (200, chat_reply("yes"))) as (url, captured):
        answers_of(make(url, sampling), Dialogue(1, ("one",)))
        answers_of(make(url), Dialogue(1, ("one",)))
    asked, plain = (body for _, body, _ in captured)
    assert (asked["temperature"], asked["top_k"], asked["max_tokens"], asked["stop"]) == (0.7, 5, 9, ["\n"])
    assert set(plain) == {"model", "temperature", "max_tokens", "seed", "messages"}


def test_variables_of_the_chat_template_are_sent_with_chats():
    template = {"chat_template_kwargs": {"enable_thinking": False}}
    with serving(lambda path, body: (200, chat_reply("yes"))) as (url, captured):
        answers_of(replace(make(url), template=template), Dialogue(1, ("one",)))
    ((_, body, _),) = captured
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_the_key_is_sent_where_there_is_one():
    with serving(lambda path, body: (200, chat_reply("yes"))) as (url, captured):
        make(url, key="secret").check()
        answers_of(make(url), Dialogue(1, ("one",)))
    assert captured[0][2]["Authorization"] == "Bearer secret"
    assert "Authorization" not in captured[1][2]


def test_conversations_are_asked_side_by_side():
    together = Barrier(3, timeout=60)

    def reply(path, body):
        together.wait()
        return 200, chat_reply("yes")

    with serving(reply) as (url, _):
        done = answers_of(make(url, concurrency=3), *(Dialogue(line, ("one",)) for line in range(6)))
    assert len(done) == 6


@pytest.mark.parametrize("status", [429, 503])
def test_what_may_pass_is_tried_again(status):
    replies = iter([(status, {}), (status, {}, {"Retry-After": 0}), (200, chat_reply("yes"))])
    with serving(lambda path, body: next(replies)) as (url, captured):
        done = answers_of(make(url), Dialogue(1, ("one",)))
    assert done[1].answers[0].text == "yes" and len(captured) == 3


def test_an_endpoint_that_stays_broken_ends_it():
    with serving(lambda path, body: (500, {})) as (url, captured):
        with pytest.raises(
            SpecframeError,
            match=f"HTTP 500: Internal Server Error, {ATTEMPTS} times in a row; the same command goes on",
        ):
            answers_of(make(url, concurrency=1), Dialogue(1, ("one",)))
        assert len(captured) == ATTEMPTS


def test_a_request_has_a_time_limit():
    def reply(path, body):
        time.sleep(0.2)
        return 200, chat_reply("late")

    with serving(reply) as (url, _), pytest.raises(SpecframeError, match="timed out, 6 times in a row"):
        answers_of(make(url, timeout=0.05), Dialogue(1, ("one",)))


def test_what_was_answered_before_a_failure_is_not_lost():
    def reply(path, body):
        if body["messages"][0]["content"] == "bad":
            return 404, {"error": {"message": "no such model"}}
        return 200, chat_reply("yes")

    kept = []
    with serving(reply) as (url, _), pytest.raises(InputError, match=r"gives no answer: HTTP 404: no such model"):
        for dialogue in make(url, concurrency=1).answer([Dialogue(1, ("one",)), Dialogue(2, ("bad",))]):
            kept.append(dialogue.line)
    assert kept == [1]


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "the request exceeds the available context size, try increasing it",
    ],
)
def test_a_prompt_that_is_too_long_is_left_out(words):
    assert is_too_long(400, words) and not is_too_long(404, words)
    with serving(lambda path, body: (400, {"error": {"message": words}})) as (url, _):
        done = answers_of(make(url), Dialogue(1, ("one",)))
    assert (done[1].answers, done[1].stopped) == ([], "too long")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((401, {"error": {"message": "bad key"}}), "gives no answer: HTTP 401: bad key; set SPECFRAME_API_KEY$"),
        ((400, {"detail": "top_k is unknown"}), "gives no answer: HTTP 400: top_k is unknown$"),
        ((400, b""), "gives no answer: HTTP 400: Bad Request$"),
        ((307, b"", {"Location": "http://elsewhere"}), "gives no answer: HTTP 307: Temporary Redirect$"),
        ((200, {"choices": []}), "gives no answer: a reply without a text; is it OpenAI-compatible"),
        ((200, {"choices": [{"message": {"content": 3}}]}), "a reply without a text"),
        ((200, [1]), "a reply without a text"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(reply, words):
    with serving(lambda path, body: reply) as (url, captured):
        with pytest.raises(InputError, match=words):
            answers_of(make(url), Dialogue(1, ("one",)))
        assert len(captured) == 1


def test_a_reply_without_content_or_counts_is_no_accident():
    content = [{"choices": [{"message": {"content": None}}]}, {"choices": [{"message": {"content": "yes"}}]}]
    with serving(lambda path, body: (200, content[body["messages"][0]["content"] == "b"])) as (url, _):
        done = answers_of(make(url), Dialogue(1, ("a",)), Dialogue(2, ("b",)))
    assert done[1].stopped == "empty"
    assert (done[2].answers[0].tokens, done[2].answers[0].finished) == (None, False)


def test_a_missing_server_is_an_error_before_anything_is_asked():
    with serving(lambda path, body: (200, {})) as (url, _):
        make(url).check()
    with pytest.raises(InputError, match=r"cannot be reached: Connection refused; is the server running\?"):
        make(url).check()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "localhost:8000"}, "no address"),
        ({"url": "file:///etc/passwd"}, "no address"),
        ({"url": "http://x", "concurrency": 0}, "--concurrency 0"),
        ({"url": "http://x", "sampling": SamplingSettings(no_repeat_ngram_size=2)}, "cannot pass on"),
        ({"url": "http://x", "sampling": SamplingSettings(bad_words_ids=[[4]])}, "cannot pass on"),
        ({"url": "http://x", "sampling": SamplingSettings(grammar={"regex": "a"})}, "cannot pass on sampling.grammar"),
        ({"url": "http://x", "timeout": 0}, "--timeout 0"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(InputError, match=words):
        make(**settings)
