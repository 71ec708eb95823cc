"""Answers of each of the routes to clients, within this process."""

import math

import pytest
import torch
from serving import QUESTION, Serving, lone

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.9}])
def test_an_answer_is_what_a_run_gives_for_the_same_seed(serving, pipeline, sampling):
    wanted = lone(pipeline, "hello there", 1, **sampling)
    reply = serving.chat(**sampling).json()
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": wanted.texts[0]}
    assert choice["finish_reason"] == ("length" if wanted.ended[0] == "length" else "stop")
    assert (reply["object"], reply["model"]) == ("chat.completion", "small")
    tokens = len(wanted.tokens[0])
    usage = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens}
    assert reply["usage"] == usage | {"prompt_tokens_details": {"cached_tokens": 0}}
    speculation = reply["metrics"]["speculative_decoding"]
    assert speculation["mean_acceptance_length"] == pytest.approx(wanted.acceptance.tau)
    assert speculation["num_spec_steps"] == wanted.acceptance.cycles == sum(speculation["acceptance_histogram"])
    assert speculation["num_draft_tokens"] == wanted.acceptance.drafted
    assert speculation["num_accepted_draft_tokens"] == wanted.acceptance.accepted
    assert speculation["num_spec_tokens"] == 4


def test_completions_take_texts_and_tokens_without_a_template(serving, pipeline):
    wanted = lone(pipeline, "hello there", 1, chat=False)
    ids = pipeline.tokenizer("hello there")["input_ids"]
    for prompt in ("hello there", ids):
        reply = serving.complete(prompt=prompt).json()
        assert [choice["text"] for choice in reply["choices"]] == wanted.texts
        assert (reply["object"], reply["usage"]["prompt_tokens"]) == ("text_completion", 11)
    for prompts in (["hello there", "good day"], [ids, pipeline.tokenizer("good day")["input_ids"]]):
        reply = serving.complete(prompt=prompts).json()
        other = lone(pipeline, "good day", 1, chat=False)
        assert [choice["text"] for choice in reply["choices"]] == wanted.texts + other.texts
        assert [choice["index"] for choice in reply["choices"]] == [0, 1] and "metrics" not in reply


def test_several_answers_are_those_of_a_run_over_the_prompt_repeated(serving, pipeline):
    wanted = lone(pipeline, ["hello there"] * 3, 5)
    reply = serving.chat(n=3, seed=5).json()
    assert [choice["message"]["content"] for choice in reply["choices"]] == wanted.texts
    assert len(set(wanted.texts)) == 3, "each has noise of its own"
    assert reply["usage"]["completion_tokens"] == sum(map(len, wanted.tokens))


def test_without_a_seed_answers_differ(serving):
    assert len({serving.chat(seed=None).json()["choices"][0]["message"]["content"] for _ in range(3)}) > 1


def test_a_stream_is_the_answer_in_pieces(serving):
    whole = serving.chat(n=2).json()
    events = serving.stream(CHAT, messages=QUESTION, n=2, stream_options={"include_usage": True})
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    roles = [event["choices"][0]["delta"].get("role") for event in events[:-1]]
    assert roles.count("assistant") == 2 and roles[0] == "assistant"
    texts, finishes = ["", ""], [None, None]
    for event in events[:-1]:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        finishes[choice["index"]] = choice["finish_reason"] or finishes[choice["index"]]
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert finishes == [choice["finish_reason"] for choice in whole["choices"]]
    assert events[-1]["choices"] == [] and events[-1]["usage"] == whole["usage"]
    assert not any("usage" in event for event in events[:-1])


