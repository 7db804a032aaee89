# SPDX-License-Identifier: Apache-2.0
"""slimpack.plan beside the command line, and what a Plan holds."""
import inspect
import json
import pickle
import re
import warnings

import numpy as np
import pytest
from conftest import ROOT, SMALL, as_text, as_words, drawn_lengths

import slimpack
from slimpack import _core


def drawn_request(seed):
    draw = np.random.default_rng(1000 + seed)

    def one_of(*values):
        return values[int(draw.integers(len(values)))]

    return dict(
        model=one_of("tiny", "llama-7b", "llama3-8b"), cluster=one_of("h100", "a100"), dp=one_of(1, 2, 3),
        pp=one_of(1, 2, 4), tp=one_of(1, 2), context=one_of(2048, "4Ki", 8192), overlong=one_of("split", "drop"),
        planner=one_of("slimpack", "slimpack", "slimpack-symmetric", "megatron", "kk"), effort="fast",
        batch_tokens=one_of(None, "20K", 30e3), batch_samples=one_of(None, 25), step=one_of(0, 1, 3),
        seed=one_of(0, 7, 2**63), shuffle=one_of(True, True, False), head=one_of(None, "last", "shard"),
        recompute=one_of(None, None, "full"), granularity=one_of(64, 128), merge=one_of(None, "off", 2),
        memory=one_of(None, "70G", 75e9), optimizer=one_of("sharded", "replicated"), max_units=one_of(None, None, 12),
        weight_state=one_of(None, None, "replicated", "sharded"))


@pytest.mark.parametrize("seed", range(20))
def test_the_same_request_has_the_hash_of_the_command_line(seed, command, tmp_path):
    lengths, options = drawn_lengths(seed), drawn_request(seed)
    path = tmp_path / "plan.json"
    words = as_words({**options, **({"batch_tokens": "30K"} if options["batch_tokens"] == 30e3 else {}),
                      **({"memory": "75G"} if options["memory"] == 75e9 else {})})
    done = command("plan", "-", *words, "-o", path, stdin=as_text(lengths))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # documents that were cut
            plan = slimpack.plan(lengths, **options)
    except slimpack.Infeasible as none:
        assert done.returncode == 1
        assert done.stderr.endswith(f"slimpack: {none}\n")
        return
    except slimpack.InvalidInput as error:
        assert done.returncode == 2
        assert done.stderr.replace("--", "").endswith(f"slimpack: {error}\n".replace("_", "-"))
        return
    assert done.returncode == 0, done.stderr
    assert f"hash: {plan.hash}\n" in done.stdout
    saved = tmp_path / "saved.json"
    plan.save(saved)
    assert saved.read_bytes() == path.read_bytes()


def test_defaults_are_those_of_the_command_line():
    mine = {name: parameter.default for name, parameter in inspect.signature(slimpack.plan).parameters.items()}
    for name, word in _core.defaults().items():
        assert word in ("auto", "any", "") if mine[name] is None else word == str(mine[name]), name
    assert set(mine) - set(_core.defaults()) == {"lengths", "planner", "progress"}
    assert mine["planner"] == "slimpack"


@pytest.mark.parametrize("dtype", ["i4", "i8", "u4", "u8", ">i8"])
def test_every_integer_array_is_the_same_request(dtype, lengths, small):
    assert slimpack.plan(lengths.astype(dtype), **SMALL).hash == small.hash
    twice = np.repeat(lengths.astype(dtype), 2)
    assert slimpack.plan(twice[::2], **SMALL).hash == small.hash
    assert slimpack.plan(twice[::-2], **SMALL).hash == slimpack.plan(lengths[::-1].tolist(), **SMALL).hash


def test_narrow_integers_are_the_same_request():
    for dtype in ("i1", "u1", "i2", "u2"):
        assert slimpack.plan(np.arange(1, 99, dtype=dtype), model="tiny", effort="fast").hash == slimpack.plan(
            range(1, 99), model="tiny", effort="fast").hash


