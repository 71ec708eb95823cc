"""A published form's drafter: Medusa's heads with LM heads of their own, which those of the package are not."""

import json

import pytest

from specframe.components.targets.hf import HFTarget
from specframe_medusa.medusa import Medusa


@pytest.fixture(scope="session")
def own_heads(tmp_path_factory):
    """The settings of a Medusa recipe with such heads of the small target and their folder."""
    folder = tmp_path_factory.mktemp("own-heads")
    drafter = Medusa(heads=4)
    drafter.bind(HFTarget(model="zoo://talk-7m"))
    drafter.save(folder)
    (folder / "train.json").write_text(json.dumps({"steps_done": 1}))
    return folder, ["drafter.layers=1", "drafter.head=null", f"drafter.weights={folder}"]
