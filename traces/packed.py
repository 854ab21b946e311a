"""What a traces file holds in a form of its own: compact, exact, and still JSON.

The token arrays of a branch. An array is text, ``u4:`` and base64 of little-endian numbers:
``u2`` and ``u4`` are unsigned integers of 2 and 4 bytes, ``i8`` signed ones of 8, ``f4`` and ``f8``
floats; the narrowest that holds every value exactly. What changes seldom is runs,
``[[value, count], ...]``. Log-probabilities are those of the sampled tokens, unless another token
has one that is not 0. ``begins`` is ``[place, count]``: so many tokens are as in an earlier branch,
and ``token_ids`` holds the rest. ``experts``, where a branch has any, is ``[width, text]``: the
bytes of each token, and base64 of those of all, compressed by zlib. ``supports``, likewise, are how
many ids each token has, and all of the ids. ``images`` are ``[name of the file, place]``.

The conversations of an agent, of which an agent that rewrites its history has one for each call.
What is in several is written once: ``[place, count]`` among the messages is a run of those that
were written before, counted over all conversations, and a number for the tools is the place of the
first conversation that had the same.
"""

from __future__ import annotations

import base64
import binascii
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, compress, groupby
from operator import not_
from typing import Any

from vf.traces.images import Image

_INTEGERS = {"u2": "H", "u4": "I", "i8": "q"}
_FLOATS = {"f4": "f", "f8": "d"}
_CODES = _INTEGERS | _FLOATS
_RUNS = ("loss_mask", "turn_index", "weight_version")
_WORTH = 32  # tokens; fewer are not shared


def pack_branches(branches: Sequence[Mapping[str, list[Any]]]) -> list[dict[str, Any]]:
    """Return branches, as the lists of each by name, with the beginnings that they share once."""
    out: list[dict[str, Any]] = []
    for columns in branches:
        ids, index, count = columns["token_ids"], 0, 0
        for at in range(len(out)):
            other = branches[at]["token_ids"]
            further = other[count : count + 1] == ids[count : count + 1]  # else it is no longer
            if further and (alike := _alike(ids, other)) > count:
                index, count = at, alike
        packed = pack(columns)
        if count >= _WORTH:
            packed |= {"token_ids": _integers(ids[count:]), "begins": [index, count]}
        out.append(packed)
    return out


def unpack_branches(branches: Any) -> Any:
    """Return what :func:`pack_branches` returned as lists again. Lists stay lists.

    Raises:
        ValueError: If one is neither, or begins as one that is not there.
    """
    if not isinstance(branches, list):
        return branches
    out: list[Any] = []
    for branch in branches:
        begin: list[int] = []
        if isinstance(branch, dict) and "begins" in branch:
            branch = dict(branch)
            begin = _beginning(out, branch.pop("begins"))
        out.append(unpack(branch, begin))
    return out


def _beginning(branches: list[Any], begins: Any) -> list[int]:
    try:
        index, count = map(int, begins)
    except (TypeError, ValueError) as error:
        raise ValueError("begins: not [place, count]") from error
    earlier = branches[index] if 0 <= index < len(branches) else None
    ids = earlier.get("token_ids") if isinstance(earlier, dict) else None
    if not isinstance(ids, list) or not 0 <= count <= len(ids):
        raise ValueError("begins: there is no such branch before, or it is shorter")
    return ids[:count]


def _alike(one: list[int], other: list[int]) -> int:
    """Return how many tokens two lists begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def pack(columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the lists of a branch, by name, in their compact form.

    Lists that differ in length, against the promise of a branch, are arrays one and all.
    """
    columns = dict(columns)
    if images := columns.pop("images", []):
        return {**pack(columns), "images": [[image.name, image.at] for image in images]}
    if experts := columns.pop("experts", []):
        return {**pack(columns), "experts": _pack_experts(experts)}
    if supports := columns.pop("supports", []):
        return {**pack(columns), "supports": pack_supports(supports)}
    mask, logprobs = columns["loss_mask"], columns["logprobs"]
    if len(set(map(len, columns.values()))) > 1:
        arrays = {name: _integers(columns[name]) for name in ("token_ids", *_RUNS)}
        return {**arrays, "logprobs": pack_floats(logprobs)}
    whole = any(compress(logprobs, map(not_, mask)))
    return {
        "token_ids": _integers(columns["token_ids"]),
        "logprobs": pack_floats(logprobs if whole else list(compress(logprobs, mask))),
        **{name: pack_runs(columns[name]) for name in _RUNS},
    }