def test_a_stream_of_a_completion_has_usage_and_figures_where_they_are_asked_for(serving):
    whole = serving.complete().json()
    plain = serving.stream(TEXT, prompt="hello there")
    assert "".join(event["choices"][0]["text"] for event in plain) == whole["choices"][0]["text"]
    assert plain[-1]["metrics"] == whole["metrics"] and len(plain) > 2
    every = serving.stream(TEXT, prompt="hello there", stream_options={"continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in every]
    assert counts == sorted(counts) and counts[-1] == whole["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_before_its_stop_text(serving, stream):
    whole = serving.complete(max_tokens=40).json()["choices"][0]["text"]
    stop = whole[5:7]
    if stream:
        events = serving.stream(TEXT, prompt="hello there", max_tokens=40, stop=[stop, "\n\n"])
        text, finish = "".join(e["choices"][0]["text"] for e in events), events[-1]["choices"][0]["finish_reason"]
    else:
        (choice,) = serving.complete(max_tokens=40, stop=stop).json()["choices"]
        text, finish = choice["text"], choice["finish_reason"]
    assert text == whole[: whole.index(stop)] and finish == "stop"


def test_budgets_and_ends(serving, pipeline):
    assert serving.complete(max_tokens=3).json()["usage"]["completion_tokens"] == 3
    assert serving.chat(max_completion_tokens=2, max_tokens=5).json()["usage"]["completion_tokens"] == 2
    ended = next(seed for seed in range(200) if lone(pipeline, "hello there", seed, chat=False).ended == ["end"])
    short = serving.complete(seed=ended).json()
    assert short["choices"][0]["finish_reason"] == "stop" and short["usage"]["completion_tokens"] < 12
    longer = serving.complete(seed=ended, ignore_eos=True).json()
    assert longer["choices"][0]["finish_reason"] == "length" and longer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.7}])
def test_log_probabilities_are_the_models_own(serving, pipeline, sampling):
    wanted = lone(pipeline, "hello there", 1, **sampling)
    prompt = pipeline.encode("hello there")
    with torch.no_grad():
        logits = pipeline.parts.target.model(torch.tensor([prompt + wanted.tokens[0]])).logits[0]
    laws = logits.float().log_softmax(-1)[len(prompt) - 1 : -1]
    reply = serving.chat(logprobs=True, top_logprobs=3, **sampling).json()
    content = reply["choices"][0]["logprobs"]["content"]
    spell = pipeline.tokenizer.decode
    assert [entry["token"] for entry in content] == [spell([token]) for token in wanted.tokens[0]]
    for entry, law, token in zip(content, laws, wanted.tokens[0], strict=True):
        assert entry["logprob"] == pytest.approx(float(law[token]), abs=1e-4)
        best = law.topk(3)
        assert [top["token"] for top in entry["top_logprobs"]] == [spell([token]) for token in best.indices.tolist()]
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert bytes(entry["bytes"]).decode() == entry["token"]
    streamed = serving.stream(CHAT, messages=QUESTION, logprobs=True, top_logprobs=3, **sampling)
    pieces = [event["choices"][0]["logprobs"] for event in streamed]
    assert [entry for piece in pieces if piece for entry in piece["content"]] == content
    plain = serving.chat(logprobs=True, **sampling).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in plain] == [[]] * len(plain)


def test_log_probabilities_of_completions(serving):
    found = serving.complete(logprobs=2, max_tokens=6).json()["choices"][0]
    logprobs = found["logprobs"]
    assert "".join(logprobs["tokens"]) == found["text"]
    assert all(value <= 0 and math.isfinite(value) for value in logprobs["token_logprobs"])
    assert {len(top) for top in logprobs["top_logprobs"]} == {2, 3}  # the chosen token is in it, too
    for token, value, top in zip(*(logprobs[f] for f in ("tokens", "token_logprobs", "top_logprobs")), strict=True):
        assert top[token] == value and list(top.values()) == sorted(top.values(), reverse=True)


def test_models_health_and_what_is_not_there(serving):
    (model,) = serving.get("/v1/models").json()["data"]
    assert model["id"] == "small" and model["max_model_len"] == 200
    assert serving.get("/v1/models/small").json() == model
    assert serving.get("/v1/models/other").status_code == 404
    assert serving.get("/health").json() == {"status": "ok"}
    for path, method, status in (
        ("/v1/embeddings", "post", 404),
        (CHAT, "get", 405),
        ("/../../etc/passwd", "get", 404),
    ):
        reply = getattr(serving, method)(path)
        assert reply.status_code == status and reply.json()["error"]["message"]


