# SPDX-License-Identifier: Apache-2.0
"""Whether a machine kept its speed while something was measured: a fixed piece of work runs in turns with the measured
ones, and where its own times spread, theirs say nothing. For bench/trainer.py and python/bench/torch_step.py."""
from statistics import median

LIMIT = 0.01  # of the spread, unless somebody says otherwise


def quantile(values, share):
    """Between the two nearest values, by how near they are."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def spread(seconds):
    """The interquartile range over the median."""
    return (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / median(seconds)


def unsteady(seconds, limit):
    """Why nothing that ran in turns with these times may be reported; nothing where it may."""
    found = spread(seconds)
    if found <= limit:
        return None
    return (f"the fixed reference varies by {100 * found:.2f} % (interquartile range over median of {len(seconds)} turns), "
            f"allowed are {100 * limit:g} %, so the machine does not keep its speed and no time is reported")


def of_ranges(values, form):
    """The median with the range from the 10th to the 90th percentile."""
    return f"{form(median(values))} ({form(quantile(values, 0.1))} to {form(quantile(values, 0.9))})"
