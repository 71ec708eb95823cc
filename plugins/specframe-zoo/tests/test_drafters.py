"""Every drafter of this package names the target that it was trained for."""

import json

import pytest

import specframe
import specframe_zoo
from specframe_zoo import Embedded

HUB = {"qwen2.5-coder-0.5b": "Qwen/Qwen2.5-Coder-0.5B-Instruct"}
"""Targets that are not in the zoo, by the names that drafters have for them."""
DRAFTERS = [each for each in vars(specframe_zoo).values() if isinstance(each, Embedded) and each.method]


def trained_for(drafter: Embedded) -> dict[str, str] | None:
    found: dict[str, str] | None = json.loads((drafter() / "config.json").read_text()).get("trained_for")
    return found


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda each: each.name)
def test_a_drafter_names_its_target(drafter):
    if drafter.method in ("draft-vocabulary", "fastdraft"):
        assert trained_for(drafter) is None, "a list of tokens, or a language model, fits any target of this vocabulary"
    else:
        assert trained_for(drafter)["name"] == HUB.get(drafter.target, f"zoo://{drafter.target}")


def test_the_fingerprint_is_the_targets():
    identity = specframe.compose(target="zoo://talk-7m").parts.target.identify()
    ours = [each for each in DRAFTERS if each.target == "talk-7m" and each.method != "draft-vocabulary"]
    assert ours and all(trained_for(each) == vars(identity) for each in ours)
