"""Which model a target is: what a trained drafter records of the target that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specframe.kernel.zoo import canonical_name


@dataclass(frozen=True)
class TargetIdentity:
    """A target's name and a hash of what rounding its matrices leaves alone."""

    name: str
    """Of the zoo or the Hub; a folder or file without the place where it lies."""
    fingerprint: str

    def is_of(self, other: TargetIdentity) -> bool:
        """Whether both are the same model: equal fingerprints, or equal names where these are the zoo's or the Hub's.

        A copy in the zoo counts as the Hub's model.
        """
        if self.fingerprint == other.fingerprint:
            return True
        return "/" in self.name and canonical_name(self.name) == canonical_name(other.name)


@runtime_checkable
class Identified(Protocol):
    """A target that has an identity."""

    def identify(self) -> TargetIdentity:
        """Which model it is."""
