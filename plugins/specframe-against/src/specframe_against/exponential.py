"""Exponential races and Gumbel noise that fork when the winner is determined.

For independent exponential numbers E_i, the i with the largest w_i / E_i is a draw from the law w, and log w_i + g_i
with Gumbel noise g_i = -log E_i is the same race in logarithms. Code that samples in this way uses only the winner, so
the numbers need no values, only the weights of the race.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specframe import InputError
from specframe_against.replay import BranchReplay

HINT = "write a wrapper that makes the same decision with torch.multinomial"


class Exponential:
    """An exponential number, which can be used in one race."""

    __slots__ = ("replay", "spent")

    def __init__(self, replay: BranchReplay) -> None:
        self.replay = replay
        self.spent = False


@dataclass(frozen=True)
class Race:
    """Stand-in for exponential or Gumbel noise: `w / E` or `E / w` elementwise, or their logarithm.

    It can be multiplied and divided by weights, shifted by their logarithms, and asked for the winner. Any use of the
    numbers themselves raises InputError.
    """

    clocks: np.ndarray
    weights: np.ndarray  # of equal shape
    inverse: bool = True  # E / w rather than w / E
    logarithm: bool = False
    negative: bool = False

    __array_ufunc__ = None  # makes numpy arrays defer arithmetic to this class

    @classmethod
    def fresh(cls, replay: BranchReplay, shape: Sequence[int]) -> Race:
        """Returns exponential numbers of mean 1."""
        clocks = np.empty(tuple(shape), dtype=object)
        for index in np.ndindex(*clocks.shape):
            clocks[index] = Exponential(replay)
        return cls(clocks, np.ones(clocks.shape))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Handles torch's operators on a race, or with a race on the right."""
        name = func.__name__.strip("_")
        if args and isinstance(args[0], Race) and hasattr(cls, name):
            return getattr(args[0], name)(*args[1:], **(kwargs or {}))
        if len(args) == 2 and isinstance(args[1], Race):
            left, race = args
            if name in ("div", "true_divide", "divide"):
                return race.__rtruediv__(left)
            if name in ("mul", "multiply"):
                return race * left
            if name in ("add", "sub", "subtract"):
                return race + left if name == "add" else race.__rsub__(left)
        raise InputError(f"an exponential or Gumbel number was used in torch's {name}; {HINT}")

    @property
    def shape(self) -> torch.Size:
        """The shape, as of a tensor."""
        return torch.Size(self.clocks.shape)

    def __getitem__(self, index: Any) -> Race:
        if isinstance(index, Tensor):
            index = index.numpy()
        return replace(self, clocks=self.clocks[index], weights=self.weights[index])

    def _same(self, *args: Any, **kwargs: Any) -> Race:
        return self

    to = cpu = cuda = double = half = clone = detach = contiguous = type_as = _same

    def __mul__(self, other: Any) -> Race:
        self._need(not self.logarithm, "a product with a logarithm")
        return self._weighed(other, self.inverse)

    __rmul__ = mul = __mul__

    def __truediv__(self, other: Any) -> Race:
        self._need(not self.logarithm, "a quotient with a logarithm")
        return self._weighed(other, not self.inverse)

    div = __truediv__

    def __rtruediv__(self, other: Any) -> Race:
        self._need(not self.logarithm, "a quotient with a logarithm")
        return replace(self, inverse=not self.inverse)._weighed(other, not self.inverse)

    def reciprocal(self) -> Race:
        """Returns the elementwise reciprocal, as a tensor does."""
        return 1.0 / self

    def log(self) -> Race:
        """Returns the elementwise logarithm, as a tensor does."""
        self._need(not self.logarithm and not self.negative, "this logarithm")
        return replace(self, logarithm=True)

    def __neg__(self) -> Race:
        if self.logarithm:
            return replace(self, inverse=not self.inverse)
        return replace(self, negative=not self.negative)

    neg = __neg__

    def __add__(self, other: Any) -> Race:
        self._need(self.logarithm, "a sum")
        return self._weighed(np.exp(_numbers(other)), self.inverse)

    __radd__ = add = __add__

    def __sub__(self, other: Any) -> Race:
        return self + -_numbers(other)

    sub = __sub__

    def __rsub__(self, other: Any) -> Race:
        return -self + other

    def argmax(self, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None, out: Any = None) -> Any:
        """Returns the winner, which is a draw, in the form of a tensor's argmax."""
        self._need(self.inverse == self.negative, "the loser of a race")
        return self._winner(dim if axis is None else axis, keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None, out: Any = None) -> Any:
        """Returns the winner, which is a draw, in the form of a tensor's argmin."""
        self._need(self.inverse != self.negative, "the loser of a race")
        return self._winner(dim if axis is None else axis, keepdim)

    def __getattr__(self, name: str) -> Any:
        return lacking(name, self._same, "an exponential or Gumbel number")

    def __float__(self) -> Any:
        raise InputError(f"the code looks at an exponential or Gumbel number itself; {HINT}")

    __bool__ = __int__ = __float__

    def _need(self, fine: bool, what: str) -> None:
        if not fine:
            raise InputError(f"the code takes {what} of exponential or Gumbel numbers; {HINT}")

    def _weighed(self, factor: Any, inverse: bool) -> Race:
        """Returns weights times the factor, or divided by it if the numbers are E / w."""
        numbers = _numbers(factor)
        clocks, weights, numbers = np.broadcast_arrays(self.clocks, self.weights, numbers)
        if clocks.size > self.clocks.size:
            raise InputError(f"the code uses an exponential or Gumbel number in two places; {HINT}")
        self._need(bool((numbers >= 0).all()), "a negative multiple")
        with np.errstate(divide="ignore"):
            return replace(self, clocks=clocks, weights=weights / numbers if inverse else weights * numbers)

    def _winner(self, dim: int | None, keepdim: bool) -> Tensor:
        clocks, weights = self.clocks, self.weights
        if dim is None:
            clocks, weights = clocks.reshape(-1), weights.reshape(-1)
        clocks, weights = np.moveaxis(clocks, dim or 0, -1), np.moveaxis(weights, dim or 0, -1)
        won = np.zeros(clocks.shape[:-1], dtype=np.int64)
        for index in np.ndindex(*won.shape):
            won[index] = _run(clocks[index], weights[index])
        winner = torch.from_numpy(won)
        return winner.unsqueeze(dim) if keepdim and dim is not None else winner


