"""Where contexts lie in the cache: never on one another, within its room, and shared by prefix."""

from __future__ import annotations

import random

import pytest

from vf.inference.embedded.contexts import Context, Contexts, common, most_shared


@pytest.mark.parametrize(("count", "longest"), [(1, 5), (3, 96), (4, 100), (32, 512), (7, 4100)])
def test_the_room_is_within_what_the_memory_plan_counts(count: int, longest: int) -> None:
    planned = count * (-(-longest // 16) + 1) * 16
    assert count * longest <= Contexts(count, longest).tokens <= planned


def extent(contexts: Contexts, context: Context) -> range:
    return range(context.start * contexts.unit, (context.start + context.size) * contexts.unit)


@pytest.mark.parametrize("seed", range(5))
def test_busy_contexts_always_have_room_and_never_overlap(seed: int) -> None:
    """Requests that begin, grow to the greatest length and end; a dictionary is the memory."""
    rng, count, longest = random.Random(seed), 4, 100
    contexts = Contexts(count, longest)
    memory: dict[int, int] = {}  # place in the cache: token
    busy: list[tuple[Context, list[int]]] = []

    def move(source: int, target: int, length: int) -> None:
        read = [memory[source * contexts.unit + place] for place in range(length)]
        for place, token in enumerate(read):
            memory[target * contexts.unit + place] = token

    for _ in range(400):
        if len(busy) < count and rng.random() < 0.5:
            goal = [rng.choice([1, 1, 1, 2]) for _ in range(rng.randint(1, longest))]
            source, shared = contexts.match(goal)
            origin = source.start if source is not None else 0
            context = contexts.open(goal, source, shared)
            if source is not None and context is not source:
                move(origin, context.start, shared)
            busy.append((context, goal))
        for context, goal in [*busy]:
            held = len(context.ids)
            step = goal[held : held + rng.randint(1, 30)]
            before = context.start
            contexts.grow(context, held + len(step))
            if context.start != before:
                move(before, context.start, held)
            mine = extent(contexts, context)
            assert held + len(step) <= len(mine)
            assert mine.stop <= contexts.tokens
            context.ids += step
            for place in range(held, len(context.ids)):
                memory[mine.start + place] = context.ids[place]
            if len(context.ids) == len(goal):
                contexts.close(context)
                busy.remove((context, goal))
        taken = [place for context, _ in busy for place in extent(contexts, context)]
        assert len({*taken}) == len(taken)
        for context, _ in busy:
            start = extent(contexts, context).start
            assert [memory[start + place] for place in range(len(context.ids))] == context.ids


def test_short_contexts_outlast_more_requests_than_run_at_once() -> None:
    contexts = Contexts(2, 512)
    prompts = [[number] * 100 for number in range(6)]
    for prompt in prompts:
        context = contexts.open(prompt, None, 0)
        contexts.grow(context, 100)
        context.ids += prompt
        contexts.close(context)
    assert [contexts.match([*prompt, 7])[1] for prompt in prompts] == [100] * 6


def test_the_context_that_was_not_used_for_longest_makes_room() -> None:
    contexts = Contexts(2, 16)
    held = [contexts.open([number], None, 0) for number in (1, 2)]
    for number, context in enumerate(held, 1):
        context.ids += [number]
    for context in reversed(held):
        contexts.close(context)
    contexts.open([3], None, 0)
    assert [contexts.match([number])[1] for number in (1, 2)] == [1, 0]


def test_a_context_grows_where_it_is_while_its_slot_is_empty() -> None:
    contexts = Contexts(2, 512)
    held = [contexts.open([number], None, 0) for number in (1, 2)]
    before = [context.start for context in held]
    for context in held:
        contexts.grow(context, 512)
    assert [context.start for context in held] == before


def test_copies_of_copies_share_what_was_copied_first() -> None:
    contexts = Contexts(8, 64)

    def begin(ids: list[int], source: Context | None, length: int) -> Context:
        context = contexts.open(ids, source, length)
        contexts.grow(context, len(ids))
        context.ids += ids[length:]
        return context

    first = begin([*range(30)], None, 0)
    second = begin([*range(12), *[7] * 9], first, 12)
    third = begin([*range(12), *[7] * 6, *[8] * 9], second, 18)
    fourth = begin([*range(20), 9], first, 20)
    stranger = begin([*range(30)], None, 0)  # computed again, so nothing that can be read for both
    assert most_shared([stranger, third, second, first]) == (12, {first, second, third})
    assert most_shared([third, second, fourth]) == (12, {second, third, fourth})
    assert most_shared([third, first, fourth]) == (20, {first, fourth})
    assert most_shared([first, stranger]) == (0, set())
    assert most_shared([]) == (0, set())


def test_what_was_computed_before_is_forgotten_even_of_busy_contexts() -> None:
    contexts = Contexts(2, 64)
    idle, busy = (contexts.open([1, 2, 3], None, 0) for _ in range(2))
    for context in (idle, busy):
        context.ids += [1, 2, 3]
    contexts.close(idle)
    contexts.forget()
    assert contexts.match([1, 2, 3]) == (None, 0)
    contexts.close(busy)
    assert contexts.match([1, 2, 3]) == (None, 0)


def test_common_beginnings() -> None:
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2, 3], [1, 2, 3, 4]) == 3
    assert common([1, 2, 3], [1, 2, 4], least=2) == 0
    assert common([5], [1]) == common([], [1]) == 0
