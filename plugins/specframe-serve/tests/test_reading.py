"""Thoughts in answers of templates that have tags for them."""

import json

import pytest
from serving import QUESTION, Serving, make_pipeline

from specframe_serve.reading import AnswerParts, AnswerReader
from tests.small_model import make_json_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}:{% endif %}{# </think> #}"
TEXT = "<think>\nwell, 1 < 2\n</think>\n\nyes"


@pytest.mark.parametrize(("begin", "text"), [("", TEXT), ("<think>\n", TEXT.removeprefix("<think>"))])
def test_what_is_thought_is_no_part_of_the_text(begin, text):
    reader = AnswerReader.of(TEMPLATE, begin, None)
    assert reader.read(text, True) == AnswerParts("well, 1 < 2", "yes", ())
    sent = AnswerParts()
    for size in range(len(text) + 1):
        found = reader.read(text[:size], False)
        assert found.reasoning.startswith(sent.reasoning) and found.text.startswith(sent.text), "nothing is taken back"
        sent = found
    assert sent == AnswerParts("well, 1 < 2", "yes", ())
    assert reader.read("<think>" * (not begin) + "wel", True) == AnswerParts("wel", "", ())


def test_a_text_without_tags_stays_as_it_is():
    assert AnswerReader.of(TEMPLATE, "", None).read(" so <think>", True) == AnswerParts("", " so <think>", ())
    assert AnswerReader.of("{{ messages }}", "", None).read(TEXT, True) == AnswerParts("", TEXT, ())


def test_all_apis_have_it_in_a_field():
    tokenizer = make_json_tokenizer()
    tokenizer.chat_template = TEMPLATE
    rules = f"start: {json.dumps(TEXT)}"
    pipeline = make_pipeline(tokenizer=tokenizer, sampling={"grammar": {"lark": rules}, "max_new_tokens": 150})
    with Serving(pipeline, context=600) as serving:
        message = serving.chat().json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "yes", "reasoning_content": "well, 1 < 2"}
        deltas = [e["choices"][0]["delta"] for e in serving.stream("/v1/chat/completions", messages=QUESTION)]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "well, 1 < 2"
        assert "".join(delta.get("content", "") for delta in deltas) == "yes"
        asked = {"model": "small", "messages": QUESTION}
        assert serving.post("/api/chat", json=asked | {"stream": False}).json()["message"]["thinking"] == "well, 1 < 2"
        lines = [json.loads(line)["message"] for line in serving.post("/api/chat", json=asked).text.splitlines()]
        assert "".join(line.get("thinking", "") for line in lines) == "well, 1 < 2"
        items = serving.post("/v1/responses", json={"input": "hello"}).json()["output"]
        assert [item["content"][0]["text"] for item in items] == ["well, 1 < 2", "yes"]
        assert [item["type"] for item in items] == ["reasoning", "message"]
        again = serving.post("/v1/responses", json={"input": [*QUESTION, *items, *QUESTION]})
        assert again.status_code == 200
        events = serving.post("/v1/responses", json={"input": "hello", "stream": True}).text.split("\n\n")
        found = [json.loads(event.partition("data: ")[2]) for event in events if "data: " in event]
        assert "".join(e["delta"] for e in found if e["type"] == "response.reasoning_text.delta") == "well, 1 < 2"
        done = [event for event in found if event["type"] == "response.output_item.done"]
        assert [event["output_index"] for event in done] == [0, 1]
