"""The commands `unimp serve RUN`, `unimp serve check`, `backup` and `export`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from unimp.cli.console import RunFolder, app, out
from unimp.cli.later import Force
from unimp.errors import RunError, UnimpError

DEFAULT = "run"


class ServeCommands(TyperGroup):
    """`unimp serve RUN` is short for `unimp serve run RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the options of `unimp serve RUN` too, which is the command that people look for."""
        command = self.commands[DEFAULT]
        short = command.context_class(command, info_name=ctx.info_name, parent=ctx.parent)
        command.format_help(short, formatter)
        super().format_help(ctx, formatter)


serve_app = typer.Typer(
    cls=ServeCommands,
    no_args_is_help=True,
    help="Serve a run: labels that arrive change predictions at once, without training.",
    epilog="`unimp serve RUN` is short for `unimp serve run RUN`.",
)
app.add_typer(serve_app, name="serve")


@serve_app.command(DEFAULT)
def serve_run(
    folder: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The folder of a finished run.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Others than this computer need tokens.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token of the admin; it is created if it does not exist. Without "
            "it, everybody on this computer is an admin."
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Name under which browsers reach this computer. May be repeated."),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Serve the bundled house prices with a small model that is included."
        ),
    ] = False,
) -> None:
    """Serve the page and the HTTP API of a run until Ctrl-C.

    Labels are stored in labels.db in the run folder. On this computer alone, no token is needed,
    and everybody who can reach the port is an admin.
    """
    server = _server()
    if demo == (folder is not None):
        raise RunError("name the folder of a run, or use --demo without one")
    if folder is None:
        from unimp.serving.demo import demo_run

        folder = demo_run(out.print)
    options = server.Options(host, port, token_file, tuple(allowed_host or ()))
    server.serve(folder, options, out.print)


def _server() -> Any:
    gc.disable()  # importing creates many objects and hardly any garbage
    try:
        from unimp.serving.front import server
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise RunError(
            f"`unimp serve` needs {error.name}; install it with: pip install 'unimp[serve]'"
        ) from None
    finally:
        gc.enable()
    return server


@serve_app.command("check")
def check_labels(folder: RunFolder) -> None:
    """Check the stored labels: the file, the order and hashes of events, and what follows."""
    from unimp.serving.checking import check
    from unimp.serving.reader import Reader

    with Reader(folder) as reader:
        problems = check(reader)
        head = reader.head()
    for problem in problems:
        out.print(problem)
    if problems:
        raise RunError(f"{folder} has {len(problems)} problems; restore a backup")
    out.print(f"{head:,} events, no problems")


@serve_app.command("backup")
def backup_labels(
    folder: RunFolder,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The new file.")],
) -> None:
    """Copy the stored labels to a file, also while the service runs.

    To restore it, stop the service, remove labels.db, labels.db-wal and labels.db-shm from the run
    folder, and copy the file there as labels.db.
    """
    from unimp.serving.checking import backup
    from unimp.serving.reader import Reader

    with Reader(folder) as reader:
        version = backup(reader, path)
    out.print(f"{version:,} events: {path}")


@serve_app.command("export")
def export_labels(
    folder: RunFolder,
    path: Annotated[
        Path, typer.Option("--out", help="The table to write: .csv, .parquet or .jsonl.")
    ] = Path("labels.csv"),
    log: Annotated[
        bool, typer.Option("--log", help="Write all events instead of the labels in force.")
    ] = False,
    force: Force = False,
) -> None:
    """Write the stored labels as a table, which `unimp train` and `unimp predict` read."""
    from unimp.serving.export import labels_table, log_table, write_export
    from unimp.serving.reader import Reader

    if path.resolve().parent == folder.resolve():
        raise UnimpError(f"{path} is inside the run folder; choose another folder")
    with Reader(folder) as reader:
        table = log_table(reader) if log else labels_table(reader)
    write_export(path, table, force=force)
    out.print(f"{table.num_rows:,} rows: {path}")
