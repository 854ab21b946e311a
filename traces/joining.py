"""Writing the record of an episode that was played within another into that one's trace."""

from __future__ import annotations

from dataclasses import replace

from vf.traces.trace import Lineage, Trace


def join(trace: Trace, lineages: list[Lineage], nested: Trace, name: str) -> None:
    """Append what a nested episode has sampled and called to a trace; its numbers move up.

    Its turns, branches, forks, tool events and conversations come behind those that are there. Its
    rewards, ``info`` and messages outside of conversations are left out.

    Args:
        trace: The trace of the episode within which it was played.
        lineages: All of that episode's conversations so far. They become ``trace.lineages``.
        nested: The nested episode's; its branches and tool events are taken over.
        name: The ``Lineage.role`` of its conversations.
    """
    turns, branches, conversations = len(trace.turns), len(trace.branches), len(lineages)
    for lineage in nested.conversations if nested.turns else ():
        lineages.append(
            replace(
                lineage,
                branches=[branches + index for index in lineage.branches],
                turns=[turns + turn for turn in lineage.turns],
                parent=None if lineage.parent is None else conversations + lineage.parent,
                role=name,
            )
        )
    for branch in nested.branches:
        branch.turn_index = [turns + turn for turn in branch.turn_index]
    for event in nested.tool_events:
        event.turn += turns
    trace.turns += nested.turns
    trace.branches += nested.branches
    trace.forks += [replace(fork, turn=turns + fork.turn) for fork in nested.forks]
    trace.tool_events += nested.tool_events
    if len(lineages) > 1:
        trace.lineages = lineages