def test_what_cannot_be_decoded_is_refused_with_a_sentence(serving):
    for fields, status, words in (
        (
            {"max_tokens": 190},
            400,
            "maximum context length is 200 tokens. However, you requested 201 tokens (11 in the",
        ),
        ({"prompt": "a" * 300}, 400, "(300 in the messages, 1 in the completion)"),
        ({"prompt": [5] * 300}, 400, "(300 in the messages, 1 in the completion)"),
        ({"n": 64, "prompt": [[1]] * 2000, "max_tokens": 1}, 400, "asks for 128000 answers, and 64 may wait"),
        ({"prompt": ""}, 400, "a prompt is empty"),
        ({"prompt": [[]]}, 400, "a prompt is empty"),
        ({"logit_bias": {"64": 1}}, 422, "logit_bias: token ids are numbers from 0 to 63"),
        ({"stop_token_ids": [64]}, 422, "stop_token_ids: "),
        ({"prompt": []}, 422, "prompt: there is none"),
        ({"prompt": [1, 64]}, 400, "outside the target's vocabulary"),
        ({"prompt": [-1]}, 400, "outside the target's vocabulary"),
        ({"prompt": [10**30], "echo": True}, 400, "outside the target's vocabulary"),
        ({"model": "other"}, 404, "there is no model of that name"),
        ({"best_of": 3}, 422, "best_of"),
        ({"nonsense": 1}, 422, "nonsense"),
    ):
        reply = serving.complete(**fields)
        error = reply.json()["error"]
        assert reply.status_code == status and words in error["message"] and error["type"] == "invalid_request_error"
    nothing = serving.chat(messages=[{"role": "user", "content": ""}], add_generation_prompt=False)
    assert nothing.status_code == 400 and "a prompt is empty" in nothing.json()["error"]["message"]
    assert serving.complete().status_code == 200, "the server goes on"


def test_a_text_that_is_too_long_in_any_case_is_not_encoded(serving, monkeypatch):
    monkeypatch.setattr(serving.server.desk.encoder, "_encode", None)
    monkeypatch.setattr(serving.server.desk.encoder, "_encode_turns", None)
    text = "a" * 1_000_000
    parts = [[{"role": "user", "content": content}] for content in (text, [{"type": "text", "text": text}])]
    for reply in (serving.complete(prompt=text), *(serving.chat(messages=messages) for messages in parts)):
        assert reply.status_code == 400 and reply.json()["error"]["code"] == "context_length_exceeded"


def test_a_request_for_too_many_rows_is_refused_before_anything_is_made_for_it(serving, monkeypatch):
    made = []
    monkeypatch.setattr(serving.server.desk.encoder, "_encode", made.append)
    monkeypatch.setattr(type(serving.server.desk.pipeline), "requests", lambda *args: made.append(args))
    for fields in ({"prompt": [[1]] * 2000, "n": 64}, {"prompt": ["a"] * 65}):
        reply = serving.complete(**fields)
        assert reply.status_code == 400 and reply.json()["error"]["code"] == "too_many_answers"
    assert not made


def test_whitespace_is_a_text(serving, pipeline):
    ids = pipeline.tokenizer("  ")["input_ids"]
    replies = [serving.complete(prompt=prompt).json() for prompt in ("  ", ids)]
    assert replies[0]["choices"] == replies[1]["choices"] and replies[0]["usage"]["prompt_tokens"] == 2


def test_a_temperature_close_to_0_is_0(serving):
    wanted = serving.complete(temperature=0).json()["choices"]
    for temperature in (1e-320, 1e-39, 1e-7):
        assert serving.complete(temperature=temperature).json()["choices"] == wanted


