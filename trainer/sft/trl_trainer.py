"""TRL's trainer and collator, with the images of a sequence."""

from __future__ import annotations

from typing import Any

from trl import SFTTrainer as TrlTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from vf.inference.embedded.sight import Sight
from vf.trainer.sft.dataset import seen_images


class SftTrainer(TrlTrainer):  # type: ignore[misc]
    """TRL's trainer, which tells nobody of the run.

    Attributes:
        sight: The model's way to see the images of a sequence; None where there are none.
    """

    sight: Sight | None = None

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of rows, or of one row that may have images."""
        if (images := inputs.pop("seen", None)) and self.sight is not None:
            inputs |= self.sight.whole(inputs["input_ids"][0].tolist(), images)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _send_telemetry(self) -> None:
        """Send nothing: TRL would tell its makers of the model, the data and the machine."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none beside the checkpoints: config.toml says what was done."""


class Collator(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """TRL's collator, beside whose tensors a row's images are kept."""

    def __call__(self, features: list[dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
        seen = [image for row in features for image in seen_images(row.pop("seen", ()))]
        batch: dict[str, Any] = super().__call__(features, *args, **kwargs)
        return {**batch, "seen": seen} if seen else batch
