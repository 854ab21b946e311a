"""vf-rl: multi-turn, tool-using environments for language models, and their trainer.

What is imported here is the public surface. Names are loaded on first use, so ``import vf``
loads neither torch nor any network client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vf.bridges.gym.registration import register_with_gymnasium

if TYPE_CHECKING:
    from vf.bridges.gym.from_gym import GymEnvironment
    from vf.bridges.trl.adapter import to_trl
    from vf.bridges.verifiers.to_verifiers import to_verifiers
    from vf.environments.datasets.tasks import tasks_from
    from vf.environments.environment import Environment, Step
    from vf.environments.registry import make, register, registered
    from vf.environments.runner import rollout
    from vf.evaluation.evaluate import Evaluation, evaluate
    from vf.evaluation.rescore import rescore
    from vf.evaluation.validation.validate import validate
    from vf.inference.model import Sampling
    from vf.inference.models.chat_model import ChatModel
    from vf.inference.models.scripted import ScriptedModel
    from vf.rubrics.group import GroupReward
    from vf.rubrics.judge import Judge
    from vf.rubrics.judge_prompt import Criterion
    from vf.rubrics.rubric import Penalty, Rubric
    from vf.rubrics.weighted_sum import WeightedSum
    from vf.runtime.errors import (
        ConfigError,
        InfrastructureError,
        SandboxError,
        ToolError,
        VfError,
    )
    from vf.runtime.process_pool import cpu_bound
    from vf.sandbox.container.source import sandbox_source
    from vf.sandbox.contract import ExecResult, Limits, Sandbox
    from vf.sandbox.scripted import ScriptedSandbox
    from vf.tools.mcp.mcp_tools import McpTools
    from vf.tools.sandbox_tools import BashTool, FileTools, PythonTool
    from vf.traces.messages import Message, ToolCall
    from vf.traces.store import TraceStore
    from vf.traces.task import Task
    from vf.traces.tools import Tool, tool
    from vf.traces.trace import Branch, Score, StopReason, ToolEvent, Trace
    from vf.trainer.rl_trainer import RLTrainer

_HOME = {
    "BashTool": "vf.tools.sandbox_tools",
    "Branch": "vf.traces.trace",
    "ChatModel": "vf.inference.models.chat_model",
    "ConfigError": "vf.runtime.errors",
    "Criterion": "vf.rubrics.judge_prompt",
    "Environment": "vf.environments.environment",
    "Evaluation": "vf.evaluation.evaluate",
    "ExecResult": "vf.sandbox.contract",
    "FileTools": "vf.tools.sandbox_tools",
    "GroupReward": "vf.rubrics.group",
    "GymEnvironment": "vf.bridges.gym.from_gym",
    "InfrastructureError": "vf.runtime.errors",
    "ToolError": "vf.runtime.errors",
    "Judge": "vf.rubrics.judge",
    "Limits": "vf.sandbox.contract",
    "McpTools": "vf.tools.mcp.mcp_tools",
    "Message": "vf.traces.messages",
    "Penalty": "vf.rubrics.rubric",
    "PythonTool": "vf.tools.sandbox_tools",
    "RLTrainer": "vf.trainer.rl_trainer",
    "Rubric": "vf.rubrics.rubric",
    "Sampling": "vf.inference.model",
    "Sandbox": "vf.sandbox.contract",
    "SandboxError": "vf.runtime.errors",
    "Score": "vf.traces.trace",
    "ScriptedModel": "vf.inference.models.scripted",
    "ScriptedSandbox": "vf.sandbox.scripted",
    "Step": "vf.environments.environment",
    "StopReason": "vf.traces.trace",
    "Task": "vf.traces.task",
    "Tool": "vf.traces.tools",
    "ToolCall": "vf.traces.messages",
    "ToolEvent": "vf.traces.trace",
    "Trace": "vf.traces.trace",
    "TraceStore": "vf.traces.store",
    "VfError": "vf.runtime.errors",
    "WeightedSum": "vf.rubrics.weighted_sum",
    "cpu_bound": "vf.runtime.process_pool",
    "evaluate": "vf.evaluation.evaluate",
    "make": "vf.environments.registry",
    "register": "vf.environments.registry",
    "registered": "vf.environments.registry",
    "rescore": "vf.evaluation.rescore",
    "rollout": "vf.environments.runner",
    "sandbox_source": "vf.sandbox.container.source",
    "tasks_from": "vf.environments.datasets.tasks",
    "to_trl": "vf.bridges.trl.adapter",
    "to_verifiers": "vf.bridges.verifiers.to_verifiers",
    "tool": "vf.traces.tools",
    "validate": "vf.evaluation.validation.validate",
}

__all__ = [
    "BashTool",
    "Branch",
    "ChatModel",
    "ConfigError",
    "Criterion",
    "Environment",
    "Evaluation",
    "ExecResult",
    "FileTools",
    "GroupReward",
    "GymEnvironment",
    "InfrastructureError",
    "Judge",
    "Limits",
    "McpTools",
    "Message",
    "Penalty",
    "PythonTool",
    "RLTrainer",
    "Rubric",
    "Sampling",
    "Sandbox",
    "SandboxError",
    "Score",
    "ScriptedModel",
    "ScriptedSandbox",
    "Step",
    "StopReason",
    "Task",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolEvent",
    "Trace",
    "TraceStore",
    "VfError",
    "WeightedSum",
    "cpu_bound",
    "evaluate",
    "make",
    "register",
    "registered",
    "rescore",
    "rollout",
    "sandbox_source",
    "tasks_from",
    "to_trl",
    "to_verifiers",
    "tool",
    "validate",
]


register_with_gymnasium()  # lines in its registry, once it is imported: nothing is loaded here


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vf' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
