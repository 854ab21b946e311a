"""Draw how a run fits together: `python docs/pictures/make_architecture.py`."""

from __future__ import annotations

from drawing import Drawing

TITLE = "A run: the TOML names an environment; rollouts become traces, scores, samples, new weights"


def main() -> None:
    """Write `architecture.svg`."""
    picture = Drawing(960, 330, TITLE)
    picture.box(20, 40, 130, 90, "TOML", "model, env,", "trainer settings")
    picture.box(200, 40, 190, 90, "Environment", "tasks, tools, sandbox", "reset and step")
    picture.box(450, 40, 190, 90, "Rollouts", "independent coroutines,", "in worker processes")
    picture.box(720, 40, 220, 90, "Engine", "embedded, or vLLM servers", "token ids in and out")
    picture.arrow((150, 85), (198, 85))
    picture.arrow((392, 85), (448, 85), both=True)
    picture.arrow((642, 85), (718, 85), both=True)
    picture.text(420, 72, "step", kind="note", size=12, anchor="middle")
    picture.text(680, 72, "answer", kind="note", size=12, anchor="middle")
    picture.box(20, 210, 170, 90, "Trace", "messages, tool calls,", "token branches")
    picture.box(230, 210, 150, 90, "Score", "rubric: outcome,", "penalties, gates")
    picture.box(420, 210, 150, 90, "Group", "all rollouts of a task:", "advantages")
    picture.box(610, 210, 130, 90, "Samples", "packed tokens,", "loss masks")
    picture.box(780, 210, 160, 90, "RLTrainer", "loss, gradient,", "optimizer step")
    for start, end in ((190, 228), (380, 418), (570, 608), (740, 778)):
        picture.arrow((start, 255), (end, 255))
    picture.arrow((545, 130), (545, 170), (105, 170), (105, 208))
    picture.arrow((860, 210), (860, 132))
    picture.text(850, 176, "new weights, by version", kind="note", size=12, anchor="end")
    picture.save("architecture.svg")


if __name__ == "__main__":
    main()
