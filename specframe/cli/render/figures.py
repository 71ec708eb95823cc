"""Display of a run's measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specframe.cli.render import print_rows
from specframe.files.text import counted, open_console, printable, printable_data

TAU_IS = "tokens per forward pass of the target, the bonus token included"
ALPHA_IS = "the fraction of cycles accepted to depth 1, 2, ..."
LOSSY = "NO: this verifier changes the target's distribution"
APPROXIMATE = "NO: the target reads or keeps a part of a long prompt, which changes its distribution"
DIFFERS = "NO: differs from plain decoding: run `specframe certify`"
LOSSLESS = "yes, as the verifier promises; `specframe certify` proves it"


def print_figures(summary: dict[str, Any]) -> None:
    """Prints the measurements as a table."""
    print("\n")
    print_rows(_rows(printable_data(summary)))


def print_place(out: Path) -> None:
    """Prints where the measurements were written."""
    open_console().print(f"\nwritten to {printable(str(out))}", style="dim")


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("tokens/s", f"{summary['tokens_per_second']:.1f}")]
    if summary["speedup_hf"] is not None:
        rows.append(("speedup_hf", _ratio(summary, "speedup_hf", "transformers' generate, same model, same process")))
    if summary["speedup"] is not None:
        rows.append(("speedup", _ratio(summary, "speedup", "our plain decoding of the same target, same process")))
    if summary["speedup_hf"] is not None:
        rows.append(("plain_vs_hf", f"{summary['plain_vs_hf']:.2f}x, our plain decoding against generate"))
    rows += [
        ("tau", f"{summary['tau']:.2f} {TAU_IS} ({counted(summary['cycles'], 'cycle')})"),
        ("alpha", f"{_list(summary['alpha'])}  ({ALPHA_IS})"),
    ]
    rows += [(part, _figures(found)) for part, found in summary["drafter"].items()]
    if (images := summary["images"]) is not None:
        rows.append(("images", f"{images['positions']} of the prompts' {images['of']} positions"))
    if summary["costs"] is not None:
        nodes = f"{summary['nodes']:.1f} drafted a cycle, as many as pay on this machine; at most"
        rows.append(("nodes", f"{nodes} {summary['nodes_at_most']} (`run.costs`)"))
    overhead = summary["overhead"]
    share = f"{overhead:.1%} of" if overhead < 10 else f"{overhead:.0f} times"  # of a target without a network
    rows.append(("overhead", f"{share} the forward passes' time"))
    rows.append(("phases", ", ".join(f"{name} {share:.0%}" for name, share in summary["phases"].items())))
    if summary["ahead"] is not None:
        rows.append(("ahead", _drafting_ahead(summary["ahead"])))
    if summary["devices"] is not None:
        rows.append(("devices", ", ".join(f"{part} on {device}" for part, device in summary["devices"].items())))
    rows.append(("forwards", ", ".join(f"{n} {ms:.2f} ms" for n, ms in summary["forward_ms"].items())))
    if summary["identical_to_generate"] is not None:
        rows.append(("identical", _identity(summary)))
    lossy = APPROXIMATE if summary["approximate"] else LOSSY
    promised = DIFFERS if differs(summary) else LOSSLESS
    rows.append(("lossless", promised if summary["lossless"] else lossy))
    if summary["peak_memory_bytes"] is not None:
        rows.append(("peak memory", f"{summary['peak_memory_bytes'] / 2**20:.0f} MiB"))
    return rows


def differs(summary: dict[str, Any]) -> bool:
    """Returns whether the text of a verifier that declares itself lossless differs by more than rounding."""
    return bool(summary["lossless"]) and summary["identical_to_generate"] is False


def _drafting_ahead(found: dict[str, float]) -> str:
    return (
        f"chains of {found['window']} tokens, ready in {found['hits']:.0%} of the cycles; drafting "
        f"{found['overlap_ms']:.2f} ms a cycle, {found['hidden_ms']:.2f} overlapped with the target, "
        f"{found['wait_ms']:.2f} waited for"
    )


def _figures(found: dict[str, float]) -> str:
    """Formats a drafter's own statistics: whole numbers exactly, others with significant digits."""
    return ", ".join(f"{name} {value:.0f}" if value >= 10 else f"{name} {value:.3g}" for name, value in found.items())


def _list(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _ratio(summary: dict[str, Any], name: str, against: str) -> str:
    low, high = summary[f"{name}_range"]
    repeats = summary["repeats"]
    spread = f"{low:.2f} to {high:.2f} over {repeats} repeats" if repeats > 1 else "one repeat: no spread"
    return f"{summary[name]:.2f}x ({spread}) against {against}"


def _identity(summary: dict[str, Any]) -> str:
    found = summary["divergences"]
    if not found:
        return "yes, token for token with generate"
    worst = max(found, key=lambda d: d["gap"] - 2 * d["noise"])
    verdict = "yes, except for near ties" if summary["identical_to_generate"] else "NO"
    return (
        f"{verdict}: {len(found)} of {len(summary['text'])} texts differ from generate's; in the worst case the two "
        f"logits are {worst['gap']:.1e} apart, and rounding moves a logit by {worst['noise']:.1e}"
    )
