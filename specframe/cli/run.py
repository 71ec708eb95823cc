"""`specframe run RECIPE`: decodes the recipe's prompts, then shows honest measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import PATH, json_option, limit_option, local_code_allowed, prompts_option, recipe_command
from specframe.files.text import printable

if TYPE_CHECKING:
    from specframe.bench.measure import Figures, Spread
    from specframe.decoding.clock import Clock
    from specframe.decoding.pipeline import Pipeline
    from specframe.decoding.stats import Acceptance, Result
    from specframe.kernel.interfaces import Drafter, Target
    from specframe.recipes.build import Plan


@recipe_command
@click.option("--prompt", multiple=True, metavar="TEXT", help="decode this prompt; may be repeated")
@click.option(
    "--image", multiple=True, type=PATH, metavar="FILE", help="a picture in front of the prompt; may be repeated"
)
@click.option(
    "--drafter",
    metavar="NAME",
    help="replace the recipe's drafter; auto: use a drafter published for this model of the Hub",
)
@prompts_option
@limit_option
@json_option("print the figures as one JSON object on the last line")
@click.option("--out", type=PATH, metavar="DIR", help="the folder of run.json (default: runs/RECIPE)")
def run(
    plan: Plan,
    prompt: Sequence[str],
    image: Sequence[Path],
    prompts: Path | None,
    limit: int | None,
    as_json: bool,
    out: Path | None,
) -> int:
    """Decode the recipe's prompts and measure tau, alpha, speed and overhead.

    One prompt takes all images; several prompts take one each. Texts are printed as they are generated, then the
    figures. run.json has the figures, the recipe, versions and hardware. The exit status is 1 if a verifier that
    declares itself lossless changes the text by more than rounding.
    """
    from specframe.cli.target import choose_target, describe_target, drafter_of, require_template
    from specframe.kernel.errors import InputError

    texts: list[str | list[int]] = list(prompt) or plan.settings["run"].prompts
    if prompts is not None:
        from specframe.files.prompts import read_prompts

        if prompt:
            raise InputError("--prompt and --prompts were both given: choose one")
        if image:
            raise InputError("--image belongs to prompts of the command line: give --prompt in place of --prompts")
        texts = list(read_prompts(prompts, limit))
    elif limit is not None:
        raise InputError("--limit counts the prompts of a file: give --prompts FILE, too")
    if not texts:
        raise InputError("there is nothing to decode: give --prompt TEXT, or put run.prompts into the recipe")

    from specframe.components.targets.image_processor import open_image
    from specframe.decoding.encoding import images_of

    pictures = images_of([open_image(file) for file in image], len(texts))

    from specframe.bench.measure import measure
    from specframe.cli.render.figures import differs, print_figures, print_place
    from specframe.decoding.pipeline import Pipeline
    from specframe.files.folders import made
    from specframe.files.provenance import describe_run, write_json

    with made(folder := out or Path("runs") / plan.recipe.path.stem):
        valid, target = choose_target(plan, local_code_allowed())
        require_template(valid)
        if not as_json:
            print(f"{describe_target(target)}\n", flush=True)
        pipeline = Pipeline.build(valid)
        target |= drafter_of(valid, pipeline.parts.target)
        rows = [pipeline.encode(*each) for each in zip(texts, pictures, strict=True)]
        result = _decode(pipeline, texts, rows, quiet=as_json)
        figures = measure(pipeline, rows, pipeline.run.repeats) if pipeline.run.repeats else None
        summary = summarise(pipeline, result, figures) | {"images": images_in(rows, pipeline.parts.target)}
        written = folder / "run.json"
        try:
            if as_json:
                print(json.dumps(summary | {"target": target}), flush=True)
            else:
                print_figures(summary)
        finally:  # a full disk, or a pipe without a reader, loses only its own output
            write_json(written, describe_run(pipeline.plan or valid, summary, target))
        if not as_json:
            print_place(written)
        return 1 if differs(summary) else 0


def _decode(
    pipeline: Pipeline, prompts: Sequence[str | list[int]], encoded: Sequence[Sequence[int]], quiet: bool
) -> Result:
    """Decodes the prompts; unless quiet, prints each text, incrementally if rows are decoded one by one."""
    shown = -1
    texts = [""] * len(prompts)
    tokens: list[list[int]] = [[] for _ in prompts]

    def stream(row: int, new: list[int]) -> None:
        nonlocal shown
        if row != shown:
            print(printable(f"\n\n> {prompts[row]}\n" if shown >= 0 else f"> {prompts[row]}\n"))
            shown = row
        tokens[row] += new
        text = pipeline.decode(tokens[row])
        if not text.endswith(("\ufffd", "\r")):  # wait for the rest of a character or line end
            text = printable(text)
            print(text[len(texts[row]) :], end="", flush=True)
            texts[row] = text

    alone = pipeline.run.batch == 1
    result = pipeline.generate(encoded, listener=stream if alone and not quiet else None)
    if not alone and not quiet:
        for prompt, text in zip(prompts, result.texts, strict=True):
            print(printable(f"> {prompt}\n\n{text}\n"))
    return result


def summarise(pipeline: Pipeline, result: Result, figures: Figures | None) -> dict[str, Any]:
    """Returns a run's measurements as plain data; speeds are None if nothing was timed."""
    from specframe.kernel.capabilities import is_approximate
    from specframe.kernel.composition import report_of

    acceptance = figures.acceptance if figures else result.acceptance
    clock = figures.clock if figures else result.clock
    tokens = sum(map(len, result.tokens))
    return {
        "text": result.texts,
        "tokens": tokens,
        "ended": result.ended,
        "cycles": acceptance.cycles,
        "tau": acceptance.tau,
        "alpha": acceptance.alpha,
        "alpha_conditional": acceptance.conditional_alpha,
        "draft_efficiency": acceptance.efficiency,
        "nodes": acceptance.drafted / max(acceptance.cycles, 1),
        "nodes_at_most": pipeline.parts.nodes - 1,
        "costs": pipeline.parts.costs.as_data() if pipeline.parts.costs else None,
        "tokens_per_second": figures.tokens_per_second.median if figures else tokens / clock.seconds["session"],
        "speedup": figures.speedup.median if figures else None,
        "speedup_range": _range(figures.speedup) if figures else None,
        "speedup_hf": figures.speedup_hf.median if figures and figures.speedup_hf else None,
        "speedup_hf_range": _range(figures.speedup_hf) if figures else None,
        "plain_vs_hf": figures.plain_vs_hf.median if figures and figures.plain_vs_hf else None,
        "overhead": clock.overhead,
        "phases": clock.shares,
        "ahead": ahead_of(acceptance, clock),
        "drafter": report_of(pipeline.parts.drafter),
        "forward_ms": {
            name: 1000 * clock.seconds[name] / clock.calls[name] for name in ("target", "drafter") if clock.calls[name]
        },
        "lossless": pipeline.lossless,
        "approximate": is_approximate(pipeline.parts.target),
        "devices": devices_by_part(pipeline.parts.drafter),
        "identical_to_generate": figures.identical if figures else None,
        "divergences": [vars(d) | {"tie": d.tie} for d in figures.divergences] if figures else [],
        "repeats": pipeline.run.repeats,
        "peak_memory_bytes": _peak_memory(),
    }


