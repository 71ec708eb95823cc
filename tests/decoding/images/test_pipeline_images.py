"""`generate` and `stream` after images: the texts of transformers' `generate` with the same pictures."""

import pytest
import torch
from PIL import Image

import specframe
from specframe.decoding.baseline import join_inputs
from specframe.kernel.errors import InputError
from tests.seeing_model import MARK, PARTS


def theirs(pipeline, text, files):
    """The continuation by transformers: its processor, its `generate`."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(pipeline.parts.target.source.checkpoint[0])
    given = processor(text=[text], images=[[Image.open(f) for f in files]], return_tensors="pt")
    model = pipeline.parts.target.model
    with torch.inference_mode():
        out = model.generate(**given, max_new_tokens=12, do_sample=False, pad_token_id=0)
    return out[0, given["input_ids"].shape[1] :].tolist()


@pytest.fixture
def pipeline(seeing):
    return specframe.load(seeing)


def test_texts_are_those_of_generate_for_each_image(pipeline, photos):
    found = [pipeline.generate("What is it?", images=[photo]).tokens[0] for photo in photos]
    assert found == [theirs(pipeline, f"{MARK}What is it?!", [photo]) for photo in photos]
    assert found[0] != found[1], "the image makes no difference"
    both = pipeline.generate("What is it?", images=photos)
    assert both.tokens[0] == theirs(pipeline, f"{MARK}{MARK}What is it?!", photos)
    together = pipeline.generate(["What is it?", "What is it?"], images=photos)
    assert together.tokens == found


def test_streams_and_pictures_in_memory(pipeline, photos):
    whole = pipeline.generate("so", images=[photos[0]]).texts[0]
    assert "".join(pipeline.stream("so", images=[Image.open(photos[0])])) == whole
    assert pipeline.generate("so", images=[photos[0].read_bytes()]).texts[0] == whole


def test_an_image_in_a_later_turn(pipeline, photos):
    part = {"type": "image", "image": photos[0]}
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": [{"type": "text", "text": "see "}, part, {"type": "text", "text": "?"}]},
    ]
    row = pipeline.encode_turns(turns)
    mark = pipeline.tokenizer.convert_tokens_to_ids(MARK)
    text = pipeline.tokenizer("hellososee ")["input_ids"]
    assert list(row[: len(text) + PARTS]) == [*text, *[mark] * PARTS] and set(row.inputs) == {"pixel_values"}
    assert pipeline.generate([row]).tokens[0] == theirs(pipeline, f"hellososee {MARK}?!", photos[:1])


def test_a_text_places_its_own_images_without_a_template(seeing, photos):
    pipeline = specframe.load(seeing, overrides=["run.chat=false"])
    placed, before = f"one {MARK} two", f"{MARK}one  two"
    found = [pipeline.generate(text, images=photos[:1]).tokens[0] for text in (placed, "one  two")]
    assert found == [theirs(pipeline, text, photos[:1]) for text in (placed, before)] and found[0] != found[1]
    with pytest.raises(InputError, match="refuses the prompt: The total number of <image>"):
        pipeline.generate(f"one {MARK} two {MARK}", images=[photos[0]])


def test_an_image_that_cannot_be_given(pipeline, photos, recipe, tmp_path):
    with pytest.raises(InputError, match="2 images for 3 prompts: give one a prompt"):
        pipeline.generate(["a", "b", "c"], images=photos)
    with pytest.raises(InputError, match="images stand in a list"):
        pipeline.generate("a", images="photo.png")
    with pytest.raises(InputError, match="give one in place of the token ids"):
        pipeline.generate([[1, 2]], images=[photos[0]])
    torn = tmp_path / "torn.png"
    torn.write_bytes(photos[0].read_bytes()[:200])
    with pytest.raises(InputError, match=r"torn.png cannot be read as an image: "):
        pipeline.generate("a", images=[torn])
    huge = tmp_path / "huge.png"
    Image.new("1", (8000, 8000)).save(huge)
    with pytest.raises(InputError, match=r"huge\.png has 8000 x 8000 pixels; make it smaller"):
        pipeline.generate("a", images=[huge])
    memory = specframe.compose(target=pipeline.parts.target.model, tokenizer=pipeline.tokenizer)
    with pytest.raises(InputError, match="in memory has no processor for images; name the model's folder"):
        memory.generate("a", images=[photos[0]])
    with pytest.raises(InputError, match="the target reads texts alone; leave the image out"):
        specframe.load(recipe).generate("a", images=[photos[0]])


def test_prompts_that_make_no_batch_for_generate(pipeline, photos):
    seen, text = pipeline.encode("so", [photos[0]]), pipeline.encode("so")
    assert set(join_inputs([seen, seen], 16)) == {"pixel_values"} and join_inputs([text, text], 16) == {}
    for rows in ([seen, text], [text, seen]):
        with pytest.raises(InputError, match="prompts with images and without do not make a batch"):
            join_inputs(rows, 16)
    assert seen != pipeline.encode("so", [photos[1]]), "the same tokens stand for another image"


def test_a_folder_without_a_processor(seeing_folder, photos, tmp_path):
    for file in seeing_folder.iterdir():
        if file.name != "processor_config.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    pipeline = specframe.compose(target=str(tmp_path), run={"chat": False})
    with pytest.raises(InputError, match="processor") as caught:
        pipeline.generate("a", images=[photos[0]])
    assert "\n" not in str(caught.value)
