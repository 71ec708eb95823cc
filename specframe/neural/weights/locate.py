"""Where a model or checkpoint lives: `zoo://NAME`, a folder or GGUF file, or a name on the Hugging Face Hub."""

from __future__ import annotations

from os.path import expanduser
from pathlib import Path

from specframe.kernel.zoo import model_folder

GGUF = ".gguf"


def find_place(name: str | Path) -> Path | str | None:
    """The folder or GGUF file behind a name, the Hub name that it must be otherwise, or None where it can be neither.

    A model of the zoo is fetched if need be. Raises PluginError for a zoo name that no plugin has, FetchError for a
    model that cannot be fetched.
    """
    text = str(name)
    if text.startswith("zoo:/"):  # Path() swallows one of the two slashes
        return model_folder(text.removeprefix("zoo:").strip("/"))
    path = Path(expanduser(text))
    if text and (path.is_dir() or (path.suffix == GGUF and path.is_file())):
        return path
    is_path = isinstance(name, Path) or text.startswith((".", "/", "~")) or path.suffix == GGUF or path.is_file()
    if is_path or not text or "\\" in text or text.count("/") > 1:
        return None
    return text
