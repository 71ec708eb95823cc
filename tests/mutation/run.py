"""Runs the mutants of the files that decide what is emitted, and prints those that no test notices.

    python tests/mutation/run.py                      # everything; days on a small machine
    python tests/mutation/run.py specframe/components/verifiers/recursive.py --every 5
    python tests/mutation/run.py specframe/components/verifiers/match.py --list
    python tests/mutation/run.py specframe/components/verifiers/match.py --only 8,12
    python tests/mutation/run.py --survivors          # what was found so far

It works in a copy of the repository and keeps every outcome in a file, so that it can be stopped and goes on where it
was; a file that has changed is begun anew. A mutant is killed if one of the fast tests of its file fails, and slow if
they take too much of the processor's time. What survives is to be read: it changes nothing, or a test is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.mutation.mutants import Mutant, mutants  # noqa: E402

VERIFIERS = ["tests/components/verifiers", "tests/certify/traps", "tests/certify/test_properties.py"]
FRONTIER = [
    f"tests/components/verifiers/test_{name}.py" for name in ("waves", "frontier_verifiers", "padding", "verifiers")
]
TREES = ["tests/components/trees", "tests/components/verifiers/test_without_replacement.py"]
PASSES = [
    "tests/components/drafters/test_own_layers.py",
    "tests/decoding/test_read_ahead.py",
    "tests/components/targets/forward",
    *(f"tests/components/targets/test_{name}.py" for name in ("layers", "hf_decoding", "hf_features")),
    *(f"tests/components/targets/test_{name}.py" for name in ("windows", "border")),
]
NATIVE = ["tests/native", "tests/components/targets/quantized"]
MODEL = [f"tests/components/drafters/test_{name}.py" for name in ("model_windows", "model_drafter", "exits", "pard")]
TESTS = {
    "specframe/components/verifiers/block.py": FRONTIER,
    "specframe/components/verifiers/record.py": FRONTIER,
    "specframe/components/verifiers/bound.py": ["tests/components/verifiers/test_bound.py"],
    "specframe/components/verifiers": VERIFIERS,
    "specframe/components/trees": TREES,
    "specframe/kernel": ["tests/kernel/test_ancestors.py", "tests/kernel/test_merge.py", *TREES, FRONTIER[-1]],
    "specframe/sampling/penalties.py": ["tests/sampling/test_penalties.py", "tests/decoding/test_penalties.py"],
    "specframe/sampling/grammar.py": ["tests/decoding/test_grammars.py"],
    "specframe/sampling": [
        "tests/sampling",
        *(f"tests/decoding/test_{name}.py" for name in ("gaps", "penalties", "grammars")),
    ],
    "specframe/decoding/session.py": [
        "tests/decoding/test_session.py",
        "tests/decoding/test_cancel.py",
        "tests/decoding/test_gaps.py",
        "tests/decoding/test_read_ahead.py",
    ],
    "specframe/decoding/verification.py": [
        *(f"tests/decoding/test_{name}.py" for name in ("malformed", "session", "gaps", "penalties")),
        "tests/components/verifiers/test_verifiers.py",
    ],
    "specframe/decoding/requests.py": [
        *(f"tests/decoding/test_{name}.py" for name in ("requests", "session", "gaps", "stop_texts")),
        "plugins/specframe-serve/tests/test_prefixes.py",
    ],
    "specframe/native/argmax.py": [
        "tests/native/test_likely.py",
        "tests/native/test_argmax.py",
        "tests/components/targets/forward/test_choose.py",
    ],
    **{f"specframe/native/{name}.py": ["tests/neural/test_growth.py"] for name in ("draft", "values")},
    "specframe/native": NATIVE,
    "specframe/components/targets/forward/native.py": NATIVE,
    "specframe/neural/slot_map.py": ["tests/components/drafters/test_layers.py"],
    "specframe/components/targets/probe.py": ["tests/components/targets/test_hf_refusals.py"],
    "specframe/components/drafters/own_layers.py": PASSES[:1],
    "plugins/specframe-trees/src/specframe_trees": ["plugins/specframe-trees/tests"],
    "plugins/specframe-trees/src/specframe_trees/spectr": ["plugins/specframe-trees/tests/spectr", FRONTIER[1]],
    "plugins/specframe-models/src/specframe_models/specdecpp": ["plugins/specframe-models/tests/specdecpp"],
    "plugins/specframe-self/src/specframe_self/layers": ["plugins/specframe-self/tests/layers"],
    **{f"specframe/components/drafters/model{part}.py": MODEL for part in ("", "_session", "_weights")},
    "specframe/components/targets/forward/layer_subset.py": [*MODEL, *PASSES],
    "specframe/components/targets/forward": PASSES,
    "specframe/components/targets": ["tests/components/targets", "tests/decoding/test_session.py"],
}
"""The fast tests of each file, or of all files of a folder; the first that fits."""
ALREADY_IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
COPIED = ("specframe", "tests", "plugins", "recipes", "docs", "conftest.py", "pyproject.toml")


def main() -> None:
    """Runs what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="source files (default: all that have tests named here)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th mutant only")
    parser.add_argument("--only", metavar="N,N,...", help="these mutants only, by the numbers that --list prints")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="run these tests instead of those named here")
    parser.add_argument("--seconds", type=int, default=120, help="processor time that the tests of one mutant may take")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "mutation.jsonl")
    parser.add_argument("--survivors", action="store_true", help="print what was found so far, and run nothing")
    options = parser.parse_args()
    files = options.files or [str(path.relative_to(ROOT)) for path in sorted(_sources())]
    if options.list:
        for file in files:
            for index, mutant in enumerate(mutants((ROOT / file).read_text(encoding="utf-8"))):
                print(f"{file}:{mutant.line}: {index}: {mutant.before}  ->  {mutant.after}")
        return
    if not options.survivors:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="specframe-mutation-") as folder:
            _copy(Path(folder))
            for file in files:
                _run_file(file, Path(folder), options)
    _report(options.results, files)


