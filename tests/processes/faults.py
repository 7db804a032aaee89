#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes and fail: every other one ends within ten seconds, with one sentence.

    faults.py PROGRAM        PROGRAM is process_faults
"""
import concurrent.futures
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

LIMIT = 10.0


def free_ports(count):
    """Free ports of those that the system gives nobody who asks for any. They are tried before any
    process starts: one that has been forked and has not begun its program keeps a port taken."""
    ports = set()
    while len(ports) < count:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            ports.add(port)
    return sorted(ports)


def start(program, fault, victim, steps, rank, size, port, **more):
    variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                 "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), **more}
    return subprocess.Popen([program, fault, str(victim), str(steps)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


def trial(program, port, fault, size, victim):
    """Gives what was wrong, and a line about the trial."""
    steps = 6 if fault == "none" else 1_000_000
    present = [rank for rank in range(size) if not (fault == "missing" and rank == victim)]
    ranks = {rank: start(program, fault, victim, steps, rank, size, port) for rank in present}
    begun = time.monotonic()
    wrong, said, status = [], {}, {}
    for rank, process in ranks.items():
        if rank == victim and fault == "stop":
            continue
        try:
            said[rank] = process.communicate(timeout=LIMIT + 10)
            status[rank] = process.returncode
        except subprocess.TimeoutExpired:
            wrong.append(f"rank {rank} does not end")
            process.kill()
    seconds = time.monotonic() - begun
    if fault == "stop" and victim in ranks:
        ranks[victim].send_signal(signal.SIGKILL)
        ranks[victim].communicate()
    if fault == "none":
        wrong += [f"rank {rank} has status {one}: {said[rank]}" for rank, one in status.items() if one != 0]
        return wrong, f"{fault:8} {size} ranks {seconds:6.2f} s"
    if seconds >= LIMIT + (0 if fault != "missing" else 3):
        wrong.append(f"took {seconds:.1f} s")
    sentences = set()
    for rank, (_, error) in said.items():
        if rank == victim and fault in ("kill", "leave"):
            continue
        if status[rank] != (2 if fault == "bad" and rank == victim else status[rank]) or status[rank] == 0:
            wrong.append(f"rank {rank} has status {status[rank]}")
        lines = [re.sub(r"^rank \d+ of \d+ ends: ", "", line) for line in error.strip().splitlines()]
        sentences.update(lines or ["(nothing)"])
    if len(sentences) != 1:
        wrong.append(f"ranks said different things: {sentences}")
    sentence = next(iter(sentences), "")
    expected = {"missing": rf"rank {victim} of {size} ranks has not arrived",
                "bad": r".*--option: must be good"}.get(fault, rf"rank {victim}, unit 3, ")
    if fault == "missing" and victim == 0:
        expected = rf"rank 0 of {size} ranks has not answered"
    if not re.match(expected, sentence):
        wrong.append(f"should say {expected}: {sentence}; rank {victim} said {said.get(victim)}")
    return wrong, f"{fault:8} {size} ranks, rank {victim} {seconds:6.2f} s  {sentence}"


def main(program):
    work = [("none", 1, 0), ("none", 4, 0), ("kill", 3, 1), ("kill", 2, 0), ("stop", 3, 2), ("stop", 2, 0), ("hang", 2, 1),
            ("throw", 3, 0), ("throw", 3, 2), ("bad", 2, 1), ("leave", 3, 1), ("missing", 3, 1), ("missing", 3, 0)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(work)) as pool:
        for wrong, line in pool.map(lambda port, each: trial(program, port, *each), free_ports(len(work)), work):
            print(line)
            for text in wrong:
                print(f"    WRONG: {text}")
            failed += bool(wrong)
    print(f"{len(work) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
