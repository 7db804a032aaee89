# SPDX-License-Identifier: Apache-2.0
"""Planning, comparing and tuning."""
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

import numpy as np

from . import _core
from ._arguments import Bar, Lengths, Number, Options, Path, Progress, TuneOptions, lengths_of, tell, word, words
from ._plan import Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack


def plan(
    lengths: Lengths,
    *,
    model: Path = "llama-7b",
    cluster: Path = "h100",
    dp: Number = 1,
    pp: Number = 1,
    tp: Number = 1,
    context: Number = 131072,
    planner: str = "slimpack",
    effort: str = "normal",
    threads: Optional[int] = None,
    overlong: str = "error",
    batch_tokens: Optional[Number] = None,
    batch_samples: Optional[Number] = None,
    step: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    chunks: Optional[Number] = None,
    head: Optional[str] = None,
    recompute: Optional[str] = None,
    weights: Optional[str] = None,
    granularity: Number = 128,
    merge: Optional[Number] = None,
    max_units: Optional[Number] = None,
    optimizer: str = "sharded",
    weight_state: Optional[str] = None,
    memory: Optional[Number] = None,
    cost: Optional[Path] = None,
    runtime: Optional[str] = None,
    progress: Progress = False,
) -> Plan:
    """Plans one training step. The same request gives the plan of the command line, byte for byte.

    Args:
        lengths: tokens of each document: any sequence or array of integers with one axis, or a path
            that `slimpack plan` reads (text, .idx, .npy, .jsonl). An array is planned as standard
            input is.
        model: a preset (`slimpack.presets()`) or a Hugging Face config.json.
        cluster: a preset or a JSON file.
        dp, pp, tp: data-parallel ranks, pipeline stages, tensor-parallel devices of a stage.
        context: the longest sample in tokens.
        planner: a name of `slimpack.planners()`.
        effort: how many candidates are simulated: "fast", "normal" or "thorough".
        threads: how many threads plan; None: all cores. Never changes the answer.
        overlong: documents above the context: "split", "drop" or "error".
        batch_tokens, batch_samples: what a step holds at most; None: all documents are one step.
        step, seed, shuffle: which batch, from 0, in which order of documents.
        chunks, head, recompute, weights, merge, max_units: None: searched. `head` is "last" or
            "shard"; `recompute` "none", "light", "layer" or "full"; `weights` "with" or "apart";
            `merge` "off" or the most ranks that share a sample; `max_units` the most MicroPacks of a
            pass and rank.
        granularity: slice boundaries fall on multiples of so many tokens.
        optimizer: its state: "sharded" or "replicated".
        weight_state: weights and gradients on data-parallel ranks: "replicated", or on one stage
            "sharded" (ZeRO-3); None: searched.
        memory: bytes of a device, such as 80e9 or "80G"; None: the cluster's.
        cost: a calibrated cost model (`slimpack calibrate`); None: the analytic one.
        runtime: "torch": a plan that PyTorch's pipeline runtime executes as it is planned, of a search
            for it. Head on the last stage, H right after F, weight packs that are unions of backward
            packs, layers spread evenly.
        progress: True shows tqdm's bar where tqdm is installed. A function is called some 20 times a
            second with how many candidates were simulated and how many may be; what it raises ends the
            search.

    Raises:
        InvalidInput: an argument breaks a rule, before any work.
        Infeasible: there is no feasible plan.

    The interpreter lock is released meanwhile, and Ctrl-C ends the search after the candidates that
    are being simulated.
    """
    options = dict(
        model=model, cluster=cluster, dp=dp, pp=pp, tp=tp, context=context, effort=effort, threads=threads,
        overlong=overlong, batch_tokens=batch_tokens, batch_samples=batch_samples, step=step, seed=seed,
        shuffle=shuffle, chunks=chunks, head=head, recompute=recompute, weights=weights, granularity=granularity,
        merge=merge, max_units=max_units, optimizer=optimizer, weight_state=weight_state, memory=memory, cost=cost,
        runtime=runtime)
    with Bar(progress, "planning") as bar:
        made, notes = _core.plan(lengths_of(lengths), words(options), planner, bar.report)
    tell(notes)
    return Plan(made)


def compare(
    lengths: Lengths,
    planners: Optional[Sequence[str]] = None,
    *,
    steps: int = 1,
    baseline: str = "megatron",
    progress: Progress = False,
    **options: Unpack[Options],
) -> list[dict[str, Any]]:
    """Plans the same steps with several planners.

    Args:
        lengths: as `plan` takes them, and so are `options`.
        planners: names of `slimpack.planners()`; None: all.
        steps: consecutive steps, from `step` on.
        baseline: the planner that speed-ups are over.
        progress: as `plan` takes it.

    Returns:
        A dict for each planner and step, with the keys of `slimpack compare --json`
        (docs/reports.md). A planner without a feasible plan has `feasible` False and `why`.

    Raises InvalidInput as `plan` does.
    """
    names = [planners] if isinstance(planners, str) else list(planners or ())
    with Bar(progress, "comparing") as bar:
        text, notes = _core.compare(
            lengths_of(lengths), words(dict(options)), names, word(steps), baseline, bar.report)
    tell(notes)
    results: list[dict[str, Any]] = json.loads(text)["results"]
    return results


def tune(
    lengths: Lengths,
    gpus: int,
    planners: Sequence[str] = ("slimpack",),
    *,
    batch_tokens: Union[None, Number, Sequence[Number]] = None,
    steps: int = 1,
    finalists: Union[int, str] = 3,
    progress: Progress = False,
    **options: Unpack[TuneOptions],
) -> list[dict[str, Any]]:
    """Searches the best dp x pp x tp of a number of devices.

    Args:
        lengths: as `plan` takes them, and so are `options`; `dp`, `pp` and `tp` are searched where
            they are not given.
        gpus: devices: dp x pp x tp.
        planners: names of `slimpack.planners()`.
        batch_tokens: one bound on a step's tokens, or several that are compared.
        steps: consecutive steps, from `step` on.
        finalists: degrees that are planned with the whole budget of `effort`, or "all".
        progress: as `plan` takes it.

    Returns:
        A dict for each planner and batch size, with the keys of `slimpack tune --json`
        (docs/reports.md); the first of its `tried` is the best.

    Raises InvalidInput as `plan` does.
    """
    bounds: Any = batch_tokens
    given = {**options, "batch_tokens": bounds if np.ndim(bounds) == 0 else ",".join(map(word, bounds))}
    names = [planners] if isinstance(planners, str) else list(planners)
    with Bar(progress, "tuning") as bar:
        text, notes = _core.tune(
            lengths_of(lengths), words(given), names, word(gpus), word(steps), word(finalists), bar.report)
    tell(notes)
    results: list[dict[str, Any]] = json.loads(text)["results"]
    return results


def planners() -> dict[str, str]:
    """Every planner by name, with a line on what it does."""
    return _core.planners()


def presets() -> dict[str, dict[str, Any]]:
    """The models and clusters that are compiled in: {"models": {name: ...}, "clusters": {name: ...}},
    each as a file for `model` or `cluster` has it."""
    return {
        "models": {name: json.loads(text) for name, text in _core.models().items()},
        "clusters": {name: json.loads(text) for name, text in _core.clusters().items()},
    }
