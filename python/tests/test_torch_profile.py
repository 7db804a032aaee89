# SPDX-License-Identifier: Apache-2.0
"""Profiles that PyTorch measures: their rows, attention, and what calibration makes of them."""
import json
import subprocess
import sys

import numpy as np
import pytest

import slimpack

pytest.importorskip("slimpack.torch", exc_type=ImportError)
pytest.importorskip("transformers")
import torch  # noqa: E402
from slimpack.torch import profile as measuring  # noqa: E402

CPU = torch.device("cpu")
SHAPE = dict(hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=300)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 300, "torch_dtype": "float32"}))
    return path


@pytest.fixture(scope="module")
def text(config):
    return measuring.profile(config, context=256, rounds=3, budget=5.0)


def rows_of(text):
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = lines[0].split(",")
    return [dict(zip(names, line.split(","))) for line in lines[1:]]


@pytest.mark.parametrize("context", [1, 128, 1000, 8192])
def test_steps_span_prefixes_segments_and_layers(context):
    steps = list(measuring.steps_to_measure(context))
    packs = [pack for _, packs in steps for pack in packs]
    assert {layers for layers, _ in steps} == {1, 2, 4}
    assert len({begin for pack in packs for _, begin, _ in pack}) >= 8
    assert len({len(pack) for pack in packs}) >= 5
    assert max(len(pack) for layers, packs in steps for pack in packs if layers == 4) >= 64
    for layers, packs in steps:
        ends = {}
        for sample, begin, end in (one for pack in packs for one in pack):
            assert ends.get(sample, 0) == begin < end  # keys of a prefix are there
            ends[sample] = end
        tokens = [sum(end - begin for _, begin, end in pack) for pack in packs]
        assert context < 8192 or (max(tokens) <= 1.25 * context and layers * sum(tokens) <= 6 * context)


@pytest.mark.parametrize("context, ranks", [(128, 2), (1500, 2), (1500, 3), (8192, 8)])
def test_ranks_of_a_group_have_equal_parts(context, ranks):
    for block, packs in measuring.groups_to_measure(context, ranks):
        own = [[sum(measuring.Share(rank, ranks, block).count(end) - measuring.Share(rank, ranks, block).count(begin)
                    for _, begin, end in pack) for pack in packs] for rank in range(ranks)]
        assert all(one == own[0] for one in own)
        assert context < 1500 or max(map(sum, own)) * ranks <= 4 * context


