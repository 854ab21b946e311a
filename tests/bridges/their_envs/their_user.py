# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""A v1 package whose Env plays the user: scripted turns, or a game that answers."""

from __future__ import annotations

from typing import Literal

import verifiers.v1 as vf

__all__ = ["CountEnv", "CountTaskset"]


class CountData(vf.TaskData):
    info: dict


class CountTask(vf.Task[CountData]):
    @vf.stop
    async def long(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 5

    @vf.reward(weight=0.5)
    async def counted(self, trace: vf.Trace) -> float:
        said = [message.content for message in trace.assistant_messages]
        return float(said == [str(number + 1) for number in self.data.info["numbers"]])


class CountEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class CountEnv(vf.Env[CountEnvConfig]):
    async def run(self, task, agents):
        heard = []
        async with agents.player.interaction(task) as interaction:
            if task.data.prompt is not None:
                heard.append((await interaction.turn()).last_reply)
            for number in task.data.info["numbers"]:
                segment = await interaction.turn(f"{number}, and then?")
                if segment.terminated:
                    break
                if segment.last_reply == "quit":
                    raise OSError("the player has left")
                heard.append(segment.last_reply)
        trace = interaction.trace
        trace.record_reward("polite", float("please" in heard), 0.5)
        trace.info["heard"] = heard


class CountConfig(vf.TasksetConfig):
    opening: Literal["user", "task"] = "user"


class CountTaskset(vf.Taskset[CountTask, CountConfig]):
    def load(self) -> list[CountTask]:
        prompt = None if self.config.opening == "user" else "Say please."
        return [
            CountTask(
                CountData(
                    idx=index,
                    prompt=prompt,
                    system_prompt="Count on.",
                    info={"numbers": list(range(index + 1, index + 4))},
                ),
                self.config.task,
            )
            for index in range(3)
        ]
