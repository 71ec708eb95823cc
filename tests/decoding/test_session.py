"""Properties of sessions: rows come and go, and none of them notices the others."""

from itertools import product
from threading import Thread

import pytest
import torch

import specframe
from specframe import Request, Sampling, Session
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.none import NoDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.exclusive import claim
from specframe.decoding.requests import refilled
from specframe.decoding.session import Parts
from specframe.kernel.errors import CompositionError, InputError
from specframe.plugin import Draw, Verdict
from specframe.testing import tiny_target
from specframe_trees.adaptive import Adaptive

VOCAB = 12
PROMPTS = [[1, 2, 3, 1, 2], [4], [5, 6] * 6, [7, 8, 9], [3, 3, 3], [2, 10, 2, 10, 2], [11, 1]]
SETTINGS = [Sampling(temperature=1.0), Sampling(), Sampling(temperature=0.7, top_k=4), Sampling(temperature=1.0)]


def requests(**changes):
    """Requests of many lengths, budgets, settings and seeds."""
    return [
        Request(
            **{
                "tokens": prompt,
                "sampling": SETTINGS[row % len(SETTINGS)],
                "seed": 100 + row,
                "max_new_tokens": 5 + 4 * (row % 3),
                "number": row,
            }
            | changes
        )
        for row, prompt in enumerate(PROMPTS)
    ]


def target():
    return tiny_target(vocab=VOCAB, dtype=torch.float64)


def compositions(verifier):
    """Parts of every kind: drafters with and without state, policies with memory, several draws."""
    small = tiny_target(vocab=VOCAB, size=8, dtype=torch.float64)
    draw = Draw.WITHOUT_REPLACEMENT if verifier is Recursive else Draw.TOP
    yield "none", lambda t: Parts(t, NoDrafter(), None, verifier())
    yield "lookup", lambda t: Parts(t, Lookup(ngram=2, length=4), None, verifier())
    yield "model", lambda t: Parts(t, ModelDrafter.from_model(small.model), Fixed(widths=[2, 1], draw=draw), verifier())
    yield "deep", lambda t: Parts(t, ModelDrafter.from_model(small.model), Chain(depth=5, draw=draw), verifier())
    costs = [1.0, 1.2, 1.4, 1.6]
    yield (
        "adaptive",
        lambda t: Parts(t, ModelDrafter.from_model(small.model), Adaptive(costs=costs, depth=3, draw=draw), verifier()),
    )


def decoded(make, slots, order=None, **changes):
    """The texts of all requests, by number, decoded in so many slots in some order."""
    model = target()
    parts = make(model)
    parts.drafter.bind(model)
    asked = requests(**changes)
    session = Session(parts, slots, 64 + parts.nodes)
    entries = session.run([asked[row] for row in order or range(len(asked))])
    assert not session.live and session.free == slots
    return {entry.request.number: (entry.tokens, entry.ended) for entry in entries}


@pytest.mark.sampled
@pytest.mark.parametrize("verifier", [Match, Recursive])
@pytest.mark.parametrize("name", [name for name, _ in compositions(Match)])
def test_a_row_is_decoded_alone_as_among_others(verifier, name):
    make = dict(compositions(verifier))[name]
    alone = decoded(make, 1)
    assert decoded(make, 3) == alone
    assert decoded(make, len(PROMPTS)) == alone
    assert decoded(make, 2, order=[6, 0, 3, 5, 1, 2, 4]) == alone


@pytest.mark.parametrize("ends", [frozenset(), frozenset({2, 5})])
def test_with_match_the_seed_decides_the_text_whatever_drafts_it(ends):
    texts = [decoded(make, slots, ends=ends) for _, make in compositions(Match) for slots in (1, 3)]
    assert all(text == texts[0] for text in texts)
    assert len({tuple(tokens) for tokens, _ in texts[0].values()}) > len(PROMPTS) // 2
    other = decoded(dict(compositions(Match))["none"], 1, ends=ends, seed=7)
    assert other != texts[0], "another seed, another text"


def test_entries_come_in_the_order_of_the_requests_and_listeners_get_their_tokens():
    model, received = target(), {}
    asked = [
        Request(
            tokens=prompt,
            max_new_tokens=3 + row,
            number=row,
            listener=lambda tokens, row=row: received.setdefault(row, []).extend(tokens),
        )
        for row, prompt in enumerate(PROMPTS)
    ]
    entries = Session(Parts(model, NoDrafter(), None, Match()), 2, 64).run(iter(asked))
    assert [entry.request.number for entry in entries] == list(range(len(PROMPTS)))
    assert [len(entry.tokens) for entry in entries] == [3 + row for row in range(len(PROMPTS))]
    assert received == {entry.request.number: entry.tokens for entry in entries}


