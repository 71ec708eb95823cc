"""Self-test of tree scoring, run once per kind of model: a ragged batch and a small tree, compared with each path."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.architectures import require_kv_selection
from specframe.components.targets.forward.recurrence import unknown_of
from specframe.components.targets.kind import TransformersTarget, fingerprint, type_name
from specframe.kernel.errors import CompositionError, SpecframeError, first_line
from specframe.kernel.layers import ChosenSlots, CommittedMemory, KVSelection, LayerChoice
from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.neural.cache import cache_name
from specframe.neural.forward import LOOSE, agree, differences, limit_of
from specframe.recipes.folders import cache_folder

WHAT = "be a target, it does not score trees as it scores texts"
EDITION = 3
"""Edition of the test, raised when the test or tree scoring changes; results of earlier editions are ignored."""
PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3))
PARENTS = (-1, 0, 0, 1, 2)  # two branches
LEAVES = (3, 4)
LOUDER = 64
"""Factor applied to neighbouring rows' states, which would change a scale shared between rows."""
ROOM = 13
"""Number of positions that the test needs: the longest prompt, an accepted path, the bonus and the nodes."""


def check_once(target: TransformersTarget) -> None:
    """Checks a target of a kind that was not yet checked on this machine; other kinds are not checked again.

    A kind is a model class, its config and modules, dtype, attention, forward pass, torch and transformers versions:
    everything that determines masks, positions and arithmetic, without the weights' values. Raises CompositionError.
    """
    refuse(target, find_unknown(target), WHAT)
    if target.weights.training or target.device.type == "meta" or target.reach[0] < ROOM:
        return
    note = cache_folder() / "checked" / fingerprint(target, EDITION)
    if note.exists():
        return
    target.check()
    remember(note, f"{target.config.model_type} scores trees as it scores each path\n")


def remember(note: Path, text: str) -> None:
    """Stores the result for a kind of model."""
    with suppress(OSError):  # without a writable cache, the next start is only slower
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Logits:
    """Logits of the test's texts: of the batch and its trees, and of every path as a separate text."""

    prompts: Tensor  # [3, V], after the prompts
    nodes: Tensor  # [3, N, V]
    alone: Tensor  # [3, 2, 4, V], of the paths to both leaves: after prompt, root, child and leaf

    @property
    def paths(self) -> Tensor:
        """Returns the expected logits of the nodes: root, children, leaves, [3, N, V]."""
        return torch.cat([self.alone[:, :1, 1], self.alone[:, :, 2], self.alone[:, :, 3]], 1)


