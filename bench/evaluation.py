#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/evaluation.md and its pictures from the stored results of slimpack evaluate:
bench/evaluation.py STORE --pictures docs > docs/evaluation.md

Reads the store alone, so the same store gives the same bytes. A setting is on the page where all planners that the
matrix wants of it have results; how many there are, of how many, is said by group, so a part of a matrix makes a
page of that part. Ends with status 2 and one sentence where the store is torn, is of another version, does not say
what its matrix is, or has no whole setting.
"""
import argparse
import collections
import math
import pathlib
import sys

from evaluation_pictures import distributions, trends
from evaluation_store import (AS_PUBLISHED, MEGATRON, OURS, BadStore, Store, average, cell_text, context_name, degrees_text,
                              mean, mean_and_worst, quantile, table)

VERSIONS = (2,)
CHOSEN = ("settings", "variations")  # groups of settings that somebody chose, all compared with everybody
HOST = "two shared cores of x86-64 servers at 2.1 to 2.6 GHz"
PUBLISHED = "2.8x over Megatron-LM at 256K ([arXiv 2509.26246](https://arxiv.org/abs/2509.26246))"
OF_HOST = {"commit", "cpu_seconds", "plan_seconds", "tune_seconds"}  # all else of a result is the same wherever it is computed
KINDS = {"measured": "token counts of real documents", "mixed": "token counts of real documents, in shares that we chose",
         "drawn": "draws from a distribution"}
AGAINST = {  # what stands against a system in its planner, in few words; docs/planners.md has the whole sentence
    "megatron-cp": "one length of CP blocks", "hybrid-cp": "one length of CP blocks", "fcp": "one length of CP blocks",
    "kk": "one length of CP blocks",
    "chunkflow": "second forward of early chunks inside B", "dynapipe": "clusters start from quantiles",
    "infinipipe": "one mode a chunk for all stages, keys and values exchanged for heads"}


def spread_row(ratios):
    """Settings, how many ahead, mean, worst, and the rest of the distribution."""
    if not ratios:
        return ["0"] + ["-"] * 7
    return [len(ratios), sum(ratio >= 1 for ratio in ratios), f"{mean(ratios):.3f}", f"{min(ratios):.3f}",
            *(f"{quantile(ratios, share):.3f}" for share in (0.1, 0.5, 0.9)), f"{max(ratios):.3f}"]


def named(planner):
    """A planner's name, with what stands against its system there."""
    return f"`{planner}` (against it: {AGAINST[planner]})" if planner in AGAINST else f"`{planner}`"


SPREAD = ["settings", "ahead in", "mean", "worst", "10 %", "median", "90 %", "best"]


