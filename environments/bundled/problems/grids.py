"""Problems about grids and matrices."""

from __future__ import annotations

from vf.environments.bundled.problems.problem import Shelf, grid, matrix

shelf = Shelf()


@shelf.problem(lambda rng: (grid(rng, (1, 5), "#.."),))
def islands(rows: list[str]) -> list[int]:
    """In a map, "#" is land and "." is water. Land that touches at a side (not at a corner)
    belongs together. Return the sizes of all islands, the largest first.
    """
    land = {(y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == "#"}
    sizes = []
    while land:
        todo, size = [land.pop()], 0
        while todo:
            y, x = todo.pop()
            size += 1
            for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if near in land:
                    land.remove(near)
                    todo.append(near)
        sizes.append(size)
    return sorted(sizes, reverse=True)


@shelf.problem(lambda rng: (grid(rng, (2, 5), "...#"),))
def shortest_way(rows: list[str]) -> int:
    """Walk from the top left to the bottom right cell, each step to one of the four neighbours.
    Cells with "#" cannot be entered. Return the least number of steps, or -1 if there is no way
    (also where the first or the last cell is "#").
    """
    height, width = len(rows), len(rows[0])
    if rows[0][0] == "#":
        return -1
    reached, frontier, steps = {(0, 0)}, [(0, 0)], 0
    while frontier:
        if (height - 1, width - 1) in frontier:
            return steps
        following = []
        for y, x in frontier:
            for ny, nx in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                inside = 0 <= ny < height and 0 <= nx < width
                if inside and rows[ny][nx] == "." and (ny, nx) not in reached:
                    reached.add((ny, nx))
                    following.append((ny, nx))
        frontier, steps = following, steps + 1
    return -1


@shelf.problem(lambda rng: (grid(rng, (1, 5), "*.."),))
def mine_counts(rows: list[str]) -> list[str]:
    """In a minefield, "*" is a mine. Return the field with every "." replaced by the number of
    mines among its up to eight neighbours, "." staying where there are none.
    """
    result = []
    for y, row in enumerate(rows):
        line = ""
        for x, cell in enumerate(row):
            near = [other[max(0, x - 1) : x + 2] for other in rows[max(0, y - 1) : y + 2]]
            count = "".join(near).count("*")
            line += cell if cell == "*" or not count else str(count)
        result.append(line)
    return result


@shelf.problem(lambda rng: (matrix(rng, (1, 4), 0, 9),))
def spiral(rows: list[list[int]]) -> list[int]:
    """Read a matrix in a spiral: from the top left to the right, then down, then to the left,
    then up, and so on inward. Return the values in this order.
    """
    values = []
    left = [list(row) for row in rows]
    while left:
        values += left.pop(0)
        left = [list(column) for column in zip(*left, strict=True)][::-1]
    return values


@shelf.problem(lambda rng: (matrix(rng, (1, 4), -4, 9),))
def saddle_points(rows: list[list[int]]) -> list[list[int]]:
    """Return the positions [row, column] of all values that are the largest of their row and the
    smallest of their column (ties allowed), in reading order.
    """
    found = []
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            if value == max(row) and value == min(other[x] for other in rows):
                found.append([y, x])
    return found


@shelf.problem(lambda rng: (grid(rng, (1, 5), "#."),))
def next_generation(rows: list[str]) -> list[str]:
    """In a grid of cells, "#" is alive. In the next generation, a cell is alive if it has
    exactly three living cells among its up to eight neighbours, or if it is alive now and has
    exactly two. Return the next generation; beyond the edges nothing lives.
    """
    result = []
    for y, row in enumerate(rows):
        line = ""
        for x, cell in enumerate(row):
            near = [other[max(0, x - 1) : x + 2] for other in rows[max(0, y - 1) : y + 2]]
            count = "".join(near).count("#") - (cell == "#")
            line += "#" if count == 3 or (count == 2 and cell == "#") else "."
        result.append(line)
    return result


@shelf.problem(lambda rng: (matrix(rng, (1, 4), 0, 9),))
def cheapest_descent(rows: list[list[int]]) -> int:
    """Start in any cell of the first row and go down row by row, each time straight down or
    diagonally to the left or right. Return the least possible sum of the values on the way.
    """
    costs = rows[0]
    for row in rows[1:]:
        costs = [value + min(costs[max(0, x - 1) : x + 2]) for x, value in enumerate(row)]
    return min(costs)


@shelf.problem(lambda rng: (grid(rng, (1, 6), "aaab"),))
def largest_square(rows: list[str]) -> int:
    """Return the side length of the largest square of cells that all hold the same letter."""
    best = 0
    sides: dict[tuple[int, int], int] = {}
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            side = 1
            if y and x and cell == rows[y - 1][x] == row[x - 1] == rows[y - 1][x - 1]:
                side += min(sides[y - 1, x], sides[y, x - 1], sides[y - 1, x - 1])
            sides[y, x] = side
            best = max(best, side)
    return best