def find_fault(target: TransformersTarget) -> str | None:
    """Returns a clause about the fault in the target's scores of a batch of three and its trees, or None."""
    if (fault := find_unknown(target)) is not None:
        return fault
    if (module := find_mixing(target)) is not None:
        return (
            f"the output of {module} for a row depends on the rows next to it, as it does where activations are "
            "rounded by one scale for a whole batch; round the weights alone, or by a scale for each token"
        )
    try:
        logits = _score(target)
    except (SpecframeError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # a forward pass may raise any error
        return f"its forward pass fails where texts of several lengths, or a tree, follow a cache{_words(error)}"
    limit = tolerance(target)
    if not logits.alone.amax(-1).isfinite().all():
        return "its logits are not numbers: its weights are NaN or infinite, or its values overflow, as in float16"
    if not agree(logits.alone[:, 0, :2], logits.alone[:, 1, :2], limit):
        return "its attention sees the tokens that come after a position"
    if not agree(logits.prompts, logits.alone[:, 0, 0], limit):
        return "the rows of a batch with prompts of different lengths disturb each other"
    if not agree(logits.nodes, logits.paths, limit):
        return "it does not take the mask or the positions of a tree; another `attention` may help"
    return None if target.parts.memory.rewindable else _find_state_fault(target, limit)


def find_unknown(target: TransformersTarget) -> str | None:
    """Returns a clause about a recurrent state for which trees cannot be scored, or None."""
    mixer = unknown_of(target.weights)
    if mixer is None:
        return None
    return f"{mixer} keeps a recurrent state of a kind that specframe does not know{_after_cache(target)}"


@torch.no_grad()
def _find_state_fault(target: TransformersTarget, limit: float) -> str | None:
    """Returns the fault of a recurrent state after accepting 0, 1 and 2 nodes, by the scores of another tree."""
    tree = _begin(target)[1]
    target.score(tree)
    paths: tuple[list[int], ...] = ([], [1], [2, 4])
    path = torch.tensor([[*nodes, *[-1] * (2 - len(nodes))] for nodes in paths], device=target.device)
    count = torch.tensor([len(nodes) for nodes in paths], device=target.device)
    target.commit(tree, Verdict(path, count, bonus=(tree.tokens[:, 3] + 1) % target.vocab_size))
    after = replace(tree, tokens=tree.tokens.roll(1, 1))
    after.tokens[:, 0] = (tree.tokens[:, 3] + 1) % target.vocab_size
    found = target.score(after).logits
    texts = [
        [*(token % target.vocab_size for token in prompt), *tree.tokens[row, [0, *nodes]].tolist()]
        for row, (prompt, nodes) in enumerate(zip(PROMPTS, paths, strict=True))
    ]
    alone = torch.stack([_path(target, text, after, row) for row, text in enumerate(texts)])
    expected = Logits(found[:, 0], found, alone).paths
    return None if agree(found, expected, limit) else "its state after an accepted path is not that after a text"


@torch.no_grad()
def _after_cache(target: TransformersTarget) -> str:
    """Returns a clause about the error of three tokens at once over transformers' cache, relative to a whole text."""
    model: Any = target.model
    name = cache_name(model)
    text = torch.tensor([[token % target.vocab_size for token in (*PROMPTS[0], *PROMPTS[2])]], device=target.device)
    try:
        wanted = model(text, use_cache=False).logits[:, len(PROMPTS[0]) :]
        before = model(text[:, : len(PROMPTS[0])], use_cache=True)
        places = torch.arange(text.shape[1], device=target.device)[None, len(PROMPTS[0]) :]
        options: dict[str, Any] = {name: before.get(name)} if before.get(name) is not None else {}
        if "position_ids" in inspect.signature(model.forward).parameters:
            options["position_ids"] = places
        found = model(text[:, len(PROMPTS[0]) :], use_cache=True, **options).logits
    except Exception as error:  # a forward pass may raise any error
        return f", and its forward pass fails after a cache{_words(error)}"
    share = float((found - wanted).abs().max() / wanted.std())
    return f"; after transformers' own cache, three tokens at once are off by {share:.2g} of the logits' deviation"


@torch.no_grad()
def find_mixing(target: TransformersTarget) -> str | None:
    """Returns the first module whose output for a row depends on other rows, or None.

    Every innermost module that maps one tensor [.., D] to one tensor [.., E] is called again with only its first row
    unchanged. The shapes, and therefore the selected operators, are equal, so the first row's bits must not change in
    any dtype. If a repeated call with equal input already gives other bits, a change must be well above that noise.
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
            name = next(name for name, inner in model.named_modules() if inner is module)
            found.append(f"{name} ({type_name(module)})")

    handles = [module.register_forward_pre_hook(begin) for module in model.modules()]
    handles += [module.register_forward_hook(end) for module in model.modules()]
    texts = [[token % target.vocab_size for token in prompt] for prompt in (PROMPTS[0], PROMPTS[0][::-1])]
    try:
        model(torch.tensor(texts, device=target.device), use_cache=False)
    except Exception:  # errors are found and named when scores are compared
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
def find_layer_fault(
    target: TransformersTarget, chosen: LayerChoice, kv_selection: KVSelection | None = None
) -> str | None:
    """Returns the fault in the target's scores of trees that the chosen layers ran over first, or None.

    With a KV selection these layers see chosen slots. The test chooses all of them, per head if the selection is per
    head; the result must equal that without a selection.
    """
    if kv_selection is not None:
        require_kv_selection(target.config, kv_selection.budget, target.context)
    if hasattr(target.weights, "_hf_hook"):
        return "accelerate moves its weights in and out, for whole forward passes alone; load it without a device map"
    if target.reach[0] < ROOM:
        return None
    tree = _begin(target)[1]
    wanted = target.score(tree).logits
    everything = torch.arange(tree.tokens.shape[1], device=target.device).expand(tree.tokens.shape)
    try:
        without = [target.run_layers(chosen, tree, everything[:, part])["last"] for part in (slice(1), slice(1, 3))]
        if kv_selection is not None:
            if kv_selection.queries and target.memory().queries.shape[2] % target.memory().keys.shape[2]:
                return "its queries are not as wide as its keys"
            slots = _every_slot(target.memory(), kv_selection.per_head)
            for part, wanted_states in zip((slice(1), slice(1, 3)), without, strict=True):
                states = target.run_layers(chosen, tree, everything[:, part], slots)["last"]
                if not agree(states, wanted_states, tolerance(target)):
                    return "drafts that see all committed tokens differ from drafts without a `kv_selection`"
        found = target.score(tree).logits
    except (SpecframeError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        return f"its forward pass fails with some of them alone{_words(error)}"
    return None if agree(found, wanted, tolerance(target)) else "verification above them differs from a whole one"


def _every_slot(memory: CommittedMemory, per_head: bool) -> ChosenSlots:
    """Returns all committed slots of every row."""
    place = torch.arange(max(memory.counts), device=memory.count.device)
    slots = place.expand(len(memory.counts), -1).masked_fill(place >= memory.count[:, None], -1)[None, :, None]
    if per_head:
        layers, _, heads = memory.keys.shape[:3]
        slots = slots.expand(layers, -1, heads, -1)
    return ChosenSlots(slots)


def refuse(target: TransformersTarget, fault: str | None, what: str) -> None:
    """Raises CompositionError if there is a fault; `what` is the action that it prevents."""
    if fault is not None:
        raise CompositionError(f"{getattr(target.weights.config, 'model_type', 'it')} cannot {what}: {fault}")


def deviation(target: TransformersTarget) -> float:
    """Returns the largest difference between the logits of a tree and of its paths, relative to the largest logit."""
    logits = _score(target)
    return float(differences(logits.nodes, logits.paths).max())


def tolerance(target: TransformersTarget) -> float:
    """Returns the permitted difference between logits computed in two ways, relative to the largest."""
    if target.quantization is not None or target.forward.cache is not None:
        return LOOSE
    # transformers computes recurrences in float32 at most
    return limit_of(target.dtype if target.parts.memory.rewindable or target.dtype.itemsize < 8 else torch.float32)


def _words(error: Exception) -> str:
    return f" ({first_line(error)})" if str(error).strip() else ""


def _begin(target: TransformersTarget) -> tuple[Tensor, TokenTree]:
    """Begins a session of the prompts: returns the logits after them, [3, V], and the trees to score next."""
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
    """Returns the logits of both leaves' paths as separate texts: after prompt, root, child and leaf, [2, 4, V]."""
    texts = [
        torch.tensor([[*prompt, *tree.tokens[row, tree.ancestors[row, leaf]].tolist()]], device=target.device)
        for leaf in LEAVES
    ]
    return torch.stack([target.teach(text, torch.ones_like(text, dtype=torch.bool)).logits[0, -4:] for text in texts])
