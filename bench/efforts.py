#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near does effort `fast` come to `normal`, over many steps?

bench/efforts.py PROGRAM [--seed S] [--draws N] [--samples 512,4096] [--settings] [--beside OTHER [--effort E]] [--threads T]

Draws N steps of each number of samples from log-normal(7.0, 1.3), at most 256K tokens, and plans each with both efforts
(llama-7b on h100, dp 8, pp 8); with --settings N settings of bench/random_settings.py in their place. With --beside, the
same effort of another PROGRAM takes the place of `normal`: `fast`, or --effort. Prints the efficiency of both, 0 where no
plan is found, their ratio, its geometric mean, the worst and the best, in how many steps each finds no plan, which have no
ratio, and the mean processor seconds of planning. A draw has its own seed: the same numbers are drawn anywhere. Run from
the root of the repository. Ends with 2 for options that are wrong, with 1 where a program fails.
"""
import argparse
import math
import pathlib
import random
import sys
import tempfile

from random_settings import Refused, compare, setting

LONGEST = 262144
DEGREES = ("--model", "llama-7b", "--cluster", "h100", "--dp", "8", "--pp", "8", "--context", str(LONGEST))


def steps(options, folder):
    """Of each group of steps its name, of each step its name and the arguments of `slimpack compare`."""
    if options.settings:
        yield "settings", ((" ".join(arguments), arguments) for arguments in
                           (setting(options.seed, draw) for draw in range(options.draws)))
        return
    for samples in options.samples:
        def drawn(samples=samples):
            for draw in range(options.draws):
                source = random.Random(f"{options.seed}/{samples}/{draw}")
                lengths = [min(LONGEST, max(1, round(source.lognormvariate(7.0, 1.3)))) for _ in range(samples)]
                path = folder / "drawn.lengths"
                path.write_text("\n".join(map(str, lengths)), encoding="utf-8")
                yield f"{draw}, longest {max(lengths):,}", [str(path), *DEGREES]
        yield f"{samples:,} samples", drawn()


def counts(text):
    if not all(part.isdecimal() and int(part) > 0 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"numbers of samples, at least 1, with commas between, not {text!r}")
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--samples", default="512,4096", type=counts)
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--beside", type=pathlib.Path)
    parser.add_argument("--effort", choices=("fast", "normal", "thorough"), default="fast")
    parser.add_argument("--threads", default="1")
    options = parser.parse_args()
    if options.draws < 1:
        parser.error(f"--draws must be at least 1, not {options.draws}")
    if options.effort != "fast" and not options.beside:
        parser.error("--effort needs --beside")
    for program in filter(None, (options.program, options.beside)):
        if not program.is_file():
            parser.error(f"{program}: no such program")
    mine, other = (options.program, options.effort), (options.program, "normal")
    name_of_mine, name_of_other = f"`{options.effort}`", "`normal`"
    if options.beside:
        other, name_of_other = (options.beside, options.effort), f"{name_of_mine} of the other"

    def planned(arguments, program, effort):
        """Efficiency and processor seconds."""
        one = compare(arguments, str(program), ["slimpack"], effort, options.threads)["slimpack"]
        return one["efficiency"] if one["feasible"] else 0, one["cpu_seconds"]

    print(f"| steps | step | {name_of_mine} | {name_of_other} | ratio |\n|---|---|---|---|---|")
    summary = []
    with tempfile.TemporaryDirectory() as folder:
        for group, members in steps(options, pathlib.Path(folder)):
            pairs, seconds = [], [0, 0]
            for name, arguments in members:
                found = [planned(arguments, *each) for each in (mine, other)]
                pairs.append([efficiency for efficiency, _ in found])
                seconds = [before + spent for before, (_, spent) in zip(seconds, found)]
                ratio = f"{pairs[-1][0] / pairs[-1][1]:.3f}" if all(pairs[-1]) else "-"
                print(f"| {group} | {name} | {pairs[-1][0]:.3f} | {pairs[-1][1]:.3f} | {ratio} |", flush=True)
            ratios = [one / two for one, two in pairs if one and two]
            line = f"{group}: of {len(pairs)} steps {name_of_mine} plans {sum(one > 0 for one, _ in pairs)}, {name_of_other} {sum(two > 0 for _, two in pairs)}"
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                line += f"; ratio {mean:.3f} in geometric mean, {min(ratios):.3f} at worst, {max(ratios):.3f} at best"
            summary.append(line + f"; {seconds[0] / len(pairs):.3f} and {seconds[1] / len(pairs):.3f} s of planning on average")
    print("\n" + "\n".join(summary))


if __name__ == "__main__":
    try:
        main()
    except Refused as error:
        sys.exit(str(error))
