"""labels.jsonl: the labels found so far, one line per problem, so that an interrupted mining can continue."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specframe import InputError
from specframe_judge.mining import Label, Refused

Mined = dict[int, list[Label] | None]
"""Labels by problem; None if the target's own answer is wrong."""
FILE = "labels.jsonl"


class LabelFile:
    """The labels of one mining, in a folder.

    Problems are identified by a key computed from their content, so prompts may be added, removed or reordered.
    """

    def __init__(self, folder: Path, terms: Mapping[str, Any], keys: Sequence[str]) -> None:
        """Opens the file in that folder, or creates it.

        `terms` is everything that determines the labels except the problems, whose keys are given in order. Labels of
        other problems are kept in the file. Raises InputError for a file with other terms, and for a folder that cannot
        be written.
        """
        self._path, self._keys = folder / FILE, keys
        self.mined: Mined = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            whole, _, cut = text.rpartition("\n")
            if cut:  # mining was interrupted while writing a line
                self._path.write_text(whole and whole + "\n", encoding="utf-8")
            if not (lines := whole.splitlines()) or not self._read(lines, terms):
                self._path.write_text(json.dumps(dict(terms)) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{self._path} cannot be used: {error.strerror or error}; give another --out") from error

    def add(self, number: int, labels: list[Label] | None) -> None:
        """Stores a problem's labels."""
        self.mined[number] = labels
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"problem": self._keys[number], "labels": labels and [*map(_plain, labels)]}) + "\n")

    def _read(self, lines: Sequence[str], terms: Mapping[str, Any]) -> bool:
        """Reads the mined labels; returns False if there are none, whatever the terms."""
        try:
            first, *entries = [json.loads(line) for line in lines]
            known = {entry["problem"]: entry["labels"] for entry in entries}
            self.mined = {
                number: None if (labels := known[key]) is None else [_label(label) for label in labels]
                for number, key in enumerate(self._keys)
                if key in known
            }
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._path} is no file of labels: {error!r}; remove it, or give another --out"
            ) from error
        if known and first != json.loads(json.dumps(dict(terms))):
            differing = sorted(name for name in {*first, *terms} if first.get(name) != terms.get(name))
            raise InputError(
                f"{self._path} has labels of another mining (other: {', '.join(differing)}); give another --out"
            )
        return bool(known)


def _plain(label: Label) -> dict[str, Any]:
    feature = label.refusal.feature.half().numpy().tobytes()
    return {
        "place": label.refusal.place,
        "token": label.refusal.token,
        "wanted": label.refusal.wanted,
        "surprise": round(label.refusal.surprise, 4),
        "feature": base64.b64encode(feature).decode(),
        "harmless": label.harmless,
    }


def _label(plain: Mapping[str, Any]) -> Label:
    stored = np.frombuffer(base64.b64decode(plain["feature"]), dtype=np.float16).copy()
    feature = torch.from_numpy(stored).float()
    refusal = Refused(plain["place"], plain["token"], plain["wanted"], plain["surprise"], feature)
    return Label(refusal, bool(plain["harmless"]))
