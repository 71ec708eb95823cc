"""Images in messages: the answers of a run, and URLs that are refused."""

import base64

import pytest
from serving import Serving, lone, make_pipeline

import specframe
from specframe_serve.errors import ApiError
from specframe_serve.messages import image_of
from tests.seeing_model import PARTS


@pytest.fixture(scope="module")
def pipeline(seeing_folder):
    return specframe.compose(
        target={"use": "hf", "model": str(seeing_folder), "dtype": "float64"},
        drafter={"use": "lookup", "ngram": 1, "length": 3},
        sampling={"max_new_tokens": 12},
        run={"chat": True},
    )


def asked(*urls, text="What is it?"):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def data_url(file):
    return "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()


def test_an_answer_after_an_image_is_that_of_a_run(pipeline, photos):
    wanted = [pipeline.generate("What is it?", images=[photo]).texts[0] for photo in photos]
    with Serving(pipeline) as serving:
        replies = [serving.chat(messages=asked(data_url(photo)), temperature=0.0).json() for photo in photos]
        text = serving.chat(messages=asked(), temperature=0.0).json()
    found = [reply["choices"][0]["message"]["content"] for reply in replies]
    assert found == wanted and found[0] != found[1], "the image makes no difference"
    assert replies[0]["usage"]["prompt_tokens"] == text["usage"]["prompt_tokens"] + PARTS
    assert text["choices"][0]["message"]["content"] == lone(pipeline, "What is it?", 1, temperature=0.0).texts[0]


def test_ollamas_images_and_the_responses_api_s_are_the_same(pipeline, photos):
    wanted = pipeline.generate("What is it?", images=[photos[0]]).texts[0]
    picture = base64.b64encode(photos[0].read_bytes()).decode()
    common = {"model": "m", "stream": False, "options": {"temperature": 0.0}}
    turn = {"role": "user", "content": "What is it?", "images": [picture]}
    parts = [
        {"type": "input_image", "image_url": data_url(photos[0]), "detail": "auto"},
        {"type": "input_text", "text": "What is it?"},
    ]
    with Serving(pipeline, name="m") as serving:
        chat = serving.post("/api/chat", json=common | {"messages": [turn]}).json()
        text = serving.post("/api/generate", json=common | {"prompt": "What is it?", "images": [picture]}).json()
        raw = serving.post("/api/generate", json=common | {"prompt": "x", "images": [picture], "raw": True})
        given = {"input": [{"role": "user", "content": parts}], "temperature": 0.0}
        reply = serving.post("/v1/responses", json=given).json()
    assert chat["message"]["content"] == text["response"] == reply["output"][0]["content"][0]["text"] == wanted
    assert raw.status_code == 400 and "a raw prompt takes none" in raw.text


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("https://example.com/a.png", "the server fetches nothing: give the image in a data URL"),
        ("/etc/passwd", "the server fetches nothing"),
        ("data:text/plain;base64,AAAA", "the server fetches nothing"),
        ("data:image/png;base64,A*A", "is not in base64"),
        ("data:image/png;base64,AAAA", "the image is no image that can be read"),
    ],
)
def test_what_is_no_data_url_of_an_image_is_refused(url, line, pipeline):
    with Serving(pipeline) as serving:
        reply = serving.chat(messages=asked(url))
    message = reply.json()["error"]["message"]
    assert (reply.status_code, line in message, "\n" in message) == (400, True, False), message


def test_a_target_that_reads_texts_refuses_images(photos):
    with Serving(make_pipeline()) as serving:
        reply = serving.chat(messages=asked(data_url(photos[0])))
    assert reply.status_code == 400 and "the target reads texts alone" in reply.json()["error"]["message"]


def test_a_data_url_is_read_as_its_bytes():
    assert image_of("data:image/svg+xml;base64,QUI=") == b"AB"
    with pytest.raises(ApiError):
        image_of("DATA:image/png;base64,QUI=")
