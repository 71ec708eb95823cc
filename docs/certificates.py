"""The exact certificates of the recipes on the methods page: ``python docs/certificates.py`` writes certificates.json.

A recipe whose parts and sampling are those that were certified is left as it is; ``--all`` certifies every one again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from catalogue import RECIPES, recipes_shown
from overview import CERTIFICATES, read_certificates

import specframe
from specframe.cli.main import main
from specframe.recipes.recipe import Recipe

SECTIONS = ("drafter", "tree", "verifier", "sampling")
"""Sections of a recipe that a certificate covers; it runs on targets of its own."""
CHANGED = {
    "without-training/retrieval.yaml": "drafter.remember=false",
    "rasd.yaml": "drafter.second.remember=false",
    "compositions/rasd-pruned.yaml": "drafter.second.remember=false",
}
"""Overrides for the certificate: with a store that remembers earlier texts, equal choices would give other outcomes."""
KEPT = ("lossless", "promised", "branches", "tv", "exhausted", "batches")


def changes(recipe: str) -> list[str]:
    """The overrides that a recipe is certified with."""
    return [CHANGED[recipe]] if recipe in CHANGED else []


def digest(recipe: str) -> str:
    """Returns a hash of the certified part of a recipe."""
    data = Recipe.read(RECIPES / recipe, changes(recipe)).data
    text = json.dumps({name: data.get(name) for name in SECTIONS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stale(found: Mapping[str, Any]) -> list[str]:
    """The recipes of the page that have no certificate, or one from before they were changed."""
    return [recipe for recipe in recipes_shown() if found.get(recipe, {}).get("digest") != digest(recipe)]


def certify(recipe: str) -> dict[str, Any]:
    """Returns the output of `specframe certify RECIPE --exact-only --json`."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = main(["certify", str(RECIPES / recipe), *changes(recipe), "--exact-only", "--json"])
    if status == 2:
        raise SystemExit(f"{recipe} cannot be certified")
    whole = json.loads(output.getvalue().splitlines()[-1])
    made = {"version": specframe.__version__, "made": datetime.now(UTC).date().isoformat()}
    return {name: whole[name] for name in KEPT} | {"changes": changes(recipe), "digest": digest(recipe)} | made


def renewed(everything: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The recipes that need a certificate, each with its new one."""
    for recipe in recipes_shown() if everything else stale(read_certificates()):
        found = certify(recipe)
        print(
            f"{recipe}: {'lossless' if found['lossless'] else 'not shown'}, {found['branches']:,} branches", flush=True
        )
        yield recipe, found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="certify the others again, too")
    for name, certificate in renewed(parser.parse_args().all):
        kept = {recipe: one for recipe, one in read_certificates().items() if recipe in recipes_shown()}
        text = json.dumps({**kept, name: certificate}, indent=1, sort_keys=True) + "\n"
        CERTIFICATES.write_text(text, encoding="utf-8")
