# SPDX-License-Identifier: Apache-2.0
"""What bench/evaluation.py and bench/old_new.py share: stores of slimpack evaluate, and figures as words."""
import json
import math

OURS = "slimpack"
AS_PUBLISHED = "-published"
MEGATRON = ("megatron", "megatron-interleaved", "megatron-cp")


class BadStore(Exception):
    """What is wrong with a store, in one sentence."""


class Store:
    """Results by key, and the groups of the last matrix in the file, if one of its lines says what a matrix is."""

    def __init__(self, path, versions):
        self.path = path
        self.results = {}
        self.version = 0
        self.matrix = ""
        self.groups = {}  # name to {cell: planners that are wanted}
        matrix = None
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise BadStore(f"{path}: {error.strerror}") from error
        if text and not text.endswith("\n"):
            raise BadStore(f"{path}: the last line is torn; slimpack evaluate drops it and goes on")
        for number, line in enumerate(text.splitlines(), 1):
            try:
                entry = json.loads(line)
                version = entry["version"]
                if version not in versions or version != self.version and self.version:
                    raise BadStore(f"{path}: line {number}: results of version {version}, not "
                                   f"{self.version or ' or '.join(map(str, versions))}")
                self.version = version
                if "matrix" in entry:
                    matrix = entry
                    continue
                key = entry["key"]
                entry["cell"], entry["planner"], entry["feasible"]
            except (ValueError, KeyError, TypeError) as error:
                raise BadStore(f"{path}: line {number}: not a result of slimpack evaluate ({error})") from error
            if key in self.results:
                raise BadStore(f"{path}: line {number}: {key} is there twice")
            self.results[key] = entry
        if matrix is None:
            return
        self.matrix = matrix["matrix"]
        for group in matrix["groups"]:
            wanted = self.groups.setdefault(group["name"], {})
            for cell in group["cells"]:
                wanted[cell] = list(dict.fromkeys([*wanted.get(cell, ()), *group["planners"]]))

    def result(self, cell, planner):
        return self.results.get(f"{cell}/{planner}")

    def time(self, cell, planner):
        """Seconds of the steps of a cell, or None where there is no result or no plan."""
        result = self.result(cell, planner)
        return result["iteration_s"] if result and result["feasible"] else None

    def nearest(self, cell, planners):
        """(seconds, planner) of the fastest of them that has a plan, or None."""
        times = [(self.time(cell, planner), planner) for planner in planners]
        return min((pair for pair in times if pair[0] is not None), default=None)

    def speedup(self, cell, planners):
        """The time of the fastest of `planners` over slimpack's; None where either has none."""
        ours, nearest = self.time(cell, OURS), self.nearest(cell, planners)
        return nearest[0] / ours if nearest and ours is not None else None


def context_name(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def cell_text(cell):
    """A setting in words, with the kind of its length set: `web (drawn) 32K, llama-7b, 64 h100, 512 samples`."""
    kind = f" ({cell['lengths']})" if "lengths" in cell else ""
    text = f"{cell['set']}{kind} {context_name(cell['context'])}, {cell['model']}, {cell['gpus']} {cell['cluster']}"
    text += f", {cell['samples']} samples"
    if cell["steps"] > 1:
        text += f", {cell['steps']} steps"
    for key, standard in (("recompute", "auto"), ("head", "auto"), ("chunks", "auto"), ("merge", "auto"),
                          ("granularity", 128), ("seed", 0)):
        if cell[key] != standard:
            text += f", {key} {cell[key]}"
    return text


def degrees_text(result):
    if result is None:
        return "-"
    if not result["feasible"]:
        return "no plan"
    degrees = result["degrees"]
    return f"{degrees['dp']} x {degrees['pp']} x {degrees['tp']}"


def mean(values):
    """The geometric mean of ratios."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def average(values):
    return math.fsum(values) / len(values)


def quantile(values, share):
    """By nearest rank: the least value that at least this share of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def mean_and_worst(ratios):
    """`2.41 (1.87)`, of those that exist; how many do not is said."""
    there = [ratio for ratio in ratios if ratio is not None]
    if not there:
        return "no plan" if ratios else "-"
    text = f"{mean(there):.3f} ({min(there):.3f})" if len(ratios) > 1 else f"{there[0]:.3f}"
    lost = len(ratios) - len(there)
    return text + (f", {lost} no plan" if lost else "")


def table(header, rows, left=1, last_left=False):
    """A Markdown table whose first `left` columns, and the last one if so said, hold words, the others figures."""
    words = [at < left or last_left and at == len(header) - 1 for at in range(len(header))]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join("---" if word else "---:" for word in words) + "|"]
    lines += ["| " + " | ".join(str(field) for field in row) + " |" for row in rows]
    return lines + [""]
