"""Whether a chat template shows the tools before everything else, read from its source."""

from __future__ import annotations

from typing import Any


def tools_only_lead(template: object) -> bool:
    """Return True if the tools cannot change what the template prints behind a later message.

    So it is if no statement up to the last one that names the tools prints a message other than
    the first, and none that names them can leave anything behind, or refuse anything. False means
    that it could not be proved.

    Args:
        template: The tokenizer's. Where it has several by name, the tools may choose between
            them, so nothing is proved.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes

    if not isinstance(template, str):
        return False
    try:
        body = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template).body
    except TemplateSyntaxError:  # an extension of the syntax that we do not know
        return False
    plain = (nodes.Output, nodes.If, nodes.For)
    carriers: Any = (
        nodes.Assign,
        nodes.AssignBlock,
        nodes.Block,
        nodes.Call,
        nodes.CallBlock,
        nodes.ExprStmt,
        nodes.FromImport,
        nodes.Import,
        nodes.Include,
        nodes.Macro,
    )
    naming = [index for index, node in enumerate(body) if _names(node, "tools")]
    return all(
        isinstance(body[index], plain) and not body[index].find(carriers) for index in naming
    ) and all(
        _names(node, "messages") == _first_messages(node)
        for node in body[: max(naming, default=-1) + 1]
    )


def _names(node: Any, name: str) -> int:
    """Return how often a statement names a variable."""
    from jinja2 import nodes

    return sum(node.name == name for node in node.find_all(nodes.Name))


def _first_messages(node: Any) -> int:
    """Return how often a statement says ``messages[0]``."""
    from jinja2 import nodes

    return sum(
        isinstance(item.node, nodes.Name)
        and item.node.name == "messages"
        and isinstance(item.arg, nodes.Const)
        and item.arg.value == 0
        for item in node.find_all(nodes.Getitem)
    )
