# SPDX-License-Identifier: Apache-2.0
"""compare and tune beside the command line; Ctrl-C and other threads while planning; the program."""
import importlib.metadata
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from conftest import as_text, as_words, drawn_lengths

import slimpack

MEASURED = {"plan_seconds", "simulate_seconds", "cpu_seconds", "seconds"}


def without_measured(value):
    if isinstance(value, dict):
        return {key: without_measured(one) for key, one in value.items() if key not in MEASURED}
    return [without_measured(one) for one in value] if isinstance(value, list) else value


def test_compare_is_that_of_the_command_line(lengths, command):
    options = dict(model="tiny", dp=2, pp=2, batch_samples=20, effort="fast")
    mine = slimpack.compare(lengths, ["slimpack", "megatron", "flexsp"], steps=2, **options)
    done = command("compare", "-", *as_words(options), "--planners", "slimpack,megatron,flexsp", "--steps", 2,
                   "--json", "-", stdin=as_text(lengths))
    assert without_measured(mine) == without_measured(json.loads(done.stdout)["results"])
    assert [(one["planner"], one["step"]) for one in mine] == [
        (name, step) for name in ("slimpack", "megatron", "flexsp") for step in (0, 1)]


def test_compare_lists_who_is_infeasible():
    none, = slimpack.compare([4000], "slimpack", model="llama-7b", memory="12G", effort="fast")
    assert not none["feasible"] and none["why"] and none["iteration_s"] is None


def test_tune_is_that_of_the_command_line(lengths, command):
    options = dict(model="tiny", effort="fast")
    mine = slimpack.tune(lengths, 4, ["slimpack", "megatron"], batch_tokens=[100000, "120K"], **options)
    done = command("tune", "-", *as_words(options), "--gpus", 4, "--planners", "slimpack,megatron",
                   "--batch-tokens", "100000,120K", "--json", "-", stdin=as_text(lengths))
    assert without_measured(mine) == without_measured(json.loads(done.stdout)["results"])
    assert len(mine) == 4 and mine[0]["tried"][0]["feasible"]


LONG = dict(model="llama3-8b", dp=4, pp=4, tp=2, context=32768, overlong="split", effort="thorough")


def test_control_c_ends_a_search():
    program = textwrap.dedent(f"""
        import warnings, slimpack
        from conftest import drawn_lengths
        warnings.simplefilter("ignore")
        print("planning", flush=True)
        try:
            slimpack.compare(drawn_lengths(3, 20000, 40000), **{LONG!r})  # takes minutes
            print("finished", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(slimpack.plan([100], model="tiny").planner, flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                             cwd=pathlib.Path(__file__).parent)
    assert child.stdout.readline() == "planning\n"
    time.sleep(0.5)
    begin = time.monotonic()
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert output == "interrupted\nslimpack\n" and child.returncode == 0
    assert time.monotonic() - begin < 20


def test_an_exception_of_the_progress_callback_ends_a_search():
    from slimpack import _core
    from slimpack._arguments import words

    def report(done, most):
        assert min(done, most) >= 0
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _core.plan(drawn_lengths(3, 20000, 30000), words(LONG), "slimpack", report)


def test_other_threads_run_while_planning():
    ticks, ended = [], threading.Event()

    def tick():
        while not ended.wait(0.001):
            ticks.append(time.monotonic())

    other = threading.Thread(target=tick)
    other.start()
    begin = time.monotonic()
    slimpack.plan(drawn_lengths(4, 5000, 20000), model="llama3-8b", dp=2, pp=4, tp=2, context=32768, threads=1)
    end = time.monotonic()
    ended.set()
    other.join()
    inside = [one for one in ticks if begin < one < end]
    assert end - begin > 0.1, "the request is too small to show anything"
    # A held lock would leave none; a busy machine gives fewer than one a millisecond.
    assert len(inside) > 20 * (end - begin)


def test_the_program_is_the_command_line(tmp_path):
    program = [sys.executable, "-m", "slimpack"]
    done = subprocess.run([*program, "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"slimpack {slimpack.__version__} (commit ")
    done = subprocess.run([*program, "plan"], capture_output=True, text=True)
    assert done.returncode == 2 and "LENGTHS" in done.stderr
    done = subprocess.run([*program, "plan", "-", "--memory", "12G", "--effort", "fast", "-o", tmp_path / "no.json"],
                          input="100\n", capture_output=True, text=True)
    assert done.returncode == 1 and "no feasible plan" in done.stderr and not list(tmp_path.iterdir())


def test_the_program_ends_by_control_c():
    child = subprocess.Popen([sys.executable, "-m", "slimpack", "lengths", "-"], stdin=subprocess.PIPE)
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=20) == -signal.SIGINT
    child.stdin.close()


def test_the_wheel_has_types_and_a_program():
    folder = pathlib.Path(slimpack.__file__).parent
    assert (folder / "py.typed").exists()
    stub = (folder / "_core.pyi").read_text()
    assert "def plan(" in stub and "class PlanObject" in stub
    assert any(one.name == "slimpack" for one in importlib.metadata.distribution("slimpack").entry_points)
    assert os.path.basename(slimpack.__file__) == "__init__.py"