def unpack(branch: Any, begin: Sequence[int] = ()) -> Any:
    """Return what :func:`pack` returned as lists again. Lists, as of older files, stay lists.

    Args:
        branch: The branch.
        begin: The ids of its first tokens, if they are not in it.

    Raises:
        ValueError: If it is neither.
    """
    if not isinstance(branch, dict) or not isinstance(branch.get("logprobs"), str):
        return branch
    out = dict(branch)
    ids = out["token_ids"] = [*begin, *unpack_numbers(branch.get("token_ids"))]
    for name in _RUNS:
        value = branch.get(name)
        out[name] = (
            unpack_numbers(value) if isinstance(value, str) else unpack_runs(name, value, len(ids))
        )
    logprobs = unpack_numbers(branch["logprobs"])
    if len(logprobs) < len(ids) and not isinstance(branch["loss_mask"], str):
        mask = out["loss_mask"]
        if len(logprobs) != sum(map(bool, mask)):
            raise ValueError("logprobs: not one for each sampled token")
        values = iter(logprobs)
        logprobs = [next(values) if sampled else 0.0 for sampled in mask]
    out["logprobs"] = logprobs
    if "experts" in out:
        out["experts"] = _unpack_experts(out["experts"])
    if "supports" in out:
        out["supports"] = unpack_supports(out["supports"])
    if "images" in out:
        out["images"] = _unpack_images(out["images"])
    return out


def _pack_experts(rows: list[bytes]) -> list[Any]:
    return [len(rows[0]), base64.b64encode(zlib.compress(b"".join(rows), 1)).decode()]


def _unpack_experts(value: Any) -> list[bytes]:
    try:
        width, text = value
        data = zlib.decompress(base64.b64decode(text, validate=True))
        if width < 1 or len(data) % width:
            raise ValueError("its length")
        return [data[start : start + width] for start in range(0, len(data), width)]
    except (TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"experts: not [bytes of a token, text] ({error})") from None


def _unpack_images(rows: Any) -> list[Image]:
    try:
        return [Image.named(name, int(at)) for name, at in rows]
    except (TypeError, ValueError) as error:
        raise ValueError(f"images: not [name of the file, place] ({error})") from None


def pack_supports(supports: Sequence[list[int]]) -> dict[str, Any]:
    """Return lists of ids, one for each token, in their compact form."""
    return {
        "counts": _integers([len(ids) for ids in supports]),
        "ids": _integers([token for ids in supports for token in ids]),
    }


def unpack_supports(supports: Any) -> list[list[int]]:
    """Return what :func:`pack_supports` returned as lists again. Lists stay lists.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(supports, list):
        return supports
    if not isinstance(supports, dict) or supports.keys() != {"counts", "ids"}:
        raise ValueError("supports: not counts and ids")
    counts, ids = unpack_numbers(supports["counts"]), unpack_numbers(supports["ids"])
    if min(counts, default=0) < 0 or sum(counts) != len(ids):
        raise ValueError("supports: their counts are not those of their ids")
    ends = [*accumulate(counts)]
    return [ids[end - count : end] for end, count in zip(ends, counts, strict=True)]


def pack_lineages(lineages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return conversations, as the fields of each by name, with what they share written once."""
    positions: dict[str, int] = {}
    tool_lists: dict[str, int] = {}
    out = []
    for number, lineage in enumerate(lineages):
        messages: list[Any] = []
        run: list[int] = []  # the last entry, if it is a run
        for message in lineage["messages"]:
            key = repr(message)
            position = positions.get(key)
            if position is None:
                positions[key] = len(positions)
                messages.append(message)
                run = []
            elif run and position == sum(run):
                run[1] += 1
            else:
                run = [position, 1]
                messages.append(run)
        first = tool_lists.setdefault(repr(lineage["tools"]), number)
        tools = lineage["tools"] if first == number else first
        out.append({**lineage, "messages": messages, "tools": tools})
    return out