def test_lists_and_read_only_arrays_and_paths(lengths, small, tmp_path, command):
    assert slimpack.plan(lengths.tolist(), **SMALL).hash == small.hash
    assert slimpack.plan(tuple(lengths), **SMALL).hash == small.hash
    frozen = lengths.copy()
    frozen.flags.writeable = False
    assert slimpack.plan(frozen, **SMALL).hash == small.hash
    path = tmp_path / "some.npy"
    np.save(path, lengths)
    done = command("plan", path, *as_words(SMALL), "-o", tmp_path / "plan.json")
    from_path = slimpack.plan(path, **SMALL)
    assert f"hash: {from_path.hash}\n" in done.stdout
    assert slimpack.plan(str(path), **SMALL).hash == from_path.hash
    assert from_path.hash != small.hash  # of the file's digest


def test_a_file_has_its_sha256(tmp_path):
    import hashlib

    for size in (1, 55, 56, 63, 64, 65, 1000):
        path = tmp_path / "some.lengths"
        path.write_text("#" + "x" * size + "\n512\n")
        source = slimpack.plan(path, model="tiny", effort="fast").to_dict()["sources"][0]
        assert source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_threads_never_change_the_answer(lengths, small):
    for threads in (1, 3):
        assert slimpack.plan(lengths, **SMALL, threads=threads).hash == small.hash


def test_figures_are_those_of_plan_json(small):
    made = small.to_dict()
    predicted = made["prediction"]
    assert small.iteration_s == pytest.approx(predicted["iteration_s"], abs=1e-9)
    assert small.ideal_s == pytest.approx(predicted["ideal_s"], abs=1e-9)
    assert small.lower_bound_s == pytest.approx(predicted["lower_bound_s"], abs=1e-9)
    assert small.efficiency == pytest.approx(predicted["ideal_s"] / predicted["iteration_s"])
    assert small.lower_bound_s <= small.iteration_s
    assert re.fullmatch("[0-9a-f]{32}", small.hash)
    assert (small.dp, small.pp, small.tp) == (2, 2, 4)
    assert small.chunks == made["parallel"]["chunks"]
    assert small.planner == made["planner"] == "slimpack"
    assert small.step == made["step"]["index"] == 0
    assert small.target_tokens == made["step"]["target_tokens"]
    assert small.groups == made["groups"]
    assert small.settings["recompute"]
    assert "slimpack.Plan" in repr(small)


def test_arrays_are_those_of_plan_json(small):
    made = small.to_dict()
    assert small.samples.dtype == np.int64
    assert small.samples.tolist() == made["samples"]
    assert small.origin.tolist() == made["origin"]
    assert len(small.micropacks) == len(made["micropacks"])
    for pack, entry in zip(small.micropacks, made["micropacks"]):
        assert pack.id == entry["id"]
        assert pack.pass_ == entry["pass"]
        assert pack.group == entry["group"]
        assert pack.slices.dtype == np.int64 and pack.slices.shape == (len(entry["slices"]), 3)
        assert pack.slices.tolist() == entry["slices"]
        assert pack.recompute == entry.get("recompute")
        assert pack.weights == (entry.get("weights", "with") if pack.pass_ == "backward" else None)
    for device in made["schedule"]:
        assert [list(unit) for unit in small.order(device["dp"], device["pp"])] == device["order"]


def test_arrays_cannot_be_written_and_outlive_the_plan(lengths):
    plan = slimpack.plan(lengths, model="tiny", effort="fast")
    samples, slices, origin = plan.samples, plan.micropacks[0].slices, plan.origin
    kept = samples.tolist(), slices.tolist(), origin.tolist()
    del plan
    assert (samples.tolist(), slices.tolist(), origin.tolist()) == kept
    for array in (samples, slices, origin):
        with pytest.raises(ValueError):
            array[0] = 1


def test_plans_are_saved_loaded_and_pickled(small, tmp_path):
    path = tmp_path / "plan.json"
    small.save(path)
    loaded = slimpack.Plan.load(path)
    assert loaded.hash == small.hash and loaded.to_dict() == small.to_dict() and loaded.settings == {}
    assert slimpack.Plan.from_dict(json.loads(path.read_text())).hash == small.hash
    copied = pickle.loads(pickle.dumps(small))
    assert copied.hash == small.hash and copied.settings == small.settings


