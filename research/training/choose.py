"""Choose questions by their sources: ``python choose.py --questions FILE --counts gsm8k_train=400,.. --out A B``.

``questions.py`` writes the file. So many of each source are taken, the first ones that are not longer than
``--longest`` characters, in the order of the file, and dealt out to the files in turn: one for each temperature that
they are answered at.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def chosen(lines: list[str], counts: dict[str, int], longest: int) -> list[str]:
    """Return the lines of the questions that are taken."""
    left, kept = dict(counts), []
    for line in lines:
        record = json.loads(line)
        source = record["source"]
        if left.get(source, 0) > 0 and len(record["messages"][0]["content"]) <= longest:
            left[source] -= 1
            kept.append(line)
    return kept


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--counts", required=True, help="SOURCE=NUMBER, with commas")
    parser.add_argument("--longest", type=int, default=700, help="characters of a question")
    parser.add_argument("--out", type=Path, nargs="+", required=True)
    options = parser.parse_args()
    counts = {name: int(count) for name, _, count in (part.partition("=") for part in options.counts.split(","))}
    kept = chosen(options.questions.read_text().splitlines(keepends=True), counts, options.longest)
    for number, file in enumerate(options.out):
        file.write_text("".join(kept[number :: len(options.out)]))
    print(f"{len(kept):,} questions in {len(options.out)} files")


if __name__ == "__main__":
    main()
