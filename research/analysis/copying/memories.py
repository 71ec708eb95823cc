"""Costs of drafters without a model: a proposal, the upkeep of a cycle, and a store's build, opening and queries.

    python research/analysis/copying/memories.py [--tokens 10000000]

No model runs: the text is Python's standard library, a word or sign a token, again and again, and the scores favour
what followed a token in it. Times are processor time of this process on one thread, medians of many. Other processes do
not count in it, but slow it down, as they share caches and memory: the load is printed with every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import Any

import torch

from specframe import Sampling
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.recycling import Recycling
from specframe.components.drafters.suffix import Suffix
from specframe.components.drafters.suffix_recycling import SuffixRecycling
from specframe.plugin import Committed, Context, Cycle, Drafter, Observer, Prompts, Scores, TokenTree, Verdict
from specframe.sampling.random import SeededRandom
from specframe_text.lookahead.logitspec import LogitSpec
from specframe_text.lookahead.lookahead import Lookahead
from specframe_text.retrieval.corpus import Corpus, build
from specframe_text.retrieval.retrieval import Retrieval

VOCAB = 49_152
"""SmolLM2's."""
PROMPT = 1_000
"""Tokens of the text before the first proposal."""
TEXT = 1_000
"""Tokens of a text in a store."""
QUERIES = 300


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
    """The medians of proposing, of its nodes, and of commit and observe, over cycles that commit two tokens each."""
    text = list(islice(words(), PROMPT + 2 * cycles + 2))
    prompt = torch.tensor([text[:PROMPT]])
    drafter.open(1, PROMPT + 4 * cycles)
    begun = torch.tensor([text[1 : PROMPT + 1]])
    begin = Committed(begun, torch.tensor([PROMPT]), {}, begun[:, -1], prompt=Prompts(prompt, torch.tensor([PROMPT])))
    scoring = likely(text)
    observe: Callable[[Cycle], None] = drafter.observe if isinstance(drafter, Observer) else lambda cycle: None
    drafter.commit(begin)
    nothing = Verdict(torch.zeros(1, 0, dtype=torch.int64), torch.tensor([0]), begun[:, -1])
    observe(Cycle(TokenTree.root_only(prompt[:, -1]), scoring([text[PROMPT - 1]]), nothing, begin))
    proposing, nodes, keeping = list[float](), list[int](), list[float]()
    for place in range(PROMPT + 1, PROMPT + 1 + 2 * cycles, 2):
        root = torch.tensor([text[place - 1]])
        drafts: list[TokenTree] = []
        context = Context(Sampling(), SeededRandom(0, 1).draft)
        proposing.append(timed(lambda: drafts.append(drafter.propose(root, None, context))))  # noqa: B023
        nodes.append(drafts[0].tokens.shape[1])
        draft = drafts[0].graft([0], [text[place : place + 1]])
        below = (draft.tokens[0] == text[place]) & (draft.parent[0] == 0)
        path = torch.full((1, draft.levels), -1)
        path[0, 0] = below.nonzero()[0]
        verdict = Verdict(path, torch.tensor([1]), torch.tensor([text[place + 1]]))
        committed = Committed(
            torch.tensor([text[place : place + 2]]), torch.tensor([2]), {}, torch.tensor([text[place + 1]])
        )
        happened = Cycle(draft, scoring(draft.tokens[0].tolist()), verdict, committed)
        keeping.append(timed(lambda: drafter.commit(committed)) + timed(lambda: observe(happened)))  # noqa: B023
    return {"propose_ms": median(proposing), "nodes": median(nodes), "commit_and_observe_ms": median(keeping)}


def likely(text: Sequence[int]) -> Callable[[list[int]], Scores]:
    """Gives the scores of nodes with these tokens: what followed each in the text, the most frequent first."""
    followers: dict[int, Counter[int]] = {}
    for before, token in pairwise(text):
        followers.setdefault(before, Counter())[token] += 1
    noise = torch.rand(1, 128, VOCAB)

    def score(tokens: list[int]) -> Scores:
        logits = noise[:, : len(tokens)].clone()
        for node, token in enumerate(tokens):
            for rank, (follower, _) in enumerate(followers.get(token, Counter()).most_common(8)):
                logits[0, node, follower] = 10 - rank
        return Scores(logits, {})

    return score


def of_stores(tokens: int) -> dict[str, dict[str, float]]:
    """The figures of a store that was built of so many tokens, and of one that remembered them text by text."""
    stream = words()
    texts = [list(islice(stream, TEXT)) for _ in range(tokens // TEXT)]
    target: Any = SimpleNamespace(vocab_size=VOCAB)  # a store asks for no more
    with tempfile.TemporaryDirectory() as folder:
        path, before = Path(folder) / "built", peak()
        made = {"build_s": timed(lambda: build(path, texts, target)) / 1000, "build_mib": peak() - before}
        built = made | of_store(path, texts)
        path = Path(folder) / "remembered"
        build(path, texts[:1], target)
        store = Corpus(path=path)
        appends = [timed(lambda: store.append([text])) for text in texts[1:]]  # noqa: B023
        kept = {"append_ms": median(appends), "append_longest_s": max(appends) / 1000, "all_s": sum(appends) / 1000}
        remembered = kept | of_store(path, texts)
    return {"store, built": built, "store, remembered": remembered}


def of_store(path: Path, texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Times opening and querying a store of these texts. Every query replaces one token, at any place."""
    store = Corpus(path=path)
    target: Any = SimpleNamespace(vocab_size=VOCAB)
    open_ms = timed(lambda: store.bind(target))
    queries = []
    for number in range(QUERIES):
        tail = list(texts[number * 7 % len(texts)][number % 900 : number % 900 + 16])
        tail[number % 16] = number % VOCAB
        queries.append(timed(lambda: store.find(tail, length=10, limit=64)))  # noqa: B023
    return {
        "tokens": len(store),
        "arrays": len(list(path.glob("*.order.npy"))),
        "disk_mib": sum(file.stat().st_size for file in path.iterdir()) / 2**20,
        "open_ms": open_ms,
        "query_ms": median(queries),
        "query_longest_ms": max(queries),
        "retrieval_propose_ms": of_drafter(Retrieval(store=store), cycles=100)["propose_ms"],
    }


def peak() -> float:
    """The most memory that the process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(tokens: int, cycles: int) -> Iterator[tuple[str, dict[str, float]]]:
    """All figures, by the name of the part."""
    drafters: dict[str, Drafter] = {
        "lookup": Lookup(),
        "suffix": Suffix(),
        "recycling": Recycling(prompt=False),
        "suffix-recycling": SuffixRecycling(prompt=False),
        "lookahead": Lookahead(),
        "logitspec": LogitSpec(nodes=16, guesses=8),
    }
    for name, drafter in drafters.items():
        yield name, of_drafter(drafter, cycles)
    yield from of_stores(tokens).items()


def main() -> None:
    """Prints one line of JSON a part, with the load of the machine in the last minute."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=10_000_000, help="the size of the stores")
    options.add_argument("--cycles", type=int, default=300, help="proposals of each drafter")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    for name, figures in measure(chosen.tokens, chosen.cycles):
        machine = {"load": os.getloadavg()[0], "processors": os.cpu_count() or 1}
        print(json.dumps({"part": name} | {key: round(value, 4) for key, value in (figures | machine).items()}))


if __name__ == "__main__":
    main()
