"""The models of the package speculators, which tests compare ours with."""

from __future__ import annotations

from typing import Any

import pytest


def speculators_model(name: str) -> Any:
    """A module of their models, which takes seconds to import; without the package, the test is skipped."""
    reason = "speculators is not installed: pip install --no-deps speculators hs-connectors"
    return pytest.importorskip(f"speculators.models.{name}", reason=reason)
