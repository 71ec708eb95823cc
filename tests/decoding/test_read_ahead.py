"""Prompts that are read in pieces before their admission: nothing changes but when they are read."""

import pytest
import torch

from specframe import Request, Sampling, Session
from specframe.components.drafters.lookup import Lookup
from specframe.components.targets.hf import HFTarget
from specframe.components.verifiers.match import Match
from specframe.decoding.session import Parts
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import text_of
from specframe.kernel.types import Prompts
from specframe.testing import GivenTarget, tiny_target
from specframe_eagle.drafter import Eagle
from tests.small_gguf import write_gguf

VOCAB = 12
LONG = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3]


def target():
    return tiny_target(vocab=VOCAB, dtype=torch.float64)


def session(model, slots=3, drafter=None):
    parts = Parts(model, drafter or Lookup(ngram=2, length=4), None, Match())
    parts.drafter.bind(model)
    return Session(parts, slots, 96)


def request(tokens, seed, new=20):
    return Request(tokens=tokens, sampling=Sampling(temperature=1.0), seed=seed, max_new_tokens=new)


def alone(tokens, seed, new=20):
    lone = session(target(), 1)
    return lone.run([request(tokens, seed, new)])[0].tokens


@pytest.mark.parametrize("size", [1, 3, 7, 27, 100])
def test_pieces_give_the_scores_and_features_of_the_whole(size):
    whole, pieces = target(), target()
    for model in (whole, pieces):
        model.request(frozenset({"last", "layer.0"}))
        model.open(2, 64)
    while pieces.read_ahead(LONG, size) < len(LONG) - 1:
        pass
    prompts = Prompts(torch.tensor([LONG]), torch.tensor([len(LONG)]))
    (_, wanted), (_, found) = whole.admit(prompts), pieces.admit(prompts)
    torch.testing.assert_close(found.logits, wanted.logits)
    for tap, features in wanted.features.items():
        torch.testing.assert_close(found.features[tap], features)


@pytest.mark.parametrize("read", [0, 1, 10])
def test_what_was_read_is_not_read_again(read):
    model, lengths = target(), []
    model.open(1, 64)
    assert model.read_ahead(LONG, read) == read
    embedding = model.model.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda module, inputs: lengths.append(inputs[0].shape[1]))
    model.admit(Prompts(torch.tensor([LONG]), torch.tensor([len(LONG)])))
    assert lengths == [len(LONG) - read]


def test_what_was_read_of_one_prompt_is_not_another_s():
    whole, pieces = target(), target()
    prompts = Prompts(torch.tensor([LONG, LONG[::-1]]), torch.tensor([len(LONG)] * 2))
    for model in (whole, pieces):
        model.open(2, 64)
    assert pieces.read_ahead(LONG, 10) == 10
    torch.testing.assert_close(pieces.admit(prompts)[1].logits, whole.admit(prompts)[1].logits)


def test_a_quantized_target_gives_the_same_bits(tmp_path):
    path = str(write_gguf(tmp_path / "small.gguf", context=256))
    whole, pieces = (HFTarget(model=path, device="cpu", quantize="int4") for _ in range(2))
    for model in (whole, pieces):
        model.open(1, 64)
    assert pieces.read_ahead(LONG, 10) == 10
    prompts = Prompts(torch.tensor([LONG]), torch.tensor([len(LONG)]))
    assert torch.equal(pieces.admit(prompts)[1].logits, whole.admit(prompts)[1].logits)


def test_others_go_on_come_and_leave_in_between():
    rows = session(target())
    others = rows.admit([request([1, 2, 3], 1, new=4), request([4, 5], 2)])
    read = [rows.read_ahead(LONG, 5)]
    while read[-1] < len(LONG) - 1:
        rows.step()
        read.append(rows.read_ahead(LONG, 5))
    assert read == [5, 10, 15, 20, 25, 27]
    assert others[0].ended and not others[1].ended, "a row must have left while the prompt was read"
    late = rows.admit([request(LONG, 3)])
    while rows.live:
        rows.step()
    found = [entry.tokens for entry in [*others, *late]]
    assert found == [alone([1, 2, 3], 1, 4), alone([4, 5], 2), alone(LONG, 3)]