def test_rows_are_those_of_the_units(text):
    rows = rows_of(text)
    steps = list(measuring.steps_to_measure(256))
    units = [(min(layers, 3), [(begin, end - begin) for _, begin, end in pack])
             for layers, packs in steps for pack in packs]
    last_first = [(min(layers, 3), [(begin, end - begin) for _, begin, end in pack])
                  for layers, packs in steps for pack in reversed(packs)]
    matrices = 64 * (4 + 2 + 2 + 4) * 16 + 3 * 64 * 96
    for kind, pass_ in (("layer", "forward"), ("layer", "backward"), ("apart", "-"), ("weight", "-")):
        found = [row for row in rows if row["kind"] == kind and row["pass"] == pass_]
        assert len(found) == len(units)
        for row, (layers, slices) in zip(found, units if pass_ == "forward" else last_first):
            assert int(row["tokens"]) == sum(length for _, length in slices)
            assert (int(row["layers"]), int(row["ranks"]), int(row["bytes"])) == (layers, 1, 0)
            accumulates = kind == "weight" or pass_ == "backward"
            assert int(row["accumulator_bytes"]) == (8 * layers * matrices if accumulates else 0)
            if kind == "weight":
                assert [row[name] for name in ("pairs", "own_pairs", "segments", "keys", "weight_bytes")] == ["0"] * 5
                continue
            assert float(row["pairs"]) == sum(length * (prefix + length / 2) for prefix, length in slices)
            assert float(row["own_pairs"]) == sum(length**2 / 2 for _, length in slices)
            assert int(row["segments"]) == len(slices)
            assert int(row["keys"]) == sum(prefix + length for prefix, length in slices)
            assert int(row["weight_bytes"]) == 4 * layers * matrices
    light = [row for row in rows if row["kind"] == "light"]
    packs = [(min(layers, 3), pack) for layers, packs in measuring.light_to_measure(256) for pack in packs]
    assert len(light) == len(packs) >= 12
    for row, (layers, pack) in zip(light, packs):
        assert (row["pass"], int(row["layers"]), int(row["segments"])) == ("-", layers, len(pack))
        assert int(row["tokens"]) == int(row["keys"]) == sum(end - begin for _, begin, end in pack)
        assert int(row["accumulator_bytes"]) == 8 * layers * matrices
        assert int(row["weight_bytes"]) == 4 * layers * matrices
    for pass_ in ("forward", "backward"):
        assert sum(row["kind"] == "embedding" and row["pass"] == pass_ for row in rows) >= 5
    assert sum(row["kind"] == "head" for row in rows) >= 5
    layer = matrices + 2 * 64
    assert sorted(int(row["bytes"]) for row in rows if row["kind"] == "optimizer") == sorted(
        24 * weights for weights in (layer, 2 * layer, 3 * layer, 300 * 64))
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_calibration_fits_a_profile_and_plans_are_made_with_it(text, config, tmp_path, command):
    profile, cost, cluster = tmp_path / "profile.csv", tmp_path / "cost.json", tmp_path / "cluster.json"
    profile.write_text(text)
    done = command("calibrate", profile, "-o", cost)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for kind in ("layer", "apart", "weight", "light", "embedding", "head", "optimizer"):
        assert kind in done.stdout
    fitted = json.loads(cost.read_text())
    assert fitted["shape"] == {"model": "llama", **SHAPE, "bytes_per_element": 4}
    assert fitted["device"]["cluster"] == "cpu" and fitted["device"]["ranks"] == 1
    assert fitted["layer_apart"]["token"] > 0 and fitted["layer_weight"]["token"] > 0
    assert fitted["light"]["layer"] + fitted["light"]["token"] > 0
    # Work grows with tokens, and its fit is closer than a factor of two on average.
    rows = rows_of(text)
    for pass_ in ("forward", "backward"):
        terms = fitted[f"layer_{pass_}"]
        assert terms["token"] > 0
        errors = [abs(terms["unit"] + int(row["layers"]) * (
            terms["layer"] + terms["token"] * int(row["tokens"]) + terms["pair"] * float(row["pairs"])
            + terms.get("own_pair", 0) * float(row["own_pairs"])
            + terms["segment"] * int(row["segments"]) + terms.get("key", 0) * int(row["keys"])
            + terms.get("spill_token", 0) * max(int(row["tokens"]) - terms.get("spill_from", 0), 0))
            + terms.get("weight_byte", 0) * int(row["weight_bytes"])
            + terms.get("accumulator_byte", 0) * int(row["accumulator_bytes"]) - float(row["seconds"]))
            / float(row["seconds"]) for row in rows if row["kind"] == "layer" and row["pass"] == pass_]
        assert np.mean(errors) < 0.5
    cluster.write_text('{"base": "h100", "name": "cpu", "memory": 4e9, "reserved": 1e9}')
    plan = slimpack.plan([300, 20, 1000], model=config, cluster=cluster, cost=cost, pp=2, effort="fast")
    assert plan.to_dict()["cost"]["kind"] == "fitted" and plan.iteration_s > 0
    apart = slimpack.plan([300, 20, 1000], model=config, cluster=cluster, cost=cost, pp=2, effort="fast",
                          weights="apart", runtime="torch")
    dearer = apart.to_dict()
    dearer["cost"]["layer_weight"]["unit"] += 1.0  # W has a price of its own
    assert slimpack.simulate(slimpack.Plan.from_dict(dearer)).iteration_s > apart.iteration_s + 0.9
    with pytest.raises(slimpack.InvalidInput, match="shape.hidden: the costs were measured for model 'llama'"):
        slimpack.plan([300], model="tiny", cluster=cluster, cost=cost)