def images_in(rows: Sequence[Sequence[int]], target: Target) -> dict[str, int] | None:
    """Returns how many of the prompts' positions belong to images, and the total number; None without images."""
    from specframe.kernel.interfaces import text_of

    tokens = text_of(target).image_tokens
    found = sum(token in tokens for row in rows for token in row)
    return {"positions": found, "of": sum(map(len, rows))} if found else None


def devices_by_part(drafter: Drafter) -> dict[str, str] | None:
    """Returns the devices of the target and of a drafter with its own device; None for others."""
    from specframe.kernel.composition import devices_of

    devices = devices_of(drafter)
    return devices and dict(zip(("target", "drafter"), map(str, devices), strict=True))


def ahead_of(acceptance: Acceptance, clock: Clock) -> dict[str, float] | None:
    """Returns statistics of a drafter that worked while the target scored; None for others."""
    if not clock.calls["overlap"]:
        return None
    cycles = clock.calls["overlap"]
    return {
        "hits": (acceptance.possible[0] if acceptance.possible else 0) / max(acceptance.cycles, 1),
        "window": len(acceptance.possible),
        "overlap_ms": 1000 * clock.seconds["overlap"] / cycles,
        "hidden_ms": 1000 * clock.hidden / cycles,
        "wait_ms": 1000 * clock.seconds["wait"] / cycles,
    }


def _range(spread: Spread | None) -> list[float] | None:
    return [spread.low, spread.high] if spread else None


def _peak_memory() -> int | None:
    """Returns the process's peak resident set, or the accelerator's peak allocation, in bytes; None if not measured."""
    import sys

    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