def test_a_drafter_that_reads_features_gets_those_of_all_pieces():
    model, drafter = target(), Eagle()
    drafter.bind(model)
    rows = session(model, 2, drafter=Lookup(ngram=2, length=4))
    model.request(drafter.taps)
    rows.admit([request([1, 2], 1)])
    rows.read_ahead(LONG, 9)
    rows.read_ahead(LONG, 9)
    with torch.inference_mode():  # as sessions are
        _, scores = model.admit(Prompts(torch.tensor([LONG]), torch.tensor([len(LONG)])))
    assert scores.features["last"].shape[1] == len(LONG)


def test_another_prompt_takes_its_place():
    rows = session(target())
    rows.admit([request([1, 2, 3], 1)])
    assert rows.read_ahead(LONG, 6) == 6
    assert rows.read_ahead(LONG[::-1], 4) == 4
    late = rows.admit([request(LONG, 3)])
    rows.read_ahead(LONG, 8)
    several = rows.admit([request([7, 7], 4)])
    while rows.live:
        rows.step()
    assert [entry.tokens for entry in late + several] == [alone(LONG, 3), alone([7, 7], 4)]


def test_what_targets_cannot_do_and_bad_prompts():
    assert text_of(GivenTarget(torch.eye(3))).read_ahead is None
    rows = session(target(), 1)
    with pytest.raises(InputError, match="outside the vocabulary"):
        rows.read_ahead([1, 99, 2], 2)
    assert rows.read_ahead([], 5) == rows.read_ahead([3], 5) == 0
    rows.admit([request([1, 2, 3], 1)])
    with pytest.raises(InputError, match="slots are taken"):
        rows.read_ahead(LONG, 5)


def lengths_read(model):
    """Number of tokens of each of the model's forward passes, as they come."""
    lengths = []
    embedding = model.model.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda module, inputs: lengths.append(inputs[0].shape[1]))
    return lengths


def test_an_admission_in_between_loses_nothing_of_what_was_read():
    model = target()
    rows = session(model)
    assert rows.read_ahead(LONG, 10) == 10
    early = rows.admit([request([1, 2, 3], 1)])
    assert rows.read_ahead(LONG, 10) == 20
    early += rows.admit([request([4, 5], 2)])
    lengths = lengths_read(model)
    late = rows.admit([request(LONG, 3)])
    assert lengths == [len(LONG) - 20]
    while rows.live:
        rows.step()
    assert [entry.tokens for entry in early + late] == [alone([1, 2, 3], 1), alone([4, 5], 2), alone(LONG, 3)]


def test_an_admission_that_takes_the_last_slot_takes_its_place():
    model = target()
    rows = session(model, 2)
    rows.read_ahead(LONG, 10)
    early = rows.admit([request([1, 2, 3], 1), request([4, 5], 2)])
    while rows.live:
        rows.step()
    lengths = lengths_read(model)
    late = rows.admit([request(LONG, 3)])
    assert lengths == [len(LONG)]
    while rows.live:
        rows.step()
    assert [entry.tokens for entry in early + late] == [alone([1, 2, 3], 1), alone([4, 5], 2), alone(LONG, 3)]


def test_what_was_read_stays_when_all_rows_have_left():
    model = target()
    rows = session(model)
    rows.admit([request([1, 2, 3], 1, new=4)])
    assert rows.read_ahead(LONG, 10) == 10
    while rows.live:
        rows.step()
    assert rows.read_ahead(LONG, 10) == 20
    lengths = lengths_read(model)
    late = rows.admit([request(LONG, 3)])
    assert lengths == [len(LONG) - 20]
    while rows.live:
        rows.step()
    assert late[0].tokens == alone(LONG, 3)
