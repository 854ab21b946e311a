"""A server samples as requests say, and not as the model's generation_config.json does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.inference.vllm.vllm_cpu import serving
from vf.inference.completions import sampling_fields
from vf.inference.model_files import resolve_model
from vf.inference.vllm import admin as admin_module
from vf.inference.vllm.admin import Admin, check_drafted, check_unfiltered
from vf.runtime.errors import ConfigError

VOCABULARY = [*range(20, 60)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_defaults_of_the_models_own_are_overruled_or_found_out(
    tmp_path: Path, vllm_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(shutil.copytree(resolve_model("tiny"), tmp_path / "model"))
    Path(model, "generation_config.json").write_text('{"eos_token_id": 2, "top_k": 2}')
    command = f"vllm serve {model} --logprobs-mode processed_logprobs"
    with serving(command, vllm_python, tmp_path / "server.log") as url:
        admin = Admin(url)

        def passing(**more: Any) -> None:
            """Let requests pass as behind a proxy that drops what it does not know."""
            monkeypatch.setattr(
                admin_module, "every_field", lambda *asked: {**sampling_fields(*asked), **more}
            )

        try:
            check_unfiltered(admin, model, VOCABULARY)
            passing()
            with pytest.raises(ConfigError, match=r"differ from the model's by \+0\.[1-9]"):
                check_unfiltered(admin, model, VOCABULARY)
            for hidden in (
                {"top_k": 20},
                {"top_k": 0, "top_p": 0.95},
                {"top_k": 0, "min_p": 0.05},
                {"top_k": 0, "repetition_penalty": 1.05},
                {"top_k": 0, "presence_penalty": 0.5},
            ):
                passing(**hidden)
                with pytest.raises(ConfigError, match="filters or penalises"):
                    check_unfiltered(admin, model, VOCABULARY)
            passing(top_k=0)
            check_unfiltered(admin, model, VOCABULARY)
            check_drafted(admin, model, VOCABULARY, certain=True)
        finally:
            admin.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drafts_that_change_what_is_sampled_are_found_out(tmp_path: Path, vllm_python: str) -> None:
    """On a CPU, the kernel of 0.32 copies temperatures into a tensor that nobody reads."""
    model = str(resolve_model("tiny"))
    drafter = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'
    command = f"vllm serve {model} --logprobs-mode processed_logprobs"
    command += f" --generation-config vllm --speculative-config '{drafter}'"
    with serving(command, vllm_python, tmp_path / "server.log") as url:
        admin = Admin(url)
        try:
            with pytest.raises(ConfigError, match="Leave speculative_config out"):
                check_drafted(admin, model, VOCABULARY, certain=True)
        finally:
            admin.close()
