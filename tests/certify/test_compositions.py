"""Every registered drafter x tree x verifier: certified where it composes, refused with a way out where not.

The quick tier takes those that make up every pair of a drafter and a policy and every pair of a tree and a verifier.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from specframe.certify.compositions.small import SmallComposition, smaller_versions
from specframe.components.targets.tiny import tiny_model
from specframe.kernel.errors import RecipeError
from specframe.kernel.types import Draw
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.options import read_options
from specframe.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling

REGISTRY = discover()
SMALL = {
    "model": lambda: {"model": str(tiny_model(3)), "dtype": "float64"},
    "kangaroo": lambda: {"exit": 1},
    "del": lambda: {"depth": 1},
    "swift": lambda: {"rounds": 0},  # its search lets rows change each other: that is certified with its own tests
    "retrieval": lambda: {"store": {"use": "corpus"}, "shortest": 1},
    "fused": lambda: {"first": {"use": "suffix", "cap": 2}, "second": {"use": "recycling", "nodes": 4}},
    "lookahead": lambda: {"ngram": 3, "window": 2, "guesses": 1},
    "recycling": lambda: {"nodes": 4},
    "suffix-recycling": lambda: {"cap": 2, "nodes": 4},
    "chain": lambda: {"depth": 2},
    "adaptive": lambda: {"depth": 2, "costs": [1.0, 1.3, 1.65]},
    "fixed": lambda: {"widths": [2, 1]},
    "dynamic": lambda: {"depth": 2, "width": 2, "nodes": 4},
    "beam": lambda: {"depth": 1, "width": 2},
    "dyspec": lambda: {"depth": 2, "width": 2, "nodes": 2},
    "greedy": lambda: {"widths": [2]},
    "sequoia": lambda: {"acceptance": [[0.6]], "depth": 1},
    "threshold": lambda: {"depth": 2, "threshold": 0.0},
}
"""Options that components need to be small; others come as their defaults have them."""


SKIPS = {"skip": {"attention": [1]}}
FORMS = {"self": [{"exit": 1}, SKIPS]}
"""Components that work in ways of their own."""


def variants(kind):
    """The components of a kind, one variant for every draw that it can be set to, and for each of its ways to work."""
    for entry in REGISTRY.of(kind):
        options = read_options(entry.load())
        if any(o.required and entry.name not in SMALL for o in options.values()):
            continue
        draws = [{"draw": draw.name.lower()} for draw in Draw] if "draw" in options else [{}]
        yield from ((entry.qualified, form | draw) for form in FORMS.get(entry.name, [{}]) for draw in draws)


SAMPLING = "specframe/recursive"
"""The verifier that meets every drafter with every tree."""
THOROUGH = {"specframe/match", SAMPLING}
"""Verifiers that meet every drafter with every policy, in texts of full length."""
WITNESS = "specframe/model"
"""The drafter that meets all verifiers with every tree: of a drafter, a verifier sees no more than its trees."""
OWN_WITNESS = "specframe/recycling"
"""The drafter that shows all verifiers trees of its own."""


def builds_its_own_trees(drafter):
    """True for a drafter that promises whole trees."""
    sections = {"drafter": {"use": drafter} | SMALL.get(drafter.partition("/")[2], dict)(), "target": "table"}
    recipe = Recipe(Path("own.yaml"), {"specframe": 1, "verifier": "match", "tree": "chain", **sections})
    try:
        return plan(recipe, REGISTRY).parts["drafter"].build().promise.complete
    except RecipeError as refusal:
        return "builds its own tree" in str(refusal)


OWN_TREE = {
    drafter for drafter, _ in variants("drafter") if builds_its_own_trees(drafter) and drafter != "specframe/lookup"
}
"""Drafters that are refused with every tree, as `lookup` is for all of them to see."""


def is_run(drafter, tree, verifier):
    """True where the three meet: any two of them do, but for drafters that build their own trees.

    A drafter meets each verifier with trees as `SHOWN` draws them: with other draws, as `SAMPLING` shows for the
    drafter and the witness for the verifier.
    """
    if drafter[0] in OWN_TREE:
        return tree[0] == "/none" or (tree[0] == "specframe/chain" and verifier[0] == "specframe/match")
    if drafter[1] == SKIPS:
        return verifier[0] in THOROUGH and tree[0] in ("specframe/chain", "specframe/dynamic")
    if drafter[0] == WITNESS or verifier[0] == SAMPLING:
        return True
    return is_shown(tree) and (verifier[0] in THOROUGH or tree[0] in ("specframe/chain", "/none"))


SHOWN = {"chain": "iid", "adaptive": "without_replacement", "fixed": "top", "sequoia": "iid", "threshold": "iid"}
"""The draw with which a drafter meets each policy and verifier: how nodes are drawn is the policy's concern."""


