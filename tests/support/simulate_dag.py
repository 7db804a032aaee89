#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulates a dag.txt and prints its makespan in seconds with nine decimals.

Usage: simulate_dag.py [FILE or - for standard input]

Knows nothing but the file: `node ID RESOURCE DURATION` and `edge FROM TO`. A resource executes its
nodes one at a time in the order in which they are listed; a node of resource `-` occupies nothing.
Exit status: 0 done, 1 the graph never ends, 2 the file breaks the format.
"""
import heapq
import sys


def fail(number, line, why):
    print(f"simulate_dag: line {number}: {why}: {line.strip()!r}", file=sys.stderr)
    raise SystemExit(2)


def nanoseconds(text):
    """Seconds with nine decimals as an integer, or None."""
    whole, point, part = text.partition(".")
    if point != "." or len(part) != 9 or not (whole + part).isascii() or not (whole + part).isdigit():
        return None
    return int(whole + part)


def read(lines):
    duration, resource_of, edges, queues = {}, {}, [], {}
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if words[0] == "node" and len(words) == 4 and words[1].isdecimal():
            node, time = int(words[1]), nanoseconds(words[3])
            if time is None or not (words[2] == "-" or words[2].isdecimal()):
                fail(number, line, "resource or duration is malformed")
            if node in duration:
                fail(number, line, "a node is listed twice")
            duration[node] = time
            resource_of[node] = None if words[2] == "-" else int(words[2])
            if words[2] != "-":
                queues.setdefault(int(words[2]), []).append(node)
        elif words[0] == "edge" and len(words) == 3 and words[1].isdecimal() and words[2].isdecimal():
            edges.append((number, line, int(words[1]), int(words[2])))
        else:
            fail(number, line, "neither node nor edge")
    for name, ids in (("node", duration), ("resource", queues)):
        if ids and max(ids) != len(ids) - 1:
            fail(number, line, f"{name} ids are not dense from 0")
    for number, line, start, end in edges:
        if start not in duration or end not in duration:
            fail(number, line, "an edge names no node")
    return duration, resource_of, [(start, end) for _, _, start, end in edges], queues


def simulate(duration, resource_of, edges, queues):
    """Lets time pass from event to event. Returns the makespan and the number of ended nodes."""
    after, waits = {}, dict.fromkeys(duration, 0)
    for start, end in set(edges):
        after.setdefault(start, []).append(end)
        waits[end] += 1
    turn = dict.fromkeys(queues, 0)  # the next in each resource's list
    busy = dict.fromkeys(queues, False)
    events, now, ended = [], 0, 0

    def try_resource(resource):
        queue = queues[resource]
        if busy[resource] or turn[resource] == len(queue):
            return
        node = queue[turn[resource]]
        if waits[node] == 0:
            busy[resource] = True
            turn[resource] += 1
            heapq.heappush(events, (now + duration[node], node))

    for node, resource in resource_of.items():
        if resource is None and waits[node] == 0:
            heapq.heappush(events, (duration[node], node))
    for resource in queues:
        try_resource(resource)
    while events:
        now, node = heapq.heappop(events)
        ended += 1
        touched = []
        if resource_of[node] is not None:
            busy[resource_of[node]] = False
            touched.append(resource_of[node])
        for follower in after.get(node, ()):
            waits[follower] -= 1
            if resource_of[follower] is not None:
                touched.append(resource_of[follower])
            elif waits[follower] == 0:
                heapq.heappush(events, (now + duration[follower], follower))
        for resource in touched:
            try_resource(resource)
    return now, ended


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "-"
    if name == "-":
        graph = read(sys.stdin)
    else:
        with open(name, encoding="utf-8") as lines:
            graph = read(lines)
    makespan, ended = simulate(*graph)
    if ended != len(graph[0]):
        print(f"simulate_dag: {len(graph[0]) - ended} nodes never end", file=sys.stderr)
        return 1
    print(f"{makespan // 10**9}.{makespan % 10**9:09d}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
