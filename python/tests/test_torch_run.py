# SPDX-License-Identifier: Apache-2.0
"""run_plan on processes of this machine."""
from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402

import slimpack  # noqa: E402
import torch_plans  # noqa: E402
from slimpack import InvalidInput, Plan  # noqa: E402
from slimpack.torch import PlanStages, StepFailed, collate, measure_memory, run_plan, write_schedule_csv  # noqa: E402
from slimpack.torch._layout import Layout, Share  # noqa: E402
from slimpack.torch._memory import Allocations  # noqa: E402


@pytest.mark.parametrize("dp, pp, kind, tied", [(1, 2, "qwen3", True), (2, 2, "llama", False)])
def test_gradients_are_those_of_the_unsliced_model(dp: int, pp: int, kind: str, tied: bool) -> None:
    plans = [(seed, torch_plans.draw(seed, dp, pp, tied)[0]) for seed in range(6)]
    plans.sort(key=lambda one: one[1].chunks)
    used = {name for _, plan in plans for name in torch_plans.features(plan)}
    assert {"prefixes", "weights apart"} <= used and ({"merged", "by heads"} <= used or dp == 1)
    for worst in torch_plans.spawn(dp * pp, torch_plans.compare, [(s, p.to_dict()) for s, p in plans], kind, tied):
        assert not isinstance(worst, Exception), worst
        assert max(worst) < 1e-10


def _memory(rank: int, made: list[Any], sizes: Any) -> list[Any]:
    import transformers

    found = []
    torch.manual_seed(0)
    whole = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    for one in made:
        plan = Plan.from_dict(one)
        stages = PlanStages(whole, plan)
        batch = collate(plan, torch_plans.documents_of(plan, 0), stages.dp_rank)
        loss = run_plan(plan, stages, batch)
        with Allocations() as step:
            run_plan(plan, stages, batch)
        optimizer = torch.optim.AdamW(stages.parameters(), lr=0.0)  # its state alone is of interest
        found.append((loss, step.live, *measure_memory(plan, stages, batch, 1e9)))
        optimizer.step()
        found[-1] += (measure_memory(plan, stages, batch, 1e9, optimizer).memory,)
        with pytest.raises(InvalidInput, match="leave nothing of 1000"):
            measure_memory(plan, stages, batch, 1000)
    return found


def test_memory_is_measured_beside_what_is_planned_and_given_back(tmp_path: Any) -> None:
    # Every head has keys of its own: attention copies nothing, which recomputation must not rely on.
    sizes = dict(torch_plans.SIZES, num_key_value_heads=4, num_hidden_layers=4)
    (tmp_path / "config.json").write_text(json.dumps(dict(sizes, architectures=["LlamaForCausalLM"],
                                                          torch_dtype="float32")))
    asked = [(mode, weights) for mode in ("none", "light", "layer", "full") for weights in ("with", "apart")]
    plans = [slimpack.plan([90, 200, 40, 130], model=tmp_path / "config.json", pp=2, context=256, granularity=16,
                           chunks=1, max_units=4, effort="fast", runtime="torch", optimizer="replicated",
                           recompute=mode, weights=weights) for mode, weights in asked]
    told = torch_plans.spawn(2, _memory, [plan.to_dict() for plan in plans], sizes)
    for rank in told:
        assert not isinstance(rank, Exception), rank
        measured = {}
        for one, (loss, left, found, predicted, memory, again) in zip(asked, rank):
            measured[one] = found
            assert loss == pytest.approx(rank[0][0], rel=1e-5)
            assert left < 0.02 * found  # nothing of a step outlives it
            assert 0.3 < found / predicted < 10 and 1e8 < memory < 1e10
            assert again == pytest.approx(memory, rel=0.05)
        assert measured["full", "with"] < measured["layer", "with"] < measured["none", "with"]
    assert [one[4] for one in told[0]] == [one[4] for one in told[1]]


