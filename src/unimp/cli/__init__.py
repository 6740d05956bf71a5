"""The command line: a thin table from commands to functions of the package.

Each module holds the commands of its name; importing it puts them into the app, in the order in
which `unimp --help` lists them.
"""

from unimp.cli import train, estimate, predict, reproduce, recipe, data  # noqa: F401, I001
from unimp.cli.console import app, main

__all__ = ["app", "main"]
