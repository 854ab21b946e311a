"""What a run shows while it runs: a dashboard on a terminal, plain lines elsewhere."""

from vf.trainer.watching.display.terminal import TerminalDisplay

__all__ = ["TerminalDisplay"]
