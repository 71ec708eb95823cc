"""Display of a certificate, and of the progress bar while it is made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specframe.cli.render.trees import draw
from specframe.files.text import counted, open_console, printable, printable_data
from specframe.inspect.detokenise import probability

if TYPE_CHECKING:
    from rich.console import Console

    from specframe.certify.compositions.counterexample import Counterexample, DrawnOption, Place
    from specframe.certify.compositions.enumeration import EnumerationProgress

NOT_SHOWN = "not shown: no difference was found, but not every branch was run (raise --budget)"
EXACT = 1e-9
"""Total variation below which a difference is rounding."""
TV_IS = "total variation: half the sum of all differences between two distributions; 0 is the same distribution"
THREE = 3
"""Number of tokens that show the length of the first cycle."""
QUIET_SECONDS = 10.0
"""Seconds between a case's progress lines without a terminal."""


@contextmanager
def progress_shown(quiet: bool) -> Iterator[Callable[[str, EnumerationProgress], None]]:
    """Shows the enumeration's progress on stderr: a bar on a terminal, otherwise occasional lines; none if `quiet`."""
    if quiet:
        yield lambda name, progress: None
        return
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[count]} branches"))
    with Bar(*columns, console=open_console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, count=0)

        def listen(name: str, progress: EnumerationProgress) -> None:
            bar.update(task, description=printable(name), completed=progress.mass, count=progress.branches)

        yield listen


def _progress_lines() -> Callable[[str, EnumerationProgress], None]:
    shown: dict[str, float] = {}

    def listen(name: str, progress: EnumerationProgress) -> None:
        if name not in shown or progress.seconds - shown[name] >= QUIET_SECONDS:
            shown[name] = progress.seconds
            done = f"{_branches(progress.branches)}, {100 * progress.mass:.4g} %"
            print(f"{printable(name)}: {done}", file=sys.stderr, flush=True)

    return listen


def print_certificate(certificate: dict[str, Any], recipe: str, example: Counterexample | None = None) -> None:
    """Prints a recipe's certificate, and its counter-example."""
    console = open_console()
    certificate = printable_data(certificate)
    print_title(console, recipe, "every random outcome of the recipe's own code, on small vocabularies")
    console.print(cases_table(certificate["cases"] + certificate["controls"]))
    console.print(f"{TV_IS}\n", style="dim")
    for line in certificate["audit"][:5]:
        console.print(f"audit: {line}")
    for text in _notes(certificate):
        console.print(text)
    for guarantee in certificate.get("guarantees", ()):
        console.print(_guarantee(guarantee), style=None if guarantee["held"] else "bold red")
    if certificate["real"] is not None:
        _print_real(console, certificate["real"])
    if certificate.get("departure") is not None:
        console.print(_departure(certificate["departure"]))
    if certificate["distance"] is not None:
        _print_distance(console, certificate["distance"])
    if example is not None:
        console.print(_counterexample(example))
    console.print(f"\n{verdict(certificate)}", style="bold")


def _counterexample(example: Counterexample) -> Group:
    """Returns the draft whose verdict emits a token too often, its random draws, and the line that decided."""
    cycle, before = example.cycle, " ".join(map(str, example.before))
    after = f"after the text {before}" if before else "as the first token"
    token = "the end" if example.token < 0 else f"token {example.token}"
    node = next(node for node in cycle.nodes if node.index == example.node)
    lines = [f"  drawn in {_place(drawn.place)}: {_choice(drawn)}" for drawn in example.draws]
    return Group(
        Text(f"\ncounter-example ({printable(example.case)})", style="bold"),
        f"{after}, {token} has probability {example.got:.6f} instead of {example.wanted:.6f}",
        Padding(draw(cycle), (0, 0, 0, 2)),
        *lines,
        f"  {token} follows node {node.text}, level {node.depth}, as decided in {_place(example.decided)}",
    )


