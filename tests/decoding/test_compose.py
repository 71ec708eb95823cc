"""Arguments that `compose`, `load` and `decoder` take, and the sentences that refuse anything else."""

import re
from pathlib import Path

import pytest
import torch

import specframe
from specframe.components.drafters.lookup import Lookup
from specframe.components.targets.tiny import tiny_llama
from specframe.kernel.errors import RecipeError
from specframe.testing import tiny_target


def test_a_path_is_a_models_folder(tmp_path):
    model = tiny_llama(12, 0)
    model.save_pretrained(tmp_path)
    of_path = specframe.compose(target=Path(tmp_path), sampling={"max_new_tokens": 6})
    of_text = specframe.compose(target=str(tmp_path), sampling={"max_new_tokens": 6})
    wanted = model.float().generate(torch.tensor([[1, 2, 3]]), max_new_tokens=6, do_sample=False)[0, 3:].tolist()
    assert of_path.generate([1, 2, 3]).tokens == of_text.generate([1, 2, 3]).tokens == [wanted]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: specframe.decoder(specframe.compose(target=tiny_target(vocab=8))), "got a Pipeline; for parts"),
        (lambda: specframe.decoder({"drafter": "lookup"}), "got a dict; for parts"),
        (lambda: specframe.load({"drafter": "lookup"}), "got a dict; for parts"),
        (
            lambda: specframe.load("lookup", overrides={"sampling.top_k": 1}),
            'such as ["sampling.temperature=1"], got a dict',
        ),
        (lambda: specframe.load("lookup", overrides="sampling.top_k=1"), "got a str"),
        (lambda: specframe.decoder("lookup", overrides=[3]), "got a list"),
        (
            lambda: specframe.compose(target=tiny_target(vocab=8), drafter=Lookup),
            "drafter is the class Lookup; give an",
        ),
        (lambda: specframe.compose(target=3), "target is of the type int; give an object with the method 'score'"),
        (lambda: specframe.compose(target=tiny_target(vocab=8), drafter=Path("x")), "with the method 'propose'"),
    ],
)
def test_anything_else_is_refused_by_a_sentence(call, words):
    with pytest.raises(RecipeError, match=re.escape(words)):
        call()
