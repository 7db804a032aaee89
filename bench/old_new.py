#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints each planner's time and degrees under old and new prices: bench/old_new.py OLD_STORE NEW_STORE

Stores of slimpack evaluate, of any versions; an old one comes out of history, as in

    git show COMMIT:bench/results/evaluation.jsonl > old.jsonl

Results are of one setting where set (by its digest), context, model, cluster (by name), GPUs, samples, steps, seed
and all that a setting may fix are the same; effort and keys, which hold prices, may differ. Where a store has
several such results the first counts. Prints Markdown: a table of planners, then one of settings, in the old
store's order. Ends with status 2 where a file is no store, or the two have no setting in common.
"""
import statistics
import sys

from evaluation_store import OURS, BadStore, Store, cell_text, degrees_text, mean, table

VERSIONS = range(1, 100)
WORKLOAD = ("lengths_sha256", "context", "model", "cluster", "gpus", "samples", "steps", "seed", "overlong",
            "recompute", "head", "chunks", "merge", "granularity")


def by_workload(store):
    """{setting: {planner: result}}, in the order of the store."""
    settings = {}
    for result in store.results.values():
        settings.setdefault(tuple(result["cell"][key] for key in WORKLOAD), {}).setdefault(result["planner"], result)
    return settings


def seconds(result):
    return f"{result['iteration_s']:.3f}" if result["feasible"] else "no plan"


def ratio(new, old):
    return new["iteration_s"] / old["iteration_s"] if new["feasible"] and old["feasible"] else None


def margin(results, planner):
    """A planner's time over slimpack's."""
    return ratio(results[planner], results[OURS]) if OURS in results and planner in results else None


def lines(old, new):
    old, new = by_workload(old), by_workload(new)
    both = {setting: [planner for planner in old[setting] if planner in new[setting]] for setting in old if setting in new}
    both = {setting: planners for setting, planners in both.items() if planners}
    if not both:
        raise BadStore("the stores have no setting and planner in common")
    rows = []
    for planner in dict.fromkeys(planner for planners in both.values() for planner in planners):
        pairs = [(old[setting], new[setting]) for setting, planners in both.items() if planner in planners]
        ratios = [value for value in (ratio(after[planner], before[planner]) for before, after in pairs) if value is not None]
        changed = sum(degrees_text(before[planner]) != degrees_text(after[planner]) for before, after in pairs)
        margins = [(margin(before, planner), margin(after, planner)) for before, after in pairs]
        margins = [pair for pair in margins if None not in pair]
        rows.append([f"`{planner}`", len(pairs), f"{mean(ratios):.3f}" if ratios else "-",
                     f"{min(ratios):.3f} .. {statistics.median(ratios):.3f} .. {max(ratios):.3f}" if ratios else "-", changed,
                     *(f"{mean([pair[at] for pair in margins]):.3f}" if margins else "-" for at in (0, 1))])
    yield f"{len(both)} settings are in both stores. New time over old, and time over `{OURS}`'s in each store; means are geometric."
    yield ""
    yield from table(["planner", "settings", "new / old, mean", "least .. median .. most", "other degrees", "margin, old", "margin, new"], rows)
    rows = []
    for setting, planners in both.items():
        for planner in planners:
            before, after = old[setting][planner], new[setting][planner]
            value = ratio(after, before)
            rows.append([cell_text(after["cell"]), f"`{planner}`", seconds(before), seconds(after), f"{value:.3f}" if value else "-",
                         degrees_text(before), degrees_text(after)])
    yield from table(["setting", "planner", "old, s", "new, s", "new / old", "old dp x pp x tp", "new"], rows, left=2)


def main(arguments):
    if len(arguments) != 2:
        print("old_new.py: give two stores, OLD_STORE NEW_STORE", file=sys.stderr)
        return 2
    try:
        old, new = (Store(path, VERSIONS) for path in arguments)
        text = "\n".join(lines(old, new))
    except BadStore as error:
        print(f"old_new.py: {error}", file=sys.stderr)
        return 2
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