def _place(place: Place) -> str:
    return printable(f"{place.call} ({place.file}:{place.line})" if place.file else place.call)


def _choice(drawn: DrawnOption) -> str:
    """Returns the option that was drawn, and the probabilities of all."""
    return f"option {drawn.option} of {' '.join(map(probability, drawn.law))}"


def print_title(console: Console, name: str, what: str) -> None:
    """Prints what was tested, and how."""
    console.print(Text("\n").append(printable(name), style="bold").append(f": {what}\n"))


def verdict(certificate: dict[str, Any]) -> str:
    """Returns the certificate in one sentence."""
    if certificate["tv"] >= EXACT:
        off = f"not lossless: total variation {certificate['tv']:.4g}"
        return off if certificate["promised"] or certificate["approximate"] else off + ", as its verifier declares"
    if certificate["interrupted"]:
        return "not shown: interrupted before every branch was run"
    if certificate["shortcuts"]:
        return f"not lossless: {certificate['shortcuts'][0]}"
    if not certificate["control_failed"]:
        unnoticed = (case for case in certificate["controls"] if case["tv"] < EXACT)
        if not certificate["exhausted"] or not all(case["exhausted"] for case in unnoticed):
            return NOT_SHOWN
        return "refused: a copy broken on purpose was not noticed, so this certificate would prove nothing"
    if not certificate["accepting"]:
        return "not shown: no drafted token was accepted in any case"
    if certificate["composed"]:
        shown = f"{_branches(certificate['branches'])}, total variation {certificate['tv']:.1e}; {_reach(certificate)}"
        if certificate["real"] is not None and not certificate["real"]["passed"]:
            return f"not lossless on the recipe's own model, though by enumeration: {shown}"
        if certificate["real"] is not None and not certificate["real"]["sampled"]["conclusive"]:
            shown += "; not shown by sampling on the recipe's own model"
        if certificate["approximate"]:
            return f"not lossless, as the target is approximate{_far(certificate)}; exact on what it reads: {shown}"
        return f"lossless: {shown}"
    return NOT_SHOWN


def _reach(certificate: dict[str, Any]) -> str:
    """Returns the tokens, levels and cycles that were compared, and the smaller tree that replaced the recipe's."""
    tokens = max((case["tokens"] for case in certificate["cases"] if not case["forced"]), default=0)
    level, cycles = certificate["levels"], counted(certificate["cycles"], "cycle")
    compared = f"{counted(tokens, 'token')} from the start, to level {level}, {cycles}"
    return compared + (f"; of a smaller tree: {', '.join(certificate['smaller'])}" if certificate["smaller"] else "")


