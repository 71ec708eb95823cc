"""The state of a training run on disk, in one atomically written file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specframe.kernel.errors import WeightsError
from specframe.neural.weights.checkpoint import reason, replacing

FILE = "state.safetensors"
SHOWN = 50
"""Number of characters of a setting's value shown in messages."""


@dataclass
class RunState:
    """State of a run apart from its tensors."""

    identity: dict[str, Any]
    """Values that must be equal for a run to be resumed: settings, losses, data."""
    step: int = 0
    """Steps done."""
    history: list[dict[str, float]] = field(default_factory=list)
    """Every validation's figures, with its step."""
    losses: list[dict[str, float]] = field(default_factory=list)
    """Every report's losses, with its step."""
    best: float | None = None
    """The best validation's score."""
    window: list[float] = field(default_factory=list)
    """The sums of the losses since the last report."""
    window_steps: int = 0
    """Number of steps in these sums."""
    seconds: float = 0.0
    """Training time in seconds, over all resumptions."""
    tokens: int = 0
    """Number of tokens trained on, over all processes and epochs."""


def save(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, run_state: RunState) -> None:
    """Writes the state of module, optimizer and run state to the folder.

    It has no generator states, as every step is seeded separately (see `schedule`). Raises WeightsError, and
    keeps the previous state, if the file cannot be written.
    """
    tensors = {f"module.{name}": _host(value) for name, value in module.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer.{index}.{name}"] = _host(torch.as_tensor(value))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / FILE) as path:
            save_file(tensors, path, metadata={"ledger": json.dumps(asdict(run_state))})
    except (OSError, SafetensorError) as error:
        remark = "; the state saved before is kept" if (folder / FILE).exists() else ""
        raise WeightsError(
            f"cannot write the training state to {folder}: {reason(error)}{remark}. "
            "Make room and run the same command again: training goes on from the last saved state"
        ) from error


def load(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, fresh: RunState, option: str = "train.out"
) -> RunState:
    """The run state saved in the folder, its tensors put into module and optimizer; `fresh` if there is none.

    `option` is the recipe's option that names the folder.

    Raises WeightsError when the file is unreadable or belongs to another run, naming the differences.
    """
    path = folder / FILE
    if not path.exists():
        return fresh
    try:
        with safe_open(path, framework="pt") as file:
            run_state = RunState(**json.loads(file.metadata()["ledger"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"the training state {path} cannot be read ({reason(error)}); delete it to start afresh"
        ) from error
    saved, current = run_state.identity, fresh.identity
    if differing := sorted(_differences(saved, current)):
        lines = "".join(f"\n  {line}" for line in differing)
        raise WeightsError(
            f"{folder} holds another run's training state; choose another {option}, or delete {path}. "
            f"What differs:{lines}"
        )
    module.load_state_dict(_part(tensors, "module."))
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _part(tensors, "optimizer.").items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return run_state


def steps_of(folder: Path) -> int | None:
    """Total number of steps of the run in the folder; None if there is no run or its state cannot be read."""
    return _number(folder, "steps")


def begun_with(folder: Path, processes: int) -> int:
    """Number of processes with which the run in the folder began; `processes` if there is no readable run.

    It determines the texts of a step, even if the run is resumed with another number of processes.
    """
    return _number(folder, "processes") or processes


def _number(folder: Path, name: str) -> int | None:
    """A number in the identity of the folder's run."""
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            return int(json.loads(file.metadata()["ledger"])["identity"][name])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _differences(saved: Any, current: Any, name: str = "") -> Iterator[str]:
    """Yields the differing values of two nested structures of mappings and lists, one line each."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in saved.keys() | current.keys():
            yield from _differences(saved.get(key), current.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        for place, pair in enumerate(zip(saved, current, strict=True)):
            yield from _differences(*pair, f"{name}.{place}")
    elif saved != current:
        yield f"{name}: {_short(saved)} there, {_short(current)} here"


def _short(value: Any) -> str:
    """A value, shortened to fit into a line."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
