import heapq


def schedule(graph, workers):
    if workers < 1:
        raise ValueError("fewer than one worker")
    order = graph.order()
    after = graph.needed_by()
    path = {}
    for name in reversed(order):
        path[name] = graph.seconds[name] + max((path[other] for other in after[name]), default=0)
    left = {name: len(graph.needs[name]) for name in order}
    ready = [(-path[name], name) for name in order if not left[name]]
    heapq.heapify(ready)
    free, running, result, now = list(range(workers)), [], [], 0
    while ready or running:
        while ready and free:
            name, worker = heapq.heappop(ready)[1], heapq.heappop(free)
            end = now + graph.seconds[name]
            result.append((name, worker, now, end))
            heapq.heappush(running, (end, worker, name))
        now = running[0][0]
        while running and running[0][0] == now:
            _, worker, name = heapq.heappop(running)
            heapq.heappush(free, worker)
            for other in after[name]:
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, (-path[other], other))
    return result
