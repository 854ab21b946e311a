"""Problems about graphs, orders and schedules."""

from __future__ import annotations

import random
from typing import Any

from vf.environments.bundled.problems.problem import Shelf, edges, ints

shelf = Shelf()


def _parents(rng: random.Random) -> tuple[Any, ...]:
    nodes = rng.randint(0, 8)
    parents = [rng.randint(-1, node - 1) for node in range(nodes)]
    if nodes and rng.random() < 0.2:
        parents[rng.randrange(nodes)] = rng.randint(0, nodes)
    return (parents,)


def _graph(rng: random.Random) -> tuple[Any, ...]:
    nodes = rng.randint(2, 7)
    return nodes, edges(rng, nodes, (0, 8))


def _spans(rng: random.Random) -> list[list[int]]:
    return [[start, start + rng.randint(1, 5)] for start in ints(rng, (0, 6), 0, 12)]


@shelf.problem(_graph)
def components(nodes: int, links: list[list[int]]) -> int:
    """Nodes are numbered from 0; a link [a, b] joins two of them in both directions. Return how
    many separate parts the network has.
    """
    part = list(range(nodes))
    for a, b in links:
        old, new = part[a], part[b]
        part = [new if number == old else number for number in part]
    return len(set(part))


@shelf.problem(_graph)
def distances(nodes: int, links: list[list[int]]) -> list[int]:
    """Nodes are numbered from 0; a link [a, b] leads from a to b, and not back. Return for every
    node the least number of links on a way from node 0 to it, or -1 if there is no way.
    """
    result = [-1] * nodes
    result[0] = 0
    queue = [0]
    for node in queue:
        for a, b in links:
            if a == node and result[b] < 0:
                result[b] = result[a] + 1
                queue.append(b)
    return result


@shelf.problem(_graph)
def build_order(tasks: int, needs: list[list[int]]) -> list[int]:
    """Tasks are numbered from 0; [a, b] means that task a must be done before task b. Return the
    tasks in an order that respects this, always taking the smallest number that can be done
    next; an empty list if there is no such order.
    """
    order: list[int] = []
    while len(order) < tasks:
        ready = [
            task
            for task in range(tasks)
            if task not in order and all(a in order for a, b in needs if b == task)
        ]
        if not ready:
            return []
        order.append(ready[0])
    return order


@shelf.problem(_graph)
def two_teams(people: int, rivals: list[list[int]]) -> bool:
    """People are numbered from 0. Return whether they can be put into two teams (one of which
    may be empty) so that no two rivals [a, b] are in the same team.
    """
    team: dict[int, int] = {}
    for first in range(people):
        if first in team:
            continue
        team[first] = 0
        todo = [first]
        while todo:
            person = todo.pop()
            for pair in rivals:
                if person not in pair:
                    continue
                other = pair[0] if pair[1] == person else pair[1]
                if other not in team:
                    team[other] = 1 - team[person]
                    todo.append(other)
                elif team[other] == team[person]:
                    return False
    return True


@shelf.problem(lambda rng: (_spans(rng),))
def merge_spans(spans: list[list[int]]) -> list[list[int]]:
    """Join all spans [start, end] that overlap or touch, and return the result in rising
    order.
    """
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


@shelf.problem(lambda rng: (_spans(rng),))
def most_meetings(spans: list[list[int]]) -> int:
    """Return the largest number of meetings [start, end] that one person can attend in full; one
    may begin at the moment at which another ends.
    """
    count, free = 0, -1
    for end, start in sorted((end, start) for start, end in spans):
        if start >= free:
            count, free = count + 1, end
    return count


@shelf.problem(lambda rng: (_spans(rng),))
def rooms_needed(spans: list[list[int]]) -> int:
    """Return how many rooms are needed for all meetings [start, end] to take place; a room is
    free again at the moment at which a meeting ends.
    """
    return max(
        (sum(start <= moment < end for start, end in spans) for moment, _ in spans), default=0
    )


@shelf.problem(_parents)
def tree_depth(parents: list[int]) -> int:
    """parents[i] is the parent of node i, or -1 if it has none. Return the number of nodes on
    the longest way from a node up to a node without parent; -1 if some way up never ends, or
    leads to a number that is not a node. Without nodes, it is 0.
    """
    deepest = 0
    for node in range(len(parents)):
        depth = 0
        while node != -1:
            if node >= len(parents) or depth > len(parents):
                return -1
            node, depth = parents[node], depth + 1
        deepest = max(deepest, depth)
    return deepest
