"""Let vLLM import its models that see where torchvision is not installed; they see nothing here."""

import sys
from unittest.mock import MagicMock

sys.modules["torchvision.transforms.v2"] = MagicMock()
