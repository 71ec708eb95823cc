"""Rounds over Ray: the loop with a cluster that is only finished, then with a real one.

Sockets are blocked in this process, which Ray cannot do without; so the command runs in another.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from specframe.bench.contest.contestants import Selection
from specframe.bench.contest.datasets import read_questions
from specframe.bench.contest.ray import TRIES, Ray, Worker, read_versions
from specframe.bench.contest.settings import ContestSettings, Round
from specframe.cli.main import main
from specframe.kernel.errors import SpecframeError
from tests.bench.test_bench_contest import hold

REPOSITORY = Path(__file__).parents[2]
real = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: specframe[ray]")
TIMES = {"began", "seconds", "peak_memory_bytes", "phases", "overhead"}


def figures(results):
    """All that does not hang on a clock."""
    return [
        {key: value for key, value in run.items() if key not in TIMES and not key.endswith("_seconds")}
        for run in results["runs"]
    ]


class Cluster:
    """As much of Ray as the engine uses; `fates` are what becomes of the results that are asked for."""

    class Death(Exception):
        pass

    class Full(Exception):
        """Stands for the error after Ray's memory monitor has killed a worker, which is no RayActorError."""

    class Failure(Exception):
        cause = ValueError("out of\nspace")

    def __init__(self, *fates, cores=3.0):
        kinds = {"RayActorError": self.Death, "OutOfMemoryError": self.Full, "RayTaskError": self.Failure}
        self.exceptions = SimpleNamespace(**kinds)
        self.fates, self.cores = list(fates), cores
        self.hired = self.running = 0
        self.calls = []

    def init(self, **settings):
        self.running += 1

    def shutdown(self):
        self.running -= 1

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": self.cores}}, {"Alive": False, "Resources": {"CPU": 64.0}}]

    def remote(self, cls):
        def hire(*arguments, **keywords):
            self.hired += 1
            return SimpleNamespace(run=SimpleNamespace(remote=self.call))

        return SimpleNamespace(options=lambda **resources: SimpleNamespace(remote=hire))

    def call(self, this, errors):
        self.calls.append((this.index, errors))
        return len(self.calls) - 1

    def wait(self, calls, num_returns):
        return [calls[-1]], calls[:-1]  # the latest first: no order is guaranteed

    def get(self, call):
        fate = self.fates.pop(0) if self.fates else None
        if fate is not None:
            raise fate
        return {"round": self.calls[call][0]}, [f"step of {self.calls[call][0]}"]


def results(monkeypatch, cluster, errors=None):
    monkeypatch.setitem(sys.modules, "ray", cluster)
    steps = []
    rounds = [Round(index, 0, (), 1) for index in range(5)]
    cluster = Ray(Selection(("a.yaml",)), ContestSettings())
    finished = cluster.run(rounds, {} if errors is None else errors, steps.append)
    return finished, steps


def test_every_round_runs_once(monkeypatch):
    cluster = Cluster()
    finished, steps = results(monkeypatch, cluster)
    assert sorted(entry["round"] for entry in finished) == [0, 1, 2, 3, 4]
    assert sorted(steps) == [f"step of {index}" for index in range(5)]
    assert (cluster.hired, cluster.running) == (3, 0)


def test_a_dead_workers_round_runs_on_another(monkeypatch):
    cluster = Cluster(None, Cluster.Death(), Cluster.Death(), None)
    finished, _ = results(monkeypatch, cluster)
    assert sorted(entry["round"] for entry in finished) == [0, 1, 2, 3, 4]
    assert cluster.hired == 3 + 2


def test_a_round_that_kills_every_worker_ends_the_bench(monkeypatch):
    cluster = Cluster(*(Cluster.Death() for _ in range(TRIES)), cores=1.0)
    finished, _ = results(monkeypatch, cluster)
    with pytest.raises(SpecframeError, match=f"killed {TRIES} workers; the rounds before are kept"):
        list(finished)
    assert cluster.running == 0


def test_a_full_memory_is_a_death_whose_last_line_names_the_variables(monkeypatch):
    finished, _ = results(monkeypatch, Cluster(None, Cluster.Full(), None))
    assert len(list(finished)) == 5
    finished, _ = results(monkeypatch, Cluster(*(Cluster.Full("node is\nfull") for _ in range(TRIES)), cores=1.0))
    with pytest.raises(SpecframeError, match=r"Ray's memory monitor .* RAY_memory_usage_threshold") as caught:
        list(finished)
    assert "RAY_memory_monitor_refresh_ms=0" in str(caught.value) and "\n" not in str(caught.value)


@real
def test_ray_has_the_exceptions_of_the_engine():
    from ray import exceptions

    assert not issubclass(exceptions.OutOfMemoryError, exceptions.RayActorError | exceptions.RayTaskError)


