import errno
from pathlib import Path

import pytest

from specframe.files.provenance import write_json, write_text
from specframe.kernel.errors import SpecframeError


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "run.json"
    write_json(path, {"a": 1})
    before = path.read_text()
    write = Path.write_text

    def full(where, text, **options):
        write(where, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    for change in (lambda: write_json(path, {"a": 2}), lambda: write_text(path, "two")):
        with pytest.raises(SpecframeError, match=r"run.json cannot be written: No space left on device"):
            change()
    assert path.read_text() == before and [p.name for p in path.parent.iterdir()] == ["run.json"]