@pytest.mark.parametrize("options", [dict(chunks=1), dict(chunks=2), dict(weights="with"), dict(weights="apart")])
def test_plans_for_torch_have_h_right_after_f(lengths, options, command, tmp_path):
    options = {**SMALL, **options, "tp": 1, "memory": "200G", "runtime": "torch"}
    plan = slimpack.plan(lengths, **options)
    made = plan.to_dict()
    path = tmp_path / "plan.json"
    done = command("plan", "-", "-o", path, *as_words(options), stdin=as_text(lengths))
    assert done.returncode == 0 and slimpack.Plan.load(path).hash == plan.hash, done.stderr
    assert slimpack.validate(plan) == []
    assert made["parallel"]["head"] == "last"
    assert slimpack.simulate(plan).iteration_s == pytest.approx(plan.iteration_s, abs=1e-9)
    assert plan.lower_bound_s <= plan.iteration_s
    for dp in range(2):
        order = plan.order(dp, 1)
        assert sum(unit[0] == "H" for unit in order) > 0
        for before, unit in zip(order, order[1:]):
            assert (unit[0] == "H") == (before[0] == "F" and before[2] == plan.chunks - 1)
            assert unit[0] != "H" or unit[1] == before[1]
        assert all(unit[0] != "H" for unit in plan.order(dp, 0))
    later = [pack for pack in plan.micropacks if pack.pass_ == "weight"]
    assert bool(later) == (plan.settings["weights"] != "with")
    backward = [set(map(tuple, pack.slices.tolist())) for pack in plan.micropacks if pack.weights == "apart"]
    for pack in later:
        slices = set(map(tuple, pack.slices.tolist()))
        assert slices == set().union(*(one for one in backward if one <= slices))


def test_notes_on_the_input_are_warnings(tmp_path):
    with pytest.warns(UserWarning, match=r"lengths: 1 documents \(9000 tokens\) longer than 4096 tokens were cut"):
        slimpack.plan([9000, 10], model="tiny", context=4096, overlong="split", effort="fast")
    path = tmp_path / "some.jsonl"
    path.write_text('{"length": 50}\n')
    with pytest.warns(UserWarning, match="1 from 'length'"):
        slimpack.plan(path, model="tiny", effort="fast")


def test_progress_shows_a_bar(capfd, lengths):
    pytest.importorskip("tqdm")
    slimpack.plan(lengths, model="tiny", effort="fast", progress=True)
    assert "planning" in capfd.readouterr().err


def test_the_package_lists_planners_and_presets(command):
    listed = json.loads(command("--list-planners", "--json").stdout)["planners"]
    assert slimpack.planners() == {one["name"]: one["description"] for one in listed}
    presets = json.loads(command("--list-presets", "--json").stdout)
    assert slimpack.presets() == {"models": presets["models"], "clusters": presets["clusters"]}


def test_the_version_is_that_of_the_project():
    lines = (ROOT / "include/slimpack/core/version.hpp").read_text()
    numbers = re.findall(r"#define SLIMPACK_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", lines)
    assert slimpack.__version__ == ".".join(numbers)


def test_an_exchange_by_heads_is_read_written_and_part_of_the_hash():
    plan = slimpack.plan([30000, 500, 400, 300], model="tiny", dp=2, planner="megatron-cp")
    made = plan.to_dict()
    assert {mode for pack in made["micropacks"] for mode in pack["exchange"]} == {"kv"}
    made["version"] = 3
    rings = slimpack.Plan.from_dict(made)
    for pack in made["micropacks"]:
        pack["exchange"] = ["heads"] * len(pack["exchange"])
    heads = slimpack.Plan.from_dict(made)
    assert slimpack.validate(heads) == []
    assert heads.to_dict()["micropacks"] == made["micropacks"]
    assert heads.hash != rings.hash
    assert slimpack.simulate(heads).iteration_s != slimpack.simulate(rings).iteration_s
    made["version"] = 2
    with pytest.raises(slimpack.InvalidInput, match="exchange.0.: is known from version 3 of plans on, found 'heads'"):
        slimpack.Plan.from_dict(made)
