#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/evaluation.md from the stored results of slimpack evaluate: bench/evaluation.py [--groups A,B] STORE > docs/evaluation.md

Reads the store alone, so the same store gives the same bytes. Ends with status 2 and one sentence where the
store is torn, of several versions, or lacks a result of the groups that the page is to cover (all of its
matrix unless --groups names some).
"""
import argparse
import collections
import json
import math
import sys

VERSIONS = (1, 2)  # of the results that this page understands; one store has one
OURS = "slimpack"
MEGATRON = ("megatron", "megatron-interleaved", "megatron-cp")
BASE = ("contexts", "llama-13b", "llama-70b", "llama-150b")  # groups whose cells are all sets and contexts
HOST = "two shared cores of a 2.6 GHz x86-64 server"
AHEAD = 1.02  # below it slimpack does not count as ahead
PUBLISHED = "2.8x over Megatron-LM at 256K ([arXiv 2509.26246](https://arxiv.org/abs/2509.26246))"


class BadStore(Exception):
    """What is wrong with a store, in one sentence."""


class Store:
    """Results by key, the groups of the last matrix in the file, and the cells they are about."""

    def __init__(self, path):
        self.path = path
        self.results = {}
        self.version = 0
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
                if version not in VERSIONS or version != self.version and self.version:
                    raise BadStore(f"{path}: line {number}: results of version {version}, not "
                                   f"{self.version or ' or '.join(map(str, VERSIONS))}: a page is of one version")
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
            raise BadStore(f"{path}: no line says which matrix this is; run slimpack evaluate on one without --planners")
        self.matrix = matrix["matrix"]
        self.groups = {}  # name to [(cell, planner)]
        self.planners = []
        for group in matrix["groups"]:
            wanted = self.groups.setdefault(group["name"], [])
            wanted += [(cell, planner) for cell in group["cells"] for planner in group["planners"]]
            self.planners += [planner for planner in group["planners"] if planner not in self.planners]

    def cover(self, names):
        """Only these groups, which must be there whole; the names of the others."""
        for name in names or ():
            if name not in self.groups:
                raise BadStore(f"{self.path}: matrix {self.matrix} has no group '{name}', but {', '.join(self.groups)}")
        covered = {name: wanted for name, wanted in self.groups.items() if not names or name in names}
        wanted = [pair for pairs in covered.values() for pair in pairs]
        lacking = [pair for pair in wanted if "/".join(pair) not in self.results]
        if lacking:
            raise BadStore(f"{self.path}: lacks {len(lacking)} of {len(wanted)} results of matrix {self.matrix}, "
                           f"groups {', '.join(covered)}; the first is {'/'.join(lacking[0])}")
        left = {name: pairs for name, pairs in self.groups.items() if name not in covered}
        self.groups = covered
        seen = {planner for _, planner in wanted}
        self.planners = [planner for planner in self.planners if planner in seen]
        return left

    def cells(self, *names):
        """The cells of groups, each once, in order."""
        return list(dict.fromkeys(cell for name in names for cell, _ in self.groups.get(name, ())))

    def result(self, cell, planner):
        return self.results.get(f"{cell}/{planner}")

    def about(self, cell):
        return next(self.results[f"{cell}/{planner}"]["cell"] for planner in self.planners
                    if f"{cell}/{planner}" in self.results)

    def time(self, cell, planner):
        """Seconds of the steps of a cell, or None where there is no result or no plan."""
        result = self.result(cell, planner)
        return result["iteration_s"] if result and result["feasible"] else None

    def speedup(self, cell, planner):
        """A planner's time over slimpack's; None where either has none. `planner` may be several: the fastest."""
        ours = self.time(cell, OURS)
        names = (planner,) if isinstance(planner, str) else planner
        times = [time for time in (self.time(cell, name) for name in names) if time is not None]
        return min(times) / ours if times and ours is not None else None


def context_name(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def mean(values):
    """The geometric mean of ratios."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def average(values):
    return math.fsum(values) / len(values)


