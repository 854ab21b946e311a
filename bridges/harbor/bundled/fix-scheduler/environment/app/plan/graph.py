"""Tasks and what they need."""


class Cycle(ValueError):
    """Tasks need each other. ``path`` is the cycle: its first task again at the end.

    The path begins with the smallest task of the cycle, and each needs the next one.
    """

    def __init__(self, path):
        super().__init__(" -> ".join(path))
        self.path = path


class Graph:
    """Tasks by name, each with what it needs and how long it takes."""

    def __init__(self):
        self.needs = {}
        self.seconds = {}

    def add(self, name, seconds=1, needs=[]):
        """Add a task, or more needs of one that is there; ``seconds`` then replaces the old.

        What is needed may be added later. Raises ValueError if ``seconds`` is negative.
        """
        self.needs[name] = set(needs)
        self.seconds[name] = seconds

    def order(self):
        """Return all tasks, each after what it needs, else by name.

        That is: of the tasks that could come next, always the smallest name. Raises KeyError with the
        name of a task that is needed and was never added (the smallest, if there are several), and
        Cycle if there is one (any).
        """
        done, found = set(), []

        def visit(name):
            if name in done:
                return
            done.add(name)
            for other in self.needs[name]:
                visit(other)
            found.append(name)

        for name in sorted(self.needs):
            visit(name)
        return found

    def depth(self, name):
        """Return the seconds from the beginning to the end of a task, with as many workers as help."""
        return self.seconds[name] + sum(self.depth(other) for other in self.needs[name])
