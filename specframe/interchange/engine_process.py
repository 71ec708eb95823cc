"""Runs an engine in the Python that has it: `python engine_process.py MODULE OUT`, a task as JSON on its input.

The module's `run(task)` gives the answer, which is written to OUT as JSON. Nothing of specframe is imported.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path


def main(module: str, out: str) -> None:
    """Writes what `run` returned, or its error's last line as `refused`. Raises ImportError without the engine."""
    try:
        answer = runpy.run_path(module)["run"](json.load(sys.stdin))
    except ImportError:
        raise
    except Exception as error:  # an engine may raise anything
        answer = {"refused": (str(error).strip() or type(error).__name__).splitlines()[-1].strip()}
    Path(out).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