def _sources() -> Iterator[Path]:
    for place in TESTS:
        path = ROOT / place
        yield from (file for file in ([path] if path.is_file() else path.rglob("*.py")) if file.name != "__init__.py")


def _tests_of(file: str) -> list[str]:
    return next((tests for place, tests in TESTS.items() if file == place or file.startswith(place + "/")), [])


def _copy(folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_file():
            shutil.copy2(source, folder / name)
        else:
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.safetensors", ".mypy_cache")
            shutil.copytree(source, folder / name, ignore=ignored)


def _run_file(file: str, folder: Path, options: argparse.Namespace) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    version = sha256(source.encode()).hexdigest()[:12]
    known = {entry["index"] for entry in _read(options.results) if (entry["file"], entry["version"]) == (file, version)}
    chosen = {int(number) for number in options.only.split(",")} if options.only else None
    todo = [
        (index, mutant)
        for index, mutant in enumerate(mutants(source))
        if index not in known and index % options.every == 0 and (chosen is None or index in chosen)
    ]
    tests = options.tests or _tests_of(file)
    if not tests:
        sys.exit(f"no tests are named for {file}")
    if todo and _outcome(folder, tests, 10 * options.seconds, shown=True) != "survived":
        sys.exit(f"the tests of {file} fail without a mutant")
    for index, mutant in todo:
        (folder / file).write_text(mutant.source, encoding="utf-8")
        start = time.monotonic()
        outcome = _outcome(folder, tests, options.seconds)
        (folder / file).write_text(source, encoding="utf-8")
        entry = {"file": file, "version": version, "index": index, "outcome": outcome, **_described(mutant)}
        with options.results.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry | {"seconds": round(time.monotonic() - start, 1)}) + "\n")
        if outcome == "survived":
            print(f"{file}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)


def _described(mutant: Mutant) -> dict[str, str | int]:
    return {"line": mutant.line, "before": mutant.before, "after": mutant.after}


def _outcome(folder: Path, tests: list[str], seconds: int, shown: bool = False) -> str:
    """`killed`, `slow` or `survived`: the tests run in a fork, in which all but the project is imported already."""
    import hypothesis  # noqa: F401
    import pytest
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        if not shown:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("specframe", "tests")]:
            del sys.modules[name]
        os.chdir(folder)
        places = [str(folder), *map(str, folder.glob("plugins/*/src"))]
        sys.path[:] = [*places, *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
        os.environ |= {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
        sys.dont_write_bytecode = True
        os._exit(int(pytest.main(["--all", "-x", "-q", "-n", "0", "-W", ALREADY_IMPORTED, *tests])))
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "slow"
    return "survived" if status == 0 else "killed"


def _read(results: Path) -> list[dict[str, str | int]]:
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def _report(results: Path, files: list[str]) -> None:
    versions = {file: sha256((ROOT / file).read_bytes()).hexdigest()[:12] for file in files}
    found = [entry for entry in _read(results) if versions.get(str(entry["file"])) == entry["version"]]
    for entry in found:
        if entry["outcome"] == "survived":
            print(f"{entry['file']}:{entry['line']}: {entry['before']}  ->  {entry['after']}")
    survived = sum(entry["outcome"] == "survived" for entry in found)
    print(f"{len(found)} mutants run, {survived} survived")


if __name__ == "__main__":
    main()
