"""The prefix cache: what is read only once, that no text changes by it, and its bound."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from serving import Gate, Serving, make_pipeline, until

import specframe
from specframe.components.targets.hf import HFTarget
from specframe.plugin import KnownPrefix
from specframe_serve.prefixes import LEAST, aligned
from tests.components.targets.test_recurrent import hybrid
from tests.small_model import make_tokenizer, random_model

SYSTEM = "you are a good guide, and you know all the hills. "
DRAFTERS = {
    "chains": {},
    "trees": {"drafter": {"use": "suffix-recycling", "nodes": 8}},
    "features": {"drafter": {"use": "eagle"}, "tree": {"use": "chain", "depth": 3}},
    "none": {"drafter": "none"},
}


def ask(serving, prompt, **fields):
    reply = serving.complete(prompt=prompt, max_tokens=10, ignore_eos=True, **fields)
    assert reply.status_code == 200, reply.text
    return [choice["text"] for choice in reply.json()["choices"]]


def conversation(serving):
    """Three turns, a text with the same beginning, two answers to one prompt, and prompts that come together."""
    text, found = SYSTEM, []
    for turn in range(3):
        text += f"question {turn}? "
        found += ask(serving, text, seed=turn, temperature=float(turn % 2))
        text += found[-1]
    found += ask(serving, SYSTEM + "and what else?") + ask(serving, SYSTEM + "why so?", n=3)
    with ThreadPoolExecutor(3) as pool:
        together = [pool.submit(ask, serving, SYSTEM + end, seed=5) for end in ("one", "two", "three")]
        return found + [reply.result()[0] for reply in together]


def counts(serving):
    counters = serving.counters()
    return [int(counters[f"vllm:prefix_cache_{name}_total"]) for name in ("queries", "hits")]


@pytest.mark.parametrize("prefill", [512, 24])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_texts_are_the_same_with_and_without(drafter, prefill):
    pipeline = make_pipeline(**DRAFTERS[drafter])
    with Serving(pipeline, cache=0, prefill=prefill) as serving:
        wanted = conversation(serving)
        assert counts(serving)[1] == 0
    with Serving(pipeline, prefill=prefill) as serving:
        assert conversation(serving) == wanted
        asked, found = counts(serving)
    assert found > asked / 2


@pytest.mark.parametrize("drafter", ["trees", "features"])
def test_texts_of_native_passes_are_the_same_with_and_without(drafter):
    """In bfloat16, where another order of a sum would show."""
    model = random_model(vocab=64, size=64, layers=2, eos=1).bfloat16()
    model.config.max_position_embeddings = 512
    target = HFTarget.from_model(model, make_tokenizer())
    target._take_native()
    pipeline = make_pipeline(target=target, **DRAFTERS[drafter])
    texts = []
    for cache in (0, 512):
        with Serving(pipeline, cache=cache, prefill=24) as serving:
            texts.append(conversation(serving))
            assert (counts(serving)[1] > 0) == (cache > 0)
    assert texts[0] == texts[1]


def test_a_turn_reads_only_what_is_new_and_choices_read_their_prompt_once(pipeline):
    with Serving(pipeline) as serving:
        answers = (ask(serving, SYSTEM, seed=seed)[0] for seed in range(40))
        answer = next(answer for answer in answers if len(answer) == 10)  # its tokens are its characters
        before = counts(serving)
        text = SYSTEM + answer + " and then?"
        ask(serving, text)
        asked, found = (now - then for now, then in zip(counts(serving), before, strict=True))
        assert asked == len(text) and found == len(SYSTEM + answer) - 1, "its last token was not processed"
        before = counts(serving)
        ask(serving, "b" * 40, n=4)
        asked, found = (now - then for now, then in zip(counts(serving), before, strict=True))
        assert asked == 160 and found == 3 * 39


def test_usage_has_the_tokens_that_came_from_the_cache(pipeline):
    with Serving(pipeline) as serving:
        ask(serving, "b" * 40)
        fields = {"prompt": ["b" * 50, "c" * 20], "n": 2, "max_tokens": 2}
        usage = serving.complete(**fields).json()["usage"]
        assert usage["prompt_tokens"] == 70 and usage["prompt_tokens_details"] == {"cached_tokens": 40}
        *_, last = serving.stream("/v1/completions", stream_options={"include_usage": True}, **fields)
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 49 + 19}
        usage = serving.post("/v1/responses", json={"input": "c" * 20, "seed": 1}).json()["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == 20


def test_the_bound_is_kept_and_the_least_recently_used_text_goes(pipeline):
    with Serving(pipeline, slots=1) as serving:
        ask(serving, "a" * 40)
        size = serving.engine._prefixes.bytes
        serving.engine._prefixes._size = 2 * size + size // 2
        ask(serving, "b" * 40)
        ask(serving, "a" * 40)
        ask(serving, "c" * 40)
        assert serving.engine._prefixes.bytes <= 2 * size + size // 2
        hits = counts(serving)[1]
        ask(serving, "b" * 40)
        assert counts(serving)[1] == hits, "the text that was used last is still there"
        serving.engine._prefixes._size = size // 2
        ask(serving, "d" * 60)
        assert LEAST * size // 49 <= serving.engine._prefixes.bytes <= size // 2, "of a long text, its beginning"


def test_a_short_turn_of_a_long_conversation_does_not_wait_after_a_long_prompt(pipeline, monkeypatch):
    with Serving(pipeline, prefill=16, context=400) as serving, ThreadPoolExecutor(2) as pool:
        known = SYSTEM + ask(serving, SYSTEM)[0]
        pieces = []
        read = serving.engine._read_ahead
        monkeypatch.setattr(serving.engine, "_read_ahead", lambda *given: pieces.append(1) or read(*given))
        gate = Gate(serving, monkeypatch)
        long = pool.submit(ask, serving, "z" * 300)
        until(lambda: len(serving.engine._queue) == 1)
        short = pool.submit(ask, serving, known + "so?")
        until(lambda: len(serving.engine._queue) == 2)
        short.add_done_callback(lambda reply: pieces.append("done"))
        gate.opened.set()
        long.result()
    assert pieces.index("done") < len(pieces) - 2


def read_together(serving, monkeypatch, prompts, **fields):
    """The texts of prompts that are waiting together, and the sizes of the groups in which they are read."""
    groups = []
    admit = HFTarget.admit

    def counted(self, prompts):
        groups.append((len(prompts.tokens), *{len(prefix.tokens) for prefix in prompts.prefixes}))
        return admit(self, prompts)

    monkeypatch.setattr(HFTarget, "admit", counted)
    gate = Gate(serving, monkeypatch)
    with ThreadPoolExecutor(len(prompts)) as pool:
        asked = []
        for number, prompt in enumerate(prompts):
            asked.append(pool.submit(ask, serving, prompt, seed=number, **fields))
            until(lambda number=number: len(serving.engine._queue) >= number + 1)
        gate.opened.set()
        return [reply.result() for reply in asked], groups


@pytest.mark.parametrize("drafter", ["trees", "features"])
def test_prompts_with_known_beginnings_of_almost_one_length_are_read_together(drafter, monkeypatch):
    pipeline = make_pipeline(**DRAFTERS[drafter])
    prompts = [SYSTEM + "and what?", SYSTEM[:-5] + "or what else?", "d" * 30, SYSTEM + "so?"]
    with Serving(pipeline, cache=0) as serving:
        wanted = [ask(serving, prompt, seed=number) for number, prompt in enumerate(prompts)]
    with Serving(pipeline) as serving:
        ask(serving, SYSTEM)
        hits = counts(serving)[1]
        found, groups = read_together(serving, monkeypatch, prompts)
        assert found == wanted
        assert sorted(groups) == [(1,), (3, len(SYSTEM) - 5)]
        assert counts(serving)[1] - hits == 3 * (len(SYSTEM) - 5), "of one, a few tokens are read again"


def test_choices_are_read_together_after_the_first(pipeline, monkeypatch):
    with Serving(pipeline, slots=6) as serving:
        _, groups = read_together(serving, monkeypatch, ["e" * 40], n=5)
    assert groups == [(1,), (4, 39)]


def test_prefixes_are_cut_to_one_length_where_that_takes_few_tokens():
    def known(count):
        return None if not count else KnownPrefix(range(count), torch.zeros(2, 1, count, 1), {})

    found = aligned([known(count) for count in (0, 60, 40, 41, 57, 56, 100)])
    assert [0 if each is None else len(each.tokens) for each in found] == [0, 57, 40, 40, 57, 40, 100]
    assert aligned([None]) == [None]


def test_recurrent_layers_have_no_cache(caplog):
    target = HFTarget.from_model(hybrid(vocab_size=64), make_tokenizer())
    pipeline = specframe.compose(target=target, drafter="none", verifier="match", sampling={"max_new_tokens": 12})
    with Serving(pipeline) as serving:
        first = ask(serving, "a" * 40)
        assert ask(serving, "a" * 40) == first and counts(serving)[1] == 0
    assert caplog.text.count("no prefix cache for this target: recurrent layers") == 1
