import pytest

from specframe.files.text import has_secrets, printable, printable_data, redact, require_unicode
from specframe.kernel.errors import InputError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünï ⇥ 漢字 👩‍🔬 \t\n", "plain, ünï ⇥ 漢字 👩‍🔬 \t\n"),
        ("\x1b[2J\x1b]52;c;aGk=\x07", "\\x1b[2J\\x1b]52;c;aGk=\\x07"),
        ("a\r\nb\rc\x08\x7f\x9b", "a\nb\\x0dc\\x08\\x7f\\x9b"),
        ("\u202eevil\u2066 \u2028", "\\u202eevil\\u2066 \\u2028"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_become_visible(text, shown):
    assert printable(text) == shown
    assert printable_data({text: [text, 3, None, (text,)]}) == {shown: [shown, 3, None, [shown]]}
    printable(text).encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--endpoint=https://me:pw@host:80/v1", "--endpoint=https://***@host:80/v1"),
        ("see http://host/a?key=pw#pw and ftp://pw@b/", "see http://host/a?***#*** and ftp://***@b/"),
        ("http://[pw", "***"),
        ("http://host:8000/v1 a@b.c x?y=z", "http://host:8000/v1 a@b.c x?y=z"),
        ("https://a@b:pw@host/", "https://***@host/"),
    ],
)
def test_users_and_keys_in_addresses_are_hidden(text, shown):
    assert redact(text) == shown and "pw" not in redact(text)


def test_an_address_with_secrets_is_known():
    assert has_secrets("http://me@host") and has_secrets("http://host/?a") and not has_secrets("http://host:8/v1")


def test_half_a_character_is_no_text():
    require_unicode("👩‍🔬", "here")
    with pytest.raises(InputError, match=r"^here: it is not Unicode text \(character 2 is half of one\)$"):
        require_unicode("a\ud83d", "here")
