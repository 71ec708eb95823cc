"""OpenAI's Predicted Outputs: a text that rows draft from, and no answer depends on."""

from collections import Counter
from itertools import pairwise

import pytest
from serving import Serving, make_pipeline


def accepted(reply):
    """The tokens of the prediction that are in the answer, and those that are not."""
    details = reply["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_prediction_changes_no_text_and_takes_fewer_cycles(serving, temperature):
    fields = {"temperature": temperature, "max_tokens": 60}
    plain = serving.chat(**fields).json()
    text = plain["choices"][0]["message"]["content"]
    assert "completion_tokens_details" not in plain["usage"]

    parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    for content in (text, parts):
        reply = serving.chat(**fields, prediction={"type": "content", "content": content}).json()
        assert reply["choices"] == plain["choices"]
        assert sum(accepted(reply)) == len(text)  # a character is a token here, and others have no text
        steps = [each["metrics"]["speculative_decoding"]["num_spec_steps"] for each in (reply, plain)]
        assert steps[0] < steps[1]

    wrong = serving.chat(**fields, prediction={"type": "content", "content": "~~~~"}).json()
    assert wrong["choices"] == plain["choices"] and accepted(wrong) == (0, 4)


def test_counts_are_of_tokens_in_place(serving):
    fields = {"max_tokens": 30, "temperature": 0}
    text = serving.chat(**fields).json()["choices"][0]["message"]["content"]
    assert len(text) == 30
    for content in (text, text[:10] + "QQ" + text[10:] + "QQQ", text[5:], text * 2):
        common = Counter(pairwise("^" + content)) & Counter(pairwise("^" + text))
        reply = serving.chat(**fields, prediction={"type": "content", "content": content}).json()
        assert accepted(reply) == (common.total(), len(content) - common.total())


def test_streams_and_several_answers_have_the_counts(serving):
    asked = {
        "messages": [{"role": "user", "content": "hello there"}],
        "prediction": {"type": "content", "content": "~~"},
    }
    *_, last = serving.stream("/v1/chat/completions", **asked, n=2, stream_options={"include_usage": True})
    assert accepted(last) == (0, 4)


def test_a_recipe_without_copies_takes_a_prediction_without_effect(serving):
    prediction = {"type": "content", "content": "abc"}
    with Serving(make_pipeline(drafter="none")) as plain:
        assert plain.chat(prediction=prediction).json()["choices"] == serving.chat().json()["choices"]


def test_of_a_prediction_that_is_longer_than_the_context_a_beginning_is_drafted_from(serving, monkeypatch):
    monkeypatch.setattr(serving.server.desk.encoder, "_widest", 9)
    found, submit = [], serving.engine.submit
    monkeypatch.setattr(serving.engine, "submit", lambda jobs: found.extend(jobs) or submit(jobs))
    reply = serving.chat(prediction={"type": "content", "content": "Q" * 300}).json()
    assert sum(accepted(reply)) == 300 and len(found[0].request.predicted) == 200


def test_bad_predictions_are_refused(serving):
    reply = serving.chat(prediction={"type": "content", "content": "x" * 500_000})
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "context_length_exceeded"
    for prediction in ("text", {"type": "text", "content": "a"}, {"type": "content"}):
        assert serving.chat(prediction=prediction).status_code == 422
    assert serving.chat(prediction={"type": "content", "content": ""}).status_code == 200