def test_names_reach_a_template_that_reads_them(serving, monkeypatch):
    named = [{"role": "user", "content": "hello", "name": "Ann"}]
    nameless = serving.chat(messages=[{"role": "user", "content": "hello"}]).json()
    assert serving.chat(messages=named).json()["choices"] == nameless["choices"]
    template = "{% for m in messages %}{{ m.name }} {{ m.content }}{% endfor %}"
    monkeypatch.setattr(serving.server.desk.pipeline.tokenizer, "chat_template", template)
    assert serving.chat(messages=named).json()["usage"]["prompt_tokens"] == len("Ann hello")


def test_a_default_budget_is_cut_to_the_room_that_is_left(serving):
    reply = serving.complete(prompt="a" * 195, ignore_eos=True).json()
    assert reply["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(("settings", "fields"), [({"to_end": True}, {}), ({}, {"max_tokens": -1})])
def test_a_conversation_goes_on_to_the_end_of_the_context(pipeline, settings, fields):
    with Serving(pipeline, context=60, **settings) as serving:
        usage = serving.chat(ignore_eos=True, **fields).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (12, 48)
        assert serving.chat(ignore_eos=True, max_tokens=5).json()["usage"]["completion_tokens"] == 5
        text = serving.complete(ignore_eos=True, **fields).json()["usage"]
        assert text["completion_tokens"] == (49 if fields else 12), "a completion has the recipe's number"


@pytest.mark.parametrize(
    ("effort", "tokens"), [(None, 5), ("high", 6), ("none", 7)], ids=["left to the model", "thinks", "does not"]
)
def test_an_effort_reaches_the_switch_of_the_template(serving, monkeypatch, effort, tokens):
    switch = "{% if enable_thinking is defined %}{{ '+' if enable_thinking else '--' }}{% endif %}"
    template = "{% for m in messages %}{{ m.content }}{% endfor %}" + switch
    monkeypatch.setattr(serving.server.desk.pipeline.tokenizer, "chat_template", template)
    asked = {"messages": [{"role": "user", "content": "hello"}], "reasoning_effort": effort}
    assert serving.chat(**asked).json()["usage"]["prompt_tokens"] == tokens


def test_bodies_are_json_and_bounded(pipeline):
    with Serving(pipeline, body=2000) as serving:
        assert serving.post(TEXT, content=b'{"prompt": "a"}').status_code == 415
        assert serving.post(TEXT, data={"prompt": "a"}).status_code == 415
        large = serving.complete(prompt="a" * 3000)
        assert large.status_code == 413 and "2000 bytes" in large.json()["error"]["message"]


def test_metrics_have_the_names_that_clients_read(serving, pipeline):
    wanted = lone(pipeline, "hello there", 1, temperature=0.0, max_new_tokens=60)
    serving.chat(temperature=0, max_tokens=60)
    found, acceptance = serving.counters(), wanted.acceptance
    assert found["vllm:spec_decode_num_draft_tokens_total"] == acceptance.drafted > 0
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == acceptance.accepted > 0
    assert 0 < found["vllm:spec_decode_num_drafts_total"] <= acceptance.cycles
    for depth, alpha in enumerate(acceptance.alpha):
        count = found[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{position={depth}}}"]
        assert count == pytest.approx(alpha * acceptance.cycles)
        assert found[f"specframe:alpha{{depth={depth}}}"] == pytest.approx(alpha)
    assert found["specframe:tau"] == pytest.approx(acceptance.tau)
    assert found["vllm:prompt_tokens_total"] == 12
    assert found["vllm:generation_tokens_total"] == len(wanted.tokens[0])
    assert found["vllm:time_to_first_token_seconds_count"] == found["vllm:e2e_request_latency_seconds_count"] == 1
    assert found["vllm:inter_token_latency_seconds_count"] == acceptance.cycles
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert found["specframe:phase_seconds_total{phase=score}"] > 0
    reason = "length" if wanted.ended == ["length"] else "stop"
    assert found[f"vllm:request_success_total{{finished_reason={reason}}}"] == 1