def _sharded_optimizer(rank: int, made: Any) -> list[float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    plan = Plan.from_dict(made)
    trained, elements = [], []
    for sharded in (False, True):
        stages = PlanStages(torch_plans.model(), plan)
        optimizer: Any = (ZeroRedundancyOptimizer(stages.parameters(), torch.optim.AdamW, lr=1e-2,
                                                  process_group=stages.mesh.get_group("dp"))
                          if sharded else torch.optim.AdamW(stages.parameters(), lr=1e-2))
        batch = collate(plan, torch_plans.documents_of(plan, 0), stages.dp_rank)
        for _ in range(3):
            run_plan(plan, stages, batch)
            stages.clip_grad_norm_(1.0)
            optimizer.step()
        trained.append(stages.parameters())
        state = (optimizer.optim if sharded else optimizer).state
        elements.append(sum(one["exp_avg"].numel() for one in state.values()))
    return [*elements, max(float((a - b).abs().max()) for a, b in zip(*trained))]


def test_an_optimizer_with_a_sharded_state_trains_alike() -> None:
    plan, _ = torch_plans.draw(2, 2, 1)
    told = torch_plans.spawn(2, _sharded_optimizer, plan.to_dict())
    assert not any(isinstance(one, Exception) for one in told), told
    whole = told[0][0]
    assert [one[0] for one in told] == [whole, whole] and told[0][1] + told[1][1] == whole
    assert max(one[1] for one in told) < 0.6 * whole and max(one[2] for one in told) == 0


def test_shares_are_counted_as_they_are_listed() -> None:
    for ranks in (1, 2, 3, 5):
        for place in range(ranks):
            share = Share(place, ranks, 4)
            for end in (0, 1, 7, 40, 83):
                assert share.count(end) == len(share.positions(0, end))
        assert sum(Share(i, ranks, 4).count(83) for i in range(ranks)) == 83


def test_cells_cover_every_row_once() -> None:
    for seed in range(8):
        plan, _ = torch_plans.draw(seed, 2, 2)
        for dp in range(2):
            layout = Layout(plan, dp)
            for packs, cells, rows in ((layout.forward, layout.forward_cells, "forward_rows"),
                                       (layout.backward, layout.backward_cells, "backward_rows")):
                for pack, found in zip(packs, cells):
                    covered = sorted(row for cell in found for row in getattr(cell, rows).tolist())
                    assert covered == list(range(pack.rows))


def _mixed_plans(rank: int, plans: list[Any]) -> str:
    plan = Plan.from_dict(plans[rank])
    stages = PlanStages(torch_plans.model(), Plan.from_dict(plans[0]))
    try:
        run_plan(plan, stages, collate(plan, torch_plans.documents_of(plan, 0), stages.dp_rank))
    except StepFailed as error:
        return str(error)
    return "ran"


def test_plans_that_differ_between_ranks_end_the_step_everywhere() -> None:
    plans = [torch_plans.draw(seed, 1, 2)[0] for seed in range(40)]
    first = plans[0]
    other = next(p for p in plans[1:] if p.chunks == first.chunks and p.to_dict()["stages"] == first.to_dict()["stages"])
    told = torch_plans.spawn(2, _mixed_plans, [first.to_dict(), other.to_dict()])
    assert told == [f"plan: rank 1 has the plan {other.hash}, rank 0 has {first.hash}"] * 2


def _wrong_batch(rank: int, made: Any) -> list[str]:
    plan = Plan.from_dict(made)
    stages = PlanStages(torch_plans.model(), plan)
    batch = collate(plan, torch_plans.documents_of(plan, 0), stages.dp_rank)
    told = []
    for change in ("gone", "short", "none"):
        wrong = dict(batch)
        number = next(iter(wrong))
        pack = wrong[number]
        if rank == 1 and change == "gone":
            del wrong[number]
        elif rank == 1:
            wrong[number] = pack._replace(input_ids=pack.input_ids[:, 1:])
        if change == "none":
            wrong = {key: one._replace(labels=torch.full_like(one.labels, -100)) for key, one in batch.items()}
        try:
            run_plan(plan, stages, wrong)
        except StepFailed as error:
            told.append(str(error))
    told.append(f"{run_plan(plan, stages, batch) > 0}")  # a refused step leaves nothing behind
    return told


def test_a_batch_that_does_not_match_its_plan_ends_the_step_everywhere() -> None:
    plan = torch_plans.draw(1, 1, 2)[0]
    told = torch_plans.spawn(2, _wrong_batch, plan.to_dict())
    assert told[0] == told[1]
    gone, short, none, ran = told[0]
    assert gone.startswith("rank 1: batch: forward MicroPack") and gone.endswith("is missing")
    assert short.startswith("rank 1: batch: input_ids of MicroPack") and "must have shape" in short
    assert none == f"batch: step {plan.step} has no label"
    assert ran == "True"


def _dying(rank: int, made: Any) -> str:
    plan = Plan.from_dict(made)
    stages = PlanStages(torch_plans.model(), plan)
    batch = collate(plan, torch_plans.documents_of(plan, 0), stages.dp_rank)
    run_plan(plan, stages, batch)
    if rank == 1:
        stages.stages[0].backward_one_chunk = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    try:
        run_plan(plan, stages, batch)
    except StepFailed as error:
        return str(error)
    return "ran"


def _watch(rank: int, made: Any) -> str:
    told = _dying(rank, made)
    os.write(1, f"[rank {rank}] {told}\n".encode())
    os._exit(3)  # as an uncaught exception ends a program: its neighbours see it


def test_a_rank_that_dies_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    plan = torch_plans.draw(3, 2, 2)[0]
    begin = time.monotonic()
    codes = torch_plans.run_to_the_end(4, _watch, plan.to_dict())
    assert time.monotonic() - begin < 120
    assert codes[1] == -signal.SIGKILL and all(code == 3 for i, code in enumerate(codes) if i != 1)
    told = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[rank")]
    assert len(told) == 3 and all(f"step {plan.step} ended early: " in line for line in told)


def test_schedule_files_run_on_the_runtime(tmp_path: Any) -> None:
    """As torchtitan does: its own stages, its schedule class, `_load_csv`, a step."""
    written = 0
    for seed in range(12):
        plan, _ = torch_plans.draw(seed, 1, 2)
        try:
            write_schedule_csv(plan, tmp_path / f"{seed}-{plan.chunks}-{sum(p.pass_ == 'forward' for p in plan.micropacks)}.csv")
            written += 1
        except InvalidInput as error:
            assert "execute such plans with run_plan" in str(error)
    assert written > 3
    for told in torch_plans.spawn(2, _schedule_files, str(tmp_path)):
        assert not isinstance(told, Exception), told
        assert len(told) == written and max(told) < 1e-5


def _schedule_files(rank: int, folder: str) -> list[float]:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    found = []
    for name in sorted(os.listdir(folder)):
        _, chunks, packs = map(int, name[:-4].split("-"))
        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 4) for _ in range(2 * chunks)]
        x = torch.randn(packs, 4)
        expected = torch.nn.Sequential(*layers)
        torch.nn.functional.mse_loss(expected(x), torch.zeros_like(x), reduction="sum").backward()
        gradients = [layer.weight.grad.clone() for layer in layers]
        for layer in layers:
            layer.zero_grad()
        stages = [PipelineStage(layers[i], i, 2 * chunks, torch.device("cpu")) for i in range(rank, 2 * chunks, 2)]
        schedule = _PipelineScheduleRuntime(stages, n_microbatches=packs, scale_grads=False,
                                            loss_fn=lambda y, t: torch.nn.functional.mse_loss(y, t, reduction="sum"))
        schedule._load_csv(os.path.join(folder, name))
        schedule.step(*((x,) if rank == 0 else ()), target=torch.zeros_like(x))
        found.append(max(float((layers[i].weight.grad - gradients[i]).abs().max()) for i in range(rank, 2 * chunks, 2)))
    return found