class Page:
    def __init__(self, store):
        self.store = store
        if not store.matrix:
            raise BadStore(f"{store.path}: no line says which matrix this is; run slimpack evaluate on one without --planners")
        self.wanted = store.groups
        self.groups = {}  # name to cells whose wanted planners all have results
        self.planners = []
        for name, wanted in store.groups.items():
            self.groups[name] = [cell for cell, planners in wanted.items() if all(store.result(cell, planner) for planner in planners)]
            for cell in self.groups[name]:
                self.planners += [planner for planner in wanted[cell] if planner not in self.planners]
        if not any(self.groups.values()):
            raise BadStore(f"{store.path}: no setting of matrix {store.matrix} has the results of all its planners")
        self.others = [planner for planner in self.planners
                       if planner != OURS and not planner.startswith(OURS + "-") and not planner.endswith(AS_PUBLISHED)]
        self.switched = [planner for planner in self.planners if planner.startswith(OURS + "-")]
        self.of_chosen = self.cells(*CHOSEN)
        self.of_random = self.cells("random")
        # What claims are about. Options, ablations, seeds and sensitivities stand in tables of their own.
        self.compared = list(dict.fromkeys(self.of_chosen + self.of_random)) or [
            cell for cell in self.cells(*self.groups) if any(store.result(cell, planner) for planner in self.others)]

    def cells(self, *names):
        return list(dict.fromkeys(cell for name in names for cell in self.groups.get(name, ())))

    def about(self, cell):
        return next(self.store.result(cell, planner)["cell"] for planner in self.planners if self.store.result(cell, planner))

    def text(self, cell):
        return cell_text(self.about(cell))

    def ratios(self, cells, planners):
        return [ratio for ratio in (self.store.speedup(cell, planners) for cell in cells) if ratio is not None]

    def simulated_only(self, cell, planner):
        result = self.store.result(cell, planner)
        return bool(result and result.get("simulated_only"))

    def with_plans(self, cell, simulated_only=False):
        """The other planners whose answer to this setting is a plan, or whose is not."""
        return [planner for planner in self.others if self.simulated_only(cell, planner) == simulated_only]

    def lines(self):
        yield "# Evaluation"
        yield ""
        for part in (self.introduction, self.headline, self.assumptions, self.behind, self.ablations, self.options, self.along_axes,
                     self.by_set, self.sensitivity, self.seeds, self.every_planner, self.random_settings, self.as_published,
                     self.executor, self.figures, self.where_time_goes, self.chosen_degrees, self.without_plan):
            yield from part()

    def introduction(self):
        store = self.store
        whole = sum(map(len, self.wanted.values()))
        computed = sum(map(len, self.groups.values()))
        results = {(cell, planner) for name, cells in self.groups.items() for cell in cells for planner in self.wanted[name][cell]}
        yield (f"How the planners of this repository compare on documents of very different lengths: {len(results):,} results in {computed} of the {whole} settings of the matrix `{store.matrix}`, "
               f"{len(self.others)} systems beside `{OURS}`. Everything here is *simulated* on one cost model ([costs.md](costs.md), constants of the presets); no figure comes from a device. "
               "What an expert asks of it is answered in [objections.md](objections.md). This page is written by a script from stored results; do not edit it.")
        yield ""
        if computed < whole:
            yield f"**A part of the matrix: {computed} of {whole} settings computed.** What is said below holds of these, and of no others. Groups share some settings:"
            yield ""
        yield from table(["group", "settings computed", "of", "planners"],
                         [[f"`{name}`", len(self.groups[name]), len(wanted), max(map(len, wanted.values()), default=0)]
                          for name, wanted in self.wanted.items()])
        commits = collections.Counter(store.result(cell, planner).get("commit", "not said") for cell, planner in results)
        yield "Results by the planners' commit: " + ", ".join(f"`{commit}` {count:,}" for commit, count in sorted(commits.items())) + "."
        yield ""
        yield "```sh"
        yield "bench/evaluation.py bench/results/evaluation.jsonl --pictures docs > docs/evaluation.md # this page and its pictures, byte for byte"
        yield f"build/release/bin/slimpack evaluate bench/evaluation/{store.matrix}.json --store new.jsonl # all results anew; goes on where it was stopped"
        yield f"build/release/bin/slimpack evaluate bench/evaluation/{store.matrix}.json --store new.jsonl --sample 10 # of a tenth of the settings of each group"
        yield "bench/evaluation.py bench/results/evaluation.jsonl --again new.jsonl # which of them differ in more than seconds of planning"
        yield "```"
        yield ""
        seconds = math.fsum(store.result(*pair)["cpu_seconds"] for pair in results)
        yield f"Computing these results took {seconds / 3600:.2f} core-hours on {HOST}. Planning times below are of them; all else is the same on any."
        yield ""
        yield (f"A *setting* is a length set, model, cluster, number of GPUs, context and batch. In each, every planner chooses its own data-, pipeline- and tensor-parallel degrees among all that divide the GPUs, context-parallel groups inside them, "
               "and its own settings, with the same budget of simulations as all others; all degrees are refined in rounds of rising budgets ([reports.md](reports.md)). Documents longer than the context are cut, for everyone; "
               "no two settings have the same samples, and no context is beyond the longest document of its set.")
        yield ""
        yield (f"*Speed-up*, or margin, is a planner's time for the step over `{OURS}`'s: above 1, `{OURS}` is faster. Means are geometric; in brackets stands the worst (least). "
               "Systems stand in their strengthened form, and as published where that is said ([planners.md](planners.md)). *Simulated only* are answers that no plan can say yet.")
        yield ""
        sets = {about["set"]: about.get("lengths", "not said") for about in map(self.about, self.cells(*self.groups))}
        yield from table(["length set", "kind", "which is"], [[name, kind, KINDS.get(kind, "-")] for name, kind in sorted(sets.items())], left=3)
        yield "The sets: [bench/evaluation/data](../bench/evaluation/data/README.md), [examples/data](../examples/data/README.md)."
        yield ""

    def headline(self):
        kinds = [("chosen settings", self.of_chosen), ("random settings", self.of_random), ("all", self.compared)]
        kinds = [(name, cells) for name, cells in kinds if cells and (name == "all" or cells != self.compared)]
        yield "## The headline: the best published system of each setting"
        yield ""
        best = self.ratios(self.compared, self.others)
        if best:
            nearest = collections.Counter(self.store.nearest(cell, self.others)[1] for cell in self.compared if self.store.nearest(cell, self.others))
            named = ", ".join(f"`{planner}` {count}" for planner, count in sorted(nearest.items(), key=lambda item: (-item[1], item[0])))
            behind = sum(ratio < 1 for ratio in best)
            fewer = len({tuple(sorted(p for p in self.others if self.store.result(cell, p))) for cell in self.compared}) > 1
            if fewer:
                yield "Not every setting was asked of every planner: the table above has how many were, and \"best\" is of these."
                yield ""
            yield (f"In each of {len(best)} settings `{OURS}` is compared with whichever other planner is fastest there: mean {mean(best):.3f}x, worst {min(best):.3f}x, half of the settings at least {quantile(best, 0.5):.3f}x; "
                   f"in {behind} of them `{OURS}` is behind. Fastest of the others: {named}.")
            yield ""
        rows = []
        for rival, of_cell in self.rivals():
            for name, cells in kinds:
                ratios = [ratio for ratio in (self.store.speedup(cell, of_cell(cell)) for cell in cells) if ratio is not None]
                rows.append([rival, name, *spread_row(ratios)])
        yield from table(["margin", "settings", *(["count"] + SPREAD[1:])], rows, left=2)
        plain = self.ratios(self.compared, MEGATRON)
        if plain:
            yield (f"Published: up to {PUBLISHED}, on GPUs, whose settings beyond model sizes, data sets and GPU counts are not public. Over the best of the Megatron planners in each setting, "
                   f"context parallelism and interleaving among them: mean {mean(plain):.2f}x, worst {min(plain):.2f}x, most {max(plain):.2f}x.")
            yield ""

            yield "Each dot is a setting; the bar holds eight tenths of them, the stroke is the mean. Red: the other is faster."
            yield ""
            yield "![Margins as distributions: over the best of each setting, over the best of each kind, and over each planner](evaluation_margins.svg)"
            yield ""
            yield ("The nearest rival whose answer is a plan beside `slimpack`, each at its own best degrees for the eight GPUs of the [README](../README.md): "
                   "[`kk`](kk.svg), [`slimpack`](slimpack.svg).")
            yield ""

    def assumptions(self):
        yield "What these figures rest on:"
        yield ""
        yield "- Times are simulated with rates and latencies of the presets, rounded from public measurements; nothing was run on GPUs."
        yield ("- Shares that hide are assumed: half of tensor-parallel traffic, three quarters of memory traffic beside arithmetic; collectives take 15 % of a device while they run ([costs.md](costs.md)). "
               "\"Sensitivity\" below has other shares, and kernels at half and twice their cost.")
        yield (f"- In {self.executed(OURS)[1]} of {sum(self.executed(OURS))} settings the plan that `{OURS}` chose has tensor parallelism (\"What is executed\" below).")
        kinds = collections.Counter(self.about(cell).get("lengths", "not said") for cell in self.compared)
        yield "- Lengths of the samples, by setting: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) + "."
        yield ("- Results of planners other than `slimpack`, its variants and `flexsp` are older than one correction of prices: B of a context-parallel group waits in every layer for the rank with most attention "
               "([costs.md](costs.md), \"Context-parallel groups\"). With it they take up to a thousandth longer: [bench/README.md](../bench/README.md#evaluation).")
        yield "- A setting is one step of one seed, but for \"Seeds and steps\", where `wlb-llm` holds long documents back over steps."
        yield "- Each planner models a system, and deviates from it as its header and [planners.md](planners.md) say, mostly in its favour; what stands against a system is said behind its name in the tables."
        yield ("- Memory has one formula for all ([equations.md](equations.md)): a backward unit holds all intermediates and gradients of one layer at once. Of long micro-batches that is much (34.5 GB for 128K tokens of llama-7b), "
               "and systems that free gradients one by one, Megatron-LM among them, need less; [planners.md](planners.md) says what it decides.")
        yield ""

    def behind(self):
        yield f"## Where `{OURS}` is behind"
        yield ""
        lost = [cell for cell in self.compared if self.store.time(cell, OURS) is None and self.store.nearest(cell, self.others)]
        for cell in lost:
            yield f"`{OURS}` has no plan, but `{self.store.nearest(cell, self.others)[1]}` has: {self.text(cell)} ({self.store.result(cell, OURS)['why']})."
            yield ""
        found, pairs = [], 0
        for cell in self.compared:
            for planner in self.others:
                ratio = self.store.speedup(cell, (planner,))
                pairs += ratio is not None
                if ratio is not None and ratio < 1:
                    found.append((ratio, cell, planner))
        found.sort(key=lambda entry: (entry[0], entry[1], entry[2]))
        if not found:
            yield f"In none of {pairs:,} pairs of setting and planner is the other faster."
            yield ""
            return
        yield (f"All pairs of setting and planner in which the other is faster: {len(found)} of {pairs:,}, in {len({cell for _, cell, _ in found})} of {len(self.compared)} settings. "
               f"*Why* names on what `{OURS}` spends more time, in per cent of its own step, the mean over devices.")
        yield ""
        rows = []
        for ratio, cell, planner in found:
            ours, theirs = self.store.result(cell, OURS), self.store.result(cell, planner)
            why = ", ".join(f"{cause} +{100 * more / ours['iteration_s']:.1f} %" for more, cause in self.causes(cell, planner)[:2] if more > 0)
            rows.append([self.text(cell), f"`{planner}`" + (" (simulated only)" if self.simulated_only(cell, planner) else ""), f"{ratio:.3f}",
                         f"{degrees_text(ours)}, {ours['settings'].get('recompute', '-')}",
                         f"{degrees_text(theirs)}, {theirs['settings'].get('recompute', '-')}", why])
        lines = table(["setting", "planner", "margin", f"`{OURS}`: dp x pp x tp, recompute", "the other", "why"], rows)
        lines[1] = "|---|---|---:|---|---|---|"
        yield from lines

    def causes(self, cell, planner):
        """What slimpack spends more than a planner, by cause, the most first; both must have a plan."""
        ours, theirs = (dict(self.store.result(cell, name)["time_split"]) for name in (OURS, planner))
        if min(ours.get("overhead", 0), theirs.get("overhead", 0)) < 0:
            # Times of a system's own: only the sum of what its units add to bare work is known.
            for split in (ours, theirs):
                split["what units add to bare work"] = math.fsum(split.pop(cause, 0) for cause in ("recompute", "communication", "overhead"))
        return sorted(((ours[cause] - theirs[cause], cause) for cause in ours), key=lambda pair: (-pair[0], pair[1]))

    def rivals(self):
        """What a margin is over, in words, and which planners those are in a setting."""
        return [("over the best published system of each setting", lambda cell: self.others),
                ("over the best whose answer is a plan", self.with_plans),
                ("over the best that is simulated only", lambda cell: self.with_plans(cell, True)),
                ("over the best Megatron planner", lambda cell: MEGATRON)]

    def points(self, cells, of_cell):
        """(margin, setting in words) of the settings in which both have an answer."""
        ratios = ((self.store.speedup(cell, of_cell(cell)), self.text(cell)) for cell in cells)
        return [(ratio, text) for ratio, text in ratios if ratio is not None]

    def axes(self):
        """(name, {value in words: settings}) of what a setting differs in."""
        for name, key in (("context", "context"), ("samples a step", "samples"), ("GPUs", "gpus")):
            values = collections.defaultdict(list)
            for cell in self.compared:
                values[self.about(cell)[key]].append(cell)
            yield name, {context_name(value) if key == "context" else f"{value:,}": values[value] for value in sorted(values)}

    def along_axes(self):
        yield "## By context, batch and GPUs"
        yield ""
        yield "Margins, mean (worst), over the settings that have each value; these differ in all else too, so a trend is one of the matrix."
        yield ""
        rivals = [(words.replace(" of each setting", ""), of_cell) for words, of_cell in self.rivals()]
        rows = [[name, value, len(cells)] + [mean_and_worst([ratio for ratio, _ in self.points(cells, of_cell)]) for _, of_cell in rivals]
                for name, values in self.axes() for value, cells in values.items()]
        yield from table(["", "value", "settings"] + [words for words, _ in rivals], rows)
        yield "![The margin over the best published system along context, samples a step and GPUs](evaluation_trends.svg)"
        yield ""

    def pictures(self):
        """{file name: SVG text}."""
        best = [(words, self.points(self.compared, of_cell)) for words, of_cell in self.rivals()]
        each = [(planner, self.points(self.compared, lambda cell, planner=planner: (planner,))) for planner in self.others]
        each.sort(key=lambda row: (mean([ratio for ratio, _ in row[1]]) if row[1] else math.inf, row[0]))
        settings = f"{len(self.compared)} settings of the matrix {self.store.matrix}, simulated; right of 1 {OURS} is faster"
        return {"evaluation_margins.svg": distributions(f"Time of other planners over that of {OURS}", settings + "; mean (settings) on the right", best + each),
                "evaluation_trends.svg": trends(f"Time of the best published system over that of {OURS}", settings.replace("right of", "above") + "; shaded from least to most",
                                                [(name, {value: self.points(cells, lambda cell: self.others) for value, cells in values.items()})
                                                 for name, values in self.axes()])}

    def by_set(self):
        yield "## By length set and context"
        yield ""
        yield "Margin over the best published system, mean (worst) over the settings; how many settings stand in the second table."
        yield ""
        places = collections.defaultdict(list)
        for cell in self.compared:
            about = self.about(cell)
            places[f"{about['set']} ({about.get('lengths', 'not said')})", about["context"]].append(cell)
        contexts = sorted({context for _, context in places})
        names = sorted({name for name, _ in places})
        header = ["length set"] + [context_name(context) for context in contexts]

        def figures(of_cells):
            return [[name] + [of_cells(places.get((name, context), [])) for context in contexts] for name in names]
        yield from table(header, figures(lambda cells: mean_and_worst([self.store.speedup(cell, self.others) for cell in cells])))
        yield from table(header, figures(len))
        yield "Share of ideal (the bare compute of all samples spread evenly, over the time of the step) of `slimpack`, mean (worst):"
        yield ""

        def share(cells):
            there = [result["efficiency"] for result in (self.store.result(cell, OURS) for cell in cells) if result and result["feasible"]]
            return f"{100 * average(there):.1f} % ({100 * min(there):.1f} %)" if there else "-"
        yield from table(header, figures(share))

    def every_planner(self):
        yield "## Every planner"
        yield ""
        yield f"Margin of `{OURS}` over each planner in the settings that both were asked about; those without a feasible plan are left out of its figures."
        yield ""
        rows = []
        for planner in self.others:
            asked = [cell for cell in self.compared if self.store.result(cell, planner)]
            there = [(ratio, cell) for ratio, cell in ((self.store.speedup(cell, (planner,)), cell) for cell in asked) if ratio is not None]
            if not asked:
                continue
            if not there:
                rows.append((math.inf, [named(planner), f"0 of {len(asked)}"] + ["-"] * 9))
                continue
            ratios = [ratio for ratio, _ in there]
            only = sum(self.simulated_only(cell, planner) for _, cell in there)
            rows.append((mean(ratios), [named(planner), f"{len(there)} of {len(asked)}", only, *spread_row(ratios)[1:], self.text(min(there)[1])]))
        rows.sort(key=lambda row: (row[0], row[1][0]))
        yield from table(["planner", "feasible", "simulated only", *SPREAD[1:], "worst at"], [row for _, row in rows], last_left=True)

    def random_settings(self):
        if not self.of_random:
            return
        asked = [planner for planner in self.others if self.store.result(self.of_random[0], planner)]
        yield "## Random settings"
        yield ""
        yield (f"Drawn by `bench/evaluation/draw_settings.py`: set, context, model, cluster, GPUs and batch, degrees left to the planners. {len(self.of_random)} of {len(self.wanted['random'])} computed, "
               f"with the {len(asked)} systems that came nearest in a first pass: {', '.join(f'`{planner}`' for planner in asked)}. All losses stand in \"Where `{OURS}` is behind\".")
        yield ""
        yield from table(["over", *SPREAD], [[named(planner), *spread_row(self.ratios(self.of_random, (planner,)))] for planner in asked] +
                         [["the best of them", *spread_row(self.ratios(self.of_random, asked))]])
        rows = []
        for cell in self.of_random:
            nearest = self.store.nearest(cell, asked)
            rows.append([self.text(cell), mean_and_worst([self.store.speedup(cell, asked)]), f"`{nearest[1]}`" if nearest else "-",
                         degrees_text(self.store.result(cell, OURS)), self.executable(cell, OURS),
                         degrees_text(self.store.result(cell, nearest[1])) if nearest else "-", self.executable(cell, nearest[1]) if nearest else "-"])
        lines = table(["setting", "margin", "nearest", f"`{OURS}`: dp x pp x tp", "executed", "nearest: dp x pp x tp", "executed"], rows)
        lines[1] = "|---|---:|---|---|---|---|---|"
        yield from lines

    def families(self, group, key):
        """The cells of a group that differ in `key` alone: all else in words, to {value: cell}."""
        families = {}
        for cell in self.cells(group):
            about = self.about(cell)
            families.setdefault(cell_text({**about, key: 0 if key == "seed" else "GPUs"}), {})[about[key]] = cell
        return families

    def seeds(self):
        families = self.families("seeds", "seed")
        if not families:
            return
        asked = [planner for planner in self.others if any(self.store.result(cell, planner) for cell in self.cells("seeds"))]
        yield "## Seeds and steps"
        yield ""
        yield ("Consecutive steps, with several seeds of the batches: margin over the sum of the steps, the mean over seeds, and in brackets the least and the most. `wlb-llm` alone carries documents from step to step; its queues are empty after the last.")
        yield ""
        rows = []
        for label, planners in [(named(planner), (planner,)) for planner in asked] + [("the best of them", asked)]:
            row = [label]
            for cells in families.values():
                ratios = self.ratios(cells.values(), planners)
                row.append(f"{mean(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})" if ratios else "no plan")
            rows.append(row)
        yield from table(["over"] + [f"{name}, {len(cells)} seeds" for name, cells in families.items()], rows)

    def feasible(self, planner):
        """The planner's results with an answer, of the settings that all are compared in."""
        results = (self.store.result(cell, planner) for cell in self.compared)
        return [result for result in results if result and result["feasible"]]

    def sensitivity(self):
        families = self.families("sensitivity", "cluster")
        if not families:
            return
        clusters = list(dict.fromkeys(cluster for cells in families.values() for cluster in cells))
        whole = {name: cells for name, cells in families.items() if len(cells) == len(clusters)}
        asked = [planner for planner in self.others if all(self.store.result(cell, planner) for cells in whole.values() for cell in cells.values())]
        yield "## Sensitivity"
        yield ""
        yield (f"Margins, mean (worst), over {len(whole)} of {len(families)} settings in which all of these clusters are computed, everybody searching anew on each: tensor-parallel overlap of 0, half (as preset) and all; "
               "kernels at half and twice their cost; memory traffic, that of prefixes above all, hidden behind arithmetic not at all, by three quarters (as preset) and wholly.")
        yield ""
        rows = []
        for label, planners in [(named(planner), (planner,)) for planner in asked] + [("the best of them", asked)]:
            rows.append([label] + [mean_and_worst([self.store.speedup(cells[cluster], planners) for cells in whole.values()]) for cluster in clusters])
        yield from table(["over"] + clusters, rows)
        rows = []
        for name, cells in whole.items():
            rows.append([name] + [mean_and_worst([self.store.speedup(cells[cluster], asked)]) for cluster in clusters])
        yield "Over the best of them, setting by setting:"
        yield ""
        yield from table(["setting"] + clusters, rows)

    def as_published(self):
        cells = self.cells("published")
        names = [planner for planner in self.others if f"{planner}{AS_PUBLISHED}" in self.planners]
        pairs = {name: [cell for cell in cells if self.store.result(cell, name) and self.store.result(cell, name + AS_PUBLISHED)] for name in names}
        pairs = {name: there for name, there in pairs.items() if there}
        if not pairs:
            return
        yield "## As published and strengthened"
        yield ""
        yield (f"Margin of `{OURS}` over a system that has no more than its publication or code has, and over the same system with every choice searched that is not a system's own ([planners.md](planners.md)); mean (worst). "
               "A strengthened form has more to search with the same budget, and may end slower for it.")
        yield ""
        rows = []
        for name, there in pairs.items():
            rows.append([named(name), len(there), mean_and_worst([self.store.speedup(cell, (name + AS_PUBLISHED,)) for cell in there]),
                         mean_and_worst([self.store.speedup(cell, (name,)) for cell in there])])
        both = [cell for cell in cells if all(cell in there for there in pairs.values())]
        rows.append(["the best of each setting", len(both), mean_and_worst([self.store.speedup(cell, [name + AS_PUBLISHED for name in pairs]) for cell in both]),
                     mean_and_worst([self.store.speedup(cell, list(pairs)) for cell in both])])
        yield from table(["system", "settings", "as published", "strengthened"], rows)

    def ablations(self):
        cells = [cell for cell in self.cells("ablations") if self.store.result(cell, OURS)] or [
            cell for cell in self.compared if self.switched and all(self.store.result(cell, planner) for planner in self.switched)]
        if cells and self.switched:
            meaning = {"slimpack-symmetric": "the same packs in both passes", "slimpack-samples": "no sample is cut",
                       "slimpack-unmerged": "no context-parallel groups", "slimpack-lasthead": "the head on the last stage",
                       "slimpack-fused": "gradients of weights inside B"}
            yield f"## One idea of `{OURS}` off"
            yield ""
            yield ("Time without the idea over time with it: above 1 the idea pays. Each variant searches all else again with the same budget, degrees too, so a value below 1 means that its search ended at something better than that of the whole.")
            yield ""
            rows = [[f"`{planner}`: {meaning.get(planner, '')}"] + [mean_and_worst([self.store.speedup(cell, (planner,))]) for cell in cells]
                    for planner in self.switched]
            yield from table(["variant"] + [self.text(cell) for cell in cells], rows)
        settings = [result["settings"] for result in (self.store.result(cell, OURS) for cell in self.compared) if result and result["feasible"]]
        rows = []
        for name in ("recompute", "same_packs", "weights", "head", "groups", "merge_threshold", "ramp", "order", "chunks", "schedule"):
            chosen = collections.Counter(setting[name] for setting in settings if name in setting)
            if chosen:
                rows.append([f"`{name}`", ", ".join(f"{value}: {count}" for value, count in sorted(chosen.items(), key=lambda item: (-item[1], item[0])))])
        if rows:
            yield f"What `{OURS}` chose in {len(settings)} settings, and how often:"
            yield ""
            yield from table(["choice", "how often"], rows, left=2)

    def options(self):
        cells = self.cells("options")
        if not cells:
            return
        yield f"## Choices of `{OURS}` fixed by hand"
        yield ""
        yield "Time with the choice fixed over time where it is searched (granularity: 128 tokens): what leaving it to the search is worth."
        yield ""
        everywhere = self.cells(*self.groups)
        rows = []
        for cell in cells:
            about = self.about(cell)
            free = dict(about, recompute="auto", head="auto", chunks="auto", merge="auto", granularity=128)
            base = next((other for other in everywhere if self.about(other) == free), None)
            time, reference = self.store.time(cell, OURS), self.store.time(base, OURS) if base else None
            rows.append([", ".join(f"{key} {about[key]}" for key in free if about[key] != free[key]), cell_text(free),
                         "no plan" if time is None else f"{time / reference:.3f}" if reference else "-",
                         degrees_text(self.store.result(cell, OURS))])
        yield from table(["fixed", "setting", "time", "dp x pp x tp"], rows, left=2)

    def executed(self, planner):
        """Settings whose chosen plan has no tensor parallelism, and those in which it has."""
        results = self.feasible(planner)
        split = sum(result["degrees"]["tp"] > 1 for result in results)
        return len(results) - split, split

    def executable(self, cell, planner):
        """Whether the backends execute the answer, in words."""
        result = self.store.result(cell, planner)
        if not result or not result["feasible"]:
            return "-"
        return "simulated only" if self.simulated_only(cell, planner) else "yes"

    def executor(self):
        yield "## What is executed"
        yield ""
        yield ("Both backends execute every plan, tensor parallelism (tp > 1) and all, the one for CUDA with ranks that share one card and on emulated devices, not on several cards so far ([cuda.md](cuda.md)); an answer that is simulated only cannot be executed. How many of the chosen answers these are, and what the best is worth that a planner tried without tensor parallelism.")
        yield ""
        rows = []
        for planner in [OURS] + self.others:
            results = self.feasible(planner)
            if not results:
                continue
            split = sum(result["degrees"]["tp"] > 1 for result in results)
            only = sum(bool(result.get("simulated_only")) for result in results)
            losses = []
            for result in results:
                times = [other["iteration_s"] for other in result["others"] if other["tp"] == 1 and other["iteration_s"] is not None]
                if result["degrees"]["tp"] > 1 and times:
                    losses.append(min(times) / result["iteration_s"])
            rows.append([f"`{planner}`", len(results), split, only, f"{mean(losses):.3f} of {len(losses)}" if losses else "-"])
        yield from table(["planner", "answers", "tp > 1", "simulated only", "time without tp over time with it, where tried among the best four"], rows)

    def figures(self):
        yield "## MicroPacks, memory, bytes sent, planning time"
        yield ""
        newest = list(self.store.results.values())[-1].get("commit", "not said")
        yield ("Means over the settings in which the planner has a plan. *Spread* is the standard deviation of a MicroPack's compute time over its mean (units that taper on purpose count); *imbalance* the most loaded data-parallel rank over the mean; "
               "*idle* the share of the devices' time without compute; *memory* the peak of the fullest device over what it may hold; *sent* what all devices send for a token, weights' gradients too; *plan* the time to plan at the chosen degrees; "
               f"*CPU* the processor time at all degrees, both of the results by `{newest}` alone: later searches may be faster.")
        yield ""
        rows = []
        for planner in [OURS] + self.others:
            results = self.feasible(planner)
            if not results:
                continue

            def figure(key):
                return average([result[key] for result in results])

            def seconds(key, digits):
                those = [result[key] for result in results if result.get("commit", "not said") == newest]
                return f"{average(those):.{digits}f}" if those else "-"
            rows.append([f"`{planner}`", f"{100 * figure('efficiency'):.1f} %", f"{figure('forward_cv'):.2f}", f"{figure('backward_cv'):.2f}",
                         f"{figure('dp_imbalance'):.3f}", f"{100 * figure('bubble'):.1f} %",
                         f"{100 * average([result['peak_bytes'] / result['limit_bytes'] for result in results]):.0f} % "
                         f"({100 * max(result['peak_bytes'] / result['limit_bytes'] for result in results):.0f} %)",
                         f"{average([result['communication_bytes'] / result['tokens'] for result in results]) / 1e6:.2f}",
                         seconds("plan_seconds", 2), seconds("cpu_seconds", 1)])
        yield from table(["planner", "share of ideal", "forward spread", "backward spread", "imbalance", "idle", "memory (most)", "sent, MB a token", "plan, s", "CPU, s"], rows)

    def where_time_goes(self):
        yield f"## Where the time of `{OURS}` goes"
        yield ""
        yield "The worst setting of each length set by share of ideal, and the five largest parts of what is lost there, in per cent of the step."
        yield ""
        worst = {}
        for cell in self.compared:
            result = self.store.result(cell, OURS)
            if result and result["feasible"]:
                name = self.about(cell)["set"]
                worst[name] = min(worst.get(name, (math.inf, "")), (result["efficiency"], cell))
        rows = []
        for share, cell in worst.values():
            result = self.store.result(cell, OURS)
            split = sorted(((time, cause) for cause, time in result["time_split"].items() if cause != "ideal"), key=lambda pair: (-pair[0], pair[1]))
            rows.append([self.text(cell), f"{100 * share:.1f} %", ", ".join(f"{cause} {100 * time / result['iteration_s']:.1f}" for time, cause in split[:5])])
        yield from table(["setting", "share of ideal", "lost on"], rows, last_left=True)

    def chosen_degrees(self):
        cells = self.of_chosen or self.compared
        yield "## Chosen degrees"
        yield ""
        yield f"Chosen settings: dp x pp x tp of `{OURS}`, with its recomputation; of the best Megatron planner; of the best other planner, and the margin over it."
        yield ""
        rows = []
        for cell in cells:
            ours = self.store.result(cell, OURS)
            row = [self.text(cell), degrees_text(ours) + (f", {ours['settings'].get('recompute', '-')}" if ours and ours["feasible"] else "")]
            for names in (MEGATRON, self.others):
                nearest = self.store.nearest(cell, names)
                row.append(f"`{nearest[1]}` {degrees_text(self.store.result(cell, nearest[1]))}" if nearest else "no plan")
            rows.append(row + [self.executable(cell, OURS), mean_and_worst([self.store.speedup(cell, self.others)])])
        yield from table(["setting", f"`{OURS}`", "best Megatron", "best other", f"`{OURS}` executed", "margin"], rows, left=5)

    def without_plan(self):
        rows = []
        for planner in [OURS] + self.others:
            failed = [(cell, self.store.result(cell, planner)) for cell in self.compared]
            failed = [(cell, result) for cell, result in failed if result and not result["feasible"]]
            for cell, result in failed[:3]:
                rows.append([f"`{planner}`", f"{len(failed)}", self.text(cell), result["why"]])
        if not rows:
            return
        yield "## Without a feasible plan"
        yield ""
        yield "How many settings, with the first three and what is lacking at the degrees that come nearest."
        yield ""
        lines = table(["planner", "settings", "such as", "what is lacking"], rows)
        lines[1] = "|---|---:|---|---|"
        yield from lines


