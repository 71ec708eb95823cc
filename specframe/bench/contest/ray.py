"""Runs rounds on the workers of a Ray cluster."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from specframe.bench.contest.contest import describe_worker
from specframe.bench.contest.contestants import Selection, plan_contestants
from specframe.bench.contest.runner import Errors, RoundResult, Runner, Step
from specframe.bench.contest.settings import ContestSettings, Round
from specframe.bench.contest.timing import settled_objects
from specframe.kernel.errors import SpecframeError, needs_extra
from specframe.recipes.discovery import discover
from specframe.recipes.registry import one_line

TRIES = 3
"""Number of workers that may die in a round before the bench gives up."""
PACKAGES = ("specframe", "torch", "transformers")
IN_PROCESS = "--engine inprocess shows which contestant dies"
MEMORY = (
    "Ray's memory monitor ended them, since the node's memory was fuller than RAY_memory_usage_threshold (0.95): start "
    "Ray with a higher one, with RAY_memory_monitor_refresh_ms=0 to turn the monitor off, or for fewer workers"
)
"""Advice after a death."""


class Worker:
    """An actor in a process of the cluster, with its own runner, which is loaded for its first round."""

    def __init__(
        self, selection: Selection, settings: ContestSettings, *, folder: Path, threads: int, versions: dict[str, str]
    ) -> None:
        self._selection, self._settings = selection, settings
        self._folder, self._threads, self._versions = folder, threads, versions
        self._runner: Runner | None = None

    def run(self, this: Round, errors: Errors) -> tuple[RoundResult, list[Step]]:
        """Runs the round and returns its result and its steps; before the first, all contestants warm up."""
        steps: list[Step] = []
        runner = self._runner or self._load(this, errors)
        with settled_objects():
            finished = runner.run(this, errors, steps.append)
        return finished | {"worker": describe_worker("ray")}, steps

    def _load(self, first: Round, errors: Errors) -> Runner:
        if (versions := read_versions()) != self._versions:
            raise SpecframeError(f"the cluster has {versions}, and this process {self._versions}; make them equal")
        try:
            os.chdir(self._folder)  # recipes are named as they are from there
        except OSError as error:
            raise SpecframeError(f"{self._folder} is not there on every node; share it: {error.strerror}") from error
        torch.set_num_threads(self._threads)
        planned = plan_contestants(self._selection, discover())
        planned.load(self._settings.batch)
        self._runner = Runner(planned, self._settings)
        self._runner.warm_up(first.questions, errors)
        return self._runner


class Ray:
    """Runs rounds on as many workers as a Ray cluster has room for.

    A worker reserves one processor per thread of this process, and an accelerator if the cluster has any.
    If a worker dies, another one repeats its round. Without an address, the cluster is this machine.
    Raises InputError if Ray is not installed.
    """

    def __init__(self, selection: Selection, settings: ContestSettings, address: str | None = None) -> None:
        with needs_extra("ray", "--engine ray"):
            import ray
        self._ray: Any = ray
        self._selection, self._settings, self._address = selection, settings, address

    def run(
        self, rounds: Sequence[Round], errors: Errors, listener: Callable[[Step], None]
    ) -> Generator[RoundResult, None, None]:
        """Yields each round's result as it finishes. Raises SpecframeError for a round that kills every worker."""
        failures = self._ray.exceptions
        waiting, deaths = deque(rounds), Counter[int]()
        busy: dict[Any, tuple[Any, Round]] = {}
        with self._cluster():
            room, resources = self._find_room()
            idle = [self._hire(resources) for _ in range(min(room, len(rounds)))]
            while waiting or busy:
                while waiting and idle:
                    worker, this = idle.pop(), waiting.popleft()
                    busy[worker.run.remote(this, dict(errors))] = worker, this
                (done,), _ = self._ray.wait(list(busy), num_returns=1)
                worker, this = busy.pop(done)
                try:
                    finished, steps = self._ray.get(done)
                except (failures.RayActorError, failures.OutOfMemoryError) as death:
                    deaths[this.index] += 1
                    if deaths[this.index] == TRIES:
                        advice = MEMORY if isinstance(death, failures.OutOfMemoryError) else IN_PROCESS
                        raise SpecframeError(_describe_death(this, advice, death)) from death
                    waiting.appendleft(this)
                    idle.append(self._hire(resources))
                    continue
                except failures.RayTaskError as error:
                    raise SpecframeError(f"a worker failed: {one_line(error.cause)}") from error
                idle.append(worker)
                for step in steps:
                    listener(step)
                yield finished

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        """A connection to the cluster; workers end with it."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray.init(
                address=self._address or "local",
                include_dashboard=None if self._address else False,
                log_to_driver=False,
                logging_level="error",
            )
        except Exception as error:  # ConnectionError, RuntimeError, ValueError: whatever keeps it from answering
            raise SpecframeError(f"the Ray cluster cannot be reached: {one_line(error)}") from error
        try:
            yield
        finally:
            self._ray.shutdown()

    def _find_room(self) -> tuple[int, dict[str, float]]:
        """Returns the number of workers that the cluster has room for, and the resources that Ray reserves for each."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        largest = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
        wanted = {"CPU": min(float(torch.get_num_threads()), largest)}
        if any(node.get("GPU") for node in nodes):
            wanted["GPU"] = 1.0
        shares = [min((node.get(kind, 0.0) // n for kind, n in wanted.items() if n), default=0.0) for node in nodes]
        return max(int(sum(shares)), 1), {"num_cpus": wanted["CPU"], "num_gpus": wanted.get("GPU", 0.0)}

    def _hire(self, resources: dict[str, float]) -> Any:
        """A worker, in a process of its own."""
        return (
            self._ray.remote(Worker)
            .options(**resources)
            .remote(
                self._selection,
                self._settings,
                folder=Path.cwd(),
                threads=torch.get_num_threads(),
                versions=read_versions(),
            )
        )


def read_versions() -> dict[str, str]:
    """The versions of the decoding packages: equal wherever one bench runs."""
    return {name: version(name) for name in PACKAGES}


def _describe_death(this: Round, advice: str, death: BaseException) -> str:
    repeat, prompts = this.key
    return (
        f"the round of {', '.join(prompts)} (repeat {repeat}) killed {TRIES} workers; the rounds before are kept. "
        f"{advice}: {one_line(death)}"
    )
