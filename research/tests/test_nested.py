"""Cost of a drafter of several sizes: layers by the positions they run over."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.slow


@pytest.fixture
def nested(analysis):
    return analysis("nested")


class Model(nn.Module):
    """Two layers, the second of which may be left out."""

    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([nn.Identity(), nn.Identity()])

    def forward(self, states, count):
        for layer in self.model.layers[:count]:
            states = layer(states)
        return states


def test_a_layer_counts_for_every_position_while_it_is_counted(nested):
    model = Model()
    with nested.counting(model) as positions:
        model(torch.zeros(1, 5, 4), 2)
        model(torch.zeros(2, 3, 4), 1)
    model(torch.zeros(1, 7, 4), 2)
    assert positions == [11, 5]


def test_a_prompt_is_left_out_of_layers_that_read_it(nested):
    assert nested.read_once([11, 9, 0], 9) == 18


def test_figures_are_of_all_prompts_together(nested):
    found = nested.Counted(cycles=[2, 8], tokens=[4, 8], layers=[40, 20])
    assert nested.estimate(found.tau).value == pytest.approx(1.2)
    assert nested.estimate(found.cost).value == pytest.approx(5)


def test_all_layers_come_first_and_confidences_last(nested):
    names = [name for name, _ in nested.contestants(6, [2, 4])]
    assert names[:3] == ["6 layers", "4 layers", "2 layers"] and names[3] == "confidence 0.3"
