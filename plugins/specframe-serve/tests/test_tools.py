"""Calls of functions: shown to the model, read from its answer, enforced where one is required."""

import json
from dataclasses import replace

import pytest
from serving import QUESTION, Serving, make_pipeline
from test_clients import listening

from specframe_serve.protocol import ChatRequest
from specframe_serve.tools import Function, ToolForm, written_turns
from tests.small_model import make_json_tokenizer

TAGGED = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }} {{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.arguments | tojson }}{% endfor %}.{% endfor %}{% if add_generation_prompt %}:{% endif %}"
)
PLAIN = '{% if tools %}{"name": .., "parameters": ..}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}:'
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["ulm", "bonn"]}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["c", "f"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "now", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "time"}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module", params=[TAGGED, PLAIN], ids=["tagged", "plain"])
def caller(request):
    tokenizer = make_json_tokenizer()
    tokenizer.chat_template = request.param
    return make_pipeline(
        tokenizer=tokenizer,
        drafter={"use": "suffix-recycling"},
        sampling={"max_new_tokens": 150, "temperature": 1.0},
    )


@pytest.fixture
def calling(caller):
    with Serving(caller, context=600) as running:
        yield running


def require_weather(call):
    arguments = json.loads(call["function"]["arguments"])
    assert call["type"] == "function" and call["id"].startswith("call_") and call["function"]["name"] == "weather"
    assert arguments.keys() == {"city", "unit"} and arguments["city"] in ("ulm", "bonn") and arguments["unit"] in "cf"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_named_function_is_called(calling, temperature):
    fields = {"tools": TOOLS, "tool_choice": NAMED, "temperature": temperature, "n": 2}
    for choice in calling.chat(**fields).json()["choices"]:
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        require_weather(call)


def test_a_required_call_is_one_of_the_functions(calling):
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    for seed in range(4):
        (choice,) = calling.chat(**fields, seed=seed).json()["choices"]
        if choice["finish_reason"] == "tool_calls":
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] in ("weather", "time")
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_a_stream_has_calls_as_they_come(calling):
    fields = {"tools": TOOLS, "tool_choice": NAMED}
    (whole,) = calling.chat(**fields).json()["choices"]
    choices = [e["choices"][0] for e in calling.stream("/v1/chat/completions", messages=QUESTION, **fields)]
    assert not any(choice["delta"].get("content") for choice in choices)
    assert choices[-1]["finish_reason"] == "tool_calls" and choices[0]["delta"]["role"] == "assistant"
    ((call,),) = [choice["delta"]["tool_calls"] for choice in choices if "tool_calls" in choice["delta"]]
    assert call["index"] == 0 and call["function"] == whole["message"]["tool_calls"][0]["function"]


def choosing(caller):
    """A server whose model chooses to call a function, for which a grammar of the recipe stands, and its form."""
    form = ToolForm.of(caller.tokenizer.chat_template, ChatRequest(messages=QUESTION, tools=TOOLS).offered, True)
    rules = form.rules("weather")
    if form.tagged:
        rules = rules.replace("start: call", 'start: "ok " call')
    return Serving(replace(caller, sampling=replace(caller.sampling, grammar={"lark": rules})), context=600), form


def test_calls_of_the_models_own_choice_are_read(caller):
    serving, form = choosing(caller)
    with serving:
        (choice,) = serving.chat(tools=TOOLS).json()["choices"]
        require_weather(choice["message"]["tool_calls"][0])
        assert choice["message"]["content"] == ("ok" if form.tagged else None)
        deltas = [
            event["choices"][0]["delta"]
            for event in serving.stream("/v1/chat/completions", messages=QUESTION, tools=TOOLS)
        ]
        assert "".join(delta.get("content", "") for delta in deltas) == ("ok" if form.tagged else "")
        require_weather(next(delta for delta in deltas if "tool_calls" in delta)["tool_calls"][0])
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):  # then it is text
            message = serving.chat(**fields).json()["choices"][0]["message"]
            assert "weather" in message["content"] and "tool_calls" not in message


