import pytest
import torch

from specframe.decoding.ledger import Ledger, as_prompts
from specframe.kernel.errors import InputError
from specframe.kernel.types import TokenTree, Verdict
from specframe.sampling.laws import Sampling


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


def open_ledger(prompts=((1, 2), (3,)), **options):
    return Ledger(prompts, **{"max_new_tokens": 5, "context": 100, "nodes": 3, **options})


def test_rows_collect_their_own_tokens():
    ledger = open_ledger()
    assert ledger.room == 5 + 3
    assert ledger.enter(chain([2, 7, 8], [3, 9, 9]), verdict((2, 6), (0, 5))) == [0, 1]
    assert [entry.tokens for entry in ledger.entries] == [[7, 8, 6], [5]]


def test_the_budget_cuts_an_accepted_path():
    ledger = open_ledger(max_new_tokens=2)
    assert ledger.enter(chain([2, 7, 8], [3, 9, 9]), verdict((2, 6), (0, 5))) == [1]
    assert (ledger.entries[0].tokens, ledger.entries[0].ended) == ([7, 8], "length")
    assert ledger.enter(chain([5, 4, 4]), verdict((1, 6))) == []
    assert ledger.entries[1].tokens == [5, 4]


def test_nothing_follows_an_end_of_sequence_inside_a_path():
    ledger = open_ledger(ends=frozenset({7}))
    assert ledger.enter(chain([2, 7, 8], [3, 9, 9]), verdict((2, 6), (2, 5))) == [1]
    assert (ledger.entries[0].tokens, ledger.entries[0].ended) == ([7], "end")


def test_a_stop_predicate_ends_a_row_after_any_token():
    ledger = open_ledger(stop=lambda entry: entry.prompt + entry.tokens[-1:] == [1, 2, 8])
    assert ledger.enter(chain([2, 7, 8], [3, 7, 8]), verdict((2, 6), (2, 6))) == [1]
    assert (ledger.entries[0].tokens, ledger.entries[0].ended) == ([7, 8], "stop")


def test_the_context_bounds_the_budget():
    ledger = open_ledger(context=4)
    assert [entry.limit for entry in ledger.entries] == [2, 3]


@pytest.mark.parametrize(("prompt", "words"), [([], "empty"), ([1] * 4, "no room in the target's context of 4")])
def test_prompts_that_cannot_be_decoded(prompt, words):
    with pytest.raises(InputError, match=words):
        open_ledger([prompt], context=4)


def test_listeners_hear_every_row_by_its_original_number():
    heard = []
    ledger = open_ledger(max_new_tokens=2, listener=lambda row, tokens: heard.append((row, tokens)))
    ledger.enter(chain([2, 7, 8], [3, 9, 9]), verdict((2, 6), (0, 5)))
    ledger.enter(chain([5, 4, 4]), verdict((0, 6)))
    assert heard == [(0, [7, 8]), (1, [5]), (1, [6])]


def test_history_is_only_made_for_samplings_that_look_at_it():
    ledger = open_ledger()
    plain = Sampling()
    assert ledger.follow(plain) is plain
    looking = Sampling(processors=(lambda ids, logits: logits,))
    ledger.enter(chain([2, 7, 8], [3, 9, 9]), verdict((0, 6), (1, 5)))
    history = ledger.follow(looking).history
    assert history.tokens.tolist() == [[1, 2, 6], [3, 9, 5]]
    assert history.count.tolist() == [3, 3]


def test_prompts_are_padded_on_the_right():
    prompts = as_prompts([[1, 2], [3]])
    assert prompts.tokens.tolist() == [[1, 2], [3, 0]]
    assert prompts.count.tolist() == [2, 1]
