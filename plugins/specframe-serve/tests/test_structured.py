"""Answers that follow a grammar: those of token-by-token decoding under it, on every route, and clear refusals."""

import json
import re
import sys
from dataclasses import replace

import pytest
from serving import QUESTION, Serving, lone, make_pipeline

from tests.small_model import make_json_tokenizer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "of": {"enum": ["a", "b", None]}, "no": {"const": None}},
    "required": ["ok", "of", "no"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
FIELDS = {
    "response_format": ({"response_format": NAMED}, {"json": SCHEMA}),
    "guided_json": ({"guided_json": SCHEMA}, {"json": SCHEMA}),
    "guided_json as text": ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
    "guided_regex": ({"guided_regex": "(ab|c){2,5}"}, {"regex": "(ab|c){2,5}"}),
    "guided_choice": ({"guided_choice": ["true", "null"]}, {"choice": ["true", "null"]}),
    "guided_grammar": ({"guided_grammar": 'root ::= "a"+ [0-9]'}, {"lark": 'root ::= "a"+ [0-9]'}),
    "structured_outputs": ({"structured_outputs": {"regex": "[ab]+:"}}, {"regex": "[ab]+:"}),
}


@pytest.fixture(scope="module")
def writer():
    """A pipeline whose tokens can write JSON."""
    return make_pipeline(
        tokenizer=make_json_tokenizer(),
        drafter={"use": "suffix-recycling"},
        sampling={"max_new_tokens": 80, "temperature": 1.0},
    )


@pytest.fixture
def writing(writer):
    with Serving(writer) as running:
        yield running


def fits(form, text):
    ((kind, value),) = form.items()
    if kind == "json":
        found = json.loads(text)
        return found.keys() == {"ok", "of", "no"} and isinstance(found["ok"], bool) and found["no"] is None
    return text in value if kind == "choice" else re.fullmatch(value if kind == "regex" else "a+[0-9]", text)


@pytest.mark.sampled
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", FIELDS)
def test_answers_are_those_of_plain_decoding_under_the_grammar(writing, writer, name, temperature):
    fields, form = FIELDS[name]
    reply = writing.complete(prompt=["hello there", "ab ab"], n=2, temperature=temperature, **fields).json()
    found = [choice["text"] for choice in reply["choices"]]
    plain = replace(writer.plain(), sampling=replace(writer.sampling, grammar=form, temperature=temperature))
    plain = replace(plain, run=replace(plain.run, chat=False))
    rows = ["hello there", "hello there", "ab ab", "ab ab"]
    wanted = plain.generate([writer.tokenizer(row)["input_ids"] for row in rows], seed=1)
    seeds = [0, 1, 0, 1]  # each prompt's choices are numbered for themselves
    texts = [
        plain.generate([writer.tokenizer(row)["input_ids"]] * 2, seed=1).texts[number]
        for row, number in zip(rows, seeds, strict=True)
    ]
    assert found == texts and wanted.texts[:2] == texts[:2]
    for text, choice in zip(found, reply["choices"], strict=True):
        assert choice["finish_reason"] == "length" or fits(form, text), text
    assert any(choice["finish_reason"] == "stop" for choice in reply["choices"])


def test_any_object_is_an_answer_in_json_mode(writing):
    texts = [
        choice["message"]["content"]
        for choice in writing.chat(n=8, response_format={"type": "json_object"}).json()["choices"]
        if choice["finish_reason"] == "stop"
    ]
    assert all(isinstance(json.loads(text), dict) for text in texts)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_has_the_same_text_and_ends_with_stop(writing, path):
    begin = {"messages": QUESTION} if path == CHAT else {"prompt": "hello there"}
    (whole,) = writing.post(path, json=begin | {"seed": 1, "response_format": NAMED}).json()["choices"]
    events = [event["choices"][0] for event in writing.stream(path, response_format=NAMED, **begin)]
    text = whole["message"]["content"] if path == CHAT else whole["text"]
    assert "".join(event["delta"].get("content", "") if path == CHAT else event["text"] for event in events) == text
    assert events[-1]["finish_reason"] == whole["finish_reason"] == "stop" and fits({"json": SCHEMA}, text)


def test_requests_with_other_grammars_and_without_are_decoded_together(writing, writer):
    asked = [fields for fields, _ in FIELDS.values()] + [{}]
    jobs = [{"prompt": "hello there", "seed": 5, "max_tokens": 20} | fields for fields in asked]
    alone = [writing.post(TEXT, json=job).json()["choices"][0]["text"] for job in jobs]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda job: writing.post(TEXT, json=job).json()["choices"][0]["text"], jobs))
    assert together == alone
    assert alone[-1] == lone(writer, "hello there", 5, chat=False, max_new_tokens=20).texts[0]