def test_storage_stays_where_it_is_when_rows_come_and_go():
    model = target()
    session = Session(Parts(model, Lookup(), None, Match()), 3, 64)
    session.admit(requests()[:3])
    storage = model._state.cache._blocks[0].data_ptr()
    assert session.admit([]) == []
    while len(session.live) == 3:
        session.step()
    session.admit(requests()[3:4])
    session.step()
    assert model._state.cache._blocks[0].data_ptr() == storage


def test_a_cancelled_row_leaves_and_the_others_go_on():
    model = target()
    session = Session(Parts(model, NoDrafter(), None, Match()), 3, 64)
    entries = session.admit([Request(tokens=prompt, max_new_tokens=9) for prompt in PROMPTS[:3]])
    session.step()
    session.cancel(entries[0])
    assert entries[0].ended == "cancelled" and len(entries[0].tokens) == 2 and len(session.live) == 2
    session.cancel(entries[0])  # once more changes nothing
    while session.live:
        session.step()
    alone = Session(Parts(model, NoDrafter(), None, Match()), 1, 64)
    wanted = alone.run([Request(tokens=prompt, max_new_tokens=9) for prompt in PROMPTS[1:3]])
    assert [entry.tokens for entry in entries[1:]] == [entry.tokens for entry in wanted]


def test_what_cannot_be_admitted_changes_no_row():
    model = target()
    session = Session(Parts(model, NoDrafter(), None, Match()), 2, 40)
    first = session.admit([Request(tokens=[1, 2], max_new_tokens=6)])
    for asked, words in (
        ([Request(tokens=[1], max_new_tokens=2)] * 2, "2 requests for 1 free slots"),
        ([Request(tokens=[], max_new_tokens=2)], "empty"),
        ([Request(tokens=[VOCAB], max_new_tokens=2)], "outside the vocabulary"),
        ([Request(tokens=[1] * 50, max_new_tokens=2)], "open it with more room"),
    ):
        with pytest.raises(InputError, match=words):
            session.admit(asked)
    while session.live:
        session.step()
    wanted = Session(Parts(target(), NoDrafter(), None, Match()), 1, 40).run([Request(tokens=[1, 2], max_new_tokens=6)])
    assert first[0].tokens == wanted[0].tokens


def test_a_target_serves_one_session_at_a_time():
    model = target()
    parts = Parts(model, NoDrafter(), None, Match())
    first = Session(parts, 1, 40)
    first.admit([Request(tokens=[1, 2], max_new_tokens=6)])
    Session(parts, 1, 40).run([Request(tokens=[3], max_new_tokens=3)])
    with pytest.raises(InputError, match="one caller at a time"):
        first.step()


def test_a_thread_that_opens_a_session_within_another_ones_cycle_gets_the_same_sentence():
    parts, errors = Parts(target(), NoDrafter(), None, Match()), list[Exception]()

    def open_another():
        try:
            Session(parts, 1, 40)
        except InputError as error:
            errors.append(error)

    def watch(cycle):
        thread = Thread(target=open_another)
        thread.start()
        thread.join()

    [entry] = Session(parts, 1, 40, watch=watch).run([Request(tokens=[1, 2], max_new_tokens=3)])
    assert len(entry.tokens) == 3 and len(errors) == 3
    assert all("one caller at a time" in str(error) for error in errors)


def test_what_fails_as_another_thread_takes_the_target_gets_the_sentence():
    class Taken(Match):
        """While it verifies, another session claims the target, whose rows are then gone."""

        def verify(self, tree, laws, random):
            claim(parts.target, self)
            raise ValueError("rows of another session")

    parts = Parts(target(), NoDrafter(), None, Taken())
    request = Request(tokens=[1, 2], sampling=Sampling(temperature=1.0), max_new_tokens=3)
    with pytest.raises(InputError, match="one caller at a time"):
        Session(parts, 1, 40).run([request])


