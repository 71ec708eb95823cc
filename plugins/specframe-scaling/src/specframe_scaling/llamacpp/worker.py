"""llama.cpp in a separate process: `python -m specframe_scaling.llamacpp.worker`, with JSON lines both ways.

torch and llama.cpp share one OpenMP library. Once torch has computed in a process, that library counts more threads
than cores and lets all of them sleep at every barrier, so llama.cpp would decode at a third of its speed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def serve() -> None:
    """Loads the model in the first line, and answers each further line by its pieces and a null."""
    os.environ.pop("GOMP_SPINCOUNT", None)  # set for torch's threads; llama.cpp's threads wait in their own way
    import xllamacpp  # type: ignore[import-untyped]

    given = json.loads(sys.stdin.readline())
    options = xllamacpp.CommonParams()
    options.model.path = given["file"]
    options.n_ctx = given["context"]
    options.n_parallel = 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = given["threads"]
    options.speculative.types = [
        getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{given['speculation']}")
    ]
    options.ui = False
    options.verbosity = 0
    server = xllamacpp.Server(options)
    _write("ready")
    for line in sys.stdin:
        server.handle_completions(json.loads(line), _write)
        _write(None)


def _write(piece: Any) -> None:
    sys.stdout.write(json.dumps(piece) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
