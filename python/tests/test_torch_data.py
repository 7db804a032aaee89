# SPDX-License-Identifier: Apache-2.0
"""Rows and tensors of MicroPacks beside plain Python over plan.json."""
import sys
import warnings

import numpy as np
import pytest
from conftest import drawn_lengths

import slimpack

slimpack_torch = pytest.importorskip("slimpack.torch", exc_type=ImportError)
import torch  # noqa: E402

EOD = 256


def drawn_plan(seed):
    """A plan, and its documents as lists of ids."""
    draw = np.random.default_rng(seed)
    lengths = drawn_lengths(seed, 40, 5000)
    shared = seed % 2 == 0
    if shared:
        lengths = np.append(lengths, 20000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # documents that were cut
        plan = slimpack.plan(
            lengths, model="tiny", cluster="a100", dp=4, pp=int(draw.integers(1, 3)), merge=4 if shared else "off",
            context=32768 if shared else 1500, overlong="split", granularity=64, effort="fast", seed=seed,
            batch_tokens=None if shared else "30K", step=seed % 3)
    documents = [draw.integers(0, 257, length).tolist() for length in lengths]
    for document in documents[::3]:
        document[-1] = EOD
    return plan, documents


@pytest.fixture(scope="module", params=range(6))
def drawn(request):
    return drawn_plan(request.param)


def owned(plan, sample, begin, end, place, ranks):
    """Positions of a slice that rank `place` of `ranks` owns, one by one."""
    block = plan["memory"]["share_tokens"]
    return [(sample, position) for position in range(begin, end)
            if position // block % (2 * ranks) in (place, 2 * ranks - 1 - place)]


def expected_rows(plan, pack, place):
    ranks = len(plan["groups"][pack["group"]])
    return [row for one in pack["slices"] for row in owned(plan, *one, place, ranks)]


def test_some_plan_has_shared_samples_and_some_has_cut_documents():
    plans = [drawn_plan(seed)[0] for seed in range(6)]
    assert any(max(map(len, plan.groups)) > 1 for plan in plans)
    assert any((plan.origin[:, 2] > 0).any() for plan in plans)


def test_rows_are_those_of_the_blocks(drawn):
    plan, _ = drawn
    made = plan.to_dict()
    for pack, entry in zip(plan.micropacks, made["micropacks"]):
        every = []
        for place in range(len(plan.groups[pack.group])):
            found = slimpack_torch.rows(plan, pack, place)
            assert found.dtype == np.int64 and found.shape[1:] == (2,)
            assert list(map(tuple, found.tolist())) == expected_rows(made, entry, place)
            every += found.tolist()
            # Segments of cu_seqlens are runs of these rows, and their keys end with the last row.
            cu_q, cu_k, _, _ = plan.cu_seqlens(pack, place)
            assert cu_q[-1] == len(found)
            for begin, end, keys in zip(cu_q, cu_q[1:], np.diff(cu_k)):
                segment = found[begin:end]
                assert (segment[:, 0] == segment[0, 0]).all() and (np.diff(segment[:, 1]) == 1).all()
                assert segment[-1, 1] + 1 == keys
        assert sorted(every) == sorted([sample, position] for sample, begin, end in entry["slices"]
                                       for position in range(begin, end))


def test_rows_refuse_what_is_not_there(drawn):
    plan, _ = drawn
    with pytest.raises(slimpack.InvalidInput, match="pack: must be the number of a MicroPack, got 99999"):
        slimpack_torch.rows(plan, 99999)
    ranks = len(plan.groups[plan.micropacks[0].group])
    with pytest.raises(slimpack.InvalidInput, match=f"rank: must be from 0 to {ranks - 1}, a place"):
        slimpack_torch.rows(plan, 0, ranks)


def test_model_and_memory_are_those_of_plan_json(drawn):
    plan, _ = drawn
    made = plan.to_dict()
    assert plan.model == made["model"] and plan.memory == made["memory"]
    plan.model["vocab"] = 1
    assert plan.model["vocab"] == made["model"]["vocab"]


def label(made, documents, sample, position, eod):
    """The token after a sample's position in its document."""
    _, number, first = made["origin"][sample]
    document = documents[number]
    if first + position + 1 < len(document):
        return document[first + position + 1]
    return -100 if eod is None or document[-1] == eod else eod


@pytest.mark.parametrize("eod", [None, EOD])
def test_tensors_are_those_of_the_documents(drawn, eod):
    plan, documents = drawn
    made = plan.to_dict()
    targets = 0
    for dp_rank in range(plan.dp):
        packs = slimpack_torch.collate(plan, documents, dp_rank, eod=eod)
        groups = [number for number, group in enumerate(made["groups"]) if dp_rank in group]
        assert list(packs) == [pack["id"] for pack in made["micropacks"]
                               if pack["pass"] == "forward" and pack["group"] in groups]
        needed = slimpack_torch.documents_of(plan, dp_rank)
        assert needed == sorted({made["origin"][sample][1] for number in packs
                                 for sample, _, _ in made["micropacks"][number]["slices"]})
        for number, pack in packs.items():
            entry = made["micropacks"][number]
            place = made["groups"][entry["group"]].index(dp_rank)
            expected = expected_rows(made, entry, place)
            for tensor, dtype in zip(pack[:5], 3 * [torch.int64] + 2 * [torch.int32]):
                assert tensor.dtype == dtype
            assert pack.input_ids.shape == pack.labels.shape == pack.position_ids.shape == (1, len(expected))
            assert pack.input_ids[0].tolist() == [
                documents[made["origin"][sample][1]][made["origin"][sample][2] + position]
                for sample, position in expected]
            assert pack.labels[0].tolist() == [label(made, documents, *row, eod) for row in expected]
            assert pack.position_ids[0].tolist() == [position for _, position in expected]
            cu_q, cu_k, most_q, most_k = plan.cu_seqlens(number, place)
            assert pack.cu_seq_lens_q.tolist() == cu_q.tolist() and pack.cu_seq_lens_k.tolist() == cu_k.tolist()
            assert (pack.max_length_q, pack.max_length_k) == (most_q, most_k)
            targets += int((pack.labels != -100).sum())
    ends = [number for _, number, first in made["origin"] for sample in [made["origin"].index([0, number, first])]
            if first + made["samples"][sample] == len(documents[number])]
    assert targets == plan.target_tokens + (
        0 if eod is None else sum(documents[number][-1] != eod for number in ends))


def test_documents_may_be_arrays_tensors_mappings_and_functions(drawn):
    plan, documents = drawn
    expected = slimpack_torch.collate(plan, documents, 1)
    asked = []

    def read(number):
        asked.append(number)
        return np.array(documents[number], np.uint16)

    for given in (read, {number: torch.tensor(documents[number]) for number in slimpack_torch.documents_of(plan, 1)}):
        found = slimpack_torch.collate(plan, given, 1)
        assert found.keys() == expected.keys()
        assert all(torch.equal(a, b) for number in found for a, b in zip(found[number][:5], expected[number][:5]))
    assert asked == slimpack_torch.documents_of(plan, 1)


def test_documents_that_are_not_those_of_the_plan_are_refused(drawn):
    plan, documents = drawn
    made = plan.to_dict()
    number = next(number for _, number, first in made["origin"]
                  if first == 0 and made["samples"][made["origin"].index([0, number, 0])] < max(made["samples"]))
    dp_rank = next(rank for rank in range(4) if number in slimpack_torch.documents_of(plan, rank))

    def refused(changed, sentence, **options):
        given = dict(enumerate(documents))
        given[number] = changed
        if changed is None:
            del given[number]
        with pytest.raises(slimpack.InvalidInput, match=rf"^{sentence}$"):
            slimpack_torch.collate(plan, given, dp_rank, **options)

    right = documents[number]
    place = rf"documents: sample \d+ \(document {number}\)"
    refused(right[:-1], rf"{place} has {len(right) - 1} tokens, but {len(right)} were planned")
    refused([*right, 3], rf"{place} has {len(right) + 1} tokens, but {len(right)} were planned")
    refused([*right[:-1], 257], f"{place} must have token ids from 0 to 256, got 257")
    refused([-1, *right[1:]], f"{place} must have token ids from 0 to 256, got -1")
    refused([right], rf"{place} must be integers with one axis, got int64 with 2")
    refused(np.array(right, float), rf"{place} must be integers with one axis, got float64 with 1")
    refused(None, f"{place} is not there")
    refused(right, "eod: must be from 0 to 256, a token of the plan's vocabulary, got 257", eod=257)
    with pytest.raises(slimpack.InvalidInput, match="dp_rank: must be from 0 to 3, a data-parallel rank of the plan"):
        slimpack_torch.collate(plan, documents, 4)
    made["origin"][0][0] = 1
    made["sources"].append(dict(made["sources"][0]))
    with pytest.raises(slimpack.InvalidInput, match="plan: documents have numbers of one source, the plan has 2"):
        slimpack_torch.collate(slimpack.Plan.from_dict(made), documents, dp_rank)


def test_packs_of_whole_documents_are_those_of_hugging_face():
    transformers = pytest.importorskip("transformers")
    lengths = drawn_lengths(8, 30, 900)
    documents = [np.random.default_rng(number).integers(0, 257, length) for number, length in enumerate(lengths)]
    plan = slimpack.plan(lengths, model="tiny", merge="off", effort="fast", planner="megatron", context=1000)
    flatten = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    compared = 0
    for number, pack in slimpack_torch.collate(plan, documents, 0).items():
        slices = plan.micropacks[number].slices
        if (slices[:, 1] > 0).any() or (slices[:, 2] < plan.samples[slices[:, 0]]).any():
            continue
        expected = flatten([{"input_ids": documents[plan.origin[sample, 1]].tolist()} for sample in slices[:, 0]])
        # The other's labels are shifted by whoever computes the loss.
        expected["labels"] = torch.cat([expected["labels"][:, 1:], torch.tensor([[-100]])], 1)
        assert set(pack._fields) == set(expected)
        for name, value in pack._asdict().items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected[name])), name
        compared += 1
    assert compared > 1


def test_another_torch_is_refused(monkeypatch):
    from slimpack.torch._version import check_torch

    for version in ("2.14.1", "2.16.0+cu132", "3.15"):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(ImportError, match=rf"slimpack.torch needs torch 2\.15\.\*, found {version[:4]}"):
            check_torch()
    monkeypatch.setattr(torch, "__version__", "2.15.3+cpu")
    check_torch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"^slimpack.torch needs torch 2\.15\.\*, which cannot be imported: "):
        check_torch()


def test_names_are_exported():
    assert {"BatchSampler", "Pack", "collate", "documents_of", "rows"} <= set(dir(slimpack_torch))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        slimpack_torch.nothing