def mean_and_worst(ratios):
    """`2.41 (1.87)`, of those that exist; how many do not is said."""
    there = [ratio for ratio in ratios if ratio is not None]
    if not there:
        return "no plan" if ratios else "-"
    text = f"{mean(there):.2f} ({min(there):.2f})" if len(ratios) > 1 else f"{there[0]:.2f}"
    lost = len(ratios) - len(there)
    return text + (f", {lost} no plan" if lost else "")


def table(header, rows, left=1):
    """A Markdown table whose first `left` columns hold words, the others figures."""
    lines = ["| " + " | ".join(header) + " |",
             "|" + "|".join("---" if at < left else "---:" for at in range(len(header))) + "|"]
    lines += ["| " + " | ".join(str(field) for field in row) + " |" for row in rows]
    return lines + [""]


def degrees_text(result):
    if result is None:
        return "-"
    if not result["feasible"]:
        return "no plan"
    degrees = result["degrees"]
    return f"{degrees['dp']} x {degrees['pp']} x {degrees['tp']}"


def cell_text(cell):
    text = f"{cell['set']} {context_name(cell['context'])}, {cell['model']}, {cell['gpus']} {cell['cluster']}"
    text += f", {cell['samples']} samples"
    if cell["steps"] > 1:
        text += f", {cell['steps']} steps"
    for key, standard in (("recompute", "auto"), ("head", "auto"), ("chunks", "auto"), ("merge", "auto"),
                          ("granularity", 128), ("seed", 0)):
        if cell[key] != standard:
            text += f", {key} {cell[key]}"
    return text


