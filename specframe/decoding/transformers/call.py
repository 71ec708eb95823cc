"""What `generate` was called with but does not pass on to a custom loop."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from transformers.generation.utils import GenerationMixin


def read_call() -> dict[str, Any]:
    """The arguments of the `generate` call that is running us, by name; empty outside of one.

    transformers (5.0 to 5.24) gives a custom loop neither `streamer` nor `tokenizer` nor `assistant_model`. Ignored,
    they would make it wait forever, miss a stop text, or decode by another method than was asked for. So they are read
    where they still are: in the frame of `generate`, and in that of its `no_grad` wrapper, since it takes `tokenizer`
    out of its own.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    names = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {"self"}
    frame = sys._getframe()
    while frame.f_code is not code:
        if frame.f_back is None:
            return {}
        frame = frame.f_back
    given = {name: value for name, value in frame.f_locals.items() if name in names}
    rest = dict(frame.f_locals.get("kwargs", {}))
    if frame.f_back is not None and frame.f_back.f_code.co_name == "decorate_context":
        rest |= frame.f_back.f_locals.get("kwargs", {})
    return given | {name: value for name, value in rest.items() if name not in given}
