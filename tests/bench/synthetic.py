"""results.json as a bench would have written it, from known truths."""

from __future__ import annotations

import numpy as np

TASKS = ("dialogue", "code", "mathematics")
PHASES = {"draft": 0.25, "score": 0.6, "verify": 0.05, "commit": 0.05, "other": 0.03, "prefill": 0.02}


class Drift:
    """A machine's load over some hours, the log of a factor: a random walk that is pulled back within `memory` seconds.

    Before `memory` has passed it looks like a random walk; much later it is independent of itself.
    """

    STEP = 2.0

    def __init__(self, deviation, memory, seed=0, hours=2):
        random = np.random.default_rng([seed, 13])
        steps, kept = int(hours * 3600 / self.STEP), np.exp(-self.STEP / memory)
        pushes = random.normal(0, deviation * np.sqrt(1 - kept**2), steps)
        self.walk = [random.normal(0, deviation)]
        for push in pushes:
            self.walk.append(self.walk[-1] * kept + push)

    def __call__(self, time):
        return self.walk[int(time / self.STEP)]


class World:
    """A machine and a set of prompts: what is true, and how noisy it is to measure."""

    def __init__(self, prompts=12, speedup=1.5, seed=0, sigma=0.15, tokens=64):
        random = np.random.default_rng([seed, 7])
        self.tokens = tokens
        self.prompts = [f"set{i % 2}/{i}" for i in range(prompts)]
        self.tasks = [TASKS[i % len(TASKS)] for i in range(prompts)]
        self.cost = 0.01 * np.exp(random.normal(0, 0.1, prompts))  # plain seconds per token
        self.speedup = speedup * np.exp(random.normal(0, sigma, prompts))

    @property
    def truth(self):
        """The speedup of this world's prompts, without noise."""
        return self.cost.sum() / (self.cost / self.speedup).sum()

    def drifting_bench(self, slow, wide, start=0.0, repeats=3, seed=0, noise=0.05):
        """A bench from a moment on: `slow` is the machine's load, `wide` that of its forwards over drafts."""
        random = np.random.default_rng([seed, 17])
        runs, clock = [], start
        for repeat in range(repeats):
            for index, prompt in enumerate(self.prompts):
                for name in ("plain", "hf:generate", "falcon"):
                    own, tau = (self.speedup[index], 1.6 * self.speedup[index]) if name == "falcon" else (1.0, 1.0)
                    load = slow(clock) + (wide(clock) if name == "falcon" else 0.0)
                    cost = self.cost[index] / own * np.exp(load + random.normal(0, noise))
                    runs.append(run(name, prompt, repeat, cost * self.tokens, self.tokens, tau=tau) | {"began": clock})
                    clock += cost * self.tokens
        return results(runs, list(zip(self.prompts, self.tasks, strict=True)), repeats)

    def bench(self, repeats=5, seed=0, noise=0.05, drift=0.1, load=0.01, hiccups=0.03, faster=1.0):
        """A bench on this machine: run noise, drift common to a repeat, each contestant's load in a repeat."""
        random = np.random.default_rng([seed, 11])
        runs = []
        shared = np.exp(random.normal(0, drift, repeats))
        for name in ("plain", "hf:generate", "falcon"):
            loads = np.exp(random.normal(0, load, repeats))
            for repeat in range(repeats):
                for index, prompt in enumerate(self.prompts):
                    own = self.speedup[index] * faster if name == "falcon" else 1.0
                    cost = self.cost[index] / own * shared[repeat] * loads[repeat] * np.exp(random.normal(0, noise))
                    cost *= 3 if random.random() < hiccups else 1
                    tau = 1.0 if name == "plain" else 1.6 * own
                    runs.append(run(name, prompt, repeat, cost * self.tokens, self.tokens, tau=tau))
        return results(runs, list(zip(self.prompts, self.tasks, strict=True)), repeats)


def run(contestant, prompt, repeat, seconds, tokens=64, tau=2.0, turn=0, identical=True, gap=None):
    """One run; a recipe's when the contestant is no `hf:` one."""
    entry = {
        "contestant": contestant,
        "prompt": prompt,
        "repeat": repeat,
        "turn": turn,
        "order": 0,
        "seconds": seconds,
        "first_token_seconds": seconds * 0.05,
        "tokens": tokens,
        "token_seconds": [seconds / tokens, 2 * seconds / tokens],
        "identical": identical,
        "gap": gap,
        "noise": None if gap is None else 1e-5,
        "peak_memory_bytes": 300 * 2**20,
    }
    if contestant.startswith("hf:"):
        return entry
    cycles = max(round(tokens / tau), 1)
    accepted = tokens - cycles
    forwards = seconds * 0.9
    drafting = contestant != "plain"
    first = min(accepted, cycles)
    return entry | {
        "cycles": cycles,
        "accepted": accepted,
        "drafted": cycles * 4 * drafting,
        "reached": [first, accepted - first] if drafting else [],
        "possible": [cycles, cycles] if drafting else [],
        "phases": {name: share * seconds for name, share in PHASES.items()},
        "target_seconds": forwards * 0.7,
        "target_calls": cycles,
        "drafter_seconds": forwards * 0.3 * drafting,
        "drafter_calls": 2 * cycles * drafting,
        "overhead": 0.05,
    }


def contestant(name, **changes):
    """A contestant's entry."""
    kind = name if name.startswith("hf:") or name == "plain" else "recipe"
    recipe = None if kind != "recipe" else f"recipes/{name}.yaml"
    entry = {
        "name": name,
        "kind": kind,
        "recipe": recipe,
        "resolved": None,
        "lossless": True,
        "target": "zoo://talk-7m",
    }
    return {**entry, "error": None, **changes}


def results(runs, prompts, repeats, temperature=0.0):
    """A whole results.json around some runs; prompts are (id, task)."""
    names = list(dict.fromkeys(run["contestant"] for run in runs))
    return {
        "schema": 1,
        "settings": {
            "temperature": temperature,
            "max_new_tokens": 64,
            "batch": 1,
            "repeats": repeats,
            "seed": 0,
            "sets": sorted({prompt.partition("/")[0] for prompt, _ in prompts}),
            "limit": None,
            "turns": 1,
        },
        "provenance": {
            "command": ["specframe", "bench", "recipes/falcon.yaml"],
            "versions": {"specframe": "0.1.0", "torch": "2.13.0"},
            "hardware": {"processor": "A processor", "cores": 2, "threads": 1, "accelerator": None},
        },
        "contestants": [contestant(name) for name in names],
        "prompts": [
            {"id": prompt, "set": prompt.partition("/")[0], "task": task, "tokens": [20]} for prompt, task in prompts
        ],
        "runs": runs,
        "bench_overhead": 0.01,
    }
