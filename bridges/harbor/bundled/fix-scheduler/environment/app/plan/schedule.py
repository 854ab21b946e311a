"""Who does what."""


def schedule(graph, workers):
    """Return for each task (name, worker, start, end), in the order in which they were started.

    The workers are numbered from 0. At each moment, beginning at 0, free workers take tasks whose
    needs have ended (a task that ends at that moment has ended): the lowest worker takes first, and
    the task with the greatest remaining path (its own seconds and those of the longest chain of tasks
    that need it) is taken first, of equal ones the smallest name. Raises ValueError for fewer than one
    worker, and what ``Graph.order`` raises.
    """
    free = [0] * workers
    result = []
    ends = {}
    for name in graph.order():
        worker = free.index(min(free))
        start = free[worker]
        end = start + graph.seconds[name]
        free[worker] = end
        ends[name] = end
        result.append((name, worker, start, end))
    return result
