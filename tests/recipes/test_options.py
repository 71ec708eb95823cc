from enum import Enum
from pathlib import Path
from typing import Literal

import pytest

from specframe.kernel.errors import PluginError
from specframe.kernel.interfaces import Head
from specframe.kernel.types import Draw
from specframe.recipes.options import Mismatch, convert, describe, read_options


class Colour(Enum):
    RED = 1


class Component:
    """A component.

    Args:
        depth: how deep, over
            two lines.
        head: what makes logits.
    """

    def __init__(self, *, depth: int, rate: float = 0.5, head: Head | None = None) -> None: ...


def test_the_signature_is_the_schema():
    options = read_options(Component)
    assert list(options) == ["depth", "rate", "head"]
    assert options["depth"].required and not options["rate"].required
    assert options["rate"].default == 0.5
    assert options["head"].kind == "head" and options["depth"].kind is None
    assert options["depth"].help == "how deep, over two lines."


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (bool, True, True),
        (str, "a", "a"),
        (Path, "a/b", Path("a/b")),
        (int | None, None, None),
        (Draw, "iid", Draw.IID),
        (Draw, "WITHOUT_REPLACEMENT", Draw.WITHOUT_REPLACEMENT),
        (Literal["a", "b"], "b", "b"),
        (list[int], [1, 2], [1, 2]),
        (tuple[float, float], [1, 2.5], (1.0, 2.5)),
        (tuple[str, ...], ["a"], ("a",)),
        (list[str] | None, ["a"], ["a"]),
        (dict[str, int], {"a": 1}, {"a": 1}),
    ],
)
def test_values_become_the_options_type(annotation, value, expected):
    assert convert(value, annotation) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (int, 3.5, "expected integer, not 3.5"),
        (int, True, "expected integer"),
        (float, "fast", "expected number"),
        (bool, 1, "expected true or false"),
        (Colour, "blue", "expected one of red"),
        (Literal["a", "b"], "c", "expected one of 'a', 'b'"),
        (list[int], 3, "expected a list"),
        (list[int], [1, "x"], "expected integer"),
        (tuple[float, float], [1.0], "expected 2 values"),
        (int | None, "x", "expected integer"),
        (dict[str, int], 3, "expected a mapping"),
    ],
)
def test_what_does_not_fit_is_an_error(annotation, value, words):
    with pytest.raises(Mismatch, match=words):
        convert(value, annotation)


def unannotated(*, depth=3): ...
def positional(depth: int): ...
def catch_all(**options: int): ...
def strange(*, depth: set[int]): ...
def unknown(*, depth: "Nowhere"): ...  # noqa: F821


@pytest.mark.parametrize("component", [unannotated, positional, catch_all, strange, unknown])
def test_a_signature_that_is_no_schema_is_the_plugins_error(component):
    with pytest.raises(PluginError):
        read_options(component)


def test_types_are_described_in_words():
    assert describe(int | None) == "integer or none"
    assert describe(Draw) == "top or iid or without_replacement"
    assert describe(list[str]) == "list of text"
    assert describe(Head) == "head section"
