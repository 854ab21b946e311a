"""Whether an environment can be solved, teaches something, and can be gamed.

``vf-rl eval --validate ENV``: scripted agents act in it through the real runner. One knows the
solution, some know nothing, and a suite of hackers tries to be paid without solving anything.
"""