def test_a_verdict_of_a_wrong_form_is_one_sentence():
    class Longer(Match):
        """Its length counts one node more than its path has."""

        def verify(self, tree, laws, random):
            found = super().verify(tree, laws, random)
            return Verdict(path=found.path, length=found.length + (tree.levels > 0), bonus=found.bonus)

    parts = Parts(target(), Lookup(), None, Longer())
    request = Request(tokens=[1, 2, 3, 1, 2], sampling=Sampling(temperature=1.0), max_new_tokens=20)
    with pytest.raises(CompositionError, match=r"Longer\.verify gave no verdict: row 0: the length is"):
        Session(parts, 1, 60).run([request])


def test_decoding_within_a_listener_is_refused_instead_of_going_wrong():
    pipeline = specframe.compose(target=target().model, drafter="lookup", sampling={"max_new_tokens": 6})
    with pytest.raises(InputError, match="do not decode within a listener"):
        pipeline.generate([1, 2, 3], listener=lambda row, tokens: pipeline.generate([4, 5]))
    wanted = pipeline.plain().generate([1, 2, 3]).tokens
    assert pipeline.generate([1, 2, 3]).tokens == wanted, "and the pipeline is as good as before"


def test_threads_that_share_a_target_take_turns():
    pipeline = specframe.compose(target=target().model, drafter="lookup", sampling={"max_new_tokens": 20})
    wanted = {row: pipeline.generate([row, 2]).tokens for row in range(4)}
    found = {}

    def work(row):
        found[row] = pipeline.generate([row, 2]).tokens

    threads = [Thread(target=work, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == wanted


def test_holes_are_filled_from_the_end():
    assert refilled([True, False, True, True]) == [0, 3, 2]
    assert refilled([False, False, True]) == [2]
    assert refilled([True, True, False]) == [0, 1]
    assert refilled([False]) == refilled([]) == []
    for alive in product([True, False], repeat=6):
        order = refilled(alive)
        assert sorted(order) == [row for row in range(6) if alive[row]]
        assert all(order[row] == row for row in range(len(order)) if alive[row])


def test_a_draft_as_large_as_the_context_fits_and_a_larger_one_is_refused():
    parts = Parts(TableTarget(vocab=3), Lookup(ngram=2, length=4), None, Match())
    parts.target.context = parts.nodes
    assert Session(parts, 1, parts.nodes).free == 1
    parts.target.context -= 1
    with pytest.raises(CompositionError, match="a draft of 5 nodes does not fit the target's context of 4"):
        Session(parts, 1, parts.nodes)


# --- composition in memory ------------------------------------------------------------------------------


def test_compose_takes_objects_names_and_sections():
    model = target().model
    for drafter in ("lookup", {"use": "lookup", "length": 3}, Lookup(length=3)):
        pipeline = specframe.compose(target=model, drafter=drafter, sampling={"max_new_tokens": 6})
        assert pipeline.generate([1, 2, 1, 2]).tokens == pipeline.plain().generate([1, 2, 1, 2]).tokens
    given = specframe.compose(target=HFTarget.from_model(model), tree=Dynamic(depth=2), drafter="eagle")
    assert given.parts.nodes == Dynamic(depth=2).promise.nodes


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"drafter": "lookup", "tree": "chain"}, "builds its own tree"),
        ({"drafter": "eagle"}, "grows a tree policy"),
        ({"drafter": "lokup"}, "did you mean 'lookup'"),
        ({"drafter": {"use": "lookup", "length": "x"}}, "length"),
        ({"drafter": "eagle", "tree": {"use": "chain", "draw": "iid"}, "verifier": "transport"}, None),
    ],
)
def test_compose_refuses_what_a_recipe_would(parts, words):
    if words is None:
        specframe.compose(target=target().model, **parts)
        return
    with pytest.raises(specframe.RecipeError, match=words):
        specframe.compose(target=target().model, **parts)


def test_noise_by_position_lasts_for_long_texts_of_long_drafts():
    """Numbers are made for 64 positions at a time, and drafts that are accepted whole use six a cycle."""
    texts = []
    for drafts in (False, True):
        model = target()
        drafter = ModelDrafter.from_model(model.model) if drafts else NoDrafter()
        parts = Parts(model, drafter, Chain(depth=5) if drafts else None, Match())
        drafter.bind(model)
        cold = Request(tokens=PROMPTS[0], sampling=Sampling(temperature=0.2), seed=7, max_new_tokens=200)
        texts.append(Session(parts, 1, 256).run([cold])[0].tokens)
    assert texts[0] == texts[1] and len(texts[0]) > 100 and len(set(texts[0])) > 2
