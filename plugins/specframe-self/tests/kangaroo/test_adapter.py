"""The adapter proposes what its formula gives, and what it gave in training, on every level of a draft."""

from __future__ import annotations

import kangaroo_fakes as fakes
import pytest
import torch
from torch import Tensor

from specframe.neural import DraftSession
from specframe.plugin import Frontier, Prompts, Verdict
from specframe.testing import GivenSession, GrowingTree, check_proposals, literal_layer, random_teacher
from specframe_self.kangaroo.drafter import Kangaroo
from specframe_self.kangaroo.session import Exits

CLOSE = 1e-6  # norms and rotary angles are float32 in transformers
TABLE = torch.randn(fakes.VOCAB, fakes.SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


class Given(Kangaroo):
    """A drafter whose exit's features of drafted tokens stand in a table, so that a test can commit any features."""

    def session(self, slots: int, room: int) -> DraftSession:
        def exits(frontier: Frontier) -> Tensor:
            return TABLE[frontier.tree.tokens.gather(1, frontier.nodes)]

        return Exits(self.network, exits, slots, room=room)


@torch.no_grad()
def literal(drafter: Kangaroo, exits: Tensor) -> Tensor:
    """The logits after the last of a text's tokens, given the exit's features of all: one position at a time, [V]."""
    weights = drafter.network.state_dict()
    config = drafter.target.config
    layer = {name.removeprefix("layer.layer."): value for name, value in weights.items()}
    inner = config.intermediate_size
    nothing = {
        "post_attention_layernorm.weight": torch.ones(fakes.SIZE).double(),
        "mlp.gate_proj.weight": torch.zeros(inner, fakes.SIZE).double(),
        "mlp.up_proj.weight": torch.zeros(inner, fakes.SIZE).double(),
        "mlp.down_proj.weight": torch.zeros(fakes.SIZE, inner).double(),
    }
    x = literal_layer(layer | nothing, config, exits[-1], len(exits) - 1, list(exits))
    scale = (x.float().square().mean() + config.rms_norm_eps).rsqrt()
    return drafter.target.head(weights["norm.weight"] * (x.float() * scale).double())


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen2"])
def test_proposals_are_the_formula_s(kind: str) -> None:
    drafter = Given(exit=2)
    drafter.bind(fakes.target(kind))
    fakes.shake(drafter.module)

    def sessions(rows: int) -> GivenSession:
        given = GivenSession.random(rows, fakes.VOCAB, fakes.SIZE)
        return GivenSession({"layer.1": given._features["last"]}, given._tokens)

    def wanted(session: GivenSession, row: int, path: Tensor) -> Tensor:
        drafted = TABLE[torch.cat([session.root[row, None], path])]
        return literal(drafter, torch.cat([session.tap("layer.1")[row], drafted]))[None]

    check_proposals(drafter, sessions, wanted, close=CLOSE)


def test_it_has_one_attention_and_two_norms() -> None:
    names = {name.partition("_proj")[0] for name in fakes.bound().module.state_dict()}
    attention = {f"layer.layer.self_attn.{part}" for part in "qkvo"}
    assert names == attention | {"layer.layer.input_layernorm.weight", "norm.weight"}


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "gemma2", "phi3", "granite", "cohere", "glm"])
@pytest.mark.parametrize("exit", [1, 3])
@torch.no_grad()
def test_a_draft_s_predictions_are_those_of_training_on_every_level(kind: str, exit: int) -> None:
    """Three texts at different places of them, drafted along with a wrong sibling on every level, and committed."""
    target = fakes.target(kind)
    drafter = fakes.bound(target, exit)
    teacher = random_teacher(target, 3, 24)
    unrolled = drafter.unroll(teacher.features[f"layer.{exit - 1}"], teacher.tokens[:, 1:])
    trained = drafter.read(unrolled)[:, :, 0]  # [B, L, V]
    rows, place = torch.arange(3), torch.tensor([4, 1, 6])  # the roots'
    target.open(3, 40)
    drafter.open(3, 40)
    width = int(place.max())
    inside = torch.arange(width) < place[:, None]
    tree, _ = target.admit(Prompts(teacher.tokens[:, :width] * inside, place))
    verdict = Verdict(tree.tokens[:, :0], torch.zeros_like(place), teacher.tokens[rows, place])
    for accepted in (torch.tensor([2, 0, 3]), torch.tensor([1, 3, 0]), torch.tensor([0, 0, 0])):
        committed = target.commit(tree, verdict)
        drafter.commit(committed)
        grown, node, nodes = GrowingTree(committed.root, fakes.VOCAB), 0, []
        for level in range(1, 5):
            found = drafter.expand(grown.frontier([node])).logits[:, 0, 0]
            torch.testing.assert_close(found, trained[rows, place + level - 1], rtol=1e-5, atol=1e-5)
            grown.add(node)
            node = grown.add(node, teacher.tokens[rows, place + level])
            nodes.append(node)
        tree = grown.tree
        target.score(tree)
        path = torch.tensor(nodes[:3]).expand(3, -1).where(torch.arange(3) < accepted[:, None], -1)
        place = place + accepted + 1
        verdict = Verdict(path, accepted, teacher.tokens[rows, place])
