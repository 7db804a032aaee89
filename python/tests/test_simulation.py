# SPDX-License-Identifier: Apache-2.0
"""Simulations, pictures, the validator and cu_seqlens, each beside the command line or plain Python."""
import base64
import copy
import json
import re
import xml.etree.ElementTree

import numpy as np
import pytest

import slimpack


@pytest.fixture(scope="module")
def simulated(small, tmp_path_factory):
    from conftest import run_command

    path = tmp_path_factory.mktemp("plan") / "plan.json"
    small.save(path)
    return path, json.loads(run_command("simulate", path, "--json").stdout)


def test_figures_are_those_of_the_command_line(small, simulated):
    _, told = simulated
    simulation = slimpack.simulate(small)
    assert simulation.iteration_s == pytest.approx(told["iteration_s"], abs=1e-9) == pytest.approx(small.iteration_s)
    assert simulation.busy_s.shape == simulation.peak_bytes.shape == (2, 2)
    assert simulation.peak_bytes.dtype == np.int64
    for device in told["devices"]:
        place = device["dp"], device["pp"]
        assert simulation.busy_s[place] == pytest.approx(device["busy_s"], abs=1e-9)
        assert simulation.peak_bytes[place] == device["peak_bytes"]
    assert simulation.gaps == told["gaps"]
    idle = simulation.iteration_s * 4 - simulation.busy_s.sum()
    assert sum(simulation.gaps.values()) == pytest.approx(idle, abs=1e-7)


def test_the_critical_path_is_a_chain_as_long_as_the_step(small):
    simulation = slimpack.simulate(small)
    path = simulation.critical_path
    assert path[0]["start_s"] == 0 and path[-1]["end_s"] == pytest.approx(simulation.iteration_s, abs=1e-9)
    for before, after in zip(path, path[1:]):
        assert before["end_s"] == pytest.approx(after["start_s"], abs=1e-9)
    assert simulation.to_dict()["critical_path"]["path"] == path


def test_pictures_and_traces_are_those_of_the_command_line(small, simulated, command, tmp_path):
    path, _ = simulated
    simulation = slimpack.simulate(small)
    for kind in ("svg", "trace", "html"):
        theirs, mine = tmp_path / f"theirs.{kind}", tmp_path / f"mine.{kind}"
        assert command("simulate", path, f"--{kind}", theirs).returncode == 0
        assert getattr(simulation, kind)(mine) == mine.read_text() == theirs.read_text()
    for shown in (small, simulation):
        assert xml.etree.ElementTree.fromstring(shown._repr_svg_()).tag.endswith("svg")
        page = shown._repr_html_()
        picture = re.fullmatch(r'<p>(.*)</p><img .* src="data:image/svg\+xml;base64,(.*)">', page)
        assert small.hash in picture[1] and base64.b64decode(picture[2]).decode() == simulation.svg()


def mutated(plan, change):
    made = plan.to_dict()
    change(made)
    return made


def first_pack(made, pass_, slices=1):
    return next(one for one in made["micropacks"] if one["pass"] == pass_ and len(one["slices"]) >= slices)


def drop_slice(made):
    first_pack(made, "forward", 2)["slices"].pop()


def swap_first_units(made):
    order = next(one for one in made["schedule"] if one["pp"] == 0)["order"]
    order.insert(0, order.pop())


def shrink_memory(made):
    made["memory"]["capacity"] = made["memory"]["reserved"] + 1000


def repeat_slice(made):
    pack = first_pack(made, "backward")
    for key in {"slices", "exchange"} & set(pack):
        pack[key].append(copy.deepcopy(pack[key][0]))


@pytest.mark.parametrize("change, rule", [
    (drop_slice, 1), (swap_first_units, 3), (shrink_memory, 7), (repeat_slice, 2)])
def test_the_validator_names_the_rule_as_the_command_line_does(small, command, change, rule):
    made = mutated(small, change)
    sentences = slimpack.validate(made)
    assert any(one.startswith(f"rule {rule}: ") for one in sentences), sentences
    done = command("validate", "-", stdin=json.dumps(made))
    assert done.returncode == 1
    assert done.stdout.splitlines() == sentences
    if rule == 7:
        slimpack.simulate(slimpack.Plan.from_dict(made))
    else:
        with pytest.raises(slimpack.InvalidInput, match="plan: rule"):
            slimpack.simulate(slimpack.Plan.from_dict(made))


def test_valid_plans_have_no_violation(small, simulated):
    path, _ = simulated
    assert slimpack.validate(small) == slimpack.validate(small.to_dict()) == slimpack.validate(path) == []


def plain_cu_seqlens(made, pack, rank):
    """formats: block k of a sample belongs to rank i of g with k mod 2g = i or 2g-1-i."""
    ranks = len(made["groups"][pack["group"]])
    block = made["memory"]["share_tokens"]
    queries, keys = [0], [0]
    for _, begin, end in pack["slices"]:
        owned = [token for token in range(begin, end)
                 if ranks == 1 or token // block % (2 * ranks) in (rank, 2 * ranks - 1 - rank)]
        run = []
        for token in [*owned, None]:
            if run and token != run[-1] + 1:
                queries.append(queries[-1] + len(run))
                keys.append(keys[-1] + run[-1] + 1)
                run = []
            run.append(token) if token is not None else None
    return queries, keys


def test_cu_seqlens_beside_plain_python(small):
    made = small.to_dict()
    shared = 0
    for pack in small.micropacks:
        entry = made["micropacks"][pack.id]
        for rank in range(len(small.groups[pack.group])):
            queries, keys, most_queries, most_keys = small.cu_seqlens(pack, rank)
            assert queries.dtype == keys.dtype == np.int32
            plain_queries, plain_keys = plain_cu_seqlens(made, entry, rank)
            assert queries.tolist() == plain_queries and keys.tolist() == plain_keys
            assert most_queries == max(np.diff(plain_queries), default=0)
            assert most_keys == max(np.diff(plain_keys), default=0)
            assert isinstance(most_queries, int) and isinstance(most_keys, int)
        shared += len(small.groups[pack.group]) > 1
    assert shared > 0  # groups of several ranks were among them
    assert small.cu_seqlens(3)[0].tolist() == small.cu_seqlens(small.micropacks[3])[0].tolist()
