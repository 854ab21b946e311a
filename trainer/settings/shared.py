"""Settings that training runs and warm starts have alike: their types and descriptions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vf.inference.settings import Positive

RunName = Annotated[
    str | None,
    Field(
        pattern=r"^[\w.-]+$",
        description="Folder of the run; by default the TOML's name and a number.",
    ),
]
OutputDir = Annotated[str, Field(description="Where run folders are made.")]
Seed = Annotated[int, Field(description="Seed of everything random.")]
LongSequences = Annotated[
    Literal["drop", "truncate", "refuse"],
    Field(
        description="What becomes of a sequence over max_seq_len: it is not trained on, is cut to "
        "it, or ends the run.",
    ),
]
Schedule = Annotated[
    Literal["constant", "linear", "cosine"],
    Field(description="Course of the learning rate after the warm-up."),
]
WarmupSteps = Annotated[int, Field(ge=0, description="Steps of linear warm-up.")]
MaxGradNorm = Annotated[float, Field(gt=0, description="Gradient norm is clipped to it.")]
LoraRank = Annotated[Positive, Field(description="Rank of the adapter.")]
LoraAlpha = Annotated[float, Field(gt=0, description="Scale of the adapter, over its rank.")]
LoraDropout = Annotated[float, Field(ge=0, lt=1, description="Dropout before the adapter.")]
