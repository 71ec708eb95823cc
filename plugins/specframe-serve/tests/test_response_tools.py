"""Functions and their calls in OpenAI's Responses API."""

import json

import pytest
from serving import QUESTION, Serving, make_pipeline
from test_clients import listening
from test_responses import events, respond
from test_tools import PLAIN, TAGGED, TOOLS, choosing, require_weather

from tests.small_model import make_json_tokenizer

FLAT = [{"type": "function"} | tool["function"] for tool in TOOLS]
NAMED = {"type": "function", "name": "weather"}


def make_caller(template, **sampling):
    tokenizer = make_json_tokenizer()
    tokenizer.chat_template = template
    sampling = {"max_new_tokens": 150, "temperature": 1.0} | sampling
    return make_pipeline(tokenizer=tokenizer, drafter={"use": "suffix-recycling"}, sampling=sampling)


@pytest.fixture(scope="module", params=[TAGGED, PLAIN], ids=["tagged", "plain"])
def caller(request):
    return make_caller(request.param)


@pytest.fixture
def calling(caller):
    with Serving(caller, context=600) as running:
        yield running


def as_chat(item):
    """A call as a chat completion has it."""
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def test_a_named_function_is_called_as_in_a_chat_completion(calling):
    reply = respond(calling, tools=FLAT, tool_choice=NAMED).json()
    (item,) = reply["output"]
    assert item["type"] == "function_call" and item["status"] == reply["status"] == "completed"
    require_weather(as_chat(item))
    choice = {"type": "function", "function": {"name": "weather"}}
    (wanted,) = calling.chat(tools=TOOLS, tool_choice=choice).json()["choices"][0]["message"]["tool_calls"]
    assert as_chat(item)["function"] == wanted["function"]
    assert reply["tool_choice"] == NAMED and [tool["name"] for tool in reply["tools"]] == ["weather", "time"]


def test_a_stream_has_calls_as_items_of_their_own(calling):
    (wanted,) = respond(calling, tools=FLAT, tool_choice=NAMED).json()["output"]
    found = events(respond(calling, tools=FLAT, tool_choice=NAMED, stream=True).text)
    kinds = [event["type"].removeprefix("response.") for event in found]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    assert kinds == ["created", "in_progress", "output_item.added", *arguments, "output_item.done", "completed"]
    assert found[3]["delta"] == found[4]["arguments"] == wanted["arguments"] and found[2]["item"]["arguments"] == ""
    assert found[-1]["response"]["output"] == [found[5]["item"]]
    assert {event["item_id"] for event in found[3:5]} == {event["item"]["id"] for event in (found[2], found[5])}


def test_text_and_calls_of_the_models_own_choice_are_two_items(caller):
    serving, form = choosing(caller)
    with serving:
        *messages, call = respond(serving, tools=FLAT).json()["output"]
        assert [message["content"][0]["text"] for message in messages] == (["ok"] if form.tagged else [])
        require_weather(as_chat(call))
        found = events(respond(serving, tools=FLAT, stream=True).text)
        text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
        assert text == ("ok" if form.tagged else "")
        items = [event["output_index"] for event in found if event["type"] == "response.output_item.done"]
        assert items == [*range(1 + len(messages))]
        (message,) = respond(serving, tools=FLAT, tool_choice="none").json()["output"]  # then it is text
        assert "weather" in message["content"][0]["text"]


def test_calls_and_results_are_turns_as_in_a_chat_completion():
    with Serving(make_caller(TAGGED), context=600) as serving:
        calls = [
            {
                "type": "function_call",
                "call_id": f"call_{city}",
                "name": "weather",
                "arguments": f'{{"city": "{city}"}}',
            }
            for city in ("ulm", "bonn")
        ]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sun"} for call in calls]
        results[1]["output"] = [{"type": "input_text", "text": "rain"}]
        answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
        chat_answer = {"role": "assistant", "content": "so", "tool_calls": [as_chat(call) for call in calls]}
        chat_results = [{"role": "tool", "content": text, "tool_call_id": "1"} for text in ("sun", "rain")]
        for first, wanted in ((answer, "so"), (None, "")):
            items = [*QUESTION, *([first] if first else []), *calls, *results]
            turns = [*QUESTION, chat_answer | {"content": wanted}, *chat_results]
            found = respond(serving, input=items, tools=FLAT, max_output_tokens=5).json()
            chat = serving.chat(messages=turns, tools=TOOLS, max_tokens=5).json()
            assert found["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
            assert found["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"tool_choice": "required"}, 400, "tool_choice: there are no tools"),
        ({"tools": FLAT, "tool_choice": {"type": "function", "name": "no"}}, 400, "there is no tool of that name"),
        ({"tools": [{"type": "web_search"}]}, 422, "tools.0"),
        ({"tools": TOOLS}, 422, "tools.0"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "["}]}, 422, "input.0"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "[" * 9999}]}, 422, "input.0"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, 422, "input.0"),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}] * 129},
            422,
            "input: an answer has at most 128 calls",
        ),
    ],
)
def test_what_cannot_be_called_is_refused_in_one_line(calling, fields, status, words):
    reply = respond(calling, **fields)
    assert reply.status_code == status and words in reply.json()["error"]["message"], reply.text
    assert "\n" not in reply.json()["error"]["message"]


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_openais_client_calls_a_function_and_sends_its_result(monkeypatch):
    openai = pytest.importorskip("openai", reason="pip install openai")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    ask = {"model": "small", "input": "hello there", "tools": FLAT, "tool_choice": NAMED, "extra_body": {"seed": 1}}
    with (
        listening(make_caller(TAGGED)) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="x") as client,
    ):
        reply = client.responses.create(**ask)
        (call,) = reply.output
        assert call.type == "function_call" and json.loads(call.arguments).keys() == {"city", "unit"}
        with client.responses.stream(**ask) as stream:
            done = [event for event in stream if event.type == "response.function_call_arguments.done"]
            (streamed,) = stream.get_final_response().output
        assert [each.arguments for each in done] == [streamed.arguments] == [call.arguments]
        turns = [{"role": "user", "content": "hello there"}, call.model_dump()]
        turns.append({"type": "function_call_output", "call_id": call.call_id, "output": "sun"})
        again = client.responses.create(model="small", input=turns, tools=FLAT, max_output_tokens=5)
        assert again.usage.input_tokens > reply.usage.input_tokens
