"""`to_tinker`: an environment as the dataset builder of tinker-cookbook's trainer."""

from __future__ import annotations

from itertools import chain
from typing import Any

from vf.environments.environment import Environment
from vf.environments.roles import check_one_reward
from vf.evaluation.evaluate import take_tasks
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.runtime.calling import call, carry_out
from vf.runtime.errors import ConfigError


def to_tinker(
    environment: Environment,
    model: str,
    *,
    groups_per_batch: int = 8,
    group_size: int = 8,
    epochs: int = 1,
    eval_examples: int = 64,
    max_seq_len: int = 2048,
    max_tokens: int = 512,
    seed: int = 0,
    **template: Any,
) -> Any:
    """Return an environment as an ``RLDatasetBuilder`` for ``tinker_cookbook.rl.train``.

    Example::

        config = train.Config(
            dataset_builder=vf.to_tinker(vf.make("calculator"), "tiny"),
            model_name="tiny",
            ...
        )

    Episodes are played by our own rollout loop, with its tools, turns, limits and rubric, which
    renders each prompt by extending the tokens of the turns before. The cookbook samples, and
    trains. An episode's reward is the rubric's; one that an infrastructure failure ended raises an
    error, which the cookbook's ``rollout_error_tolerance`` handles, and is never a reward.

    Args:
        environment: The definition.
        model: Folder or hub name of the model, for its tokenizer and chat template; ``tiny`` is the
            one that ships with the library.
        groups_per_batch: Tasks in a batch.
        group_size: Rollouts of one task in a batch.
        epochs: The number of passes over the training tasks, each in another order.
        eval_examples: Held-out tasks of the test dataset at most; 0 makes none.
        max_seq_len: Most tokens in one context, prompt and answer together, as the server has it.
        max_tokens: The cookbook's ``max_tokens``. An episode ends where an answer of this length
            would not fit, because the server refuses such a request.
        seed: The seed of the episodes, and of the order of tasks.
        **template: ``chat_template``, ``tool_style`` and ``template_args`` as in ``[inference]``.

    Raises:
        ConfigError: If tinker-cookbook is missing, the model has no usable chat template, the
            policy plays several roles with a reward each, there are fewer tasks than a batch has,
            no prompt would fit, or :meth:`~vf.Environment.check` fails.
    """
    try:
        from vf.bridges.tinker_cookbook.exposed import VfDataset, VfDatasetBuilder
    except ImportError as error:
        raise ConfigError(
            f"to_tinker needs tinker-cookbook ({error}); docs/tinker-cookbook.md says how to "
            "install it"
        ) from error
    if not 0 < max_tokens < max_seq_len:
        raise ConfigError(
            f"to_tinker: max_tokens = {max_tokens} must be positive and below max_seq_len = "
            f"{max_seq_len}"
        )
    carry_out(call(environment.check))
    tasks = take_tasks(environment, "train")
    eval_tasks = take_tasks(environment, "eval", eval_examples) if eval_examples else []
    check_one_reward(environment, chain(tasks, eval_tasks), "tinker-cookbook")
    if len(tasks) < groups_per_batch:
        raise ConfigError(
            f"to_tinker: groups_per_batch = {groups_per_batch}, but the environment has "
            f"{len(tasks)} training tasks; lower it"
        )
    renderer = Renderer.from_pretrained(
        resolve_model(model),
        template.get("template_args") or {},
        template.get("chat_template"),
        template.get("tool_style", "template"),
    )
    train = VfDataset.of_tasks(
        environment,
        renderer,
        tasks,
        groups_per_batch=groups_per_batch,
        group_size=group_size,
        epochs=epochs,
        max_prompt_len=max_seq_len - max_tokens,
        seed=seed,
    )
    test = None
    if eval_tasks:
        test = VfDataset.of_tasks(
            environment,
            renderer,
            eval_tasks,
            groups_per_batch=len(eval_tasks),
            group_size=1,
            epochs=1,
            max_prompt_len=max_seq_len - max_tokens,
            seed=seed,
        )
    return VfDatasetBuilder(train=train, test=test)