def test_plans_for_other_runtimes_are_refused_by_name() -> None:
    plan, _ = torch_plans.draw(0, 1, 2)
    for change, sentence in ((lambda d: d["parallel"].update(tp=2), "tp 1"),
                             (lambda d: d["parallel"].update(head="shard"), "head on the last stage"),
                             (_share_weights, "weights whole on every rank"),
                             (_late_head, "does not follow its F")):
        made = plan.to_dict()
        change(made)
        if made["parallel"]["tp"] == 2:
            made["placement"] = [[dp, pp, tp, 2 * pp + tp] for dp, pp, tp, _ in
                                 [(*row[:2], t, 0) for row in made["placement"] for t in range(2)]]
        try:
            other = Plan.from_dict(made)
        except InvalidInput:
            continue  # refused even earlier
        with pytest.raises(InvalidInput, match=sentence):
            Layout(other, 0)


def _share_weights(made: Any) -> None:
    made["version"] = 3
    made["memory"]["weights"] = "sharded"


def _late_head(made: Any) -> None:
    order = made["schedule"][-1]["order"]
    head = next(i for i, unit in enumerate(order) if unit[0] == "H")
    after = next(i for i, unit in enumerate(order) if i > head + 1 and unit[0] in "FB")
    order.insert(after, order.pop(head))
