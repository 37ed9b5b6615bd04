"""The `gepa` command: `gepa <taskset-id> -m <model>`.

Logs go to stderr; stdout carries the best prompt, byte for byte, and nothing else (with `--json`
the result, on one line). The exit status is 0 for a run that finished, 2 for an error (one line
says what and what to do), 128 + the signal's number for one that was interrupted.
"""

import contextlib
import functools
import json
import logging
import os
import sys
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import loguru
from pydantic_config import cli
from rich.console import Console
from rich.text import Text

from verifiers.v1.gepa.command.mistakes import explain
from verifiers.v1.gepa.command.sources import named_ids, parse_config, read_sources
from verifiers.v1.gepa.config import GEPAConfig, narrow
from verifiers.v1.utils.logging import FORMAT, LIBRARY_LOGGER, setup_logging
from verifiers.v1.utils.texts import open_streams, print_text

if TYPE_CHECKING:
    import verifiers.v1 as vf
    from verifiers.v1.gepa.report.outcome import Outcome

logger = logging.getLogger(__name__)

USAGE = """\
usage: gepa <taskset-id> -m MODEL [options] [@ FILE]
       gepa @ FILE [options]

Evolves the system prompt of a taskset's agent with GEPA. FILE is TOML or JSON: a config of your
own, one that a run saved (<run>/configs/resolved/gepa.json), or one that vf-eval saved.
`gepa <taskset-id> -h` lists every option of that taskset and its agent.
"""

OWN_LOGGER = "verifiers.v1.gepa"


def main(argv: list[str] | None = None) -> int:
    """Run the command; its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    # The run identity: every process that this run spawns inherits it.
    os.environ.setdefault("VF_RUN_ID", uuid.uuid4().hex)
    try:
        if "-h" in args or "--help" in args:
            return _help([arg for arg in args if arg not in ("-h", "--help")])
        if not args:
            sys.stderr.write(USAGE)
            return 2
        config, notes = parse_config(args)
        if not config.taskset.id:
            raise ValueError("no taskset: name one, as in `gepa reverse-text-v1 -m MODEL`")
        console = _console(config)
        _log_to_stderr(config.verbose, console)
        for note in notes:
            logger.info("%s", note)
        # Not at the top: help needs none of it.
        from verifiers.v1.gepa.prepare.checks import check_single_agent
        from verifiers.v1.gepa.prepare.plan import dry_run, load_env

        check_single_agent(config)
        with contextlib.redirect_stdout(sys.stderr):  # what a taskset prints is no prompt
            env = load_env(config)
            if config.dry_run:
                dry_run(env, config)
                return 0
        return _run(env, config, console)
    except KeyboardInterrupt:  # before the run took over the signals
        return 130
    except Exception as error:
        logger.debug("the run could not start", exc_info=True)
        for line in explain(error, args):
            sys.stderr.write(f"gepa: {line}\n")
        return 2


def _run(env: "vf.Env", config: GEPAConfig, console: Console | None) -> int:
    # Not at the top: a dry run needs none of it, and it takes seconds.
    from verifiers.v1.gepa.runner import GEPAError, RunInterrupted, run_gepa
    from verifiers.v1.gepa.watch.live import shown

    try:
        with contextlib.redirect_stdout(sys.stderr):
            outcome = run_gepa(env, config, functools.partial(shown, console=console))
    except GEPAError as error:  # the run has said why, in its last line
        if config.json:
            _print_outcome(error.outcome, config)
        return 2
    except RunInterrupted as interrupt:
        if config.json:
            _print_outcome(interrupt.outcome, config)
        return 128 + interrupt.signum
    _print_outcome(outcome, config)
    return 0


def _help(args: list[str]) -> int:
    """Usage and every option, narrowed to the ids that `args` and its files name."""
    flags, settings, _ = read_sources(args)
    config_type = narrow(GEPAConfig, *named_ids(flags, settings))
    print_text(USAGE + "\n")
    with contextlib.suppress(SystemExit, BrokenPipeError):
        cli(config_type, args=["--help"])
    return 0


def _console(config: GEPAConfig) -> Console | None:
    """The terminal to show the run on, None where there is none or it is not wanted."""
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())
    return console if config.rich and console.is_terminal and not console.is_dumb_terminal else None


def _log_to_stderr(verbose: bool, console: Console | None) -> None:
    """Our own steps at info level; the host's, a line per rollout, only with `--verbose`. Where
    there is a view on the console, the lines must go above it."""
    level, last_resort = "DEBUG" if verbose else "INFO", logging.lastResort
    setup_logging(level, console=console is None)
    if console is not None:
        logging.lastResort = last_resort
        loguru.logger.add(_above(console), level=level, format=FORMAT, colorize=True)
    logging.getLogger(LIBRARY_LOGGER).setLevel("DEBUG" if verbose else "WARNING")
    # A line per failed call, which our own lines count.
    logging.getLogger(f"{LIBRARY_LOGGER}.interception").setLevel("DEBUG" if verbose else "ERROR")
    logging.getLogger(OWN_LOGGER).setLevel("DEBUG" if verbose else "INFO")
    logger.setLevel("INFO")


def _above(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(Text.from_ansi(line.rstrip("\n")), soft_wrap=True)


def _print_outcome(outcome: "Outcome", config: GEPAConfig) -> None:
    if config.json:
        print_text(json.dumps(outcome.result, allow_nan=False) + "\n")
    else:
        print_text(outcome.best_system_prompt + ("\n" if sys.stdout.isatty() else ""))


if __name__ == "__main__":
    raise SystemExit(main())
