"""Properties of text as it is given out: its pieces make the whole, and nothing of a stop text is among them."""

import random

import pytest

from specframe_serve.reading import TextStream

BYTES = {token: bytes([token]) for token in range(256)}


def decode(tokens):
    """One byte a token: a character may take several."""
    return b"".join(BYTES[token] for token in tokens).decode("utf-8", errors="replace")


def pieces(text, stops=(), seed=0, most=5):
    """The pieces of a text that comes a few tokens at a time."""
    random.seed(seed)
    stream, tokens, found = TextStream(decode, stops), list(text.encode()), []
    while tokens:
        count = random.randint(1, most)
        found.append(stream.add(tokens[:count]))
        tokens = tokens[count:]
    return [*found, stream.finish()], stream


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("text", ["plain", "äöü, 你好, 🙂🙃!", "a\ufffdb"])
def test_pieces_make_the_whole_and_hold_no_half_characters(text, seed):
    found, stream = pieces(text, seed=seed)
    assert "".join(found) == text and not stream.stopped
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in found)


@pytest.mark.parametrize("seed", range(10))
def test_a_stop_text_ends_it_and_none_of_it_is_given_out(seed):
    for text, stops, wanted in [
        ("one. two. three", [". t"], "one"),
        ("aaab", ["aab"], "a"),
        ("abcabd", ["abd", "x"], "abc"),
        ("xyz", ["yz", "xy"], ""),
        ("no stop he", ["here"], "no stop he"),
        ("ends here", ["here"], "ends "),
    ]:
        found, stream = pieces(text, stops, seed)
        assert "".join(found) == wanted
        assert stream.stopped == (wanted != text)
        assert stream.add([65]) == stream.finish() == "" if stream.stopped else True


def test_ids_are_text_without_a_tokenizer():
    stream = TextStream(lambda tokens: " ".join(map(str, tokens)))
    assert [stream.add([1]), stream.add([2, 3]), stream.finish()] == ["1", " 2 3", ""]


def test_half_a_character_at_the_end_is_given_out_at_last():
    stream = TextStream(decode)
    assert stream.add([65, 0xC3]) == "" and stream.finish() == "A\ufffd"