def test_the_other_apis_have_their_own_field(writing):
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
    reply = writing.post("/v1/responses", json={"input": "hello", "seed": 1, "text": {"format": form}}).json()
    assert fits({"json": SCHEMA}, reply["output"][0]["content"][0]["text"])
    assert reply["text"]["format"]["schema"] == SCHEMA
    asked = {"model": "small", "stream": False, "options": {"seed": 1}, "format": SCHEMA}
    found = writing.post("/api/chat", json=asked | {"messages": QUESTION}).json()
    assert fits({"json": SCHEMA}, found["message"]["content"]) and found["done_reason"] == "stop"
    for raw in (False, True):
        found = writing.post("/api/generate", json=asked | {"prompt": "hello", "raw": raw}).json()
        assert fits({"json": SCHEMA}, found["response"])


def test_the_recipes_grammar_holds_where_a_request_has_none(writer):
    own = replace(writer, sampling=replace(writer.sampling, grammar={"choice": ["null"]}))
    with Serving(own) as serving:
        assert serving.complete().json()["choices"][0]["text"] == "null"
        assert serving.complete(response_format={"type": "text"}).json()["choices"][0]["text"] == "null"
        assert serving.complete(guided_choice=["true"]).json()["choices"][0]["text"] == "true"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format: json_schema stands with the type json_schema"),
        ({"response_format": {"type": "text", "json_schema": {}}}, "response_format: json_schema stands with the type"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "follows one grammar, and guided_regex and guided_choice name"),
        ({"response_format": NAMED, "guided_regex": "a"}, "guided_regex and response_format name several"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.json and structured_outputs.regex"),
        ({"guided_json": {"type": "nothing"}}, "guided_json: Invalid type: nothing"),
        ({"guided_json": "{"}, "guided_json: "),
        ({"guided_json": {"type": "string", "pattern": "("}}, "guided_json: regex parse error"),
        ({"guided_regex": "("}, "guided_regex: "),
        ({"guided_regex": "A"}, "guided_regex: the target's tokens can write no text of it"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar: "),
        ({"guided_regex": "a", "ignore_eos": True}, "guided_regex: a text of a grammar ends with an end-of-sequence"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_followed_is_refused_in_one_line(writing, fields, words, stream):
    reply = writing.chat(stream=stream, **fields)
    error = reply.json()["error"]
    assert reply.status_code == 400 and words in error["message"] and "\n" not in error["message"]
    assert (error["code"] == "invalid_grammar" and error["param"] in fields) or "structured_outputs" in fields


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        {"response_format": {"type": "xml"}},
        {"guided_choice": []},
        {"guided_regex": 5},
        {"structured_outputs": {"form": "a"}},
    ],
)
def test_fields_of_another_form_are_refused_by_name(writing, fields):
    reply = writing.chat(**fields)
    assert reply.status_code == 422 and next(iter(fields)) in reply.json()["error"]["message"]


def test_without_a_tokenizer_or_the_package_it_is_refused_in_one_line(writer, monkeypatch):
    bare = make_pipeline(tokenizer=None, run={"chat": False})
    with Serving(bare) as serving:
        reply = serving.complete(prompt=[5, 6, 7], guided_regex="a")
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == "guided_regex: a grammar needs a target with a tokenizer"
        assert serving.complete(prompt=[5, 6, 7]).status_code == 200
    for name in [name for name in sys.modules if name.partition(".")[0] == "llguidance"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    fresh = make_pipeline(tokenizer=make_json_tokenizer())
    with Serving(fresh) as serving:
        reply = serving.complete(guided_regex="a")
        assert (
            reply.status_code == 400 and "needs the package llguidance: pip install" in reply.json()["error"]["message"]
        )
        assert serving.complete().status_code == 200


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}, "uniqueItems"),
        ({"type": "string", "format": "binary", "maxLength": 2}, "Unknown format: binary"),
        ({"enum": ["a", "b"], "not": {"const": "a"}}, "not"),
        ({"enum": ["a", "b"], "if": {"const": "a"}, "then": {}}, "if"),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, "oneOf"),
        ({"type": "string", "pattern": "^(?!a)b$", "maxLength": 2}, "look-around"),
    ],
)
def test_keywords_that_are_not_known_are_ignored_with_a_warning_or_refused(writer, schema, words):
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}}
    ]
    with Serving(writer, context=2000) as lenient, Serving(writer, strict_schemas=True) as strict:
        reply = lenient.complete(guided_json=schema)
        assert reply.status_code == 200 and words in reply.headers["warning"], reply.text
        json.loads(reply.json()["choices"][0]["text"])
        called = lenient.chat(tools=tools, tool_choice="required", max_tokens=3)
        assert called.status_code == 200 and "tools" in called.headers["warning"]
        odd = lenient.complete(guided_json=schema | {'\0\n\u00e9"': 1})
        assert odd.status_code == 200 and odd.headers["warning"].startswith('299 specframe "ignored in guided_json: ')
        assert "warning" not in lenient.complete(guided_json={"const": 1}).headers
        refused = strict.complete(guided_json=schema)
        assert refused.status_code == 400 and words in refused.json()["error"]["message"]


