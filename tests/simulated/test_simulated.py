"""The command `python -m verifiers_gepa.simulated`, as a process of its own."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from verifiers_gepa.scripted import RULES

ROOT = Path(__file__).parents[2]
PROMPT = "\n".join(rule.sentence for rule in RULES)
MESSAGE = "My order is two weeks late. I want my money back."


WRAPPER = [sys.executable, "-m", "verifiers_gepa.simulated"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WRAPPER, *args], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_command_gets_the_endpoint_and_gives_its_exit_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = f"""
import json, os, sys, urllib.request
replies = []
for name in ("TASK_ENDPOINTS", "REFLECTION_MODEL_BASE_URL"):
    messages = [
        {{"role": "system", "content": {PROMPT!r}}},
        {{"role": "user", "content": {MESSAGE!r}}},
    ]
    request = urllib.request.Request(
        os.environ[name] + "/chat/completions",
        json.dumps({{"messages": messages}}).encode(),
    )
    reply = json.load(urllib.request.urlopen(request))
    replies.append(reply["choices"][0]["message"]["content"])
print(json.dumps([replies, os.environ["KEPT"], sys.argv[1:]]))
sys.exit(7)
"""
    monkeypatch.setenv("KEPT", "as it was")
    done = run("--latency", "0.001", sys.executable, "-c", program, "-m", "--seed")
    assert done.stderr == ""
    no_prompt = "The request holds no current prompt, so there is nothing to improve."
    assert json.loads(done.stdout) == [
        ["intent: delivery", no_prompt],
        "as it was",
        ["-m", "--seed"],
    ]
    assert done.returncode == 7


def test_wrong_calls(tmp_path: Path) -> None:
    assert run("--", "no-such-command-anywhere", "-x").stderr == (
        "no-such-command-anywhere: No such file or directory\n"
    )
    assert run("no-such-command-anywhere").returncode == 127
    (tmp_path / "text").write_text("not a program")
    assert run(str(tmp_path / "text")).returncode == 126
    nothing = run("--seed", "2")
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("usage: python -m verifiers_gepa.simulated ")
    shown = run("-h")
    assert shown.returncode == 0
    assert "without a key and for tests. It measures no model." in " ".join(shown.stdout.split())


def test_the_wrapper_does_not_import_the_host() -> None:
    program = (
        "import sys, verifiers_gepa.simulated as s;"
        f"assert s.student({PROMPT!r}, {MESSAGE!r}) == 'intent: delivery';"
        "sys.exit('verifiers.v1' in sys.modules or 'support_intent_v1' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


# Exits with the number of SIGINTs that it got before a SIGTERM, which it asks for after the first.
COUNTER = """
import os, signal, sys
signals = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready", flush=True)
interrupts = 0
while signal.sigwait(signals) == signal.SIGINT:
    interrupts += 1
    if interrupts == 1:
        os.kill(os.getppid(), signal.SIGTERM)
sys.exit(10 + interrupts)
"""


def test_signals_to_the_wrapper_reach_the_command() -> None:
    command = [*WRAPPER, sys.executable, "-c", COUNTER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as wrapper:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline() == "ready\n"
        wrapper.send_signal(signal.SIGINT)
        assert wrapper.wait(timeout=60) == 11


def test_ctrl_c_in_a_terminal_reaches_the_command_once() -> None:
    terminal, inside = pty.openpty()
    take_terminal = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    launch = f"{take_terminal} os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", launch, *WRAPPER, sys.executable, "-c", COUNTER]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=inside,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as wrapper:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline() == "ready\n"
        os.write(terminal, b"\x03")
        assert wrapper.wait(timeout=60) == 11
    os.close(terminal)
    os.close(inside)


def test_a_command_that_a_signal_ends() -> None:
    assert run("sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    assert run("sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL
