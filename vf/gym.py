"""Gymnasium: importing this module registers every installed environment there.

    env = gymnasium.make("vf.gym:vf/GuessNumber-v0")

Gymnasium imports what an id names before the colon. After ``import vf.gym``, the id
``"vf/GuessNumber-v0"`` alone is enough.
"""

from vf.bridges.gym.actions import as_action
from vf.bridges.gym.registration import gymnasium_id, register_all, register_gymnasium

__all__ = ["as_action", "gymnasium_id", "register_gymnasium"]

register_all()
