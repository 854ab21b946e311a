"""vf-rl: multi-turn, tool-using environments for language models, and their trainer.

These are the names that most users need; the rest is imported from the module it is in. A name is
loaded on first use, so ``import vf`` loads neither torch nor any network client.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers; a test compares this list with _HOME
    from vf import search as search
    from vf import testing as testing
    from vf.bridges.gym.from_gym import GymEnvironment as GymEnvironment
    from vf.bridges.tinker_cookbook.to_tinker import to_tinker as to_tinker
    from vf.bridges.trl.adapter import to_trl as to_trl
    from vf.bridges.verifiers.to_verifiers import to_verifiers as to_verifiers
    from vf.environments.agent import AgentEnvironment as AgentEnvironment
    from vf.environments.agent import agent as agent
    from vf.environments.contexts import Compact as Compact
    from vf.environments.contexts import DropToolResults as DropToolResults
    from vf.environments.datasets.tasks import tasks_from as tasks_from
    from vf.environments.environment import Environment as Environment
    from vf.environments.environment import Step as Step
    from vf.environments.multi_agent import MultiAgentEnvironment as MultiAgentEnvironment
    from vf.environments.registry import make as make
    from vf.environments.registry import register as register
    from vf.environments.roles import Role as Role
    from vf.environments.roles import RoleStep as RoleStep
    from vf.environments.runner import rollout as rollout
    from vf.environments.simulated_user import SimulatedUser as SimulatedUser
    from vf.environments.sub_agent import SubAgent as SubAgent
    from vf.evaluation.evaluate import evaluate as evaluate
    from vf.evaluation.validation.validate import validate as validate
    from vf.inference.endpoint.address import Endpoint as Endpoint
    from vf.inference.model import Conversation as Conversation
    from vf.inference.model import Reply as Reply
    from vf.inference.model import Sampling as Sampling
    from vf.inference.models.chat_model import ChatModel as ChatModel
    from vf.inference.models.scripted_model import ScriptedModel as ScriptedModel
    from vf.rubrics import outcomes as outcomes
    from vf.rubrics import penalties as penalties
    from vf.rubrics.group import GroupReward as GroupReward
    from vf.rubrics.judge import Judge as Judge
    from vf.rubrics.judge_prompt import Criterion as Criterion
    from vf.rubrics.rubric import Penalty as Penalty
    from vf.rubrics.rubric import Rubric as Rubric
    from vf.rubrics.weighted_sum import WeightedSum as WeightedSum
    from vf.runtime.errors import ConfigError as ConfigError
    from vf.runtime.errors import ToolError as ToolError
    from vf.runtime.errors import VfError as VfError
    from vf.runtime.process_pool import cpu_bound as cpu_bound
    from vf.sandbox.contract import Sandbox as Sandbox
    from vf.sandbox.hosting.source import open_sandbox as open_sandbox
    from vf.sandbox.hosting.source import sandbox_source as sandbox_source
    from vf.sandbox.scripted_sandbox import ScriptedSandbox as ScriptedSandbox
    from vf.sandbox.spec import Build as Build
    from vf.sandbox.spec import SandboxSpec as SandboxSpec
    from vf.tools.mcp.mcp_tools import McpTools as McpTools
    from vf.tools.sandbox_tools import BashTool as BashTool
    from vf.tools.sandbox_tools import FileTools as FileTools
    from vf.tools.sandbox_tools import PythonTool as PythonTool
    from vf.traces.images import Image as Image
    from vf.traces.messages import Message as Message
    from vf.traces.messages import ToolCall as ToolCall
    from vf.traces.store import TraceStore as TraceStore
    from vf.traces.task import Task as Task
    from vf.traces.tools import tool as tool
    from vf.traces.trace import StopReason as StopReason
    from vf.traces.trace import Trace as Trace
    from vf.trainer.collecting.curriculum import Curriculum as Curriculum
    from vf.trainer.learner import Learner as Learner
    from vf.trainer.own_loop import rollouts as rollouts
    from vf.trainer.own_loop import samples as samples
    from vf.trainer.train import train as train

_NAMES = {
    "vf.bridges.gym.from_gym": "GymEnvironment",
    "vf.bridges.tinker_cookbook.to_tinker": "to_tinker",
    "vf.bridges.trl.adapter": "to_trl",
    "vf.bridges.verifiers.to_verifiers": "to_verifiers",
    "vf.environments.agent": "AgentEnvironment agent",
    "vf.environments.contexts": "Compact DropToolResults",
    "vf.environments.datasets.tasks": "tasks_from",
    "vf.environments.environment": "Environment Step",
    "vf.environments.multi_agent": "MultiAgentEnvironment",
    "vf.environments.registry": "make register",
    "vf.environments.roles": "Role RoleStep",
    "vf.environments.runner": "rollout",
    "vf.environments.simulated_user": "SimulatedUser",
    "vf.environments.sub_agent": "SubAgent",
    "vf.evaluation.evaluate": "evaluate",
    "vf.evaluation.validation.validate": "validate",
    "vf.inference.endpoint.address": "Endpoint",
    "vf.inference.model": "Conversation Reply Sampling",
    "vf.inference.models.chat_model": "ChatModel",
    "vf.inference.models.scripted_model": "ScriptedModel",
    "vf.rubrics.group": "GroupReward",
    "vf.rubrics.judge": "Judge",
    "vf.rubrics.judge_prompt": "Criterion",
    "vf.rubrics.outcomes": "outcomes",  # the module itself
    "vf.rubrics.penalties": "penalties",  # the module itself
    "vf.rubrics.rubric": "Penalty Rubric",
    "vf.rubrics.weighted_sum": "WeightedSum",
    "vf.runtime.errors": "ConfigError ToolError VfError",
    "vf.runtime.process_pool": "cpu_bound",
    "vf.sandbox.hosting.source": "open_sandbox sandbox_source",
    "vf.sandbox.contract": "Sandbox",
    "vf.sandbox.scripted_sandbox": "ScriptedSandbox",
    "vf.sandbox.spec": "Build SandboxSpec",
    "vf.search": "search",  # the module itself
    "vf.testing": "testing",  # the module itself
    "vf.tools.mcp.mcp_tools": "McpTools",
    "vf.tools.sandbox_tools": "BashTool FileTools PythonTool",
    "vf.traces.images": "Image",
    "vf.traces.messages": "Message ToolCall",
    "vf.traces.store": "TraceStore",
    "vf.traces.task": "Task",
    "vf.traces.tools": "tool",
    "vf.traces.trace": "StopReason Trace",
    "vf.trainer.collecting.curriculum": "Curriculum",
    "vf.trainer.learner": "Learner",
    "vf.trainer.own_loop": "rollouts samples",
    "vf.trainer.train": "train",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vf-rl")
    if name not in _HOME:
        raise _unknown(name, sys._getframe(1).f_code.co_name)
    module = importlib.import_module(_HOME[name])
    value = getattr(module, name, module)
    globals()[name] = value
    return value


def _unknown(name: str, caller: str) -> Exception:
    """Return the error of a name that is not here."""
    from importlib.util import find_spec

    from vf.runtime.errors import did_you_mean

    hint = "" if name.startswith("_") else did_you_mean(name, __all__)
    if caller == "_handle_fromlist" and find_spec(f"vf.{name}") is None:
        # `from vf import NAME`, which would replace an AttributeError by an error without the hint.
        return ImportError(f"cannot import name {name!r} from 'vf'.{hint}", name="vf")
    # Without `obj`, Python adds a hint of its own in some places, after ours.
    return AttributeError(f"module 'vf' has no attribute {name!r}.{hint}", name=name, obj=None)


def __dir__() -> list[str]:
    return __all__