def test_odd_schemas_are_no_errors_of_the_server(writing):
    deep: dict[str, object] = {"not": {}}
    for _ in range(400):
        deep = {"anyOf": [deep]}
    for schema in ({"not": {}, "x-guidance": 5}, {"not": {}, "x-guidance": {"lenient": False}}, deep):
        assert writing.complete(guided_json=schema).status_code in (200, 400)


def test_the_most_choices_and_properties_are_followed(writer):
    schema = {"type": "object", "properties": {f"p{number}": {"type": "null"} for number in range(900)}}
    with Serving(writer, context=600) as writing:
        choices = [f"of {number}" for number in range(4096)]
        assert writing.complete(guided_choice=choices).json()["choices"][0]["text"] in choices
        assert writing.complete(guided_json=schema | {"additionalProperties": False}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_beyond_the_compilers_limits_is_refused_in_its_words(writing, stream):
    rules = ["start: a0", *(f"a{depth}: a{depth + 1} a{depth + 1}" for depth in range(15)), 'a15: "a"']
    reply = writing.complete(guided_grammar="\n".join(rules), stream=stream)
    last = reply.text.rstrip().rpartition("data: ")[2]
    error = json.loads(last)["error"] if stream else reply.json()["error"]
    assert reply.status_code == (200 if stream else 400), "a stream has begun"
    assert error["code"] == "invalid_grammar" and "Too many items (limit 50000" in error["message"]


def test_a_text_that_tokens_cannot_finish_fails_alone(writing):
    reply = writing.complete(guided_regex="[ab]{3}(A|B)")
    assert reply.status_code == 400 and "cannot be followed" in reply.json()["error"]["message"]
    assert writing.counters()["vllm:request_success_total{finished_reason=error}"] == 1
    assert writing.complete(guided_choice=["true"]).json()["choices"][0]["text"] == "true"
