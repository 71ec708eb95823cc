"""A self-test of tree scoring, done once for every kind of model: a ragged batch and a small tree against each path."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn

from specframe.components.targets.rounding import LOOSE, agree, differences, limit_of
from specframe.components.targets.source import first_line
from specframe.kernel.cache import cache_folder
from specframe.kernel.errors import CompositionError, SpecframeError
from specframe.kernel.layers import LayerChoice, LayeredTarget
from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.neural.forward import Forward

EDITION = 2
"""Edition of the test, raised when it or the way of scoring trees changes: earlier results are then ignored."""
PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3))
PARENTS = (-1, 0, 0, 1, 2)  # two branches
LEAVES = (3, 4)
LOUDER = 64
"""Factor of the states of neighbouring rows, which would change a scale that they share."""
ROOM = 11
"""Positions that the test takes: the longest prompt, the bonus and the nodes."""


class TransformersTarget(LayeredTarget, Protocol):
    """A target around a model of transformers, as the self-test reads it."""

    model: nn.Module
    quantization: Any
    """Rounding of its matrices; None: not rounded."""

    @property
    def forward(self) -> Forward:
        """The target's forward pass."""

    @property
    def reach(self) -> tuple[int, str]:
        """Number of positions that a row may take, and what ends it."""

    def check(self) -> None:
        """Runs `find_fault`; raises CompositionError where there is one."""


def check_once(target: TransformersTarget) -> None:
    """Checks a target of a kind that was not checked on this machine before; costs nothing for any other.

    A kind is a model class, its config and modules, dtype, attention, kernels, torch and transformers: everything that
    decides on masks, positions and arithmetic, without the weights' values. Raises CompositionError.
    """
    if target.model.training or target.device.type == "meta" or target.reach[0] < ROOM:
        return
    note = cache_folder() / "checked" / fingerprint(target)
    if note.exists():
        return
    target.check()
    _remember(note, f"{target.config.model_type} scores trees as it scores each path\n")


def fingerprint(target: TransformersTarget) -> str:
    """A name for the kind of model that a target is."""
    config: Any = target.model.config
    described = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
    model = type(target.model)
    kind = (
        EDITION,
        f"{model.__module__}.{model.__qualname__}",
        sorted(described.items()),
        getattr(config, "_attn_implementation", None),
        str(target.dtype),
        target.device.type,
        target.quantization,
        type(target.forward).__name__,
        _modules(target.model),
        torch.__version__,
        transformers.__version__,
    )
    return hashlib.sha256(repr(kind).encode()).hexdigest()[:32]


def _modules(model: nn.Module) -> list[tuple[str, ...]]:
    """The modules and weights of a model, by name, type and what decides on their arithmetic."""
    modules = [(name, _type(module), module.extra_repr()) for name, module in model.named_modules()]
    weights = [(name, _type(weight), str(weight.dtype)) for name, weight in model.named_parameters()]
    return [*modules, *weights]


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _remember(note: Path, text: str) -> None:
    with suppress(OSError):  # a cache that cannot be written only makes the next start slower
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Logits:
    """The logits of the test's texts: of the batch and its trees, and of every path as a text by itself."""

    prompts: Tensor  # [3, V], after the prompts
    nodes: Tensor  # [3, N, V]
    alone: Tensor  # [3, 2, 4, V], of both leaves' paths: after prompt, root, child and leaf

    @property
    def paths(self) -> Tensor:
        """Returns the expected logits of the nodes: root, children, leaves, [3, N, V]."""
        return torch.cat([self.alone[:, :1, 1], self.alone[:, :, 2], self.alone[:, :, 3]], 1)


