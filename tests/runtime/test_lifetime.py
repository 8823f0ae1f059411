"""Ends of processes: a forked child that ends, and threads that are still generating when Python is done.

Each runs in a process of its own; one that hangs or aborts is the failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfspec.runtime.lifetime import _native_exit, _Running

HANG = 60.0  # seconds after which a process has not ended but hangs


@pytest.fixture(scope="module")
def folder(make_toy: Callable[..., Any], tools: Any) -> Path:
    """Passes of some milliseconds, and a context that lasts."""
    spec = tools.spec(hidden=512, ff=2048, heads=8, kv_heads=8, layers=4, context=4096, eos=None)
    return Path(make_toy(spec, precision="fp32", exit_layers=(2,)).folder)


def end_of(code: str, folder: Path, threads: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` after ``load``, with nothing of pytest around it."""
    begin = "import os, sys, time, threading\nfrom selfspec import load\n"
    begin += f"model = load({str(folder)!r}, threads={threads})\n"
    return subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(code)], capture_output=True, text=True, timeout=HANG, check=False
    )  # fmt: skip


WAIT = """
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
"""

forks = pytest.mark.skipif(
    not hasattr(os, "fork") or _native_exit() is None, reason="nothing forks here, or its C library is not glibc"
)

FORKS = {
    "that touches nothing": "child = os.fork()\nif not child:\n    sys.exit(3)\n" + WAIT,
    "after a generation": "model.generate('a', max_new_tokens=3, draft='none')\nchild = os.fork()\n"
    "if not child:\n    sys.exit(3)\n" + WAIT,
    "that generates": """
child = os.fork()
if not child:
    sys.exit(model.generate('a', max_new_tokens=3, draft='none').stats.generated_tokens)
"""
    + WAIT,
    "that loads a model of its own": """
child = os.fork()
if not child:
    own = load(model.artifact.path)
    del model
    sys.exit(own.generate('a', max_new_tokens=3, draft='none').stats.generated_tokens)
"""
    + WAIT,
    "while another thread generates": """
threading.Thread(target=lambda: model.generate('a', max_new_tokens=4000, draft='none'), daemon=True).start()
time.sleep(0.2)
child = os.fork()
if not child:
    sys.exit(3)
"""
    + WAIT,
    "of multiprocessing": """
import multiprocessing
process = multiprocessing.get_context('fork').Process(target=sys.exit, args=(3,))
process.start()
process.join()
print('child', process.exitcode)
""",
}


@forks
@pytest.mark.parametrize(
    ("case", "threads"), [*((case, 2) for case in FORKS), ("that touches nothing", 1), ("that generates", 1)]
)
def test_a_forked_child_ends_with_its_own_exit_code(case: str, threads: int, folder: Path) -> None:
    """It would wait for threads of the pool that only its parent has."""
    done = end_of(FORKS[case], folder, threads)
    assert (done.stdout, done.returncode) == ("child 3\n", 0), done.stderr


@forks
def test_a_child_forked_in_a_thread_ends(folder: Path) -> None:
    """There SystemExit ends the thread only, and the child's exit code is 0."""
    code = """
    children = []
    def fork():
        children.append(os.fork())
        if not children[0]:
            sys.exit(3)
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    child = children[0]
    """
    done = end_of(textwrap.dedent(code) + "if child:\n" + textwrap.indent(WAIT, "    "), folder)
    assert (done.stdout, done.returncode) == ("child 0\n", 0), done.stderr


@forks
def test_a_daemon_that_forks_twice_ends_and_flushes_what_it_wrote(folder: Path, tmp_path: Path) -> None:
    """Python's exit handlers run in the child, and buffers of its files are written."""
    code = f"""
    import atexit
    if not os.fork():
        os.setsid()
        if not os.fork():
            atexit.register(lambda: open({str(tmp_path / "handler")!r}, 'w').write('ran'))
            file = open({str(tmp_path / "file")!r}, 'w')
            file.write('kept')
            print('grandchild')
            sys.exit(0)
        sys.exit(0)
    """
    done = end_of(code, folder)  # communicate() returns once nobody holds the pipes
    assert (done.stdout, done.returncode) == ("grandchild\n", 0), done.stderr
    assert (tmp_path / "handler").read_text() == "ran"
    assert (tmp_path / "file").read_text() == "kept"