def test_ollamas_api_has_the_calls_as_objects(caller):
    """Here a grammar of the recipe stands for the choice."""
    form = ToolForm.of(caller.tokenizer.chat_template, ChatRequest(messages=QUESTION, tools=TOOLS).offered, True)
    rules = form.rules("weather")
    if form.tagged:
        rules = rules.replace("start: call", 'start: "ok " call')
    pipeline = replace(caller, sampling=replace(caller.sampling, grammar={"lark": rules}))
    asked = {"model": "small", "messages": QUESTION, "tools": TOOLS, "options": {"temperature": 0.0}}
    with Serving(pipeline, context=600) as serving:
        whole = serving.post("/api/chat", json=asked | {"stream": False}).json()
        lines = [json.loads(line) for line in serving.post("/api/chat", json=asked).text.splitlines()]
        assert "tools" in serving.post("/api/show", json={"model": "small"}).json()["capabilities"]
        turns = [*QUESTION, whole["message"], {"role": "tool", "tool_name": "weather", "content": "sun"}]
        reply = serving.post("/api/chat", json=asked | {"messages": turns, "stream": False})
    assert reply.status_code == 200
    (call,) = whole["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" and call["function"]["arguments"].keys() == {"city", "unit"}
    assert whole["message"]["content"] == ("ok" if form.tagged else "")
    assert "".join(line["message"]["content"] for line in lines) == whole["message"]["content"]
    assert [line["message"]["tool_calls"] for line in lines if "tool_calls" in line["message"]] == [[call]]
    assert lines[-1]["done"] and "tool_calls" not in lines[-1]["message"]


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_ollamas_client_sends_functions_and_their_results(monkeypatch):
    ollama = pytest.importorskip("ollama", reason="pip install ollama")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def weather(city: str) -> str:
        """The weather now."""
        return f"sun in {city}"

    tokenizer = make_json_tokenizer()
    tokenizer.chat_template = TAGGED
    call = '{"name": "weather", "arguments": {"city": "ulm"}}'
    rules = f"start: {json.dumps(f'<tool_call>{call}</tool_call>')}"
    pipeline = make_pipeline(tokenizer=tokenizer, sampling={"grammar": {"lark": rules}, "max_new_tokens": 150})
    with listening(pipeline) as (_, address), ollama.Client(address) as client:
        turns = [{"role": "user", "content": "hello there"}]
        reply = client.chat("small", turns, tools=[weather])
        (called,) = reply.message.tool_calls
        assert called.function.name == "weather" and called.function.arguments == {"city": "ulm"}
        result = {"role": "tool", "tool_name": "weather", "content": weather(**called.function.arguments)}
        again = client.chat("small", [*turns, reply.message, result], tools=[weather])
        assert again.message.tool_calls and again.prompt_eval_count > reply.prompt_eval_count


def test_the_template_gets_tools_calls_and_results():
    tokenizer = make_json_tokenizer()
    tokenizer.chat_template = TAGGED
    pipeline = make_pipeline(tokenizer=tokenizer)
    called = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "ulm"}'}}
    turns = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    with Serving(pipeline, context=600) as serving:
        count = {
            choice: serving.chat(messages=turns, tools=TOOLS, tool_choice=choice).json()["usage"]["prompt_tokens"]
            for choice in ("auto", "none")
        }
    wanted = 'user hello there.assistant <tool_call>{"city": "ulm"}.tool sun.:'
    assert count["none"] == len(tokenizer(wanted)["input_ids"])
    assert count["auto"] == len(tokenizer("weather time <tool_call>" + wanted)["input_ids"])


