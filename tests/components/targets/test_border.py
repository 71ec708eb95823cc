"""Drafts that end before, exactly at and beyond the last position of the context, where positions are a table."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specframe.components.targets.hf import HFTarget
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.plugin import Draw
from specframe.testing import GivenDrafter

CONTEXT, VOCAB = 10, 7


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(4)
    config = AutoConfig.for_model(
        "gpt2", vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_positions=CONTEXT, initializer_range=0.6
    )
    config.bos_token_id = config.eos_token_id = None
    return AutoModelForCausalLM.from_config(config).double().eval()


@pytest.mark.parametrize("depth", [1, 3])
def test_every_row_is_decoded_to_the_end_of_the_context(model, depth):
    target = HFTarget.from_model(model)
    drafter = GivenDrafter(torch.eye(VOCAB, dtype=torch.float64).roll(1, 0))
    parts = Parts(target, drafter, Chain(depth=depth, draw=Draw.TOP), Match())
    for length in (1, CONTEXT - depth - 1, CONTEXT - 1):
        prompts = [[(row + token) % VOCAB for token in range(length)] for row in range(3)]
        requests = [Request(tokens=prompt, max_new_tokens=99) for prompt in prompts]
        entries = Session(parts, 3, CONTEXT + parts.nodes).run(requests)
        for prompt, entry in zip(prompts, entries, strict=True):
            text = list(prompt)
            while len(text) < CONTEXT:
                text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
            assert entry.text == text and entry.ended == "length"
