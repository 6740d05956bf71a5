"""The command line: a thin table from commands to functions of the package.

Each module holds the commands of its name; importing it puts them into the app, in the order in
which `unimp --help` lists them. What computes is imported inside the commands: help does not wait
for torch.
"""

from unimp.cli import init, estimate, train, predict, explain, audit, suggest  # noqa: F401, I001
from unimp.cli import reproduce, recipe, data  # noqa: F401
from unimp.cli.console import app, main, program

__all__ = ["app", "main", "program"]
