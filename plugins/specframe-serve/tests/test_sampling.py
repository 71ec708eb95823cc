"""Settings that change how tokens are chosen: penalties, biases, least lengths, ends; exact under speculation."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from serving import QUESTION, Serving, lone, make_pipeline, until

from specframe_serve.logprobs import PromptScores

TEXT = "/v1/completions"
FIELDS = {
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 1.5},
    "repetition": {"repetition_penalty": 1.4},
    "bias": {"logit_bias": {"7": 3.0, "9": -100}},
    "least": {"min_tokens": 30, "logit_bias": {"1": 4.0}},
    "all": {"frequency_penalty": -0.5, "repetition_penalty": 1.1, "min_tokens": 5, "logit_bias": {"20": 1.5}},
}


def reference(tokens, logits, prompt, repetition=1.0, frequency=0.0, presence=0.0):
    """The formulas one token at a time, after vLLM's sampler."""
    found = logits.clone()
    for row in range(len(tokens)):
        for token in range(logits.shape[1]):
            count = int((tokens[row, prompt:] == token).sum())
            if (tokens[row] == token).any():
                found[row, token] *= repetition if found[row, token] <= 0 else 1 / repetition
            found[row, token] -= frequency * count + presence * (count > 0)
    return found


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafting_changes_no_text(pipeline, name, temperature):
    """With other requests of other settings with it, and with the same settings on another prompt."""
    fields = FIELDS[name] | {"temperature": temperature, "max_tokens": 40}
    texts = []
    for each in (pipeline, make_pipeline(drafter="none")):
        with Serving(each) as serving:
            both = serving.complete(prompt=["hello there", "good day to you"], **fields).json()["choices"]
            alone = serving.complete(**fields).json()["choices"][0]["text"]
            assert both[0]["text"] == alone
            texts.append([choice["text"] for choice in both])
    assert texts[0] == texts[1]
    plain = lone(pipeline, "hello there", 1, chat=False, temperature=temperature, max_new_tokens=40)
    assert texts[0][0] != plain.texts[0], "the settings did nothing"


def test_the_recipes_penalties_hold_where_a_request_gives_none(pipeline):
    own = {"repetition_penalty": 1.3, "logit_bias": {"20": 1.5}, "frequency_penalty": 0.4}
    recipe = replace(pipeline, sampling=replace(pipeline.sampling, **own))
    asked = {"temperature": 0, "max_tokens": 25, "ignore_eos": True}
    with Serving(recipe) as serving:
        found = serving.complete(**asked).json()["choices"][0]["text"]
        neutral = {"repetition_penalty": 1.0, "logit_bias": {}, "frequency_penalty": 0.0}
        plain = serving.complete(**asked, **neutral).json()["choices"][0]["text"]
    with Serving(pipeline) as serving:
        assert found == serving.complete(**asked, **own).json()["choices"][0]["text"]
        assert plain == serving.complete(**asked).json()["choices"][0]["text"] != found


def test_a_greedy_text_is_the_models_under_the_formulas(serving, pipeline):
    tokens = pipeline.tokenizer("hello there")["input_ids"]
    start, model = len(tokens), pipeline.parts.target.model
    for _ in range(25):
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1:]
        logits[:, 20] += 1.5
        logits = reference(torch.tensor([tokens]), logits, start, 1.2, 0.3, 0.2)
        tokens.append(int(logits.argmax()))
    fields = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2, "logit_bias": {"20": 1.5}}
    found = serving.complete(temperature=0, max_tokens=25, ignore_eos=True, **fields).json()["choices"][0]["text"]
    assert found == pipeline.decode(tokens[start:])


