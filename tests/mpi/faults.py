#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die: how long the others live on, what they say, and whether anything remains.

    faults.py [--trials N] [--at-once N] [--ranks 2,4] [--faults kill,stop,...] [--seed S] MPIRUN PROGRAM

Each trial starts PROGRAM (mpi_faults) and makes one rank fail. `kill` and `stop` come as signals from
outside at a random moment, the others (`throw`, `hang`, and with `unit-` kill and stop) in a random
unit, which the sentence then has to name; those of `threads` happen between threads of one process.
Prints one line a trial and the longest time of each kind. Ends with status 1 if one trial lasted ten
seconds or longer, ended with status 0, was silent, named the wrong rank or unit, or left a process.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 10.0
BEGIN = 180.0  # no promise: other programs may have the cores
TOO_LONG = "took too long"
OUTSIDE = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
FAULTS = ["kill", "stop", "throw", "hang", "unit-kill", "unit-stop", "leave", "threads-throw", "threads-hang"]
PLACE = r"device \(dp \d+, pp \d+(, tp \d+)?\), (unit \d+, (F|B|H) of MicroPack \d+|unit \d+, [RO]\b|(start|end) of the step|between steps)"
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def alive(pid):
    """Whether the process is there and no zombie."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def trial(options, fault, ranks, number):
    """Runs one trial; gives its line and what was wrong with it."""
    draw = random.Random(f"{options.seed} {fault} {ranks} {number}")
    victim = draw.randrange(ranks)
    threads = fault.startswith("threads-")
    inside = fault.split("-")[-1] if fault not in OUTSIDE else "none"
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile("w+") as output:
        folder = pathlib.Path(name)
        command = [options.program, name, inside, str(victim), str(draw.randrange(2, 12)), str(draw.randrange(6))]
        tp = draw.choice([1, 2])  # tensor parallelism in every other trial
        dp = 2 if ranks == 4 and tp == 1 else 1
        command += ["threads" if threads else "processes", str(dp), str(ranks // dp // tp), str(tp)]
        if not threads:
            command = [options.mpirun, "-n", str(ranks)] + command
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True,
                                   env={**os.environ, **ENVIRONMENT})
        processes = 1 if threads else ranks
        begun = wait_for(lambda: all((folder / f"begun.{rank}").exists() for rank in range(processes)), BEGIN)
        pids = [int((folder / f"pid.{rank}").read_text()) for rank in range(processes)] if begun else []
        fault_file = folder / "fault"
        if fault in OUTSIDE and begun:
            time.sleep(draw.random())
            os.kill(pids[victim], OUTSIDE[fault])
            since = time.time()
        else:
            begun = begun and wait_for(fault_file.exists, BEGIN)
            since = fault_file.stat().st_mtime if begun else time.time()
        ended = wait_for(lambda: program.poll() is not None and not any(map(alive, pids)), LIMIT + 20)
        seconds = time.time() - since
        left = [pid for pid in pids if alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if program.poll() is None:
            program.kill()
        status = program.wait()
        output.seek(0)
        text = output.read()
        place = fault_file.read_text() if fault_file.exists() else ""
    wrong = []
    if not begun:
        wrong.append("did not begin")
    if not ended or left:
        wrong.append(f"left processes {left}")
    if seconds >= LIMIT:
        wrong.append(TOO_LONG)
    if status == 0:
        wrong.append("ended with status 0")
    if threads:
        told = {line for line in text.splitlines() if re.search(PLACE, line)}
        if len(told) != 1 or not next(iter(told)).startswith(place):
            wrong.append(f"should name {place}: {text}")
    else:
        lines = re.findall(r"^rank (\d+) of \d+ ends: (.*)$", text, re.MULTILINE)
        told = {sentence for _, sentence in lines}
        silent = set(range(ranks)) - {int(rank) for rank, _ in lines} - {victim}
        if silent:
            wrong.append(f"ranks {sorted(silent)} said nothing")
        if len(told) != 1:
            wrong.append(f"ranks said different things: {told}")
        elif not re.match(rf"rank {victim}, {PLACE}", next(iter(told))):
            wrong.append(f"should name rank {victim} and its unit")
        elif place and not next(iter(told)).startswith(place + ","):
            wrong.append(f"should name {place}")
    sentence = next(iter(sorted(told)), text.strip()[:200])
    line = f"{fault:14} {ranks:5} {victim:6} {seconds:8.2f}  {sentence}"
    return fault, seconds, line, wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("mpirun")
    parser.add_argument("program")
    options = parser.parse_args()
    ranks = [int(text) for text in options.ranks.split(",")]
    work = [(options, fault, ranks[number % len(ranks)], number) for fault in options.faults.split(",")
            for number in range(options.trials)]
    print(f"{'fault':14} ranks victim  seconds  sentence")
    failed = 0
    longest = {}
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for fault, seconds, line, wrong in pool.map(lambda each: trial(*each), work):
            print(line, flush=True)
            for text in wrong:
                print(f"    WRONG: {text}", flush=True)
            failed += bool(wrong)
            longest.setdefault(fault, []).append(seconds)
    print(f"\n{'fault':14} trials  mean s  longest s")
    for fault, times in longest.items():
        print(f"{fault:14} {len(times):6} {sum(times) / len(times):7.2f} {max(times):10.2f}")
    print(f"{len(work) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