def cases_table(cases: list[dict[str, Any]]) -> Table:
    """Returns a table with a row for each enumerated case."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("case", "TV", "first token", "branches", "covered"):
        table.add_column(name, justify="left" if name == "case" else "right")
    for case in cases:
        covered = "all" if case["exhausted"] else f"{100 * case['mass']:.4g} %"
        figures = (f"{case['tv']:.1e}", f"{case['first_token_tv']:.1e}", str(case["branches"]), covered)
        table.add_row(case["name"], *figures)
    return table


def _notes(certificate: dict[str, Any]) -> Iterator[str]:
    for reduced in dict.fromkeys(tuple(case["reduced"]) for case in certificate["cases"] if case["reduced"]):
        yield f"small tree: {', '.join(reduced)} (the recipe's own was run as far as the budget went)"
    short = [
        case["name"]
        for case in certificate["cases"]
        if case["exhausted"] and case["tokens"] < THREE and not case["forced"]
    ]
    if short:
        where = counted(len(short), "case")
        yield f"two tokens only are compared in {where}: what depends on a cycle's length is not in them"
    apart = [case["name"] for case in certificate["cases"] if not case["side_by_side"]]
    if apart:
        cases = counted(len(apart), "case")
        yield f"rows of one batch changed each other's draws in {cases}, run again one branch at a time"
    if not certificate["batches"] and certificate["tv"] < EXACT:
        yield "among other rows not every branch was run: nothing is shown for rows of one batch"
    if certificate["weights_unread"]:
        named = ", ".join(certificate["weights_unread"])
        yield f"the weights were not loaded ({named}): the distribution is shown for this code with any weights"
    if certificate["tv"] >= EXACT:
        yield farthest_off(max(certificate["cases"], key=lambda case: case["tv"]))


def farthest_off(case: dict[str, Any]) -> str:
    """Returns the sequence whose probability deviates most."""
    return f"worst sequence {case['worst_sequence']}: probability {case['got']:.6f} instead of {case['wanted']:.6f}"


def _guarantee(guarantee: dict[str, Any]) -> str:
    """Describes a property of a lossy verifier, and whether it holds."""
    run = _branches(guarantee["branches"]) + ("" if guarantee["complete"] else ", not all")
    return f"{'holds' if guarantee['held'] else 'DOES NOT HOLD'}: {guarantee['name']} ({run})"


def _departure(found: dict[str, Any]) -> str:
    """Describes how far a lossy rule's texts depart from the target's own choices."""
    return (
        f"\nthe lossy rule at temperature 0: of {counted(found['tokens'], 'token')}, {found['others']:.1%} are not the "
        f"target's choice; a token loses {found['nats']:.3f} nats on average. `specframe bench` measures the quality"
    )


def _print_real(console: Console, real: dict[str, Any]) -> None:
    greedy, sampled = real["greedy"], real["sampled"]
    console.print("\non the recipe's own model\n", style="bold")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    same = "identical to plain decoding" if not greedy["divergences"] else f"{len(greedy['divergences'])} diverge"
    table.add_row("greedy", f"{counted(greedy['prompts'], 'prompt')}, {counted(greedy['tokens'], 'token')}: {same}")
    for row in greedy["divergences"]:
        kind = "a tie" if row["tie"] else "NOT A TIE"
        table.add_row("", f"prompt {row['prompt'] + 1}, token {row['position']}: logits {row['gap']:.2e} apart, {kind}")
    table.add_row(
        "margins",
        f"smallest {greedy['smallest_margin']:.2e}, median {greedy['median_margin']:.2e}; "
        f"scoring many tokens at once changes logits by up to {greedy['noise']:.1e}",
    )
    outcome = "no difference" if sampled["conclusive"] else "not shown by sampling, the control went unnoticed"
    outcome = outcome if sampled["consistent"] else "DIFFERENT"
    table.add_row(
        "sampled",
        f"{sampled['samples']} continuations of {sampled['tokens']} tokens at temperature "
        f"{sampled['temperature']:g}, each way: {outcome} (p = {sampled['p_value']:.3f}, false alarms "
        f"{sampled['error_rate']:.1%}; a verifier broken on purpose gives p = {sampled['control_p_value']:.3f})",
    )
    console.print(table)


def _far(certificate: dict[str, Any]) -> str:
    """Describes the distance from the full target, if it was measured."""
    found = certificate["distance"]
    return "" if found is None else f": total variation {found['mean_tv']:.3g} a token from the full target"


def _print_distance(console: Console, found: dict[str, Any]) -> None:
    console.print("\nthe approximate target against the full one, on the recipe's own model\n", style="bold")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("in part", f"{found['shortened']} of {counted(found['prompts'], 'prompt')}")
    table.add_row(
        "distribution",
        f"total variation {found['mean_tv']:.3g} on average, at most {found['largest_tv']:.3g}, at temperature "
        f"{found['temperature']:g} over {counted(found['tokens'], 'token')} of the full target's greedy text",
    )
    table.add_row(
        "greedy", f"same token in {found['agreement']:.1%} of the places, same text of {found['same_texts']} prompts"
    )
    console.print(table)


def _branches(count: int) -> str:
    return f"{count} branch" if count == 1 else f"{count} branches"
