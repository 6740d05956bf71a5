"""The command line: each command parses its arguments, calls the Python API and prints.

Importing a module adds its commands to the app, in the order in which `unimp --help` lists them.
Commands import what they need when they run, so that help does not wait for torch.
"""

from unimp.cli import init, estimate, train, predict, explain, audit, suggest  # noqa: F401, I001
from unimp.cli import serve, distill, reproduce, recipe, data  # noqa: F401
from unimp.cli.console import app, main, program

__all__ = ["app", "main", "program"]