class Held(Tensor):
    """A tensor filled by `exponential_` or `uniform_`; operations on it use its stand-in numbers."""

    numbers: Any

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Applies the function to the numbers."""
        args = tuple(_let_go(arg) for arg in args)
        first = args[0] if args else None
        if not isinstance(first, Tensor):
            name = func.__name__.removesuffix("_")
            if name == "__get__":  # an attribute such as .shape
                name = getattr(getattr(func, "__self__", None), "__name__", "")
                return getattr(first, name)
            return getattr(first, func.__name__ if name.startswith("__") else name)(*args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    @classmethod
    def fill(cls, like: Tensor, numbers: Any) -> Tensor:
        """Returns the tensor, which from now on stands for the numbers."""
        like.__class__ = cls  # so that other references to the tensor see the numbers, too
        vars(like)["numbers"] = numbers
        return like


def _let_go(value: Any) -> Any:
    return vars(value)["numbers"] if isinstance(value, Held) else value


def _run(clocks: np.ndarray, weights: np.ndarray) -> int:
    """Returns the winner of one race."""
    if any(clock.spent for clock in clocks):
        raise InputError(f"the code uses exponential or Gumbel numbers for two races; {HINT}")
    for clock in clocks:
        clock.spent = True
    total = weights.sum()
    if not np.isfinite(total) or total <= 0:
        raise InputError(f"the code draws from weights {weights.tolist()}, which are no distribution")
    replay: BranchReplay = clocks[0].replay
    return replay.choose((weights / total).tolist())


def _numbers(value: Any) -> np.ndarray:
    if isinstance(value, Race):
        raise InputError(f"two exponential or Gumbel numbers are combined with each other; {HINT}")
    return as_array(value)


def as_array(value: Any) -> np.ndarray:
    """Returns the values of a tensor or array on the host, in float64."""
    if isinstance(value, Tensor):
        value = value.detach().double().cpu().numpy()
    return np.asarray(value, dtype=np.float64)


def lacking(name: str, cast: Callable[..., Any], what: str) -> Any:
    """Returns a replacement for a tensor attribute that a random number, called `what`, does not have.

    `.float` is a cast. Raises InputError for anything that would read the number.
    """
    if name == "float":  # a class attribute of this name would hide the type
        return cast
    if name.startswith("__"):
        raise AttributeError(name)
    raise InputError(f"the code calls .{name} of {what}; {HINT}")