def test_what_a_worker_raises_is_one_line(monkeypatch):
    finished, _ = results(monkeypatch, Cluster(None, Cluster.Failure()))
    with pytest.raises(SpecframeError, match=r"a worker failed: ValueError: out of space$"):
        list(finished)


def test_closing_ends_the_cluster_and_errors_reach_the_rounds_after(monkeypatch):
    cluster, errors = Cluster(cores=1.0), {}
    finished, _ = results(monkeypatch, cluster, errors)
    next(finished)
    errors["deviant"] = "fell"
    next(finished)
    assert [given for _, given in cluster.calls] == [{}, {"deviant": "fell"}]
    finished.close()
    assert cluster.running == 0


@pytest.fixture
def worker(here):
    def make(**changes):
        selection = Selection(("falcon.yaml", "hf:generate"), ("sampling.temperature=0.8",))
        given = {"folder": here, "threads": 1, "versions": read_versions()} | changes
        return Worker(selection, ContestSettings(repeats=1), **given)

    return make


def test_a_worker_runs_rounds_as_this_process_does(here, worker, monkeypatch):
    results, contest = hold(here, "falcon.yaml", "hf:generate", overrides=["sampling.temperature=0.8"])
    monkeypatch.chdir("/")
    one = worker()
    entries = [one.run(this, {})[0] for this in reversed(contest.rounds)]
    runs = [run for entry in reversed(entries) for run in entry["runs"]]
    assert figures({"runs": runs}) == figures(results)
    assert entries[0]["weights"]["falcon"]["drafter"] > 0
    assert entries[0]["worker"]["engine"] == "ray"


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"versions": {"torch": "1.0"}}, "make them equal"), ({"folder": Path("/no/where")}, "share it")],
)
def test_a_worker_with_other_versions_or_folders_is_an_error(here, worker, changes, words):
    this = Round(0, 0, tuple(read_questions(["talks.jsonl"])[:1]), 1)
    with pytest.raises(SpecframeError, match=words):
        worker(**changes).run(this, {})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--engine", "ray"], 'pip install "specframe[ray]"'), (["--address", "auto"], "add --engine ray")],
)
def test_without_ray_one_line_explains_what_to_do(here, capsys, monkeypatch, arguments, words):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["bench", "lookup.yaml", "--data", "talks.jsonl", *arguments]) == 2
    output = capsys.readouterr().err.strip()
    assert words in output and len(output.splitlines()) == 1


FATAL = '''
import os
from pathlib import Path

from specframe.components.drafters.lookup import Lookup

DEATHS = Path(__file__).with_name("deaths")


class Fatal(Lookup):
    """Takes its whole process away in the middle of a round, once."""

    count = 0

    def propose(self, *given):
        Fatal.count += 1
        if Fatal.count == 20:
            try:
                os.close(os.open(DEATHS, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os._exit(1)
        return super().propose(*given)
'''
ARGUMENTS = [
    *("fatal.yaml", "falcon.yaml", "hf:generate", "--data", "talks.jsonl", "--turns", "2", "--repeats", "2"),
    *("--max-new-tokens", "12", "sampling.temperature=0.8", "--json"),
]


@real
@pytest.mark.slow
def test_ray_outlives_a_death_and_an_interrupt_and_finds_the_same(here, capsys, monkeypatch):
    (here / "fatal.py").write_text(FATAL)
    text = (here / "lookup.yaml").read_text()
    (here / "fatal.yaml").write_text(text.replace("use: lookup", "use: './fatal.py:Fatal'"))
    journal = here / "out" / "runs.jsonl"
    running = subprocess.Popen(
        [sys.executable, "-m", "specframe", "bench", *ARGUMENTS, "--engine", "ray", "--out", "out"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while running.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 4):
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole process group
    _, output = running.communicate()
    assert running.returncode == 130, output.decode()
    kept = int(re.search(rb"out keeps (\d) of 8 rounds", output)[1])
    assert kept >= 4 and journal.read_bytes().count(b"\n") == 1 + kept
    assert (here / "deaths").exists()
    monkeypatch.setattr("specframe_report.page._draw", lambda summary, folder: [])
    assert main(["bench", *ARGUMENTS, "--out", "alone"]) == 0
    assert main(["bench", *ARGUMENTS, "--out", "out"]) == 0  # the other engine goes on
    assert f"resuming after {kept} of 8 rounds" in capsys.readouterr().err
    alone, both = (json.loads((here / out / "results.json").read_text()) for out in ("alone", "out"))
    assert figures(both) == figures(alone)
    assert {worker["engine"]: worker["rounds"] for worker in both["workers"]} == {"ray": kept, "inprocess": 8 - kept}
