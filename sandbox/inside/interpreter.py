"""The persistent Python. Runs as the model's user, in a separate process.

For each call it reads a line from GO, a number that only this call has, and the code from the file
CODE. It answers "number returncode" on ANSWER. What the code prints goes to stdout and stderr.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import linecache
import os
import signal
import sys
import traceback
import types

GO, ANSWER, CODE = 100, 101, 102  # descriptors that code rarely uses


class Console:
    """Runs one piece of code after the other in one namespace."""

    def __init__(self) -> None:
        """Make the namespace: a module that pickle and inspect take for the main one."""
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self.space = module.__dict__
        self.running = False
        self.pid = os.getpid()
        signal.signal(signal.SIGINT, self.interrupted)

    def interrupted(self, number: int, frame: object) -> None:
        """Interrupt the model's code, and nothing else."""
        if self.running:
            self.running = False
            raise KeyboardInterrupt

    def run(self, code: str, name: str) -> None:
        """Run it, and echo the value of a last expression."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last = tree.body[-1] if tree.body else None
        value = None
        if isinstance(last, ast.Expr):
            tree.body.pop()
            value = compile(ast.Expression(last.value), name, "eval", dont_inherit=True)
        whole = compile(tree, name, "exec", dont_inherit=True)
        try:
            self.running = True
            exec(whole, self.space)
            if value is not None:
                sys.displayhook(eval(value, self.space))
        finally:
            self.running = False

    def call(self, code: str, name: str) -> int:
        """Run it; return 0, 1 after an exception, or the exit code of sys.exit."""
        try:
            self.run(code, name)
        except SystemExit as exc:
            if exc.code is None or isinstance(exc.code, int):
                return (exc.code or 0) & 255
            print(exc.code, file=sys.stderr)
            return 1
        except KeyboardInterrupt as exc:
            self.report(exc)
            return 130
        except BaseException as exc:
            self.report(exc)
            return 1
        return 0

    @staticmethod
    def report(exc: BaseException) -> None:
        """Print the traceback without the frames of this file."""
        trace = exc.__traceback__
        while trace is not None and ours(trace):
            trace = trace.tb_next
        last = trace
        while last is not None:
            if last.tb_next is not None and ours(last.tb_next):
                last.tb_next = None  # where the interrupt came
            last = last.tb_next
        try:
            text = "".join(traceback.format_exception(type(exc), exc, trace))
        except BaseException:
            text = f"{type(exc).__name__} (which cannot be printed)\n"
        try:
            sys.stderr.write(text)
        except BaseException:
            os.write(2, text.encode("utf-8", "replace"))

    def serve(self) -> None:
        """Answer calls until there are no more."""
        for count in itertools.count(1):
            number = read_line()
            if not number:
                return
            text = read_code()
            code = 1
            try:
                code = self.call(text, f"<python-{count}>")
            except BaseException as exc:
                note(exc)
            for stream in (sys.stdout, sys.stderr):
                try:
                    if stream is not None:
                        stream.flush()
                except BaseException as exc:
                    note(exc)
            if os.getpid() != self.pid:
                os._exit(code)  # the code forked, and this is its child
            os.write(ANSWER, f"{number} {code}\n".encode())


def ours(trace: types.TracebackType) -> bool:
    """Return whether this step of a traceback is in this file."""
    return trace.tb_frame.f_globals is globals()


def note(exc: BaseException) -> None:
    """Report a failure of the interpreter itself, bypassing sys.stderr, which code may replace."""
    os.write(2, f"{type(exc).__name__}: {exc}\n".encode("utf-8", "replace"))


def read_line() -> str:
    """Return the next line of GO, or nothing at its end."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(GO, 64)
        if not more:
            return ""
        line += more
    return line.decode().strip()


def read_code() -> str:
    """Return what the supervisor has put into CODE."""
    return os.pread(CODE, os.fstat(CODE).st_size, 0).decode("utf-8", "surrogatepass")


if __name__ == "__main__":
    for fd in (GO, ANSWER, CODE):
        os.set_inheritable(fd, False)
    Console().serve()
