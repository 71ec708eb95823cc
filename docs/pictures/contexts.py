"""Draws the time of a token by the tokens of the prompt: ``python docs/pictures/contexts.py RESULTS...``.

RESULTS are files that research/analysis/long/selections.py wrote. It writes contexts-bf16.svg and contexts-int4.svg
next to itself.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scaling import Series, render

SHOWN = {
    "bf16": {
        "plain": "plain",
        "window 512": "window",
        "verified 512": "verified",
        "window 512, 4 bits": "window, 4 bits",
        "triforce, model": "TriForce",
    },
    "int4": {
        "plain": "plain",
        "window 512": "window",
        "chunks 512": "chunks",
        "verified 512": "verified",
        "triforce, model": "TriForce",
    },
}
"""The ways that are drawn for each target, and their names."""
TITLES = {"bf16": "bfloat16", "int4": "4 bits"}


def times(records: Sequence[dict[str, Any]], dtype: str) -> dict[str, dict[int, float]]:
    """Milliseconds a token by way and length: the median over prompts of each one's shortest repeat."""
    best: dict[tuple[str, int, str], float] = {}
    for one in records:
        if one["dtype"] == dtype and one["way"] in SHOWN[dtype]:
            key = one["way"], int(one["file"].partition("-")[2]), one["source"]
            best[key] = min(best.get(key, float("inf")), 1e3 * one["seconds"] / one["tokens"])
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (way, length, _), ms in best.items():
        found[way][length].append(ms)
    return {way: {length: median(all_of) for length, all_of in sorted(by.items())} for way, by in found.items()}


def picture(records: Sequence[dict[str, Any]], dtype: str) -> str:
    """The picture of a target as SVG."""
    measured = times(records, dtype)
    series = []
    for way, name in SHOWN[dtype].items():
        at = measured[way]
        places, values = np.array(list(at), dtype=float), np.array(list(at.values()))
        series.append(Series(name, list(places), list(values), [(places, values)]))
    lengths = sorted({length for by in measured.values() for length in by})
    title = f"Milliseconds a token by prompt length, {TITLES[dtype]}"
    note = "SmolLM2-135M-Instruct, one thread, processor time under load; medians over prompts"
    return render(title, note, [(length, f"{length:,}") for length in lengths], series, "ms")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    files = parser.parse_args().results
    records = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    for dtype in SHOWN:
        place = Path(__file__).parent / f"contexts-{dtype}.svg"
        place.write_text(picture(records, dtype), encoding="utf-8")
        print(place)


if __name__ == "__main__":
    main()
