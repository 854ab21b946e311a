import heapq


class Cycle(ValueError):
    def __init__(self, path):
        super().__init__(" -> ".join(path))
        self.path = path


class Graph:
    def __init__(self):
        self.needs = {}
        self.seconds = {}

    def add(self, name, seconds=1, needs=()):
        if seconds < 0:
            raise ValueError("seconds below 0")
        self.needs.setdefault(name, set()).update(needs)
        self.seconds[name] = seconds

    def needed_by(self):
        found = {name: [] for name in self.needs}
        for name, needs in self.needs.items():
            for other in needs:
                found[other].append(name)
        return found

    def order(self):
        missing = {other for needs in self.needs.values() for other in needs} - self.needs.keys()
        if missing:
            raise KeyError(min(missing))
        left = {name: len(needs) for name, needs in self.needs.items()}
        after = self.needed_by()
        ready = [name for name, count in left.items() if not count]
        heapq.heapify(ready)
        found = []
        while ready:
            name = heapq.heappop(ready)
            found.append(name)
            for other in after[name]:
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, other)
        if len(found) < len(self.needs):
            self._raise_cycle({name for name, count in left.items() if count})
        return found

    def _raise_cycle(self, stuck):
        path, at = [], min(stuck)
        while at not in path:
            path.append(at)
            at = min(self.needs[at] & stuck)
        path = path[path.index(at) :]
        first = path.index(min(path))
        path = path[first:] + path[:first]
        raise Cycle([*path, path[0]])

    def depth(self, name):
        ends = {}
        for each in self.order():
            start = max((ends[other] for other in self.needs[each]), default=0)
            ends[each] = start + self.seconds[each]
        return ends[name]
