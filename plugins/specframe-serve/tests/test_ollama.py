"""Ollama's API, as raw requests and as Ollama's own client reads it."""

import json

import pytest
from serving import QUESTION, Serving, lone
from test_clients import listening

from specframe_serve.answers import Answers
from specframe_serve.errors import failed

SEED = {"options": {"seed": 1}}
CHAT, TEXT = "/api/chat", "/api/generate"


def post(serving, path, **fields):
    asked = {"messages": QUESTION} if path == CHAT else {"prompt": "hello there"}
    return serving.post(path, json={"model": "small"} | asked | SEED | fields)


def text_of(reply):
    return reply["message"]["content"] if "message" in reply else reply["response"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_reply_is_that_of_a_chat_completion(serving, pipeline, path):
    wanted = lone(pipeline, "hello there", 1)
    reply = post(serving, path, stream=False).json()
    assert text_of(reply) == wanted.texts[0] and reply["done"]
    assert reply["done_reason"] == ("length" if wanted.ended[0] == "length" else "stop")
    assert (reply["prompt_eval_count"], reply["eval_count"]) == (12, len(wanted.tokens[0]))
    assert reply["total_duration"] >= reply["prompt_eval_duration"] + reply["eval_duration"] - 1 > 0


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_answers_are_streamed_by_lines_unless_they_are_not_to_be(serving, path):
    whole = post(serving, path, stream=False).json()
    reply = post(serving, path)
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    *lines, last = [json.loads(line) for line in reply.text.splitlines()]
    assert "".join(map(text_of, lines)) == text_of(whole) and not any(line["done"] for line in lines)
    assert last["done"] and text_of(last) == "" and last["eval_count"] == whole["eval_count"]


def test_a_raw_prompt_is_continued_without_a_template(serving, pipeline):
    wanted = lone(pipeline, "hello there", 1, chat=False)
    reply = post(serving, TEXT, raw=True, stream=False).json()
    assert reply["response"] == wanted.texts[0] and reply["prompt_eval_count"] == 11


def test_options_are_those_of_openais_api_by_other_names(serving):
    options = {"seed": 3, "num_predict": 20, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "stop": ["x"]}
    options |= {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "num_ctx": 100, "num_thread": 2}
    found = post(serving, CHAT, options=options, stream=False).json()
    same = {"seed": 3, "max_tokens": 20, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "stop": ["x"]}
    wanted = serving.chat(**same, repetition_penalty=1.3, frequency_penalty=0.2).json()
    assert found["message"]["content"] == wanted["choices"][0]["message"]["content"]


def test_a_system_text_comes_before_the_question(serving):
    found = post(serving, TEXT, system="be kind", stream=False).json()
    wanted = serving.chat(messages=[{"role": "system", "content": "be kind"}, *QUESTION]).json()
    assert found["response"] == wanted["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("path", "empty"), [(CHAT, {"messages": []}), (TEXT, {"prompt": ""})])
def test_a_request_without_a_question_finds_the_model_loaded(serving, path, empty):
    reply = post(serving, path, **empty).json()
    assert reply["done"] and reply["done_reason"] == "load" and text_of(reply) == ""


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "other"}, 404, "there is no model of that name"),
        ({"options": {"num_ctx": 100_000}}, 400, "options.num_ctx"),
        ({"options": {"mirostat": 2}}, 422, "options.mirostat"),
        ({"options": {"num_predict": -3}}, 422, "options.num_predict"),
        ({"format": "xml"}, 422, "format"),
        ({"think": True}, 422, "think"),
        ({"messages": [{"role": "user", "content": "hi", "images": ["AAAA"]}]}, 400, "reads texts alone"),
    ],
)
def test_what_is_not_served_is_refused_in_ollamas_form(serving, fields, status, words):
    reply = post(serving, CHAT, **fields)
    assert reply.status_code == status and words in reply.json()["error"]


def test_a_stream_that_fails_ends_with_an_error(serving, monkeypatch):
    async def fail(self):
        raise failed()
        yield

    monkeypatch.setattr(Answers, "pieces", fail)
    assert "the server failed" in json.loads(post(serving, CHAT).text.splitlines()[-1])["error"]


@pytest.mark.parametrize("most", [-1, -2])
def test_defaults_of_ollamas_clients_are_taken(serving, most):
    options = {"num_predict": most, "repeat_last_n": 64, "num_keep": 4, "tfs_z": 1.0, "mirostat": 0, "seed": 1}
    reply = post(serving, CHAT, stream=False, options=options | {"num_ctx": 100}).json()
    assert reply["done"] and reply["eval_count"] <= 188


def test_what_curl_sends_is_taken_and_what_a_web_page_sends_is_not(serving):
    body = json.dumps({"model": "small", "prompt": "hello there", "stream": False} | SEED)
    curl = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = serving.post(TEXT, content=body, headers=curl)
    assert reply.json()["response"] == post(serving, TEXT, stream=False).json()["response"]
    assert serving.post("/v1/completions", content=body, headers=curl).status_code == 415
    for name, value in (("Origin", "null"), ("Sec-Fetch-Site", "cross-site"), ("Referer", "http://a.example/")):
        assert serving.post(TEXT, content=body, headers=curl | {name: value}).status_code == 415


@pytest.mark.parametrize("template", ["{{ messages[0].content }}{% if enable_thinking is false %}!{% endif %}", None])
def test_thinking_is_turned_off_where_the_template_can(serving, pipeline, monkeypatch, template):
    if template:
        monkeypatch.setattr(pipeline.tokenizer, "chat_template", template)
    reply = post(serving, CHAT, think=False, stream=False).json()
    assert reply["prompt_eval_count"] == 12, "the mark at the end"


def test_the_model_is_listed_and_the_key_is_required(pipeline):
    with Serving(pipeline, keys={"": "secret"}) as serving:
        assert post(serving, CHAT).status_code == serving.get("/api/tags").status_code == 401
        serving.headers["Authorization"] = "Bearer secret"
        (model,) = serving.get("/api/tags").json()["models"]
        assert model["name"] == model["model"] == "small"
        shown = serving.post("/api/show", json={"model": "small:latest"}).json()
        assert shown["model_info"]["specframe.context_length"] == 200
        assert serving.get("/api/version").json()["version"]


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_ollamas_client_reads_replies_and_streams(pipeline, monkeypatch):
    ollama = pytest.importorskip("ollama", reason="pip install ollama")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    wanted = lone(pipeline, "hello there", 1).texts[0]
    with listening(pipeline) as (_, address), ollama.Client(address) as client:
        assert [model.model for model in client.list().models] == ["small"]
        assert client.show("small").capabilities == ["completion"]
        assert client.chat(model="small", messages=QUESTION, **SEED).message.content == wanted
        parts = client.chat(model="small:latest", messages=QUESTION, stream=True, **SEED)
        assert "".join(part.message.content for part in parts) == wanted
        parts = list(client.generate(model="small", prompt="hello there", stream=True, **SEED))
        assert "".join(part.response for part in parts) == wanted and parts[-1].done_reason
        with pytest.raises(ollama.ResponseError, match="no model of that name"):
            client.chat(model="other", messages=QUESTION)
