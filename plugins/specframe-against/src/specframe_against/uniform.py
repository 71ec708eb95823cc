"""Random numbers that fork when they are compared, for enumerating code that was not written for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from specframe import InputError
from specframe_against.exponential import Race, as_array, lacking
from specframe_against.replay import BranchReplay


class Uniform:
    """A uniform number in [0, 1), known only through the outcomes of its comparisons."""

    def __init__(self, replay: BranchReplay) -> None:
        self.replay = replay
        self._low, self._high = 0.0, 1.0

    def is_less_than(self, threshold: float) -> bool:
        """Returns whether the number is below the threshold; forks the run if both are possible."""
        cut = min(max(threshold, self._low), self._high)
        if self._high <= self._low:
            return self._low < threshold
        share = (cut - self._low) / (self._high - self._low)
        hit = self.replay.choose([1 - share, share]) == 1
        if hit:
            self._high = cut
        else:
            self._low = cut
        return hit


class Term:
    """scale * u + shift, compared like a number."""

    __slots__ = ("scale", "shift", "uniform")

    def __init__(self, uniform: Uniform, scale: float = 1.0, shift: float = 0.0) -> None:
        self.uniform, self.scale, self.shift = uniform, scale, shift

    def is_less_than(self, threshold: float) -> bool:
        """Returns whether the term is below the threshold."""
        if self.scale == 0:
            return self.shift < threshold
        cut = (threshold - self.shift) / self.scale
        return self.uniform.is_less_than(cut) if self.scale > 0 else not self.uniform.is_less_than(cut)

    def scaled(self, scale: float, shift: float) -> Term:
        """Returns scale * self + shift."""
        return Term(self.uniform, self.scale * scale, self.shift * scale + shift)


class LazyTensor:
    """Stand-in for `torch.rand(...)`, `random.random()` or `numpy.random.rand(...)`.

    It can be indexed, reshaped, moved, scaled, shifted and compared; comparisons return ordinary bool tensors. Any use
    of the numbers themselves raises InputError.
    """

    __array_ufunc__ = None  # makes numpy arrays defer comparisons to this class

    def __init__(self, terms: np.ndarray) -> None:
        self.terms = terms

    @classmethod
    def fresh(cls, replay: BranchReplay, shape: Sequence[int]) -> LazyTensor:
        """Returns new numbers, one per element."""
        terms = np.empty(tuple(shape), dtype=object)
        for index in np.ndindex(*terms.shape):
            terms[index] = Term(Uniform(replay))
        return cls(terms)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Handles torch's operators with such a number on the right: `p > r`, `q * r`, `torch.lt(a, r)`."""
        name = func.__name__.strip("_")
        if name == "log" and len(args) == 1:
            return args[0].log()
        flip = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge", "greater": "lt", "less": "gt"}
        if len(args) == 2:
            left, right = args
            if isinstance(left, LazyTensor) and hasattr(cls, f"__{name}__"):
                return getattr(left, f"__{name}__")(right)
            if isinstance(right, LazyTensor):
                if name in flip:
                    return getattr(right, f"__{flip[name]}__")(left)
                if name in ("add", "mul", "radd", "rmul", "multiply"):
                    return right * left if "mul" in name else right + left
                if name in ("sub", "rsub", "subtract"):
                    return right.__rsub__(left) if name != "rsub" else right - left
        raise InputError(f"a random number was used in torch's {name}, whose distribution cannot be enumerated; {HINT}")

    @property
    def shape(self) -> torch.Size:
        """The shape, as of a tensor."""
        return torch.Size(self.terms.shape)

    device = torch.device("cpu")
    dtype = torch.float64

    def size(self, dim: int | None = None) -> Any:
        """Returns the size, as a tensor does."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Returns the number of dimensions, as a tensor does."""
        return self.terms.ndim

    def __len__(self) -> int:
        return len(self.terms)

    def __iter__(self) -> Iterator[LazyTensor]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> LazyTensor:
        if isinstance(index, Tensor):
            index = index.numpy()
        elif isinstance(index, tuple):
            index = tuple(i.numpy() if isinstance(i, Tensor) else i for i in index)
        picked = self.terms[index]
        if not isinstance(picked, np.ndarray):
            holder = np.empty((), dtype=object)
            holder[()] = picked
            picked = holder
        return LazyTensor(picked)

    def reshape(self, *shape: Any) -> LazyTensor:
        """Reshapes, as a tensor does."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return LazyTensor(self.terms.reshape(tuple(wanted)))

    view = reshape

    def squeeze(self, dim: int | None = None) -> LazyTensor:
        """Drops dimensions of size 1, as a tensor does."""
        return LazyTensor(self.terms.squeeze() if dim is None else self.terms.squeeze(dim))

    def unsqueeze(self, dim: int) -> LazyTensor:
        """Inserts a dimension of size 1, as a tensor does."""
        return LazyTensor(np.expand_dims(self.terms, dim))

    def item(self) -> LazyTensor:
        """Returns the number itself, whose value is still unread."""
        return LazyTensor(self.terms.reshape(()))

    def _same(self, *args: Any, **kwargs: Any) -> LazyTensor:
        return self

    to = cpu = cuda = double = half = clone = detach = contiguous = numpy = type_as = _same

    def __lt__(self, other: Any) -> Tensor:
        return self._compare(other, less=True)

    __le__ = __lt__  # equality has probability 0

    def __gt__(self, other: Any) -> Tensor:
        return self._compare(other, less=False)

    __ge__ = __gt__

    def __mul__(self, other: Any) -> LazyTensor:
        return self._affine(other, lambda term, x: term.scaled(x, 0.0))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> LazyTensor:
        return self._affine(other, lambda term, x: term.scaled(1 / x, 0.0))

    def __add__(self, other: Any) -> LazyTensor:
        return self._affine(other, lambda term, x: term.scaled(1.0, x))

    __radd__ = __add__

    def __sub__(self, other: Any) -> LazyTensor:
        return self._affine(other, lambda term, x: term.scaled(1.0, -x))

    def __rsub__(self, other: Any) -> LazyTensor:
        return self._affine(other, lambda term, x: term.scaled(-1.0, x))

    def __neg__(self) -> LazyTensor:
        return self._affine(0.0, lambda term, x: term.scaled(-1.0, x))

    def log(self) -> Race:
        """Returns the logarithm, which is minus an exponential number, as used for Gumbel noise."""
        if any((term.scale, term.shift) != (1.0, 0.0) for term in self.terms.flat):
            raise InputError(f"the code takes the logarithm of a scaled random number; {HINT}")
        return -Race.fresh(self.terms.flat[0].uniform.replay, self.terms.shape)

    def __float__(self) -> Any:
        raise InputError(f"the code looks at a random number itself instead of comparing it; {HINT}")

    __bool__ = __int__ = __float__

    def __getattr__(self, name: str) -> Any:
        return lacking(name, self._same, "a random number, whose distribution cannot be enumerated")

    def _compare(self, other: Any, less: bool) -> Tensor:
        terms, numbers = np.broadcast_arrays(self.terms, _numbers(other))
        found = [term.is_less_than(float(x)) == less for term, x in zip(terms.flat, numbers.flat, strict=True)]
        return torch.tensor(found, dtype=torch.bool).reshape(terms.shape)

    def _affine(self, other: Any, make: Change) -> LazyTensor:
        terms, numbers = np.broadcast_arrays(self.terms, _numbers(other))
        made = np.empty(terms.shape, dtype=object)
        for index in np.ndindex(*terms.shape):
            made[index] = make(terms[index], float(numbers[index]))
        return LazyTensor(made)


Change: TypeAlias = Callable[[Any, float], Term]
HINT = "write a wrapper that makes the same decision with torch.rand and a comparison, or torch.multinomial"


def _numbers(value: Any) -> np.ndarray:
    if isinstance(value, LazyTensor):
        raise InputError(f"two random numbers are compared or combined with each other; {HINT}")
    return as_array(value)
