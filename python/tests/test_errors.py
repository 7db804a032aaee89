# SPDX-License-Identifier: Apache-2.0
"""Bad input is one sentence, before any work; where no plan fits, the answer says what is lacking."""
import pickle

import numpy as np
import pytest

import slimpack


def refuses(match):
    return pytest.raises(slimpack.InvalidInput, match=match)


@pytest.mark.parametrize("lengths, sentence", [
    ([], "lengths: holds no length"),
    ([[1, 2]], "lengths: must have one axis, got 2"),
    (7, "lengths: must have one axis, got 0"),
    ([1.5, 2], "lengths: must be integers, got float64"),
    ([True, False], "lengths: must be integers, got bool"),
    (["a"], "lengths: must be integers, got <U1"),
    ([5, 0, 3], r"lengths: element 1 \(from 0\) must be a positive integer of 63 bits, got 0"),
    (np.array([3, -2], "i2"), r"lengths: element 1 \(from 0\) must be a positive integer of 63 bits, got -2"),
    (np.array([2**63], "u8"), r"must be a positive integer of 63 bits, got 9223372036854775808"),
    (np.array([2**62, 2**62]), "lengths: the sum of all lengths must fit in 63 bits"),
    ([100, 131073],
     r"lengths: document 1 \(from 0\) has 131073 tokens, more than the context of 131072; overlong split"),
    ("there/is/no/such.lengths", "cannot open 'there/is/no/such.lengths'"),
])
def test_lengths(lengths, sentence):
    with refuses(sentence):
        slimpack.plan(lengths, model="tiny")


@pytest.mark.parametrize("options, sentence", [
    (dict(model="nobody"), "^model: 'nobody' is neither a preset"),
    (dict(cluster="nobody"), "^cluster: 'nobody' is neither a preset"),
    (dict(dp=0), "^dp: '0' is not a whole number > 0"),
    (dict(pp=-3), "^pp: '-3' is not a whole number > 0"),
    (dict(tp=1.5), "^tp: '1.5' is not a whole number > 0"),
    (dict(dp=True), "^dp: 'True' is not a whole number > 0"),
    (dict(context="many"), "^context: 'many' is not a whole number > 0"),
    (dict(planner="nobody"), "planner must be one of slimpack, .* got 'nobody'"),
    (dict(effort="most"), "^effort: 'most' is not one of fast, normal, thorough"),
    (dict(threads=0), "^threads: '0' is not a whole number > 0"),
    (dict(overlong="keep"), "^overlong: 'keep' is not one of"),
    (dict(batch_tokens=0), "^batch_tokens: '0' is not a whole number > 0"),
    (dict(batch_samples="x"), "^batch_samples: 'x' is not a whole number > 0"),
    (dict(step=-1), "^step: must be a whole number from 0"),
    (dict(step=2**41), r"^step: must be at most 2\^40"),
    (dict(seed=2**64), "^seed: must be a whole number from 0"),
    (dict(shuffle="yes"), "^shuffle: must be True or False, got 'yes'"),
    (dict(chunks="no"), "^chunks: 'no' is not a whole number > 0"),
    (dict(head="first"), "^head: 'first' is not one of auto, last, shard"),
    (dict(recompute="all"), "^recompute: 'all' is not one of auto, none, light, layer, full"),
    (dict(weights="late"), "^weights: 'late' is not one of auto, with, apart"),
    (dict(granularity=0), "^granularity: '0' is not a whole number > 0"),
    (dict(merge="no"), "^merge: 'no' is not a whole number > 0"),
    (dict(max_units=0), "^max_units: '0' is not a whole number > 0"),
    (dict(optimizer="split"), "^optimizer: 'split' is not one of sharded, replicated"),
    (dict(memory=80), "^memory: 80 bytes are not more than .* for 80 GB write 80G"),
    (dict(cost="there/is/no/such.json"), "cannot open 'there/is/no/such.json'"),
    (dict(runtime="jax"), "^runtime: 'jax' is not one of any, torch"),
    (dict(runtime="torch", head="shard"), "^head: must be last with .*runtime torch"),
    (dict(runtime="torch", tp=2), "^tp: must be 1 with .*runtime torch, got 2"),
    (dict(weights="apart", planner="kk"), "^weights must not be apart"),
    (dict(pp=64), "pp"),
    (dict(planner="flexsp", dp=2), "simulator only"),
])
def test_options(options, sentence):
    with refuses(sentence):
        slimpack.plan([100] * 8, **{"model": "tiny", "effort": "fast", **options})


def test_words_that_are_no_argument():
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        slimpack.plan([5], modell="tiny")
    with pytest.raises(TypeError, match="unexpected keyword argument 'modell'"):
        slimpack.compare([5], modell="tiny")
    with pytest.raises(TypeError, match="unexpected keyword argument 'planner'"):
        slimpack.tune([5], 1, planner="slimpack")


def test_infeasible_says_what_is_lacking():
    with pytest.raises(RuntimeError, match="no feasible plan: bytes of memory") as caught:
        slimpack.plan([1000], model="llama-7b", memory="12G", effort="fast")
    none = caught.value
    assert isinstance(none, slimpack.Infeasible)
    assert "bytes of memory" in none.constraint
    assert none.needed > none.available > 0
    assert str(pickle.loads(pickle.dumps(none))) == str(none)


def test_exceptions_have_the_bases_that_users_catch():
    assert issubclass(slimpack.InvalidInput, ValueError)
    assert issubclass(slimpack.Infeasible, RuntimeError)
    assert slimpack.InvalidInput.__module__ == "slimpack"


def test_compare_and_tune_refuse_by_the_names_of_arguments():
    with refuses("planners: a planner must be listed once"):
        slimpack.compare([5], ["slimpack", "slimpack"], model="tiny")
    with refuses("^steps: '0' is not a whole number"):
        slimpack.compare([5], ["slimpack"], steps=0, model="tiny")
    with refuses("baseline: must be one of the planners"):
        slimpack.compare([5], ["slimpack"], baseline="kk", model="tiny")
    with refuses("^gpus: '0' is not a whole number"):
        slimpack.tune([5], 0, model="tiny")
    with refuses("^dp: 3 does not divide the 4 devices of gpus"):
        slimpack.tune([5], 4, dp=3, model="tiny")


def test_files_that_are_no_plans(tmp_path, small):
    path = tmp_path / "plan.json"
    path.write_text("{")
    with refuses("plan.json"):
        slimpack.Plan.load(path)
    with refuses("plan: the key 'format' is missing"):
        slimpack.Plan.from_dict({})
    with refuses("cannot (open|write)"):
        small.save(tmp_path / "no" / "folder" / "plan.json")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["plan.json"]


def test_places_that_a_plan_does_not_have(small):
    with refuses("pack: must be the number of a MicroPack"):
        small.cu_seqlens(len(small.micropacks))
    with refuses("pack: must be the number of a MicroPack"):
        small.cu_seqlens(-1)
    with refuses("rank: must be from 0 to"):
        small.cu_seqlens(0, rank=2)
    with refuses("dp: must be a rank of the plan"):
        small.order(2, 0)
    with refuses("pp: must be a stage of the plan"):
        small.order(0, 2)