def test_ranks_measure_together(config, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "slimpack.torch.profile",
         "--model", config, "--device", "cpu", "--context", "128", "--rounds", "1", "--pipeline", "--output", tmp_path / "p.csv"],
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "p.csv").read_text()
    assert done.stdout == f"{tmp_path / 'p.csv'}: {len(rows_of(text))} measurements\n"
    assert "# ranks: 2\n" in text
    rows = [row for row in rows_of(text) if row["kind"] in ("p2p", "reduce")]
    assert [int(row["bytes"]) for row in rows if row["kind"] == "p2p"] == [4**i * 16384 for i in range(6)]
    # A ring collective of two ranks sends half of its bytes.
    assert [int(row["bytes"]) for row in rows if row["kind"] == "reduce"] == [4**i * 8192 for i in range(6)]
    assert all(row["ranks"] == "2" and float(row["seconds"]) > 0 for row in rows)
    check_group_rows([row for row in rows_of(text) if row["kind"] == "cp"], 128, 2)


def check_group_rows(rows, context, ranks):
    """Work of one rank, counted token by token, and what it has to be sent."""
    packs = [(block, pack) for block, packs in measuring.groups_to_measure(context, ranks) for pack in packs]
    assert len(rows) == 2 * len(packs)
    for pass_, width in (("forward", 4), ("backward", 8)):
        found = {tuple(int(float(row[name])) for name in ("tokens", "keys", "segments", "bytes")) + (float(row["pairs"]),)
                 for row in rows if row["pass"] == pass_}
        wanted = set()
        for block, pack in packs:
            tokens = keys = segments = missing = 0
            pairs = 0.0
            for _, begin, end in pack:
                own = [p for p in range(end) if p // block % (2 * ranks) in (0, 2 * ranks - 1)]  # of rank 0
                here = [p for p in own if p >= begin]
                tokens, keys, missing = tokens + len(here), keys + end, missing + end - len(own)
                segments += sum(p - 1 not in here for p in here)
                pairs += sum(p + 0.5 for p in here)
            wanted.add((tokens, keys, segments, 3 * missing * 2 * 2 * 16 * width, pairs))
        assert found == wanted


def test_the_median_counts_and_no_round_begins_after_the_budget():
    rounds = []

    def unit():
        rounds.append(1)
        return [({"kind": "head"}, 10.0 - len(rounds))]

    bench = measuring.Bench(dict(SHAPE), CPU, torch.float32)
    assert bench.measure([unit], 5, 0.0) == [{"kind": "head", "seconds": 8.0}]
    assert len(rounds) == 2  # the first round is not counted
    assert bench.measure([unit], 3, 60.0) == [{"kind": "head", "seconds": 5.0}]
    assert len(rounds) == 6


def test_what_always_goes_to_others_is_spread_over_a_step():
    times = iter([(1.0, 1.0), (1.0, 1.0), (3.0, 1.0), (1.0, 3.0)])  # each round one of its rows takes longer
    bench = measuring.Bench(dict(SHAPE), CPU, torch.float32)
    rows = bench.measure([lambda: [({"kind": "head", "tokens": i}, took) for i, took in enumerate(next(times))]], 3, 60.0)
    assert rows == [{"kind": "head", "tokens": 0, "seconds": 2.0}, {"kind": "head", "tokens": 1, "seconds": 2.0}]


@pytest.mark.parametrize("words, sentence", [
    (["--model", "llama-9b"], "llama-9b"),
    (["--context", "0"], "context: must be at least 1, got 0"),
    (["--rounds", "0"], "rounds: must be at least 1, got 0"),
    (["--device", "tpu"], "device: must be one that is there, cpu or cuda, got 'tpu'"),
    (["--dtype", "int8"], "dtype: must be a type of torch's floating-point numbers, got 'int8'"),
    (["--dtype", "nothing"], "dtype: must be a type of torch's floating-point numbers, got 'nothing'"),
    (["--pipeline"], "pipeline: needs an even number of ranks, got 1"),
    (["--output", "/nowhere/p.csv"], "output: cannot write '/nowhere/p.csv'"),
])
def test_bad_input_is_refused(words, sentence, capsys):
    given = [] if "--model" in words else ["--model", "tiny"]
    assert measuring.main([*given, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("slimpack: ") and sentence in error and error.count("\n") == 1


def test_clusters_are_told_by_the_name_of_the_device():
    assert measuring._cluster_of("NVIDIA H100 80GB HBM3", "cuda") == "h100"
    assert measuring._cluster_of("Some GPU", "cuda") == "Some GPU"
    assert measuring._cluster_of("Some CPU", "cpu") == "cpu"
