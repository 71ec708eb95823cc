"""What drafters without a model cost: a proposal, the upkeep of a cycle, and a store's build, opening and queries.

    python docs/analysis/memories.py [--tokens 10000000]

Times are processor time of this process, medians of many. No model runs: the text is Python's standard library, a word
or sign a token, and the scores are random.
"""

from __future__ import annotations

import argparse
import json
import re
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import Any

import torch

from specframe import Committed, Context, Cycle, Drafter, Observer, Prompts, Sampling, Scores, TokenTree, Verdict
from specframe.components.drafters.logitspec import LogitSpec
from specframe.components.drafters.lookahead import Lookahead
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.recycling import Recycling
from specframe.components.drafters.retrieval import Retrieval
from specframe.components.drafters.suffix import Suffix
from specframe.components.drafters.suffix_recycling import SuffixRecycling
from specframe.sampling.random import SeededRandom
from specframe.stores.corpus import Corpus, build

VOCAB = 49_152
"""SmolLM2's."""
PROMPT = 1_000
"""Tokens of the text before the first proposal."""


def words() -> Iterator[int]:
    """The standard library's sources as tokens, again and again."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    known: dict[str, int] = {}
    for path in cycle(files):
        for word in re.findall(r"\w+|[^\w\s]|\n *", path.read_text(encoding="utf-8", errors="replace")):
            yield known.setdefault(word, len(known) % VOCAB)


def timed(act: Callable[[], object]) -> float:
    """The processor time that an action takes, in milliseconds."""
    begin = process_time()
    act()
    return 1000 * (process_time() - begin)


def of_drafter(drafter: Drafter, cycles: int) -> dict[str, float]:
    """The medians of proposing, and of commit and observe, over cycles that commit two tokens each."""
    text = list(islice(words(), PROMPT + 2 * cycles + 2))
    prompt = torch.tensor([text[:PROMPT]])
    drafter.open(1, PROMPT + 4 * cycles)
    begun = torch.tensor([text[1 : PROMPT + 1]])
    begin = Committed(begun, torch.tensor([PROMPT]), {}, begun[:, -1], prompt=Prompts(prompt, torch.tensor([PROMPT])))
    noise = torch.rand(1, 64, VOCAB)
    observe: Callable[[Cycle], None] = drafter.observe if isinstance(drafter, Observer) else lambda cycle: None
    drafter.commit(begin)
    nothing = Verdict(torch.zeros(1, 0, dtype=torch.int64), torch.tensor([0]), begun[:, -1])
    observe(Cycle(TokenTree.root_only(prompt[:, -1]), Scores(noise[:, :1], {}), nothing, begin))
    proposing, keeping = [], []
    for place in range(PROMPT + 1, PROMPT + 1 + 2 * cycles, 2):
        root = torch.tensor([text[place - 1]])
        drafts = []
        context = Context(Sampling(), SeededRandom(0, 1).draft)
        proposing.append(timed(lambda: drafts.append(drafter.propose(root, None, context))))  # noqa: B023
        draft = drafts[0].graft([0], [text[place : place + 1]])
        below = (draft.tokens[0] == text[place]) & (draft.parent[0] == 0)
        path = torch.full((1, draft.levels), -1)
        path[0, 0] = below.nonzero()[0]
        verdict = Verdict(path, torch.tensor([1]), torch.tensor([text[place + 1]]))
        committed = Committed(
            torch.tensor([text[place : place + 2]]), torch.tensor([2]), {}, torch.tensor([text[place + 1]])
        )
        scores = Scores(noise[:, : draft.tokens.shape[1]], {})
        happened = Cycle(draft, scores, verdict, committed)
        keeping.append(
            timed(lambda: (drafter.commit(committed), observe(happened)))  # noqa: B023
        )
    return {"propose_ms": median(proposing), "commit_and_observe_ms": median(keeping)}


def of_store(tokens: int) -> dict[str, float]:
    """The times of a store of so many tokens, in texts of 1,000."""
    stream = words()
    texts = [list(islice(stream, 1_000)) for _ in range(tokens // 1_000)]
    target: Any = SimpleNamespace(vocab_size=VOCAB)  # a store asks for no more
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        build_ms = timed(lambda: build(path, texts, target))
        store = Corpus(path=path)
        open_ms = timed(lambda: store.bind(target))
        tails = [texts[number * 7 % len(texts)][number % 900 : number % 900 + 16] for number in range(300)]
        queries = [timed(lambda: store.find(tail, length=10, limit=64)) for tail in tails]  # noqa: B023
        retrieval = of_drafter(Retrieval(store=store), cycles=100)
        append_ms = timed(lambda: store.append([texts[0]]))
    return {
        "tokens": len(texts) * 1_000,
        "build_s": build_ms / 1000,
        "open_ms": open_ms,
        "query_ms": median(queries),
        "query_longest_ms": max(queries),
        "append_ms": append_ms,
        "retrieval_propose_ms": retrieval["propose_ms"],
    }


def measure(tokens: int, cycles: int) -> dict[str, dict[str, float]]:
    """All figures by name."""
    drafters: dict[str, Drafter] = {
        "lookup": Lookup(),
        "suffix": Suffix(),
        "recycling": Recycling(prompt=False),
        "suffix-recycling": SuffixRecycling(prompt=False),
        "lookahead": Lookahead(),
        "logitspec": LogitSpec(nodes=16, guesses=8),
    }
    return {name: of_drafter(drafter, cycles) for name, drafter in drafters.items()} | {"store": of_store(tokens)}


def main() -> None:
    """Prints one line of JSON a part."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokens", type=int, default=10_000_000, help="the size of the store")
    options.add_argument("--cycles", type=int, default=300)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    for name, figures in measure(chosen.tokens, chosen.cycles).items():
        print(json.dumps({"part": name} | {key: round(value, 4) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
