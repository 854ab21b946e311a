"""Let torchvision's Python run beside a torch that its own operators were not built for."""

import importlib.abc
import sys
from typing import Any


class Before(importlib.abc.MetaPathFinder):
    """Declares those operators when torchvision is about to be imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        """Find nothing."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for operator in ("nms", "qnms"):
                torch.library.define(
                    f"torchvision::{operator}",
                    "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                )


sys.meta_path.insert(0, Before())
