"""The public names: in four tiers, each imported on first use from the one place that defines it."""

import importlib
import os
import subprocess
import sys

import pytest

import specframe
import specframe.plugin

TIERS = ("specframe", "specframe.plugin", "specframe.neural", "specframe.testing")


@pytest.mark.parametrize("tier", TIERS)
def test_every_public_name_loads(tier):
    module = importlib.import_module(tier)
    assert module.__all__ and sorted(module.__all__) == module.__all__ == dir(module)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_no_name_is_in_two_tiers():
    names = [name for tier in TIERS for name in importlib.import_module(tier).__all__]
    assert len(set(names)) == len(names)


def test_users_see_about_thirty_names():
    assert len(specframe.__all__) <= 31


def test_another_name_is_refused_as_of_any_module():
    assert specframe.plugin.TokenTree.__module__ == "specframe.kernel.tree"
    with pytest.raises(AttributeError, match="module 'specframe' has no attribute 'TokenTree'"):
        specframe.TokenTree  # noqa: B018 - the look-up is the test


def test_importing_the_tiers_imports_no_torch():
    code = f"import sys, {', '.join(TIERS)}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("given", "first", "found"),
    [
        ({}, "os", "10000"),
        ({"GOMP_SPINCOUNT": "7"}, "os", "7"),
        ({"OMP_WAIT_POLICY": "active"}, "os", "None"),
        ({}, "torch", "None"),
    ],
    ids=["neither", "a count", "a policy", "torch first"],
)
def test_threads_of_openmp_wait_briefly_unless_it_is_set_how_they_wait(given, first, found):
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = f"import {first}; import os, specframe; print(os.environ.get('GOMP_SPINCOUNT'))"
    printed = subprocess.check_output([sys.executable, "-c", code], env=others | given, text=True)
    assert printed.strip() == found