def test_tokens_that_end_a_text_are_no_part_of_it(serving, pipeline):
    ids = lone(pipeline, "hello there", 1, chat=False, max_new_tokens=40).tokens[0]
    stop = next(token for token in ids[4:] if token not in ids[:4])
    place = ids.index(stop)
    for ignore in (False, True):
        reply = serving.complete(max_tokens=40, stop_token_ids=[stop], ignore_eos=ignore).json()
        (choice,) = reply["choices"]
        assert choice["text"] == pipeline.decode(ids[:place]) and choice["finish_reason"] == "stop"
        assert reply["usage"]["completion_tokens"] == place + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_among_the_least_tokens_is_none(serving, stream):
    whole = serving.complete(max_tokens=60, ignore_eos=True).json()["choices"][0]["text"]
    stop = next(whole[i : i + 2] for i in range(10) if whole.find(whole[i : i + 2], i + 10) > 0)
    least = whole.index(stop) + 2  # one character a token
    fields = {"max_tokens": 60, "ignore_eos": True, "stop": [stop], "min_tokens": least}
    if stream:
        events = serving.stream(TEXT, prompt="hello there", **fields)
        found = "".join(event["choices"][0]["text"] for event in events)
    else:
        found = serving.complete(**fields).json()["choices"][0]["text"]
    assert found == whole[: whole.index(stop, least)] and len(found) >= least


TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }}.{% endfor %}"
    "{% if add_generation_prompt %}assistant {% if not thinking %}!{% endif %}{% endif %}"
)


@pytest.fixture
def templated(pipeline, monkeypatch):
    monkeypatch.setattr(pipeline.tokenizer, "chat_template", TEMPLATE)
    with Serving(pipeline) as running:
        yield running


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "user hello there.assistant !"),
        ({"chat_template_kwargs": {"thinking": True}}, "user hello there.assistant "),
        ({"add_generation_prompt": False}, "user hello there."),
        (
            {"messages": [*QUESTION, {"role": "assistant", "content": "I am"}], "continue_final_message": True},
            "user hello there.assistant I am",
        ),
    ],
)
def test_the_template_is_given_what_the_request_sets(templated, pipeline, fields, prompt):
    found = templated.chat(**fields).json()
    wanted = lone(pipeline, prompt, 1, chat=False)
    assert found["choices"][0]["message"]["content"] == wanted.texts[0]
    assert found["usage"]["prompt_tokens"] == len(prompt)


@pytest.mark.parametrize("given", [{"nothing": 1}, {"chat_template": "{{ 1 }}"}, {"tokenize": False}, {"tools": []}])
def test_variables_that_the_template_does_not_read_are_refused(templated, given):
    reply = templated.chat(chat_template_kwargs=given)
    assert reply.status_code == 422 and f"does not read {next(iter(given))}" in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_tokens", [False, True])