def test_a_program_that_is_executed_is_not_touched(folder: Path) -> None:
    done = end_of("import subprocess\nprint(subprocess.call([sys.executable, '-c', 'raise SystemExit(4)']))", folder)
    assert (done.stdout, done.returncode) == ("4\n", 0), done.stderr


START = "thread = threading.Thread(target={target}, daemon=True)\nthread.start()\ntime.sleep(0.3)\n"
GENERATE = "lambda: model.generate('Hello', max_new_tokens=3000, draft='none')"
ENDS = {
    "that generates": START.format(target=GENERATE),
    "several of them": START.format(target=GENERATE) * 3,
    "in the prefill of a long prompt": START.format(
        target="lambda: model.generate('Hello world ' * 200, max_new_tokens=1, draft='none')"
    ),
    "that measures a profile": START.format(target="lambda: model.profile(refresh=True)"),
    "that loads": START.format(target="lambda: [load(model.artifact.path) for _ in range(1000)]"),
    "that generates for ever": START.format(
        target="lambda: [model.generate('a', max_new_tokens=9, draft='none') for _ in range(10**6)]"
    ),
    "that forgives every exception": """
def stubborn():
    while True:
        try:
            model.generate('a', max_new_tokens=3000, draft='none')
        except Exception:
            pass
"""
    + START.format(target="stubborn"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_daemon_thread_does_not_abort_the_process_at_its_end(case: str, folder: Path) -> None:
    """A thread that Python ends in native code takes the process with it: SIGABRT, after all work was done well."""
    done = end_of(ENDS[case] + "print('done')", folder)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert [line for line in done.stderr.splitlines() if "measuring" not in line] == []


def test_a_stream_that_main_has_half_read_holds_nothing_up(folder: Path) -> None:
    done = end_of("stream = model.stream('a', max_new_tokens=99, draft='none')\nnext(stream)\nprint('done')", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_thread_that_is_no_daemon_ends_what_it_began(folder: Path) -> None:
    """Python waits for those, thread pools included; they are not stopped."""
    work = "lambda: print(model.generate('a', max_new_tokens=60, draft='none').stats.generated_tokens, flush=True)"
    done = end_of(f"threading.Thread(target={work}).start()", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "60\n", "")
    pool = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\n"
    done = end_of(f"{pool}pool.submit({work})\npool.submit({work})", folder)
    assert (done.returncode, "".join(done.stdout.split()), done.stderr) == (0, "6060", "")


def test_main_may_generate_while_the_process_ends(folder: Path) -> None:
    """In an exit handler that runs after ours, having been registered before it."""
    early = "import atexit\natexit.register(lambda: print(model.generate('a', max_new_tokens=5, draft='none').stats"
    early += ".generated_tokens))\n"
    begin = f"{early}from selfspec import load\nmodel = load({str(folder)!r}, threads=1)\n"
    done = subprocess.run(
        [sys.executable, "-c", begin], capture_output=True, text=True, timeout=HANG, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


def test_an_interrupt_with_a_daemon_thread_is_an_interrupt(folder: Path) -> None:
    done = end_of(ENDS["that generates"] + "raise KeyboardInterrupt", folder)
    assert done.returncode in (-2, 130, 1)
    assert "terminate called" not in done.stderr


def test_what_began_is_waited_for_and_nothing_begins_any_more() -> None:
    gate, seen = _Running(), list[str]()
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with gate:
            entered.set()
            leave.wait(10)
            seen.append("left")

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(10)

    def stop() -> None:
        gate.stop()
        seen.append("stopped")

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert not seen
    leave.set()
    stopper.join(10)
    thread.join(10)
    assert seen == ["left", "stopped"]
