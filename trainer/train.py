"""A training run from Python, as ``vf-rl CONFIG.toml`` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.errors import ConfigError

if TYPE_CHECKING:
    from vf.trainer.run.summary import Summary


def train(config: str | Path, overrides: Sequence[str] = (), *, quiet: bool = False) -> Summary:
    """Train a model as a TOML says.

    Example::

        summary = vf.train("run.toml", ["max_steps=50"])
        print(summary.eval_before, summary.eval_after, summary.checkpoint)

    Args:
        config: The TOML file.
        overrides: ``key=value`` pairs, as for ``vf-rl --set``: a bare name means
            ``[trainer.args]``.
        quiet: Show no progress.

    Returns:
        How the run ended. Its traces, metrics and checkpoints are in a new folder,
        ``runs/<name>/``.

    Raises:
        ConfigError: If the file or a setting is wrong, a package is missing, or the run needs
            several processes, which only ``vf-rl`` starts.
        TrainingError: If too many rollouts failed, the loss stays not finite, or the last
            checkpoint could not be written.
        EngineError: If the engine did not start, or died.
    """
    from vf.inference.model_files import find_model
    from vf.runtime.extras import training_packages
    from vf.runtime.open_files import raise_limit
    from vf.trainer.processes.devices import narrow_devices
    from vf.trainer.processes.launch import processes_to_launch
    from vf.trainer.run.run_folder import choose_folder, make_folder
    from vf.trainer.settings.load_config import load_config
    from vf.trainer.settings.write_config import to_toml

    raise_limit()
    path = Path(config)
    settings, _ = load_config(path, overrides)
    choose_folder(settings, path.stem)  # a name that is taken is an error at once
    narrow_devices(settings)  # before torch is imported
    find_model(settings.model)  # before the seconds that this takes
    with training_packages():
        from vf.trainer.preflight import preflight
        from vf.trainer.rl_trainer import RLTrainer
        from vf.trainer.watching.terminal import TerminalDisplay
    if (count := processes_to_launch(settings)) > 1:
        raise ConfigError(f"this run needs {count} processes: start it with `vf-rl {path}`")
    with ThreadPoolExecutor(1) as pool:  # it runs an event loop; a notebook's thread has one
        plan = pool.submit(preflight, settings).result()
    folder = make_folder(settings, path.stem)
    folder.write_config(to_toml(plan.config))
    display = None if quiet else TerminalDisplay()
    with RLTrainer(plan, folder, display) as trainer:
        return trainer.train()
