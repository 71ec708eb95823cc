import pytest
import torch

from specframe.decoding.requests import Request, as_prompts, enter, following, register, sampling_of
from specframe.kernel.errors import InputError
from specframe.kernel.types import TokenTree, Verdict
from specframe.sampling.laws import RowSampling, Sampling


def chain(*rows):
    """A draft of chains, the root first."""
    tokens = torch.tensor(rows)
    count = tokens.shape[1]
    parent = torch.arange(-1, count - 1).expand_as(tokens)
    return TokenTree(tokens, parent, torch.ones_like(tokens).bool(), torch.zeros_like(tokens), count - 1)


def verdict(*rows):
    """(length, bonus) per row, the path running down a chain of two."""
    length = torch.tensor([row[0] for row in rows])
    path = torch.arange(1, 3).expand(len(rows), 2).clone()
    path[torch.arange(2) >= length[:, None]] = -1
    return Verdict(path, length, torch.tensor([row[1] for row in rows]))


def entries(prompts=((1, 2), (3,)), context=100, **options):
    return register([Request(tokens=prompt, **{"max_new_tokens": 5, **options}) for prompt in prompts], context)


def test_rows_collect_their_own_tokens():
    rows = entries()
    enter(rows, chain([2, 7, 8], [3, 9, 9]), verdict((2, 6), (0, 5)))
    assert [(row.tokens, row.ended) for row in rows] == [([7, 8, 6], None), ([5], None)]
    assert rows[0].text == [1, 2, 7, 8, 6]


def test_the_budget_cuts_an_accepted_path():
    rows = entries(max_new_tokens=2)
    enter(rows, chain([2, 7, 8], [3, 9, 9]), verdict((2, 6), (0, 5)))
    assert (rows[0].tokens, rows[0].ended, rows[1].ended) == ([7, 8], "length", None)


def test_nothing_follows_an_end_of_sequence_inside_a_path():
    rows = entries(ends=frozenset({7}))
    enter(rows, chain([2, 7, 8], [3, 9, 9]), verdict((2, 6), (2, 5)))
    assert (rows[0].tokens, rows[0].ended) == ([7], "end")


def test_a_stop_predicate_ends_a_row_after_any_token():
    rows = entries(stop=lambda entry: [*entry.request.tokens, *entry.tokens[-1:]] == [1, 2, 8])
    enter(rows, chain([2, 7, 8], [3, 7, 8]), verdict((2, 6), (2, 6)))
    assert (rows[0].tokens, rows[0].ended, rows[1].ended) == ([7, 8], "stop", None)


def test_the_context_bounds_the_budget():
    assert [entry.limit for entry in entries(context=4)] == [2, 3]
    assert [entry.limit for entry in entries(context=3)] == [1, 2]


@pytest.mark.parametrize(("prompt", "words"), [([], "empty"), ([1] * 4, "no room in the target's context of 4")])
def test_prompts_that_cannot_be_decoded(prompt, words):
    with pytest.raises(InputError, match=words):
        entries([prompt], context=4)


def test_listeners_get_what_is_kept():
    received = []
    rows = entries(max_new_tokens=2, listener=received.append)
    enter(rows, chain([2, 7, 8], [3, 9, 9]), verdict((2, 6), (0, 5)))
    enter(rows[1:], chain([5, 4, 4]), verdict((0, 6)))
    assert received == [[7, 8], [5], [6]]


def test_history_is_only_made_for_samplings_that_look_at_it():
    plain = entries()
    assert following(sampling_of(plain), plain) is plain[0].request.sampling
    looking = entries(sampling=Sampling(processors=(lambda ids, logits: logits,)))
    enter(looking, chain([2, 7, 8], [3, 9, 9]), verdict((0, 6), (1, 5)))
    history = following(sampling_of(looking), looking).history
    assert history.tokens.tolist() == [[1, 2, 6], [3, 9, 5]]
    assert history.count.tolist() == [3, 3]
    elsewhere = following(sampling_of(looking), looking, torch.device("meta")).history
    assert elsewhere.tokens.device.type == elsewhere.count.device.type == "meta", "the history is where the logits are"


def test_rows_of_different_settings_have_each_its_own_law():
    samplings = [Sampling(temperature=1.0), Sampling(), Sampling(temperature=0.5, top_k=2), Sampling(temperature=1.0)]
    requests = [Request(tokens=[1], sampling=sampling, max_new_tokens=3) for sampling in samplings]
    mixed = sampling_of(register(requests, 100))
    assert isinstance(mixed, RowSampling) and len(mixed.groups) == 3 and not mixed.greedy
    logits = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
    tree = chain(*[[0, 1, 2]] * 4)
    law = mixed.law(logits, tree)
    for row, sampling in enumerate(samplings):
        rows = torch.tensor([row])
        assert torch.equal(law[rows], sampling.law(logits[rows], tree.take(rows)))
    nodes = torch.tensor([[2], [1], [0], [1]])
    some = mixed.law(logits.gather(1, nodes[..., None].expand(-1, -1, 6)), tree, nodes)
    assert torch.equal(some[:, 0], law[torch.arange(4), nodes[:, 0]])


def test_prompts_are_padded_on_the_right():
    prompts = as_prompts([[1, 2], [3]])
    assert prompts.tokens.tolist() == [[1, 2], [3, 0]]
    assert prompts.count.tolist() == [2, 1]
