"""How many requests a server is sent, by what it says of its key-value cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from vf.inference.vllm.pace import LEAST, SETTLE, Load, Pace


@dataclass
class Cache:
    """A server with room for that many requests, which preempts those beyond."""

    room: int
    preemptions: float = 0.0
    limits: list[int] = field(default_factory=list)

    def follow(self, pace: Pace, offered: int, looks: int) -> list[int]:
        limit = self.limits[-1] if self.limits else offered
        for _ in range(looks):
            under_way = min(offered, limit)
            self.preemptions += max(0, under_way - self.room)
            limit = pace.look(Load(min(1.0, under_way / self.room), self.preemptions), under_way)
            self.limits.append(limit)
        return self.limits


@pytest.mark.parametrize("room", [10, 100, 500])
def test_it_stays_near_what_the_cache_has_room_for(room: int) -> None:
    limits = Cache(room).follow(Pace(1024), offered=1024, looks=200)[100:]
    assert room * 0.6 <= sum(limits) / len(limits) <= room * 1.1
    assert max(limits) <= max(room * 1.15, room + 2)


def test_without_preemptions_as_many_as_there_are() -> None:
    assert set(Cache(10_000).follow(Pace(64), offered=64, looks=20)) == {64}
    assert set(Cache(60).follow(Pace(64), offered=60, looks=20)) == {64}, "full is not too full"


def test_it_never_leaves_its_bounds() -> None:
    assert min(Cache(1).follow(Pace(1024), offered=1024, looks=200)) == LEAST
    assert set(Cache(1).follow(Pace(2), offered=64, looks=50)) == {2}


def test_after_a_cut_it_waits_for_what_is_under_way() -> None:
    limits = Cache(1).follow(Pace(1000), offered=1000, looks=40)
    cuts = [place for place, (one, two) in enumerate(pairwise(limits)) if two < one]
    assert cuts
    assert all(later - earlier >= SETTLE for earlier, later in pairwise(cuts))


def test_a_server_with_room_again_gets_more() -> None:
    pace, cache = Pace(1024), Cache(16)
    cache.follow(pace, offered=512, looks=100)
    cache.room = 10_000
    assert cache.follow(pace, offered=512, looks=100)[-1] >= 512


def test_a_server_that_was_started_again_counts_from_zero() -> None:
    pace = Pace(64)
    assert pace.look(Load(0.5, 900.0), 32) == 64
    assert pace.look(Load(0.5, 0.0), 32) == 64
    assert pace.look(Load(1.0, 3.0), 32) == 24


def test_the_metrics_of_all_copies_of_the_model_count() -> None:
    text = (
        "# TYPE vllm:kv_cache_usage_perc gauge\n"
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75\n'
        'vllm:num_preemptions_total{engine="0",model_name="m"} 2.0\n'
        'vllm:num_preemptions_total{engine="1",model_name="m"} 1.0\n'
        'vllm:num_preemptions_created{engine="1",model_name="m"} 1.7e9\n'
    )
    assert Load.read(text) == Load(0.75, 3.0)
    assert Load.read("sglang:token_usage 0.5\n") is None
