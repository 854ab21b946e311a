"""vf-rl: multi-turn, tool-using environments for language models, and their trainer.

What is imported here is the public surface. Names are loaded on first use, so ``import vf``
loads neither torch nor any network client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vf.environments.environment import Environment, Step
    from vf.environments.evaluate import Evaluation, evaluate
    from vf.environments.registry import make, register, registered
    from vf.environments.runner import rollout
    from vf.inference.chat_model import ChatModel
    from vf.inference.model import Sampling
    from vf.inference.scripted import ScriptedModel
    from vf.rubrics.rubric import Penalty, Rubric
    from vf.traces.errors import ConfigError, InfrastructureError, InvalidToolUse, VfError
    from vf.traces.messages import Message, ToolCall
    from vf.traces.store import TraceStore
    from vf.traces.task import Task
    from vf.traces.tools import Tool, tool
    from vf.traces.trace import Branch, Score, StopReason, ToolEvent, Trace
    from vf.trainer.rl_trainer import RLTrainer

_HOME = {
    "Branch": "vf.traces.trace",
    "ChatModel": "vf.inference.chat_model",
    "ConfigError": "vf.traces.errors",
    "Environment": "vf.environments.environment",
    "Evaluation": "vf.environments.evaluate",
    "InfrastructureError": "vf.traces.errors",
    "InvalidToolUse": "vf.traces.errors",
    "Message": "vf.traces.messages",
    "Penalty": "vf.rubrics.rubric",
    "RLTrainer": "vf.trainer.rl_trainer",
    "Rubric": "vf.rubrics.rubric",
    "Sampling": "vf.inference.model",
    "Score": "vf.traces.trace",
    "ScriptedModel": "vf.inference.scripted",
    "Step": "vf.environments.environment",
    "StopReason": "vf.traces.trace",
    "Task": "vf.traces.task",
    "Tool": "vf.traces.tools",
    "ToolCall": "vf.traces.messages",
    "ToolEvent": "vf.traces.trace",
    "Trace": "vf.traces.trace",
    "TraceStore": "vf.traces.store",
    "VfError": "vf.traces.errors",
    "evaluate": "vf.environments.evaluate",
    "make": "vf.environments.registry",
    "register": "vf.environments.registry",
    "registered": "vf.environments.registry",
    "rollout": "vf.environments.runner",
    "tool": "vf.traces.tools",
}

__all__ = [
    "Branch",
    "ChatModel",
    "ConfigError",
    "Environment",
    "Evaluation",
    "InfrastructureError",
    "InvalidToolUse",
    "Message",
    "Penalty",
    "RLTrainer",
    "Rubric",
    "Sampling",
    "Score",
    "ScriptedModel",
    "Step",
    "StopReason",
    "Task",
    "Tool",
    "ToolCall",
    "ToolEvent",
    "Trace",
    "TraceStore",
    "VfError",
    "evaluate",
    "make",
    "register",
    "registered",
    "rollout",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vf' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