def find_fault(target: TransformersTarget) -> str | None:
    """Returns the fault of the target's scores of a batch of three and its trees, in a clause, or None."""
    if (module := find_mixing(target)) is not None:
        return (
            f"the output of {module} for a row depends on the rows next to it, as it does where activations are "
            "rounded by one scale for a whole batch; round the weights alone, or by a scale for each token"
        )
    try:
        logits = _score(target)
    except (SpecframeError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # a forward pass may raise anything
        return f"its forward pass fails where texts of several lengths, or a tree, stand behind a cache{_words(error)}"
    limit = _limit(target)
    if not agree(logits.alone[:, 0, :2], logits.alone[:, 1, :2], limit):
        return "its attention sees the tokens that come after a position"
    if not agree(logits.prompts, logits.alone[:, 0, 0], limit):
        return "the rows of a batch with prompts of different lengths disturb each other"
    if not agree(logits.nodes, logits.paths, limit):
        return "it does not take the mask or the positions of a tree; another `attention` may help"
    return None


@torch.no_grad()
def find_mixing(target: TransformersTarget) -> str | None:
    """Returns the first module whose output for a row depends on the rows next to it, or None.

    Every innermost module that maps one tensor [.., D] to one tensor [.., E] is asked again with its first row alone
    unchanged. Shapes stay, and so do kernels: the first row's bits must not change, in any dtype. Where the same
    input gives other bits, a change must be well above that.
    """
    model = target.model
    found: list[str] = []
    calls = [0]
    begun: dict[nn.Module, int] = {}

    def begin(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        calls[0] += 1
        begun[module] = calls[0]

    def end(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if begun[module] == calls[0] and not found and len(inputs) == 1 and _mixes(module, inputs[0], output):
            found.append(next(f"{name} ({_type(inner)})" for name, inner in model.named_modules() if inner is module))

    handles = [module.register_forward_pre_hook(begin) for module in model.modules()]
    handles += [module.register_forward_hook(end) for module in model.modules()]
    texts = [[token % target.vocab_size for token in prompt] for prompt in (PROMPTS[0], PROMPTS[0][::-1])]
    try:
        model(torch.tensor(texts, device=target.device), use_cache=False)
    except Exception:  # what it raises is found, and named, by the scores
        return None
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _mixes(module: nn.Module, states: Any, output: Any) -> bool:
    """Returns whether a module's output for the first row of states [.., D] changes with the other rows."""
    if not isinstance(states, Tensor) or not states.is_floating_point() or states.dim() < 2:
        return False
    if not isinstance(output, Tensor) or output.shape[:-1] != states.shape[:-1] or states.shape[:-1].numel() < 2:
        return False
    other = states.clone(memory_format=torch.contiguous_format)
    other.view(-1, states.shape[-1])[1:] *= LOUDER
    same, changed = module.forward(states.clone()), module.forward(other)
    first, noise, change = (made.reshape(-1, made.shape[-1])[0].float() for made in (output, same, changed))
    return bool((change - first).abs().amax() > 4 * (noise - first).abs().amax())


@torch.no_grad()
def find_layer_fault(target: TransformersTarget, chosen: LayerChoice) -> str | None:
    """Returns the fault of the target's scores of trees that the chosen layers ran over before, or None."""
    if target.reach[0] < ROOM:
        return None
    tree = _begin(target)[1]
    wanted = target.score(tree).logits
    everything = torch.arange(tree.tokens.shape[1], device=target.device).expand(tree.tokens.shape)
    try:
        target.run_layers(chosen, tree, everything[:, :1])
        target.run_layers(chosen, tree, everything[:, 1:3])
        found = target.score(tree).logits
    except (SpecframeError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        return f"its forward pass fails with some of them alone{_words(error)}"
    return None if agree(found, wanted, _limit(target)) else "verification above them differs from a whole one"


def refuse(target: TransformersTarget, fault: str | None, what: str) -> None:
    """Raises CompositionError where there is a fault, which keeps the target from doing something."""
    if fault is not None:
        raise CompositionError(f"{getattr(target.model.config, 'model_type', 'it')} cannot {what}: {fault}")


def deviation(target: TransformersTarget) -> float:
    """The largest difference between the logits of a tree and those of its paths, as a share of the largest logit."""
    logits = _score(target)
    return float(differences(logits.nodes, logits.paths).max())


def _limit(target: TransformersTarget) -> float:
    return LOOSE if target.quantization is not None else limit_of(target.dtype)


def _words(error: Exception) -> str:
    return f" ({first_line(error)})" if str(error).strip() else ""


def _begin(target: TransformersTarget) -> tuple[Tensor, TokenTree]:
    """Begins a session of the prompts: the logits behind them, [3, V], and the trees to score next."""
    device, vocabulary = target.device, target.vocab_size
    prompts = [[token % vocabulary for token in prompt] for prompt in PROMPTS]
    width = max(map(len, prompts))
    count = torch.tensor([len(prompt) for prompt in prompts], device=device)
    padded = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=device)
    parent = torch.tensor(PARENTS, device=device).expand(len(prompts), -1)
    tokens = (torch.arange(parent.numel(), device=device).view_as(parent) * 7 + 11) % vocabulary
    tree = TokenTree(tokens, parent, torch.ones_like(parent, dtype=torch.bool), torch.zeros_like(parent), levels=2)
    target.open(len(prompts), ROOM)
    root, first = target.admit(Prompts(padded, count))
    nothing = torch.zeros(len(prompts), device=device, dtype=torch.long)
    target.commit(root, Verdict(root.tokens[:, :0], nothing, bonus=tokens[:, 0]))
    return first.logits[:, 0], tree


@torch.no_grad()
def _score(target: TransformersTarget) -> Logits:
    first, tree = _begin(target)
    nodes = target.score(tree).logits
    prompts = [[token % target.vocab_size for token in prompt] for prompt in PROMPTS]
    alone = torch.stack([_path(target, prompt, tree, row) for row, prompt in enumerate(prompts)])
    return Logits(first, nodes, alone)


def _path(target: TransformersTarget, prompt: list[int], tree: TokenTree, row: int) -> Tensor:
    """The logits of both leaves' paths, each a text by itself: after prompt, root, child and leaf, [2, 4, V]."""
    texts = [
        torch.tensor([[*prompt, *tree.tokens[row, tree.ancestors[row, leaf]].tolist()]], device=target.device)
        for leaf in LEAVES
    ]
    return torch.stack([target.teach(text, torch.ones_like(text, dtype=torch.bool)).logits[0, -4:] for text in texts])