def test_an_echoed_prompt_has_the_models_log_probabilities(serving, pipeline, stream, as_tokens):
    prompt = pipeline.tokenizer("hello there")["input_ids"]
    answer = lone(pipeline, "hello there", 1, chat=False, max_new_tokens=6, ignore_eos=True).tokens[0]
    with torch.no_grad():
        logits = pipeline.parts.target.model(torch.tensor([prompt + answer])).logits[0]
    laws = logits.float().log_softmax(-1)[:-1]
    fields = {"max_tokens": 6, "ignore_eos": True, "logprobs": 2, "echo": True}
    fields["prompt"] = prompt if as_tokens else "hello there"
    if stream:
        choices = [event["choices"][0] for event in serving.stream(TEXT, **fields)]
    else:
        choices = serving.complete(**fields).json()["choices"]
    text = "".join(choice["text"] for choice in choices)
    found = {
        name: [value for choice in choices if choice["logprobs"] for value in choice["logprobs"][name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    assert text == pipeline.decode(prompt + answer) == "".join(found["tokens"])
    assert [text[start:][: len(token)] for start, token in zip(found["text_offset"], found["tokens"], strict=True)] == (
        found["tokens"]
    )
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    wanted = laws.gather(1, torch.tensor([*prompt, *answer])[1:, None])[:, 0]
    assert found["token_logprobs"][1:] == pytest.approx(wanted.tolist(), abs=1e-4)
    for top, law, own in zip(found["top_logprobs"][1:], laws, found["token_logprobs"][1:], strict=True):
        best = law.topk(2).values.tolist()
        assert list(top.values()) == pytest.approx(best + [own] * (own < best[1] - 1e-4), abs=1e-4)


def test_scores_of_a_long_prompt_are_made_between_cycles_of_other_rows(pipeline, monkeypatch):
    """Also while a row runs that began before the first such request, and of a prompt whose beginning is known."""
    turns, sizes = [], []
    step, head = PromptScores.step, pipeline.parts.target.head

    def note(scores):
        turns.append("scores")
        return step(scores)

    monkeypatch.setattr(PromptScores, "step", note)
    monkeypatch.setattr(pipeline.parts.target, "head", lambda features: sizes.append(len(features)) or head(features))
    prompt = [3 + place * place % 50 for place in range(400)]
    fields = {"max_tokens": 1, "logprobs": 1, "echo": True}
    with Serving(pipeline, context=3000, prefill=64) as serving, ThreadPoolExecutor(1) as pool:
        take_in = serving.engine._take_in
        monkeypatch.setattr(serving.engine, "_take_in", lambda cycle: turns.append("cycle") or take_in(cycle))
        other = pool.submit(serving.complete, prompt=prompt[:40], max_tokens=2000, ignore_eos=True)
        until(lambda: serving.engine._running)
        found = [serving.complete(prompt=prompt, **fields).json()["choices"][0]["logprobs"] for _ in range(2)]
        for job in list(serving.engine._running.values()):
            job.cancelled = True
        other.result()
    assert max(sizes) == 64 and turns.count("scores") == 14
    scored = [place for place, turn in enumerate(turns) if turn == "scores"]
    assert all("cycle" in turns[a:b] for a, b in pairwise(scored[:7])), "a row goes on between"
    with torch.no_grad():
        logits = pipeline.parts.target.model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    wanted = [float(logits[place, token]) for place, token in enumerate(prompt[1:])]
    for logprobs in found:
        assert logprobs["token_logprobs"][1:400] == pytest.approx(wanted, abs=1e-4)


def test_a_prompt_to_score_waits_while_another_is_read_in_part(pipeline, monkeypatch):
    sizes, head = [], pipeline.parts.target.head
    monkeypatch.setattr(pipeline.parts.target, "head", lambda features: sizes.append(len(features)) or head(features))
    long, prompt = [3 + place % 50 for place in range(900)], [3 + place * place % 50 for place in range(100)]
    with Serving(pipeline, context=3000, prefill=64) as serving, ThreadPoolExecutor(2) as pool:
        read_ahead, asked = serving.engine._read_ahead, []

        def read(session, job):
            if job.read_tokens and not asked:
                asked.append(pool.submit(serving.complete, prompt=prompt, max_tokens=1, logprobs=1, echo=True))
                until(lambda: len(serving.engine._queue) == 2)
            return read_ahead(session, job)

        monkeypatch.setattr(serving.engine, "_read_ahead", read)
        assert serving.complete(prompt=long, max_tokens=2).status_code == 200
        found = asked[0].result().json()["choices"][0]["logprobs"]["token_logprobs"]
    with torch.no_grad():
        logits = pipeline.parts.target.model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    assert found[1:100] == pytest.approx([float(logits[at, token]) for at, token in enumerate(prompt[1:])], abs=1e-4)
    assert max(sizes) == 64


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_alone_is_scored(serving, stream):
    fields = {"prompt": "hello there", "logprobs": 1, "echo": True}
    wanted = serving.complete(**fields, max_tokens=1).json()["choices"][0]["logprobs"]
    if stream:
        ((choice,),) = [event["choices"] for event in serving.stream(TEXT, **fields, max_tokens=0)]
    else:
        reply = serving.complete(**fields, max_tokens=0).json()
        assert reply["usage"]["completion_tokens"] == 0
        (choice,) = reply["choices"]
    assert choice["text"] == "hello there" and choice["finish_reason"] == "length"
    assert choice["logprobs"] == {name: values[:11] for name, values in wanted.items()}
    assert serving.complete(max_tokens=0).status_code == 422


def test_an_echo_without_log_probabilities_is_the_prompt_before_the_answer(serving):
    plain = serving.complete(prompt=["hello", "good"], n=2).json()["choices"]
    found = serving.complete(prompt=["hello", "good"], n=2, echo=True).json()["choices"]
    prompts = ["hello", "hello", "good", "good"]
    assert [choice["text"] for choice in found] == [p + c["text"] for p, c in zip(prompts, plain, strict=True)]
    assert all(choice["logprobs"] is None for choice in found)
