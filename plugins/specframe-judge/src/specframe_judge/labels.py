"""labels.jsonl: the labels that a mining has found so far, a line a problem, so that it can go on."""

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
"""Labels by problem; None where the target's own answer is wrong."""
FILE = "labels.jsonl"


class LabelFile:
    """The labels of one mining, in a folder."""

    def __init__(self, folder: Path, terms: Mapping[str, Any]) -> None:
        """The file of that folder, begun if there is none; `terms` is all that the labels depend on.

        Raises InputError for one of other terms, and for a folder that cannot be written.
        """
        self._path = folder / FILE
        self.mined: Mined = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            whole, _, cut = text.rpartition("\n")
            if cut:  # the mining was stopped while it wrote a line
                self._path.write_text(whole and whole + "\n", encoding="utf-8")
            if not (lines := whole.splitlines()):
                self._path.write_text(json.dumps(dict(terms)) + "\n", encoding="utf-8")
                return
            self._read(lines, terms)
        except OSError as error:
            raise InputError(f"{self._path} cannot be used: {error.strerror or error}; give another --out") from error

    def add(self, number: int, labels: list[Label] | None) -> None:
        """Notes a problem's labels."""
        self.mined[number] = labels
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"problem": number, "labels": labels and [_plain(label) for label in labels]}) + "\n")

    def _read(self, lines: Sequence[str], terms: Mapping[str, Any]) -> None:
        try:
            first, *entries = [json.loads(line) for line in lines]
            mined = {entry["problem"]: entry["labels"] for entry in entries}
            self.mined = {
                number: None if labels is None else [_label(label) for label in labels]
                for number, labels in mined.items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._path} is no file of labels: {error!r}; remove it, or give another --out"
            ) from error
        if first != json.loads(json.dumps(dict(terms))):
            differing = sorted(name for name in {*first, *terms} if first.get(name) != terms.get(name))
            raise InputError(
                f"{self._path} has labels of another mining ({', '.join(differing)} differ); give another --out"
            )


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
