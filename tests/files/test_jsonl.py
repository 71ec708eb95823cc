import gzip

import pytest

from specframe.files.jsonl import parse_json, read_lines, read_whole
from specframe.kernel.errors import InputError


def test_lines_are_numbered_and_blank_ones_left_out(tmp_path):
    text = '\ufeff{"a": 1}\r\n\n  \n[2]\n"\x85 \u2028"'
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.jsonl", "a.jsonl.gz"):
        found = list(read_lines(tmp_path / name))
        assert found == [(1, '{"a": 1}'), (4, "[2]"), (5, '"\x85 \u2028"')]
        assert [parse_json(line, "here") for _, line in found] == [{"a": 1}, [2], "\x85 \u2028"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"{}\n\xff\n", "a.jsonl:2: cannot be read: it is not UTF-8 text"),
        ("a.jsonl.gz", b"no archive", "a.jsonl.gz: cannot be read: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b"{}\n" * 9, mtime=0)[:-5], "a.jsonl.gz: cannot be read: "),
        ("gone.jsonl", None, "gone.jsonl: cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "Expecting property name enclosed in double quotes at column 2"),
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "Exceeds the limit"),
        (b"\xff", "not valid JSON"),
        ('"\\ud800"', "it is not Unicode text"),
        ('{"\\udc00": 1}', "it is not Unicode text"),
    ],
    ids=lambda value: str(value)[:10],
)
def test_a_broken_line_is_named_with_the_remedy(line, words):
    with pytest.raises(InputError, match=rf"^a.jsonl:3: .*{words}") as refused:
        parse_json(line, "a.jsonl:3", "delete it")
    assert "Unicode" in words or str(refused.value).endswith("; delete it")
    assert parse_json('"\\ud83d\\ude00"', "here") == "😀"


def test_a_line_that_was_cut_off_is_no_line(tmp_path):
    (tmp_path / "a").write_bytes(b"1\n\n2\n3")
    assert read_whole(tmp_path / "a") == [b"1", b"", b"2"]
