"""Compositions that tests enumerate."""

from dataclasses import replace

from specframe.certify.compositions.small import LENGTH, SmallComposition, reduced
from specframe.recipes.build import Plan


def small_composition(plan: Plan) -> SmallComposition:
    """The recipe's composition; where its parts have smaller forms, these, and fewer tokens to watch."""
    own = SmallComposition.of(plan)
    small = replace(own, small=True, length=LENGTH - 1)
    return small if reduced(own, small) else own
