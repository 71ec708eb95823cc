"""Pictures that are drawn at random, with captions and questions whose answers the drawing decides."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

SIZE, CELLS = 64, 3
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 210, 40),
    "purple": (150, 60, 180),
    "black": (20, 20, 20),
}
GROUNDS = {"white": (250, 250, 250), "grey": (165, 165, 165)}
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = {"small": 5, "large": 9}
"""Half of a shape's width in pixels."""
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
NUMBERS = ("no", "one", "two", "three", "four")


@dataclass(frozen=True)
class Thing:
    """One shape of a picture."""

    shape: str
    colour: str
    size: str
    row: int
    column: int

    @property
    def place(self) -> str:
        """Where it is, in words: the centre has one."""
        if (self.row, self.column) == (1, 1):
            return "centre"
        return f"{ROWS[self.row]} {COLUMNS[self.column]}"

    def __str__(self) -> str:
        return f"{self.size} {self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """A picture, before it is drawn."""

    ground: str
    things: tuple[Thing, ...]
    jitter: tuple[tuple[int, int], ...]
    """How far each thing is from the centre of its cell, in pixels."""

    @classmethod
    def random(cls, dice: random.Random) -> Scene:
        """A scene of one to four things, each in a cell of its own."""
        cells = dice.sample(range(CELLS * CELLS), dice.randint(1, 4))
        things = [
            Thing(dice.choice(SHAPES), dice.choice([*COLOURS]), dice.choice([*SIZES]), cell // CELLS, cell % CELLS)
            for cell in sorted(cells)
        ]
        jitter = tuple((dice.randint(-1, 1), dice.randint(-1, 1)) for _ in things)
        return cls(dice.choice([*GROUNDS]), tuple(things), jitter)

    def draw(self) -> Image.Image:
        """The picture, of SIZE x SIZE pixels."""
        picture = Image.new("RGB", (SIZE, SIZE), GROUNDS[self.ground])
        pen = ImageDraw.Draw(picture)
        for thing, (right, down) in zip(self.things, self.jitter, strict=True):
            x, y = (int((cell + 0.5) * SIZE / CELLS) for cell in (thing.column, thing.row))
            _draw(pen, thing, x + right, y + down)
        return picture

    def facts(self, patch: int) -> list[list[int]]:
        """The content of each patch of so many pixels: numbers of shape, colour and size, 0 for no thing."""
        side = SIZE // patch
        found = [[0, 0, 0] for _ in range(side * side)]
        for thing, (right, down) in zip(self.things, self.jitter, strict=True):
            x, y = (int((cell + 0.5) * SIZE / CELLS) for cell in (thing.column, thing.row))
            half = SIZES[thing.size]
            known = [SHAPES.index(thing.shape) + 1, [*COLOURS].index(thing.colour) + 1, [*SIZES].index(thing.size) + 1]
            for row in range((y + down - half) // patch, (y + down + half) // patch + 1):
                for column in range((x + right - half) // patch, (x + right + half) // patch + 1):
                    found[row * side + column] = known
        return found


def _draw(pen: ImageDraw.ImageDraw, thing: Thing, x: int, y: int) -> None:
    half, fill = SIZES[thing.size], COLOURS[thing.colour]
    box = (x - half, y - half, x + half, y + half)
    if thing.shape == "circle":
        pen.ellipse(box, fill)
    elif thing.shape == "square":
        pen.rectangle(box, fill)
    elif thing.shape == "triangle":
        pen.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], fill)
    else:
        thick = half // 3
        pen.rectangle((x - half, y - thick, x + half, y + thick), fill)
        pen.rectangle((x - thick, y - half, x + thick, y + half), fill)


@dataclass(frozen=True)
class Question:
    """A question about a picture, and its one answer."""

    kind: str
    text: str
    answer: str


def ask(scene: Scene, dice: random.Random) -> list[Question]:
    """A question of each kind that the scene has an answer to, in random order."""
    things = scene.things
    found = [
        _count(things, dice),
        Question("ground", dice.choice(("What colour is the background?", "Which background?")), scene.ground),
    ]
    alone = [t for t in things if sum(t.shape == o.shape for o in things) == 1]
    if alone:
        thing = dice.choice(alone)
        wordings = (f"Which colour is the {thing.shape}?", f"What colour does the {thing.shape} have?")
        found.append(Question("colour", dice.choice(wordings), thing.colour))
    single = [t for t in things if sum(t.colour == o.colour for o in things) == 1]
    if single:
        thing = dice.choice(single)
        wordings = (f"What shape is the {thing.colour} thing?", f"Which shape is {thing.colour}?")
        found.append(Question("shape", dice.choice(wordings), thing.shape))
        thing = dice.choice(single)
        wordings = (f"Where is the {thing.colour} {thing.shape}?", f"In which place is the {thing.colour} one?")
        found.append(Question("where", dice.choice(wordings), thing.place))
    dice.shuffle(found)
    return found


def _count(things: tuple[Thing, ...], dice: random.Random) -> Question:
    if dice.random() < 0.5:
        wordings = ("How many things are there?", "How many shapes are in the picture?")
        return Question("how many", dice.choice(wordings), NUMBERS[len(things)])
    shape = dice.choice(SHAPES)
    wordings = (f"How many {shape} shapes are there?", f"Count each {shape}.")
    return Question("how many", dice.choice(wordings), NUMBERS[sum(t.shape == shape for t in things)])


OPENINGS = (
    ("Describe the picture.", "The picture shows {things} on a {ground} background.", "{a} {thing} at the {place}"),
    ("What is in the picture?", "On {ground} there is {things}.", "{a} {thing} in the {place}"),
    ("Tell me what you see.", "I can see {things}. The background is {ground}.", "at the {place} {a} {thing}"),
)


def caption(scene: Scene, dice: random.Random) -> Question:
    """A request to describe the scene, and its description in one of several wordings."""
    text, whole, each = dice.choice(OPENINGS)
    parts = [each.format(a="a", thing=thing, place=thing.place) for thing in scene.things]
    joined = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return Question("caption", text, whole.format(things=joined, ground=scene.ground))
