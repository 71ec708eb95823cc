"""Runs an engine in its own Python: `python engine_process.py MODULE OUT`, with a task as JSON on standard input.

The module's `run(task)` returns the answer, which is written to OUT as JSON. Nothing of specframe is imported.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

FOOTER = "For further information visit"
"""Beginning of the last line of a pydantic error, which has no reason."""


def main(module: str, out: str) -> None:
    """Writes what `run` returned, or its error's last line as `refused`. Raises ImportError without the engine."""
    try:
        answer = runpy.run_path(module)["run"](json.load(sys.stdin))
    except ImportError:
        raise
    except Exception as error:  # an engine may raise any error
        lines = [line.strip() for line in str(error).splitlines() if not line.strip().startswith(FOOTER)]
        reason = [type(error).__name__, *filter(None, lines)][-1]
        answer = {"refused": reason.removeprefix("Value error, ").partition(" [type=")[0]}  # pydantic's frame
    Path(out).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
