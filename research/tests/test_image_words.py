"""Tau after pictures, and acceptance of the words that a picture decides."""

import json

import pytest
from PIL import Image

import specframe

pytestmark = pytest.mark.slow


@pytest.fixture
def image_words(analysis):
    return analysis("image_words")


def test_words_that_the_picture_decides_are_kept_apart_from_grammar(image_words):
    words = ["On", " grey", " there", " is", " a", " small", " tri", "angle", ",", " two", "fold", " red", "."]
    assert [word for word, found in zip(words, image_words.seen(words), strict=True) if found] == [
        " grey",
        " small",
        " tri",
        " red",
    ]


def test_counts_are_those_of_the_pipeline(image_words, tmp_path):
    picture = Image.new("RGB", (64, 64), (250, 250, 250))
    picture.paste((220, 40, 40), (23, 23, 42, 42))
    picture.save(tmp_path / "0.png")
    described = [{"role": "user", "content": "Describe the picture."}, {"role": "assistant", "content": "It is."}]
    asked = [*described, {"role": "user", "content": "Which background?"}, {"role": "assistant", "content": "white"}]
    lines = [json.dumps({"messages": chat, "image": "0.png"}) for chat in (described, asked)]
    (tmp_path / "answers.jsonl").write_text("\n".join(lines))
    ((only,),) = [list(image_words.prompts(tmp_path, None, True))]
    (last,) = image_words.prompts(tmp_path, None, False)
    assert [turn["role"] for turn in last] == ["user", "assistant", "user"] and len(only) == 1
    pipeline = specframe.compose(
        target="zoo://see-8m", drafter="lookup", run={"chat": True}, sampling={"max_new_tokens": 40}
    )
    prompt = pipeline.encode_turns([*only, {"role": "assistant", "content": "a large red square"}, *only])
    found = image_words.count(pipeline, prompt)
    result = pipeline.generate([prompt])
    assert found.tokens / found.cycles == pytest.approx(result.acceptance.tau)
    assert all(0 <= had <= tried for had, tried in zip(found.had, found.tried, strict=True))
    assert found.tried[True] >= 4, "white, large, red, square and centre"
    assert sum(found.tried) < len(result.tokens[0])
    table = list(image_words.rows({"one": [found], "other": [found]}))
    assert len(table) == 4 and table[3].startswith("| other | ") and "+0.0%" in table[3]
