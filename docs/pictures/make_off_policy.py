"""Draw generation and training on a time line: `python docs/pictures/make_off_policy.py`."""

from __future__ import annotations

from drawing import Drawing

TITLE = "On-policy, generation and training take turns; with max_steps_off_policy = 1 they overlap"
LEFT, UNIT = 130, 26
GENERATE, TRAIN = 6, 4  # units of time that a step takes


def main() -> None:
    """Write `off-policy.svg`."""
    picture = Drawing(960, 340, TITLE)
    picture.text(20, 32, "max_steps_off_policy = 0: on-policy", size=15)
    clock = 0
    _lanes(picture, 50)
    for step in (1, 2, 3):
        _bar(picture, 50, clock, GENERATE, "sampled", f"rollouts {step}, version {step - 1}")
        clock += GENERATE
        _bar(picture, 90, clock, TRAIN, "train", f"train {step}")
        clock += TRAIN
        _publish(picture, 90, clock, step)
    picture.text(20, 192, "max_steps_off_policy = 1: generation runs ahead", size=15)
    _lanes(picture, 210)
    for step in (1, 2, 3, 4, 5):
        begins = (step - 1) * GENERATE
        version = max(0, step - 2)
        _bar(picture, 210, begins, GENERATE, "sampled", f"rollouts {step}, version {version}")
        if step < 5:
            _bar(picture, 250, begins + GENERATE, TRAIN, "train", f"train {step}")
            _publish(picture, 250, begins + GENERATE + TRAIN, step)
    picture.arrow((LEFT, 318), (940, 318))
    picture.text(20, 322, "time", kind="note", size=12)
    picture.save("off-policy.svg")


def _lanes(picture: Drawing, y: float) -> None:
    picture.text(20, y + 20, "engine", kind="note", size=13)
    picture.text(20, y + 60, "trainer", kind="note", size=13)


def _bar(picture: Drawing, y: float, begins: int, length: int, kind: str, text: str) -> None:
    x = LEFT + begins * UNIT
    picture.rect(x + 1, y, length * UNIT - 2, 30, kind)
    picture.text(x + length * UNIT / 2, y + 20, text, size=12, anchor="middle")


def _publish(picture: Drawing, y: float, when: int, version: int) -> None:
    """Mark the end of an update: its weights reach the engine."""
    x = LEFT + when * UNIT
    picture.arrow((x, y + 15), (x, y - 8))
    picture.text(x, y + 45, f"version {version}", kind="note", size=11, anchor="middle")


if __name__ == "__main__":
    main()
