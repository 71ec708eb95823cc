"""A drafting model left after some of its layers: in drafting and in training, against models without the others."""

from __future__ import annotations

import copy

import pytest
import torch

from specframe import CompositionError, InputError
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.kernel.types import Proposal
from specframe.testing import GivenSession, check_proposals, tiny_target
from tests.components.drafters.test_layers import by_native_passes, reading, without
from tests.components.drafters.test_model_drafter import tiny

VOCAB, LAYERS = 11, 4
KINDS = ["llama", "qwen3", "gemma2", "mistral"]


def model(kind="llama", **options):
    return random_model(kind, vocab=VOCAB, layers=LAYERS, seed=5, **options)


class Leaving:
    """A drafter that answers every node with a sub-model of a depth that follows from the node's path.

    A sub-model is asked only where a node needs it, so that others miss nodes, levels, and whole drafts.
    """

    def __init__(self, drafter, depths, modulus=1):
        self.drafter, self.depths, self.modulus = drafter, depths, modulus
        self.open, self.commit, self.keep = drafter.open, drafter.commit, drafter.keep

    def depth(self, total):
        """For a path with this sum of tokens, root included; deeper ones are rarer."""
        return self.depths[max(0, total % self.modulus - self.modulus + len(self.depths))]

    def expand(self, frontier):
        tree = frontier.tree
        totals = (tree.ancestors * tree.tokens[:, None]).sum(-1).gather(1, frontier.nodes)
        depths = torch.tensor([[self.depth(total) for total in row] for row in totals.tolist()])
        logits = None
        for depth in self.depths:
            if logits is None or (depths >= depth).any():
                found = self.drafter.expand_to(frontier, depth).logits
                logits = found if logits is None else found.where((depths >= depth)[:, :, None, None], logits)
        return Proposal(logits)


def exiting(made, exits):
    drafter = ModelDrafter.from_model(made)
    drafter.bind(tiny_target(vocab=VOCAB))
    drafter.exit_after(exits)
    return drafter


@pytest.mark.sampled
@pytest.mark.parametrize("depth", [1, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_each_depth_answers_as_a_model_of_these_layers(kind, depth):
    made = model(kind)
    drafter = Leaving(exiting(made, [1, 3]), [depth])
    wanted = reading(without(made, range(depth)))
    check_proposals(drafter, lambda rows: GivenSession.random(rows, VOCAB, 8), wanted, expansions=3)


@pytest.mark.sampled
@pytest.mark.parametrize("modulus", [2, 3, 5, 9])
def test_layers_that_were_not_asked_read_later_what_they_missed(modulus):
    made = model()
    drafter = Leaving(exiting(made, [1, 3]), [1, 3, 4], modulus)
    plain = {depth: reading(without(made, range(depth))) for depth in (1, 3, 4)}
    answered = []

    def wanted(session, row, path):
        answered.append(drafter.depth(int(session.tokens[row][-1] + path.sum())))
        return plain[answered[-1]](session, row, path)

    check_proposals(drafter, lambda rows: GivenSession.random(rows, VOCAB, 8), wanted, expansions=3)
    assert len(set(answered)) == min(modulus, 3)


def test_native_code_leaves_after_layers_too(tmp_path):
    model(size=32).float().save_pretrained(tmp_path)
    drafter = ModelDrafter(model=str(tmp_path), quantize="int8", layers=[0, 1, 3])
    drafter.bind(HFTarget(model=str(tmp_path)))
    drafter.exit_after([1, 2])
    for depth in (1, 3):
        wanted = by_native_passes(drafter, depth)
        check_proposals(
            Leaving(drafter, [depth]), lambda rows: GivenSession.random(rows, VOCAB, 8), wanted, expansions=2
        )


@pytest.mark.parametrize("kind", KINDS)
def test_training_reads_what_drafting_reads(kind):
    made = model(kind)
    drafter = ModelDrafter.from_model(made)
    tokens = torch.randint(VOCAB, (3, 9))
    for depth, logits in zip((1, 3, 4), drafter.read_exits(tokens, [1, 3, 4]), strict=True):
        torch.testing.assert_close(logits(), without(made, range(depth))(tokens).logits)


def test_layers_that_are_left_out_pass_a_text_on():
    """Each text as by a model of its own, without the layers that it loses; nothing of the hooks stays."""
    made = model()
    drafter = ModelDrafter.from_model(made)
    tokens = torch.randint(VOCAB, (5, 9))
    kept = torch.rand(LAYERS, 5) < 0.6
    kept[:, 0], kept[:, 1] = True, torch.tensor([True, False, False, True])
    exits = [exit() for exit in drafter.read_exits(tokens, [2, 4], kept)]
    for row in range(5):
        for logits, depth in zip(exits, (2, 4), strict=True):
            layers = [layer for layer in range(depth) if kept[layer, row]]
            if layers:
                wanted = without(made, layers)(tokens[row : row + 1]).logits[0]
                torch.testing.assert_close(logits[row], wanted)
    torch.testing.assert_close(drafter.read_exits(tokens, [4])[0](), drafter.read_text(tokens))
    assert not any(layer._forward_hooks for layer in made.model.layers)


def test_gradients_are_those_of_the_smaller_models():
    made = copy.deepcopy(model())
    drafter = ModelDrafter.from_model(made)
    tokens = torch.randint(VOCAB, (2, 7))
    drafter.module.zero_grad()
    sum(logits().square().mean() for logits in drafter.read_exits(tokens, [1, 3])).backward()
    wanted = {name: torch.zeros_like(p) for name, p in made.named_parameters()}
    for depth in (1, 3):
        plain = without(made, range(depth))
        plain.zero_grad()
        plain(tokens).logits.square().mean().backward()
        for name, parameter in plain.named_parameters():
            wanted[name] += parameter.grad
    for name, parameter in made.named_parameters():
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, wanted[name], rtol=1e-5, atol=1e-5)


def test_wrong_exits_are_refused():
    drafter = ModelDrafter.from_model(model())
    for exits in ([], [0], [2, 1], [1, 1], [5]):
        with pytest.raises(InputError, match="ascending numbers of layers from 1 to 4"):
            drafter.exit_after(exits)
        with pytest.raises(InputError, match="ascending numbers of layers from 1 to 4"):
            drafter.read_exits(torch.zeros(1, 3, dtype=torch.int64), exits)
    with pytest.raises(CompositionError, match="leave out masks"):
        ModelDrafter.from_model(tiny("llama"), masks=Masks(1, 2)).exit_after([1])
