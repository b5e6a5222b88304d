"""The entry point `ottla`: find the command, run it, print expected errors as one sentence with an exit code.

Only the module of the called command is imported, and each module imports heavy packages inside its
functions. So `ottla --help` is fast. The two commands that start a broker do not load typer
(`run_broker.py`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ottla.cli.client_config import use_file
from ottla.cli.outcome import EXIT_CODES, describe_failure, quiet_broken_pipe, say, show
from ottla.cli.run_broker import quick_start

if TYPE_CHECKING:
    import typer

#: In the order of `ottla --help`; each module has `register(app)`.
COMMANDS = (
    "up",
    "broker",
    "topic",
    "partition",
    "group",
    "txn",
    "produce",
    "consume",
    "config",
    "log",
    "pipeline",
    "bench",
    "demo",
)

HELP = f"""A message broker that speaks the Kafka protocol: broker, clients and tools in one command.

\b
Example:
  ottla up                                   start a broker on 127.0.0.1:9092
  ottla topic create orders --partitions 3   create a topic
  echo hello | ottla produce orders          write a message
  ottla consume orders --from-beginning      read all messages

\b
{EXIT_CODES}
"""


def build(command: str | None) -> typer.Typer:
    """The app with one command, or with all of them if the command is unknown."""
    import typer

    app = typer.Typer(
        name="ottla",
        help=HELP,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )

    def show_version(wanted: bool) -> None:
        import ottla

        if wanted:
            show(f"ottla {ottla.__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        client_config: str | None = typer.Option(
            None,
            "--client-config",
            metavar="FILE",
            envvar="OTTLA_CLIENT_CONFIG",
            help="Client properties with Kafka's names (TLS, SASL, …), used by every command that connects "
            "to a cluster.",
        ),
        _version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Print the version and exit."
        ),
    ) -> None:
        use_file(client_config)

    for name in (command,) if command in COMMANDS else COMMANDS:
        import_module(f"ottla.cli.{name}").register(app)
    return app


def run(arguments: list[str]) -> None:
    if not quick_start(arguments):
        build(arguments[0] if arguments else None)(args=arguments, prog_name="ottla")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        quiet_broken_pipe(lambda: run(given))
    except Exception as error:
        failure = describe_failure(error)
        if failure is None:
            raise
        message, exit_code = failure
        say(f"ottla: {message}")
        raise SystemExit(exit_code) from None


if __name__ == "__main__":
    main()