class Page:
    def __init__(self, store, groups):
        self.store = store
        self.groups = groups
        self.left = store.cover(groups)
        self.others = [planner for planner in store.planners if planner != OURS and not planner.startswith(OURS + "-")]
        self.switched = [planner for planner in store.planners if planner.startswith(OURS + "-")]
        # Cells that all planners are asked about: ablations and options are not comparisons.
        self.compared = [cell for name in store.groups for cell in store.cells(name)
                         if any(store.result(cell, planner) for planner in self.others)]
        self.compared = list(dict.fromkeys(self.compared))
        # All sets and contexts, a group a model: means are over these.
        self.base = store.cells(*(name for name in store.groups if name in BASE)) or self.compared

    def about(self, cell):
        return self.store.about(cell)

    def axis(self, key, cells=None):
        return list(dict.fromkeys(self.about(cell)[key] for cell in cells or self.base))

    def contexts(self):
        return sorted(self.axis("context"))

    def where(self, cells=None, **wanted):
        return [cell for cell in cells or self.base if all(self.about(cell)[key] == value for key, value in wanted.items())]

    def lines(self):
        yield "# Evaluation"
        yield ""
        yield from self.introduction()
        yield from self.headline()
        yield from self.overall()
        yield from self.by_set()
        yield from self.trend()
        yield from self.variations()
        yield from self.ablations()
        yield from self.options()
        yield from self.distributions()
        yield from self.not_ahead()
        yield from self.where_time_goes()
        yield from self.chosen_degrees()
        yield from self.without_plan()

    def introduction(self):
        store = self.store
        count = sum(1 for _ in dict.fromkeys(pair for pairs in store.groups.values() for pair in pairs))
        yield (f"How the planners of this repository compare on real document lengths: {count:,} results, {len(self.compared)} settings that all "
               f"planners were asked about, {len(self.others)} systems beside `{OURS}`. Everything here is *simulated* on one cost model ([costs.md](costs.md), constants of the presets); "
               "no figure comes from a device. This page is written by a script from stored results; do not edit it.")
        yield ""
        if store.version == 1:
            yield ("**Of version 1.** These results were computed before small units were priced ([costs.md](costs.md), \"Small units\"), before rivals were strengthened ([planners.md](planners.md)), "
                   "before all simulations of all planners were counted alike and before all degrees were refined. All of this favoured `slimpack`: leads are smaller now, as the README's table shows. "
                   "Packs of four of the systems were as long as the context's label, so that several settings of sets without long documents hold the same samples. The results stay here until the matrix is computed anew.")
            yield ""
        if self.left:
            rest = ", ".join(f"`{name}` ({len(dict.fromkeys(pairs)):,} results)" for name, pairs in self.left.items())
            yield (f"**Not covered:** of the matrix `{store.matrix}` this page has the groups {', '.join(f'`{name}`' for name in store.groups)}; "
                   f"it has not these: {rest}. What the text below says holds of the covered ones.")
            yield ""
        names = f" --groups {','.join(self.groups)}" if self.groups else ""
        yield "```sh"
        yield f"bench/evaluation.py{names} bench/results/evaluation.jsonl > docs/evaluation.md     # this page, byte for byte"
        yield "build/release/bin/slimpack evaluate bench/evaluation/small.json --store small.jsonl # a small matrix, under two minutes"
        yield f"build/release/bin/slimpack evaluate bench/evaluation/{store.matrix}.json --store new.jsonl # all results anew; goes on where it was stopped"
        yield "```"
        yield ""
        seconds = math.fsum(result["tune_seconds"] for result in store.results.values())
        yield (f"Computing the results took {seconds / 3600:.1f} hours of one thread on {HOST}, other work beside it. The planning times below are of that host; all else is the same on any.")
        yield ""
        yield "## How to read it"
        yield ""
        efforts = self.axis("effort", self.compared)
        finalists = " or ".join("one" if count == 1 else str(count) for count in self.axis("finalists", self.compared))
        more = {"fast": " (128 at the nearest to fitting where none has a plan)", "normal": f", then 128 at the best {finalists} (and at the best that nearly fits)",
                "thorough": f", then 128 and 1,024 at the best {finalists} (and at the best that nearly fits)"}
        counted = (f"4 at each choice of degrees{'; or '.join(more[effort] for effort in efforts)}" if self.store.version == 1 else
                   "all degrees are refined in rounds of rising budgets ([reports.md](reports.md)), and every simulation counts, of candidates that lack memory too")
        yield (f"A *setting* is a length set, model, cluster, number of GPUs, context and batch. In each, every planner chooses its own data-, pipeline- and tensor-parallel degrees among all that divide the GPUs, "
               "context-parallel groups inside them where its system has them, and its own settings (recomputation, packing, chunks, head, what the system has), with the same number of simulated candidates as all others: "
               f"{counted}. Documents longer than the context are cut, for everyone.")
        yield ""
        yield (f"*Speed-up* is a planner's time for the step over `{OURS}`'s: above 1, `{OURS}` is faster. Tables give the geometric mean over models and, in brackets, the worst (least) of them. "
               "*Share of ideal* is the bare compute of all samples spread evenly, without recomputation, launches, communication or waiting, over the time of the step. What each planner models, its source and where it deviates stand in its header in "
               "`include/slimpack/planners/`; most deviations are in favour of the system, and [planners.md](planners.md) names the planners of which some are not. Length sets: [bench/evaluation/data](../bench/evaluation/data/README.md), [examples/data](../examples/data/README.md).")
        yield ""

    def headline(self):
        longest = max(self.contexts())
        cells = self.where(context=longest)
        rows = []
        for name in self.axis("set", cells):
            here = self.where(cells, set=name)
            rows.append([name] + [mean_and_worst([self.store.speedup(cell, who) for cell in here])
                                  for who in ("megatron", MEGATRON, tuple(self.others))])
        rows.append(["all"] + [mean_and_worst([self.store.speedup(cell, who) for cell in cells])
                               for who in ("megatron", MEGATRON, tuple(self.others))])
        plain = [ratio for ratio in (self.store.speedup(cell, "megatron") for cell in cells) if ratio]
        best = [ratio for ratio in (self.store.speedup(cell, MEGATRON) for cell in cells) if ratio]
        yield f"## The headline: {context_name(longest)}"
        yield ""
        yield (f"Published: up to {PUBLISHED}, on GPUs, whose settings beyond model sizes, data sets and GPU counts are not public. Here, simulated, over {len(cells)} settings at {context_name(longest)}: "
               f"up to {max(plain):.2f}x over `megatron` (mean {mean(plain):.2f}x, least {min(plain):.2f}x), up to {max(best):.2f}x over the best of the three Megatron planners in each setting, context parallelism and interleaving among them "
               f"(mean {mean(best):.2f}x, least {min(best):.2f}x).")
        yield ""
        yield from table(["set", "over `megatron`", "over the best Megatron planner", "over the best of all others"], rows)
        yield ("Where a step holds few full sequences (see the tokens of each set below), whoever fills sequences to the context has little to spread over GPUs: the large ratios are of such steps. Larger batches stand further below, as far as they are covered.")
        yield ""

    def overall(self):
        yield "## Every planner, all settings"
        yield ""
        rows = []
        for planner in self.others:
            ratios = [(self.store.speedup(cell, planner), cell) for cell in self.compared]
            there = [(ratio, cell) for ratio, cell in ratios if ratio is not None]
            if not there:
                rows.append([f"`{planner}`", f"0 of {len(ratios)}", "-", "-", "-", "-"])
                continue
            least, worst = min(there, key=lambda pair: pair[0])
            rows.append([f"`{planner}`", f"{len(there)} of {len(ratios)}", f"{mean([ratio for ratio, _ in there]):.2f}",
                         f"{max(ratio for ratio, _ in there):.2f}", f"{least:.2f}", cell_text(self.about(worst))])
        rows.sort(key=lambda row: -float(row[2]) if row[2] != "-" else -math.inf)
        yield f"Speed-up of `{OURS}` over each planner in all {len(self.compared)} settings; those without a feasible plan are left out of its mean."
        yield ""
        lines = table(["planner", "feasible", "mean", "most", "worst", "worst at"], rows)
        lines[1] = "|---|---:|---:|---:|---:|---|"
        yield from lines

    def by_set(self):
        yield "## By length set and context"
        yield ""
        models = ", ".join(f"{about['model']} on {about['gpus']} {about['cluster']}" for about in
                           {(a["model"], a["gpus"], a["cluster"]): a for a in map(self.about, self.base)}.values())
        yield f"Mean (worst) over {models}; {self.about(self.base[0])['samples']} samples a step."
        yield ""
        contexts = self.contexts()
        for name in self.axis("set"):
            tokens = [result["tokens"] / result["cell"]["steps"] for result in
                      (self.store.result(cell, OURS) for cell in self.where(set=name)) if result["feasible"]]
            rows = []
            for planner in self.others:
                rows.append([f"`{planner}`"] + [mean_and_worst([self.store.speedup(cell, planner)
                                                                for cell in self.where(set=name, context=context)])
                                                for context in contexts])
            shares = []
            for context in contexts:
                here = [self.store.result(cell, OURS) for cell in self.where(set=name, context=context)]
                here = [result["efficiency"] for result in here if result and result["feasible"]]
                worst = f" ({100 * min(here):.1f} %)" if len(here) > 1 else ""
                shares.append(f"{100 * average(here):.1f} %{worst}" if here else "no plan")
            rows.append([f"share of ideal of `{OURS}`"] + shares)
            yield f"### {name}"
            yield ""
            if tokens:
                yield f"{max(tokens) / 1e6:.1f} million tokens a step, {max(tokens) / max(contexts):.1f} full sequences of {context_name(max(contexts))}."
                yield ""
            yield from table(["planner"] + [context_name(context) for context in contexts], rows)

    def trend(self):
        contexts = self.contexts()
        yield f"## The trend from {context_name(contexts[0])} to {context_name(contexts[-1])}"
        yield ""
        yield "Mean speed-up over all sets and models; the last column is the longest context over the shortest."
        yield ""
        rows = []
        for label, who in [(f"`{planner}`", planner) for planner in self.others] + [("the best Megatron planner", MEGATRON),
                                                                                  ("the best of all others", tuple(self.others))]:
            means = []
            for context in contexts:
                there = [ratio for ratio in (self.store.speedup(cell, who) for cell in self.where(context=context)) if ratio]
                means.append(mean(there) if there else None)
            growth = f"{means[-1] / means[0]:.2f}" if means[0] and means[-1] else "-"
            rows.append([label] + [f"{value:.2f}" if value else "-" for value in means] + [growth])
        yield from table(["planner"] + [context_name(context) for context in contexts] + ["growth"], rows)

    def variations(self):
        cells = [cell for name in self.store.groups if name not in (*BASE, "ablations", "options")
                 for cell in self.store.cells(name)]
        cells = [cell for cell in dict.fromkeys(cells) if cell in self.compared]
        if not cells or cells == self.base:
            return
        yield "## Other clusters, GPU counts, batches"
        yield ""
        yield "One thing changed at a time; the best other planner is named."
        yield ""
        rows = []
        for cell in cells:
            times = [(self.store.time(cell, planner), planner) for planner in self.others]
            times = [pair for pair in times if pair[0] is not None]
            result = self.store.result(cell, OURS)
            share = f"{100 * result['efficiency']:.1f} %" if result["feasible"] else "no plan"
            nearest = min(times)[1] if times else "-"
            rows.append([cell_text(self.about(cell)), share] +
                        [mean_and_worst([self.store.speedup(cell, who)]) for who in ("megatron", MEGATRON, tuple(self.others))] +
                        [f"`{nearest}`"])
        lines = table(["setting", "share of ideal", "over `megatron`", "best Megatron", "best of all others", "which"], rows)
        lines[1] = "|---|---:|---:|---:|---:|---|"
        yield from lines

    def ablations(self):
        cells = [cell for cell in self.store.cells("ablations")] or [
            cell for cell in self.base if all(self.store.result(cell, planner) for planner in self.switched)]
        if not cells or not self.switched:
            return
        meaning = {"slimpack-symmetric": "the same packs in both passes", "slimpack-samples": "no sample is cut",
                   "slimpack-unmerged": "no DP-Merge", "slimpack-lasthead": "the head on the last stage"}
        yield f"## One idea of `{OURS}` off"
        yield ""
        yield ("Time without the idea over time with it: above 1 the idea pays. Each variant searches all else again with the same number of candidates, degrees too, so that a value below 1 means that its search, degrees among it, ended at something better than that of the whole. "
               "Ramps (packs that taper at both ends) and the order of samples have no switch: they are part of the search, and their choices are counted below.")
        yield ""
        labels = [f"{about['set']}, {about['model']}, {context_name(about['context'])}" for about in map(self.about, cells)]
        rows = [[f"`{planner}`: {meaning.get(planner, '')}"] + [mean_and_worst([self.store.speedup(cell, planner)]) for cell in cells]
                for planner in self.switched]
        yield from table(["variant"] + labels, rows)
        chosen = collections.Counter()
        settings = [result["settings"] for result in (self.store.result(cell, OURS) for cell in self.compared) if result and result["feasible"]]
        rows = []
        for name in ("recompute", "head", "merge_threshold", "ramp", "order", "chunks", "schedule"):
            chosen = collections.Counter(setting[name] for setting in settings if name in setting)
            if chosen:
                rows.append([f"`{name}`", ", ".join(f"{value} {count}" for value, count in sorted(chosen.items(), key=lambda item: (-item[1], item[0])))])
        yield f"What `{OURS}` chose in {len(settings)} settings, and how often:"
        yield ""
        yield from table(["choice", "how often"], rows, left=2)

    def options(self):
        cells = self.store.cells("options")
        if not cells:
            return
        yield f"## Choices of `{OURS}` fixed by hand"
        yield ""
        yield "Time with the choice fixed over time where it is searched (granularity: 128 tokens): what leaving it to the search is worth."
        yield ""
        rows = []
        for cell in cells:
            about = self.about(cell)
            free = dict(about, recompute="auto", head="auto", chunks="auto", merge="auto", granularity=128)
            base = next((other for other in self.compared if self.about(other) == free), None)
            changed = ", ".join(f"{key} {about[key]}" for key in free if about[key] != free[key])
            time, reference = self.store.time(cell, OURS), self.store.time(base, OURS) if base else None
            rows.append([changed, f"{about['set']}, {about['model']}, {context_name(about['context'])}",
                         "no plan" if time is None else f"{time / reference:.3f}" if reference else "-",
                         degrees_text(self.store.result(cell, OURS))])
        yield from table(["fixed", "setting", "time", "dp x pp x tp"], rows, left=2)

    def distributions(self):
        yield "## MicroPacks, memory, bytes sent, planning time"
        yield ""
        yield (f"Means over the settings in which the planner has a plan. *Spread* is the standard deviation of a MicroPack's compute time over its mean (units that taper on purpose count); *imbalance* the most loaded data-parallel rank over the mean; "
               "*idle* the share of the devices' time without compute; *memory* the peak of the fullest device over what it may hold; *sent* what all devices send for a token, weights' gradients too; *plan* the time to plan at the chosen degrees, *tune* at all degrees.")
        yield ""
        rows = []
        for planner in [OURS] + self.others:
            results = [result for result in (self.store.result(cell, planner) for cell in self.compared) if result and result["feasible"]]
            if not results:
                continue

            def figure(key):
                return average([result[key] for result in results])
            rows.append([f"`{planner}`", f"{100 * figure('efficiency'):.1f} %", f"{figure('forward_cv'):.2f}", f"{figure('backward_cv'):.2f}",
                         f"{figure('dp_imbalance'):.3f}", f"{100 * figure('bubble'):.1f} %",
                         f"{100 * average([result['peak_bytes'] / result['limit_bytes'] for result in results]):.0f} % "
                         f"({100 * max(result['peak_bytes'] / result['limit_bytes'] for result in results):.0f} %)",
                         f"{average([result['communication_bytes'] / result['tokens'] for result in results]) / 1e6:.2f}",
                         f"{figure('plan_seconds'):.2f}", f"{figure('tune_seconds'):.1f}"])
        yield from table(["planner", "share of ideal", "forward spread", "backward spread", "imbalance", "idle", "memory (most)", "sent, MB a token", "plan, s", "tune, s"], rows)

    def causes(self, cell, planner):
        """What slimpack spends more than a planner, by cause, the most first; both must have a plan."""
        ours, theirs = (dict(self.store.result(cell, name)["time_split"]) for name in (OURS, planner))
        if min(ours.get("overhead", 0), theirs.get("overhead", 0)) < 0:
            # Times of a system's own: only the sum of what its units add to bare work is known.
            for split in (ours, theirs):
                split["what units add to bare work"] = math.fsum(split.pop(cause, 0) for cause in ("recompute", "communication", "overhead"))
        return sorted(((ours[cause] - theirs[cause], cause) for cause in ours), key=lambda pair: (-pair[0], pair[1]))

    def not_ahead(self):
        yield f"## Where `{OURS}` is not ahead"
        yield ""
        found = []
        for cell in self.compared:
            for planner in self.others:
                ratio = self.store.speedup(cell, planner)
                if ratio is not None and ratio < AHEAD:
                    found.append((ratio, cell, planner))
        lost = [cell for cell in self.compared if self.store.time(cell, OURS) is None and
                any(self.store.time(cell, planner) is not None for planner in self.others)]
        for cell in lost:
            yield f"`{OURS}` has no plan, but another planner has: {cell_text(self.about(cell))} ({self.store.result(cell, OURS)['why']})."
            yield ""
        pairs = sum(1 for cell in self.compared for planner in self.others if self.store.speedup(cell, planner) is not None)
        if not found:
            yield f"In none of {pairs:,} pairs of setting and planner is the speed-up below {AHEAD}."
            yield ""
            return
        found.sort(key=lambda entry: entry[0])
        behind = sum(1 for ratio, _, _ in found if ratio < 1)
        yield (f"All pairs of setting and planner whose speed-up is below {AHEAD}: {len(found)} of {pairs:,}; in {behind} of them the other is faster. *Why* names on what `{OURS}` spends more time than the other, "
               "in per cent of its own step, the mean over devices.")
        yield ""
        rows = []
        for ratio, cell, planner in found:
            ours = self.store.result(cell, OURS)
            why = ", ".join(f"{cause} +{100 * more / ours['iteration_s']:.1f} %" for more, cause in self.causes(cell, planner)[:2] if more > 0)
            theirs = self.store.result(cell, planner)
            rows.append([cell_text(self.about(cell)), f"`{planner}`", f"{ratio:.3f}",
                         f"{degrees_text(ours)}, {ours['settings'].get('recompute', '-')}",
                         f"{degrees_text(theirs)}, {theirs['settings'].get('recompute', '-')}", why])
        lines = table(["setting", "planner", "speed-up", f"`{OURS}`: dp x pp x tp, recompute", "the other", "why"], rows)
        lines[1] = "|---|---|---:|---|---|---|"
        yield from lines

    def where_time_goes(self):
        yield f"## Where the time of `{OURS}` goes"
        yield ""
        results = [(cell, self.store.result(cell, OURS)) for cell in self.compared]
        results = sorted(((result["efficiency"], cell, result) for cell, result in results if result["feasible"]), key=lambda entry: entry[0])
        yield "The worst setting of each length set by share of ideal, and the five largest parts of what is lost there, in per cent of the step."
        yield ""
        worst = {}
        for share, cell, result in results:
            worst.setdefault(self.about(cell)["set"], (share, cell, result))
        rows = []
        for share, cell, result in worst.values():
            split = sorted(((time, cause) for cause, time in result["time_split"].items() if cause != "ideal"), key=lambda pair: (-pair[0], pair[1]))
            rows.append([cell_text(self.about(cell)), f"{100 * share:.1f} %",
                         ", ".join(f"{cause} {100 * time / result['iteration_s']:.1f}" for time, cause in split[:5])])
        lines = table(["setting", "share of ideal", "lost on"], rows)
        lines[1] = "|---|---:|---|"
        yield from lines

    def chosen_degrees(self):
        yield "## Chosen degrees"
        yield ""
        yield f"dp x pp x tp of `{OURS}`, with its recomputation; of the best Megatron planner; of the best other planner."
        yield ""
        rows = []
        for cell in self.base:
            ours = self.store.result(cell, OURS)
            row = [cell_text(self.about(cell)), degrees_text(ours) + (f", {ours['settings'].get('recompute', '-')}" if ours["feasible"] else "")]
            for names in (MEGATRON, self.others):
                times = [(self.store.time(cell, planner), planner) for planner in names if self.store.time(cell, planner) is not None]
                row.append(f"`{min(times)[1]}` {degrees_text(self.store.result(cell, min(times)[1]))}" if times else "no plan")
            rows.append(row)
        yield from table(["setting", f"`{OURS}`", "best Megatron", "best other"], rows, left=4)

    def without_plan(self):
        rows = []
        for planner in [OURS] + self.others:
            failed = [(cell, self.store.result(cell, planner)) for cell in self.compared]
            failed = [(cell, result) for cell, result in failed if result and not result["feasible"]]
            for cell, result in failed[:3]:
                rows.append([f"`{planner}`", f"{len(failed)}", cell_text(self.about(cell)), result["why"]])
        if not rows:
            return
        yield "## Without a feasible plan"
        yield ""
        yield "How many settings, with the first three and what is lacking at the degrees that come nearest."
        yield ""
        lines = table(["planner", "settings", "such as", "what is lacking"], rows)
        lines[1] = "|---|---:|---|---|"
        yield from lines


def main(arguments):
    parser = argparse.ArgumentParser(description="Writes the page of the evaluation from a store of results.")
    parser.add_argument("--groups", default="", help="groups of the matrix that the page covers, commas between [all]")
    parser.add_argument("store", help="what slimpack evaluate --store has written")
    options = parser.parse_args(arguments)
    groups = [name for name in options.groups.split(",") if name]
    try:
        text = "\n".join(Page(Store(options.store), groups).lines())
    except BadStore as error:
        print(f"evaluation.py: {error}", file=sys.stderr)
        return 2
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