def is_shown(tree):
    """True where every drafter meets the tree in the quick tier: the policy's other draws, the witness shows."""
    policy = tree[0].partition("/")[2]
    return tree[1].get("draw") == SHOWN.get(policy) and policy != "dyspec"  # which takes seconds for each of them


def is_a_pair(drafter, tree, verifier):
    """True where the three are a pair of a drafter and a policy, met by one verifier, or of a tree and a verifier.

    A verifier sees of a drafter no more than its trees, so the other compositions repeat the claims of these.
    """
    if drafter[0] in (WITNESS, OWN_WITNESS):
        return True
    if not is_shown(tree):
        return False
    refused = drafter[0] in OWN_TREE and tree[0] != "/none"
    return verifier[0] == "specframe/match" if refused else verifier[0] == SAMPLING


def _named(options, name):
    return options[name] if name == "draw" else name


COMPOSITIONS = [
    pytest.param(
        *parts,
        id="-".join([n.partition("/")[2] + "".join(f"({_named(o, d)})" for d in o) for n, o in parts]),
        marks=[] if is_a_pair(*parts) else pytest.mark.sampled,
    )
    for parts in product(variants("drafter"), [*variants("tree"), ("/none", {})], variants("verifier"))
    if is_run(*parts)
]


BRANCHES = 2_000
"""The most branches of a composition; beyond them follow its smaller forms."""
ALONE = 60
"""The most branches that are run one at a time, where neighbours change what is drawn."""


@pytest.mark.parametrize(("drafter", "tree", "verifier"), COMPOSITIONS)
def test_a_composition_is_lossless_or_refused(drafter, tree, verifier, tmp_path):
    sections = {"drafter": drafter, "tree": tree, "verifier": verifier}
    lines = ["specframe: 1", "target: {use: table, vocab: 3}"]
    for kind, (name, options) in sections.items():
        if name != "/none":
            small = SMALL.get(name.partition("/")[2], dict)()
            lines.append(f"{kind}: { ({'use': name} | small | options)!r}")
    path = tmp_path / "recipe.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    try:
        valid = plan(Recipe.read(path), REGISTRY)
    except RecipeError as refusal:
        assert "add `tree:" in str(refusal) or "remove the tree" in str(refusal) or "`verifier:" in str(refusal)
        return
    miniature = SmallComposition.of(valid)
    if not miniature.verifier.build().lossless:
        return
    if verifier[0] not in THOROUGH:
        miniature = replace(miniature, length=3)
    for version in smaller_versions(miniature):
        comparison = version.emission("", Sampling(temperature=1.0), seed=2).compare(budget=BRANCHES, alone=ALONE)
        assert comparison.tv < 1e-9
        if comparison.enumeration.exhausted:
            return
    pytest.fail("no smaller form of it is exhausted")


def test_the_quick_compositions_have_every_pair():
    """Two that meet in a composition meet in a quick one, but for what only the witness shows."""
    quick = [composition.values for composition in COMPOSITIONS if not composition.marks]
    whole = [composition.values for composition in COMPOSITIONS]
    shown = [parts for parts in whole if parts[0][0] in (WITNESS, OWN_WITNESS) or is_shown(parts[1])]
    assert pairs(shown, 0, 1) == pairs(quick, 0, 1) and pairs(whole, 1, 2) == pairs(quick, 1, 2)
    assert {tree[0] for _, tree, _ in shown} == {tree[0] for _, tree, _ in whole}
    assert len(quick) < len(whole) / 2


def pairs(compositions, one, other):
    """The parts at two places of compositions, as they meet."""
    return {(repr(parts[one]), repr(parts[other])) for parts in compositions}


def test_there_is_something_to_compose():
    names = {parameters.id for parameters in COMPOSITIONS}
    assert {"lookup-none-match", "model-chain(iid)-recursive", "model-dynamic-match"} <= names
    assert {"self(exit)-chain(iid)-recursive", "self(skip)-chain(iid)-recursive", "self(skip)-dynamic-match"} <= names