def test_what_is_no_call_stays_text():
    functions = ChatRequest(messages=QUESTION, tools=TOOLS).offered
    tagged, plain = (ToolForm.of(template, functions, True) for template in (TAGGED, PLAIN))
    call = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    content, calls = tagged.read(f"well\n{call}\n{call}")
    assert content == "well" and [each["function"] for each in calls] == [{"name": "time", "arguments": "{}"}] * 2
    assert len(replace(tagged, several=False).read(call + call)[1]) == 1
    for text in ("<tool_call>{", call.replace("time", "other"), call.replace("{}", "5"), "none"):
        assert tagged.read(text) == (text, [])
    assert tagged.read(f"well {call} <tool_call>{{") == ("well<tool_call>{", calls[:1]), "what is no call is text"
    assert plain.read('{"name": "time", "parameters": {"a": 1}}')[1][0]["function"]["arguments"] == '{"a": 1}'
    assert plain.read('{"name": "time", "arguments": {}}')[1] == []
    unfinished = ["a <to", "a <b", "a <tool_call>x", "a\n", f"a{call}{call[:9]}"]
    assert [tagged.read(text, ended=False)[0] for text in unfinished] == ["a", "a <b", "a", "a", "a"]
    assert tagged.read(unfinished[-1], ended=False)[1] == calls[:1]
    assert [plain.read(text, ended=False)[0] for text in ("", " {", "so {")] == ["", "", "so {"]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "{{ messages }}",
            '<tool_call>{"name": "weather", "arguments": {"city": "a</tool_call>", "days": 2}}</tool_call>',
        ),
        (
            "{{ tools }}<tool_call><function=f>",
            "<tool_call>\n<function=weather>\n<parameter=city>\na</tool_call>\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        ),
        ("{{ tools }}", '[{"name": "weather", "arguments": {"city": "a</tool_call>", "days": 2}}]'),
        ("{{ tools }}", '[TOOL_CALLS]weather[ARGS]{"city": "a</tool_call>", "days": 2}'),
        ("{{ tools }}", 'weather{"city": "a</tool_call>", "days": 2}'),
        ("{{ tools }}", "[weather(city='a</tool_call>', days=2)]"),
        ("{{ tools }}{'parameters': 1}", '{"name": "weather", "parameters": {"city": "a</tool_call>", "days": 2}}'),
    ],
    ids=["generic", "Qwen-Coder", "Mistral", "Mistral, newer", "Mistral, decoded", "Llama's list", "Llama's object"],
)
def test_the_forms_of_published_templates_are_read(template, text):
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    form = ToolForm.of(template, [Function(name="weather", parameters=parameters)], several=True)
    ((call,),) = [form.read(text)[1]]
    assert json.loads(call["function"]["arguments"]) == {"city": "a</tool_call>", "days": 2}
    odd = ToolForm.of(template, [Function(name="weather", parameters={"properties": 5})], several=True)
    assert len(odd.read(text)[1]) == 1, "a schema that is none"
    assert form.read(text[:-1])[1] == form.read(text, ended=False)[1][1:] == [], "not before it is whole"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice: there are no tools"),
        ({"tool_choice": NAMED}, "tool_choice: there is no tool of that name"),
        (
            {"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"},
            "tool_choice: it requires a call, and guided_regex names another grammar",
        ),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "none"}}}],
                "tool_choice": "required",
            },
            "tools: ",
        ),
    ],
)
def test_what_cannot_be_called_is_refused_in_one_line(calling, fields, words):
    reply = calling.chat(**fields)
    assert reply.status_code == 400 and words in reply.json()["error"]["message"], reply.text
    assert "\n" not in reply.json()["error"]["message"]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_template_without_tools_is_given_them_in_a_message(choice):
    tokenizer = make_json_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}"
    pipeline = make_pipeline(tokenizer=tokenizer, sampling={"max_new_tokens": 150, "temperature": 1.0})
    with Serving(pipeline, context=4000) as serving:
        reply = serving.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False).json()
        (answer,) = reply["choices"]
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] in ("weather", "time") and answer["finish_reason"] == "tool_calls"
        result = {"role": "tool", "tool_call_id": call["id"], "content": "sun"}
        turns = [*QUESTION, answer["message"] | {"content": ""}, result]
        again = serving.chat(messages=turns, tools=TOOLS, tool_choice=choice).json()
        assert again["usage"]["prompt_tokens"] > reply["usage"]["prompt_tokens"] + 3
        assert serving.post("/api/show", json={"model": "small"}).json()["capabilities"] == ["completion"]
    shown = written_turns([{"role": "system", "content": "Be kind."}, *turns], tokenizer.chat_template, TOOLS)
    assert [turn["role"] for turn in shown] == ["system", "user", "assistant", "user"]
    assert shown[0]["content"].startswith("Be kind.\nYou may call functions.") and '"weather"' in shown[0]["content"]
    assert shown[2]["content"].startswith("<tool_call>\n{") and shown[3]["content"].endswith("sun")


def test_a_call_has_an_object_of_arguments(pipeline):
    called = {"function": {"name": "f", "arguments": "{}"}}
    with Serving(pipeline) as serving:
        assert serving.chat(tools=TOOLS, tool_choice="none").status_code == 200
        for wrong in ({"role": "user", "tool_calls": [called]}, {"role": "user"}):
            assert serving.chat(messages=[wrong]).status_code == 422
        called["function"]["arguments"] = "["
        assert serving.chat(messages=[{"role": "assistant", "tool_calls": [called]}]).status_code == 422
