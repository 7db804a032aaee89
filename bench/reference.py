# SPDX-License-Identifier: Apache-2.0
"""Whether a machine kept its speed while something was measured: a fixed piece of work runs before and behind it, and
where the two turns differ, the time between them says nothing. For bench/trainer.py and python/bench/torch_step.py."""
from statistics import median

LIMIT = 0.01  # of the difference, unless somebody says otherwise
TRIES = 10  # so many times as many as are wanted, unless somebody says otherwise


def quantile(values, share):
    """Between the two nearest values, by how near they are."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def spread(seconds):
    """The interquartile range over the median."""
    return (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / median(seconds)


def steady(before, after, limit):
    """Whether what was measured between these two turns counts: they differ by at most a share of their mean. The
    measured time itself is not asked, so that none is left out for being slow or fast."""
    return abs(after - before) <= limit * (before + after) / 2


def too_few(times, wanted, limit):
    """Those of {name: (times that count, all times)} of which too few count, and a sentence that says why nothing may be
    reported of them; ([], None) where there are none."""
    few = [name for name, (counted, _) in times.items() if counted < wanted]
    if not few:
        return [], None
    which = ", ".join(f"of {times[name][1]} times of {name} {times[name][0]}" for name in few)
    return few, (f"{which} lie between two turns of the fixed reference that differ by at most {100 * limit:g} %, wanted "
                 f"are {wanted}, so the machine does not keep its speed and no time of these is reported")


def of_ranges(values, form):
    """The median with the range from the 10th to the 90th percentile."""
    return f"{form(median(values))} ({form(quantile(values, 0.1))} to {form(quantile(values, 0.9))})"
