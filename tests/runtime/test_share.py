"""A process's part of what the worker processes of a run may use together."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vf.runtime.share import Share, own_share

PRINT = """
from vf.runtime.open_files import connections
from vf.runtime.share import take_share
whole = connections()
take_share(2, 3)
print(whole, connections())
"""


@pytest.mark.parametrize(("total", "count"), [(10, 4), (4, 4), (3, 4), (0, 2), (7, 1)])
def test_the_parts_add_up_and_hardly_differ(total: int, count: int) -> None:
    parts = [Share(index, count).of(total) for index in range(count)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_there_is_no_part_beyond(index: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"no part {index} of {count}"):
        Share(index, count)


def test_workers_divide_the_connections_to_the_engine_that_they_share() -> None:
    assert own_share() == Share(0, 1)
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True)
    whole, part = map(int, done.stdout.split())
    assert part == whole // 3
