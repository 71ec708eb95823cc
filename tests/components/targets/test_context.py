"""The context of a target: what its rotary embedding gives, the option that raises it, and text beyond the old end."""

from __future__ import annotations

import pytest

from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import InputError
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, batch

COUNT = 50
"""Tokens of a text, which go beyond 32 positions."""
SHORT = {"max_position_embeddings": 32}


def scaled(kind, **fields):
    return SHORT | {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **fields}}


YARN = scaled("yarn", original_max_position_embeddings=32)


@pytest.fixture
def saved(build, tmp_path):
    """A function that saves a model of these changes and returns its folder."""

    def save(family="llama", **changes):
        build(family, **changes).save_pretrained(tmp_path)
        return str(tmp_path)

    return save


@pytest.mark.parametrize(
    ("changes", "context"),
    [(scaled("linear"), 128), (YARN, None), (YARN, 100), (SHORT, 100)],
    ids=["linear", "yarn", "yarn less", "unscaled"],
)
def test_text_beyond_the_configs_context_is_that_of_generate(changes, context, saved, continuation, decode):
    target = HFTarget(model=saved(**changes), dtype="float64", context=context)
    assert target.context == target.reach[0] == target.sibling().context == (context or 128)
    expected = [continuation(target.model, prompt, COUNT) for prompt in PROMPTS]
    assert [row[:COUNT] for row in decode(target, PROMPTS, expected)] == expected


def test_without_the_option_a_linear_rotary_embedding_ends_where_its_config_does(saved):
    target = HFTarget(model=saved(**scaled("linear")))
    assert target.context == 32
    with pytest.raises(InputError, match="more than the model's context of 32"):
        admitted(target, batch([[5] * 33]), 1)


def test_a_smaller_context_is_kept(saved):
    with pytest.raises(InputError, match="more than the model's context of 16"):
        admitted(HFTarget(model=saved(), context=16), batch([[5] * 17]), 1)


@pytest.mark.parametrize(
    ("changes", "wanted", "warned"),
    [(scaled("linear"), 128, False), (scaled("linear"), 129, True), (YARN, 129, True), (SHORT, 33, True)],
)
def test_more_than_the_rotary_embedding_was_made_for_is_warned_of(changes, wanted, warned, saved, caplog):
    HFTarget(model=saved(**changes), context=wanted)
    assert ("its rotary embedding was made for" in caplog.text) == warned


@pytest.mark.parametrize(
    ("family", "changes", "wanted", "sentence"),
    [
        ("llama", scaled("dynamic"), 33, "beyond 32 positions the rotary embedding of llama changes for all tokens"),
        ("gpt2", {}, 257, "gpt2 has a table of 256 positions, and no row can take 257"),
        ("llama", {}, 0, "is at least 1 position, not 0"),
    ],
)
def test_a_context_that_cannot_be_is_refused(family, changes, wanted, sentence, saved):
    with pytest.raises(InputError, match=sentence):
        HFTarget(model=saved(family, **changes), context=wanted)