def unpack_lineages(lineages: Any) -> Any:
    """Return what :func:`pack_lineages` returned with everything in its place again.

    Raises:
        ValueError: If something refers to what is not there.
    """
    if not isinstance(lineages, list):
        return lineages
    earlier: list[Any] = []
    out: list[Any] = []
    for lineage in lineages:
        if not isinstance(lineage, dict):
            return lineages
        messages: list[Any] = []
        for entry in lineage.get("messages", ()):
            if isinstance(entry, list):
                messages += _run_of(earlier, entry)
            else:
                earlier.append(entry)
                messages.append(entry)
        tools = lineage.get("tools", [])
        if isinstance(tools, int):
            if not 0 <= tools < len(out):
                raise ValueError(f"tools: there is no conversation {tools} before")
            tools = out[tools]["tools"]
        _check_indices(lineage, len(messages), len(lineages))
        out.append({**lineage, "messages": messages, "tools": tools})
    return out


def _check_indices(lineage: Mapping[str, Any], messages: int, lineages: int) -> None:
    answers, turns = lineage.get("answers", []), lineage.get("turns", [])
    parent = lineage.get("parent")
    if not isinstance(answers, list) or not isinstance(turns, list) or len(answers) != len(turns):
        raise ValueError("answers: not one for each of its turns")
    if not all(isinstance(index, int) and 0 <= index < messages for index in answers):
        raise ValueError("answers: not the places of messages")
    if parent is not None and not (isinstance(parent, int) and 0 <= parent < lineages):
        raise ValueError("parent: not the place of a conversation")


def _run_of(earlier: list[Any], run: list[Any]) -> list[Any]:
    try:
        start, count = map(int, run)
    except (TypeError, ValueError) as error:
        raise ValueError("messages: not a run of [place, count]") from error
    if start < 0 or count < 0 or start + count > len(earlier):
        raise ValueError("messages: a run of what was not written before")
    return earlier[start : start + count]


def _integers(values: list[int]) -> str | list[int]:
    for name, code in _INTEGERS.items():
        try:
            return _text(name, array(code, values))
        except OverflowError:
            continue
    return values  # beyond 64 bits: no vocabulary's


def pack_floats(values: list[float]) -> str:
    """Return numbers as text: ``f4:`` or ``f8:`` and base64, the narrower that is exact."""
    single = array("f", values)
    return _text("f4", single) if single.tolist() == values else _text("f8", array("d", values))


def _text(name: str, numbers: array[Any]) -> str:
    if sys.byteorder == "big":
        numbers.byteswap()
    return f"{name}:{base64.b64encode(numbers).decode()}"


def unpack_numbers(value: Any) -> list[Any]:
    """Return the numbers of such a text. Lists, as of older files, stay lists.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(value, list):
        return value
    name, _, text = value.partition(":") if isinstance(value, str) else ("", "", "")
    if name not in _CODES:
        raise ValueError("not an array of numbers")
    numbers = array(_CODES[name])
    try:
        numbers.frombytes(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def pack_runs(values: Sequence[int]) -> list[list[int]]:
    """Return values that change seldom as runs, ``[[value, count], ...]``."""
    return [[value, len(list(run))] for value, run in groupby(values)]


def unpack_runs(name: str, runs: Any, size: int) -> list[int]:
    """Return the values of runs.

    Args:
        name: The name of the values, for the error.
        runs: The result of :func:`pack_runs`.
        size: The number of values that there must be.

    Raises:
        ValueError: If they are no runs, or of another number of values.
    """
    try:
        counts = [int(count) for _, count in runs]
        if min(counts, default=0) < 0 or sum(counts) != size:  # before memory is spent on it
            raise ValueError(f"{name}: its runs are not those of {size} tokens")
        out: list[int] = []
        for (value, _), count in zip(runs, counts, strict=True):
            out += [value] * count
    except TypeError as error:
        raise ValueError(f"{name}: not runs of [value, count]") from error
    return out
