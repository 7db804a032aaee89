# SPDX-License-Identifier: Apache-2.0
"""What times say that were measured on a machine whose speed changes: a fixed piece of work, the reference, runs before and
behind each of them, a time is divided by the mean of the two, and the median of many such ratios has an interval. For
bench/trainer.py and python/bench/torch_step.py."""
import math
from statistics import median

LIMIT = 0.01  # to which a median has to be known, unless somebody says otherwise
TRIES = 10  # so many times as many as are wanted, unless somebody says otherwise
DOUBT = 0.05  # with which a median is outside its interval, at most


def quantile(values, share):
    """Between the two nearest values, by how near they are."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def spread(seconds):
    """The interquartile range over the median."""
    return (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / median(seconds)


def interval(values):
    """The least and the most that the median of independent draws may be by these: the two order statistics, equally far
    from both ends, nearest to each other that miss it with a probability of at most DOUBT, whatever is drawn from. How many
    draws are below the median is binomial. None of five values or fewer, which cannot say it."""
    ordered = sorted(values)
    cut, missed = 0, 0.5 ** len(ordered)
    while 2 * missed <= DOUBT:
        cut += 1
        missed += math.comb(len(ordered), cut) * 0.5 ** len(ordered)
    return (ordered[cut - 1], ordered[-cut]) if cut else None


def doubt(values):
    """Half the median's interval over the median; infinity where there is none."""
    ends = interval(values)
    return (ends[1] - ends[0]) / 2 / median(values) if ends else math.inf


def known(values, wanted, limit):
    """Whether there are as many as are wanted, and their median is known to the limit."""
    return len(values) >= wanted and doubt(values) <= limit


def unknown(ratios, wanted, limit):
    """Those of {name: ratios to the reference} of which nothing may be reported, and a sentence that says why; ([], None)
    where there are none."""
    few = [name for name, values in ratios.items() if not known(values, wanted, limit)]
    if not few:
        return [], None

    def why(name):
        values = ratios[name]
        if interval(values) is None or len(values) < wanted:
            return f"{name} has {len(values)} times"
        return f"the median of {len(values)} times of {name} is known to {100 * doubt(values):.2g} %"

    return few, (f"{', '.join(map(why, few))}; wanted are at least {max(wanted, 6)} times, over those of the fixed reference, "
                 f"whose median is known to {100 * limit:g} %, so the machine does not keep its speed and no time of these is "
                 "reported")


def unsteady(seconds, limit):
    """A sentence on the reference's times, where half their interquartile range is above the limit of their median. Medians of
    ratios are then known less well than their intervals say: these hold for draws that do not depend on each other, which
    times of a machine that is slow for minutes are not, and what is slow differs from one piece of work to another."""
    off = spread(seconds) / 2
    return None if off <= limit else (
        f"half the interquartile range of the reference's {len(seconds)} times is {100 * off:.2g} % of their median, wanted are "
        f"{100 * limit:g} %, so the machine did not keep its speed and nothing is reported")


def of_ranges(values, form):
    """The median with the range from the 10th to the 90th percentile."""
    return f"{form(median(values))} ({form(quantile(values, 0.1))} to {form(quantile(values, 0.9))})"


def of_interval(values, form):
    """The median with its interval, where there is one."""
    ends = interval(values)
    return form(median(values)) + (f" ({form(ends[0])} to {form(ends[1])})" if ends else "")
