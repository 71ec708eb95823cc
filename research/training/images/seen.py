"""Let a target that sees describe drawn pictures: ``python seen.py --target zoo://see-8m --out FOLDER``.

Drafters are trained on the answers: FOLDER/answers.jsonl, which ``train.data`` reads, and the pictures. Half of
the pictures are described; about the others one question is asked after the other. Half of the answers are greedy, the
rest at temperature 0.7. With ``--held-out`` the pictures are ones that no training sees, and all answers greedy.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pictures import Scene, ask, caption
from PIL import Image

import specframe

FIRST, HELD_OUT = 5 * 10**8, 2 * 10**9
"""First seeds of the pictures; `see.py` trains on those from 0 on, and is measured on those from 10^9 on."""
TOKENS = 96
"""Of an answer, at most: the longest description has fewer."""
Chat = list[dict[str, str]]


def asked(seed: int) -> tuple[Image.Image, list[str]]:
    """Return a picture and the user's turns about it."""
    dice = random.Random(seed)
    scene = Scene.random(dice)
    questions = [caption(scene, dice)] if seed % 2 == 0 else ask(scene, dice)
    return scene.draw(), [question.text for question in questions]


def answers(pipeline: specframe.Pipeline, given: list[tuple[Image.Image, list[str]]]) -> list[Chat]:
    """Return the conversations, each question answered after the answers before it; one that does not end is empty."""
    chats: list[Chat] = [[] for _ in given]
    endless = set()
    for turn in range(max(len(questions) for _, questions in given)):
        live = [i for i, (_, questions) in enumerate(given) if turn < len(questions)]
        rows = []
        for i in live:
            picture, questions = given[i]
            chats[i].append({"role": "user", "content": questions[turn]})
            rows.append(pipeline.encode_turns(after(picture, chats[i])))
        found = pipeline.generate(rows)
        for i, text, tokens in zip(live, found.texts, found.tokens, strict=True):
            chats[i].append({"role": "assistant", "content": text})
            if len(tokens) == TOKENS:
                endless.add(i)
    return [[] if i in endless else chat for i, chat in enumerate(chats)]


def after(picture: Image.Image, chat: Chat) -> list[dict[str, Any]]:
    """Return a conversation with the picture in its first turn."""
    first = [{"type": "image", "image": picture}, {"type": "text", "text": chat[0]["content"]}]
    return [{"role": "user", "content": first}, *chat[1:]]


def records(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Write the pictures; yield the conversations about them."""
    start = HELD_OUT if options.held_out else FIRST
    temperatures = (0.0,) if options.held_out else (0.0, 0.7)
    pipelines = [
        specframe.compose(
            target=options.target,
            drafter="lookup",
            run={"chat": True, "batch": options.rows, "seed": start},
            sampling={"max_new_tokens": TOKENS, "temperature": temperature},
        ).plain()
        for temperature in temperatures
    ]
    for number in range(-(-options.pictures // options.rows)):
        seeds = range(start, start + options.pictures)[number * options.rows : (number + 1) * options.rows]
        given = [asked(seed) for seed in seeds]
        names = [f"pictures/{seed - start:05}.png" for seed in seeds]
        for name, (picture, _) in zip(names, given, strict=True):
            picture.save(options.out / name)
        for name, chat in zip(names, answers(pipelines[number % len(pipelines)], given), strict=True):
            if chat:
                yield {"messages": chat, "image": name}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="zoo://see-8m", help="the model (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=16, help="conversations that are decoded together")
    parser.add_argument("--held-out", action="store_true", help="pictures for measuring")
    options = parser.parse_args()
    (options.out / "pictures").mkdir(parents=True, exist_ok=True)
    with (options.out / "answers.jsonl").open("w", encoding="utf-8") as file:
        for record in records(options):
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
