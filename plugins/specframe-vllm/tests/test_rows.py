"""Rows follow a stand-in for the engine: the drafts are those of specframe's own session, cycle by cycle."""

import pytest
from engine_standin import ALL, StandInEngine

import specframe
from specframe_vllm.checks import Drafting

LENGTH = 3
PROMPTS = {"a": [5, 9, 12, 5, 9, 12, 5], "b": [7, 3, 7, 3, 20], "c": [11, 30, 31, 32, 33, 34, 35, 36, 11]}
DRAFTERS = {
    "suffix": "drafter: {use: suffix, cap: 3, least: 0.0}",
    "recycling": "drafter: {use: recycling, ranks: 1, nodes: 4}",
    "eagle": "drafter: {use: eagle}\ntree: {use: chain, depth: 3}",
    "eagle3": "drafter: {use: eagle3, taps: [0, 1, 2]}\ntree: {use: chain, depth: 3}",
    "falcon": "drafter: {use: falcon, block: 2}\ntree: {use: chain, depth: 3}",
    "medusa": "drafter: {use: medusa, heads: 3}\ntree: {use: chain, depth: 3}",
    "parallelspec": "drafter: {use: parallelspec, masks: 2}\ntree: {use: chain, depth: 3}",
}
with_and_without_taps = pytest.mark.parametrize("drafting", ["suffix", "falcon"], indirect=True)


@pytest.fixture(params=DRAFTERS)
def drafting(request):
    return DRAFTERS[request.param] + "\n"


@pytest.fixture
def engine(recipe, model_folder):
    drafting = Drafting.read({"specframe": {"recipe": str(recipe)}}, LENGTH)
    return StandInEngine(model_folder, drafting, PROMPTS)


@pytest.fixture
def own(recipe):
    """Texts and drafts of specframe's session, by request."""
    pipeline = specframe.load(recipe)
    texts, drafts = {}, {}
    for name, prompt in PROMPTS.items():
        trees = []
        requests = pipeline.requests([prompt])
        with pipeline.open(requests) as session:
            (entry,) = session.run(
                requests, lambda cycle, trees=trees: trees.append((cycle.draft.columns, cycle.committed))
            )
        texts[name] = entry.tokens
        drafts[name] = [
            [token for token, real in zip(tokens[0], valid[0], strict=True) if real][1:]
            for (valid, _, tokens), committed in trees
            if committed.prompt is None
        ]
    return texts, drafts


def decode(engine, names, tokens=16):
    """Goes on until each of these requests has a number of tokens."""
    while min(len(engine.new(name)) for name in names) < tokens:
        engine.step(dict.fromkeys(names, ALL))


def assert_own(engine, own, names):
    """The texts, and the drafts up to where a text ends."""
    texts, drafts = own
    for name in names:
        length = min(len(engine.new(name)), len(texts[name]))
        assert engine.new(name)[:length] == texts[name][:length]
        count = min(len(engine.drafted[name]), len(drafts[name]) - 1)
        assert count > 3 and engine.drafted[name][:count] == drafts[name][:count]


@pytest.mark.sampled
def test_a_batch_drafts_as_rows_do_alone(engine, own):
    decode(engine, PROMPTS)
    assert_own(engine, own, PROMPTS)
    assert engine.rows.names == [*PROMPTS]


@with_and_without_taps
def test_a_prompt_is_read_in_pieces_next_to_rows_that_decode(engine, own):
    engine.step({"a": ALL})
    for portion in (2, 4, 2, 1):
        engine.step({"a": ALL, "c": portion})
    assert engine.rows.names == ["a", "c"]
    decode(engine, ["c", "a"])
    assert_own(engine, own, ["c", "a"])


@with_and_without_taps
def test_a_cancelled_request_leaves_its_row(engine, own):
    decode(engine, PROMPTS, 4)
    engine.cancel("a")
    decode(engine, ["c", "b"])
    assert_own(engine, own, ["b", "c"])
    assert engine.rows.names == ["b", "c"]


@with_and_without_taps
def test_a_preempted_request_is_admitted_anew(engine, own):
    decode(engine, PROMPTS, 4)
    engine.preempt("b")
    engine.step({"a": ALL, "c": ALL})
    assert engine.rows.names == ["a", "c"]
    engine.step({"a": ALL, "c": ALL, "b": 6})
    decode(engine, PROMPTS)
    assert engine.rows.names == ["a", "c", "b"]
    for name in "ac":
        assert_own(engine, own, name)
    length = min(len(engine.new("b")), len(own[0]["b"]))
    assert engine.new("b")[:length] == own[0]["b"][:length] and engine.jobs["b"].draft


@with_and_without_taps
def test_all_requests_may_end_and_others_come(engine, own):
    decode(engine, ["a"], 4)
    engine.cancel("a")
    decode(engine, ["b"])
    assert_own(engine, own, ["b"])
    assert engine.rows.names == ["b"]


@with_and_without_taps
def test_a_request_that_a_pass_leaves_out_is_decoded_on(engine, own):
    decode(engine, PROMPTS, 4)
    engine.step({"a": ALL, "c": ALL})
    decode(engine, PROMPTS)
    drafts_again = not engine.rows.drafter.taps
    assert engine.rows.names == (["a", "c", "b"] if drafts_again else ["a", "c"])
    assert bool(engine.jobs["b"].draft) == drafts_again
    length = min(len(engine.new("b")), len(own[0]["b"]))
    assert engine.new("b")[:length] == own[0]["b"][:length]
    assert_own(engine, own, "ac")