def without_seconds(value):
    """A result without what its commit and its host say."""
    if isinstance(value, dict):
        return {name: without_seconds(of) for name, of in value.items() if name not in OF_HOST}
    return [without_seconds(of) for of in value] if isinstance(value, list) else value


def computed_again(store, again):
    """Compares what two stores have in common; 1 if something differs or nothing is in common."""
    both = [key for key in store.results if key in again.results]
    differ = [key for key in both if without_seconds(store.results[key]) != without_seconds(again.results[key])]
    for key in differ:
        old, new = store.results[key], again.results[key]
        times = [f"{of['iteration_s']:.9g} s" if of["feasible"] else "no plan" for of in (old, new)]
        print(f"{new['planner']} on {cell_text(new['cell'])}: {times[0]} by {old['commit']}, {times[1]} by {new['commit']}")
    ratios = collections.defaultdict(list)
    for key in both:
        old, new = store.results[key], again.results[key]
        if old["feasible"] and new["feasible"]:
            ratios[new["planner"]].append(new["iteration_s"] / old["iteration_s"])
    for planner, found in ratios.items() if differ else ():
        print(f"{planner}: {len(found)} results, from {min(found):.4f} to {max(found):.4f} of their times before, "
              f"{average(found):.4f} on average")
    commits = ", ".join(sorted({again.results[key]["commit"] for key in both}))
    planners = len({again.results[key]["planner"] for key in both})
    print(f"{len(both)} results of {planners} planners in both stores, {len(differ)} differ in more than seconds of planning"
          + (f"; computed again by {commits}" if both else ""))
    return 1 if differ or not both else 0


def main(arguments):
    parser = argparse.ArgumentParser(description="Writes the page of the evaluation from a store of results, or compares two stores.")
    parser.add_argument("store", help="what slimpack evaluate --store has written")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--pictures", type=pathlib.Path, metavar="FOLDER", help="write the page's pictures there")
    either.add_argument("--again", metavar="STORE", help="instead: which results of another store, by another commit or host, differ in "
                        "more than seconds of planning; status 1 if one does")
    options = parser.parse_args(arguments)
    try:
        if options.again is not None:
            return computed_again(Store(options.store, VERSIONS), Store(options.again, VERSIONS))
        page = Page(Store(options.store, VERSIONS))
        text = "\n".join(page.lines())
        for name, picture in page.pictures().items() if options.pictures else ():
            (options.pictures / name).write_text(picture, encoding="utf-8")
    except BadStore as error:
        print(f"evaluation.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"evaluation.py: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
