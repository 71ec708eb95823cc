"""Compositions after an image, enumerated next to rows with another image and with none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specframe.certify.compositions.batch import WATCHED, BatchStreams
from specframe.certify.compositions.emission import compare
from specframe.certify.compositions.enumeration import enumerate_outcomes
from specframe.certify.compositions.small import SmallComposition
from specframe.components.targets.hf import HFTarget
from specframe.decoding.session import Parts, Session
from specframe.neural.slot_map import SlotMap
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling
from tests.components.targets.images import PLACED, prompt, seeing, text

REGISTRY = discover()
COMPOSED = {
    "copies": ({"use": "lookup", "length": 2}, None, "recursive"),
    "recycled": ({"use": "suffix-recycling", "cap": 2, "nodes": 4}, None, "match"),
    "features, drawn": ({"use": "eagle"}, {"use": "chain", "depth": 2, "draw": "iid"}, "recursive"),
    "features by value": ({"use": "eagle"}, {"use": "dynamic", "depth": 2, "width": 2, "nodes": 3}, "match"),
    "parts of the image": ({"use": "msd"}, {"use": "chain", "depth": 2, "draw": "iid"}, "recursive"),
    "a compressed image": (
        {"use": "flash", "entries": 2, "levels": 2},
        {"use": "chain", "depth": 2, "draw": "iid"},
        "recursive",
    ),
}
SAMPLING = Sampling(temperature=1.0, top_k=2)
"""Two tokens are possible after each text, and which two the image decides."""
LENGTH = 3
BRANCHES = 2_000
SEED = 3
"""The image after which no model here writes the token that stands for a part of an image."""


def law(model, request):
    """The distribution of plain decoding, by transformers' own forward passes over the whole text each time."""
    found = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for tokens, weight in found.items():
            ids = torch.tensor([[*request.tokens, *tokens]])
            inputs = {
                name: torch.nn.functional.pad(values, (0, len(tokens))) if name.endswith("type_ids") else values
                for name, values in request.inputs.items()
            }
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0, -1]
            chosen = logits.topk(2)
            for token, share in zip(chosen.indices.tolist(), chosen.values.softmax(-1).tolist(), strict=True):
                longer[(*tokens, token)] = weight * share
        found = longer
    return found


def emitted(target, parts, request, others):
    """The enumerated distribution of a request's first tokens, decoded with other rows."""
    made = miniature(*parts)
    vocab = target.vocab_size
    drafter = made.make_drafter(vocab)
    drafter.bind(target)
    watched = replace(request, sampling=SAMPLING, seed=WATCHED, max_new_tokens=LENGTH)

    def program(random, rows):
        whole = Parts(target, drafter, made.make_tree(), made.make_verifier(target, vocab))
        session = Session(whole, rows + len(others), 64, random=BatchStreams(random))
        session.admit([replace(other, sampling=SAMPLING, seed=1, max_new_tokens=LENGTH + 1) for other in others])
        session.step()
        entries = session.admit([watched] * rows)
        while any(entry.ended is None for entry in entries):
            session.step()
        return torch.tensor([entry.tokens for entry in entries])

    return enumerate_outcomes(program, budget=BRANCHES, alone=200)


def miniature(drafter, tree, verifier):
    sections = {"drafter": drafter, "verifier": verifier, "target": "table"} | ({} if tree is None else {"tree": tree})
    return SmallComposition.of(plan(Recipe(Path("own.yaml"), {"specframe": 1, **sections}), REGISTRY))


@torch.inference_mode()
def off(model, request, target, parts, given=None):
    """The total variation of what is emitted for a request, next to others, from plain decoding of it."""
    others = [prompt(model, 2, before=2), text(9, 8, 7)]
    found = emitted(target, parts, given or request, others)
    assert found.missing < 0.01
    return compare(law(model, request), found).tv


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("name", COMPOSED)
def test_the_distribution_after_an_image_is_plain_decodings(name, family, monkeypatch):
    model = seeing(family, monkeypatch)
    assert off(model, prompt(model, SEED), HFTarget.from_model(model), COMPOSED[name]) < 1e-6


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("name", ["copies", "a compressed image"])
def test_another_rows_image_is_found(name, family, monkeypatch):
    model = seeing(family, monkeypatch)
    own, other = prompt(model, SEED), prompt(model, 2)
    swapped = replace(own, inputs=own.inputs | {"pixel_values": other.inputs["pixel_values"]})
    assert off(model, own, HFTarget.from_model(model), COMPOSED[name], swapped) > 1e-3


@pytest.mark.parametrize("family", PLACED[1:2])
def test_positions_that_ignore_the_images_offset_are_found(family, monkeypatch):
    model = seeing(family, monkeypatch)
    target = HFTarget.from_model(model)
    monkeypatch.setattr(SlotMap, "places", lambda rows, positions: None)
    assert off(model, prompt(model, SEED), target, COMPOSED["copies"]) > 1e-3
