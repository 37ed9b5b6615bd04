"""Runs a command against a simulated model: `python -m verifiers_gepa.simulated <command ...>`.

It starts a scripted student and teacher (see `scripted`) behind an OpenAI-compatible endpoint on a
free loopback port, names it to the command in TASK_ENDPOINTS and REFLECTION_MODEL_BASE_URL, and
ends with the command's exit status. It is for trying the tool without a key and for tests. It
measures no model: the scores say only that the machinery works.

Exit status: the command's; 128 + n if signal n ended it; 127 if there is no such command, 126 if it
can't be executed; 2 for a wrong call.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from verifiers_gepa.endpoint import Endpoint, Reply, Request, Respond
from verifiers_gepa.scripted import scripted, student, teacher

__all__ = ["Endpoint", "Reply", "Request", "Respond", "main", "scripted", "student", "teacher"]

FORWARDED = {signal.SIGINT, signal.SIGTERM}


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("name the command to run")
    # Handled by `_wait` alone, so that they can't end this process before the command. Set before
    # the server's thread starts, which inherits it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    # A signal that is ignored, as SIGCHLD is by default, need not be kept while it is blocked.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with Endpoint(scripted(options.seed, options.noise, options.latency)) as endpoint:
        env = {
            **os.environ,
            "TASK_ENDPOINTS": endpoint.url,
            "REFLECTION_MODEL_BASE_URL": endpoint.teacher_url,
        }
        try:
            pid = os.posix_spawnp(
                command[0], command, env, setsigmask=[], setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
            )
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            return 127 if isinstance(error, FileNotFoundError) else 126
        return _wait(pid)


def _wait(pid: int) -> int:
    """Pass signals on to the child till it ends; its exit status as a shell gives it."""
    while True:
        signo, from_terminal = _next_signal()
        if signo != signal.SIGCHLD:
            if not from_terminal:
                os.kill(pid, signo)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _next_signal() -> tuple[int, bool]:
    """The next signal, and whether the terminal sent it: then the child has got it as well."""
    waited = {*FORWARDED, signal.SIGCHLD}
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(waited)
        # A process that sends a signal can't give it a positive code; the kernel does.
        return info.si_signo, info.si_code > 0
    signo = signal.sigwait(waited)
    return signo, signo == signal.SIGINT and sys.stdin.isatty()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verifiers_gepa.simulated",
        description="Run a command against a scripted student and teacher on loopback, for trying "
        "the tool without a key and for tests. It measures no model.",
        epilog="The command finds the endpoint in TASK_ENDPOINTS and REFLECTION_MODEL_BASE_URL. "
        "Example: python -m verifiers_gepa.simulated gepa support-intent-v1 -m student",
    )
    parser.add_argument("--seed", type=int, default=0, help="decides all chance (default: 0)")
    parser.add_argument(
        "--noise",
        type=float,
        default=0.0,
        metavar="P",
        help="probability with which the student overlooks a stated rule (default: 0)",
    )
    parser.add_argument(
        "--latency", type=float, default=0.0, metavar="S", help="seconds per reply (default: 0)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
