# SPDX-License-Identifier: Apache-2.0
"""The one module of a framework that a test needs, without what the rest of the framework imports."""
import importlib
import importlib.util
import sys
import types
import warnings

import pytest


def load_verl():
    """verl.utils.seqlen_balancing as it is installed; of what it imports only DataProto, which needs Ray, is a stub."""
    pytest.importorskip("torch")
    pytest.importorskip("tensordict")
    if "verl.utils.seqlen_balancing" not in sys.modules:
        spec = importlib.util.find_spec("verl")
        if spec is None:
            pytest.skip("verl is not installed")
        for name in ("verl", "verl.utils"):  # packages without what their __init__ imports
            package = types.ModuleType(name)
            package.__path__ = [f"{spec.submodule_search_locations[0]}/{name[5:]}"]
            sys.modules[name] = package
        protocol = types.ModuleType("verl.protocol")
        protocol.DataProto = type("DataProto", (), {})
        sys.modules["verl.protocol"] = protocol
    return importlib.import_module("verl.utils.seqlen_balancing")


def load_megatron_schedule():
    """megatron.core.datasets.data_schedule as it is installed."""
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are not installed
        return pytest.importorskip("megatron.core.datasets.data_schedule", exc_type=ImportError)


def nemo_rl_contract():
    """Modules of NeMo-RL with the base class that a packer extends, as far as its documentation describes it."""
    class SequencePacker:
        def __init__(self, bin_capacity, collect_metrics=False, min_bin_count=None, bin_count_multiple=None):
            self.bin_capacity, self.collect_metrics = bin_capacity, collect_metrics
            self.min_bin_count, self.bin_count_multiple = min_bin_count, bin_count_multiple

        def pack(self, sequence_lengths):
            bins = self._pack_implementation(sequence_lengths)
            assert len(bins) >= (self.min_bin_count or 0) and len(bins) % (self.bin_count_multiple or 1) == 0
            return bins

    names = ["nemo_rl", "nemo_rl.data", "nemo_rl.data.packing", "nemo_rl.data.packing.algorithms"]
    modules = {name: types.ModuleType(name) for name in names}
    modules["nemo_rl.data.packing"].algorithms = modules[names[-1]]
    modules[names[-1]].SequencePacker = SequencePacker
    modules[names[-1]].get_packer = lambda algorithm, bin_capacity, **options: None
    return modules


def trl_contract():
    """Modules of TRL with the collator of its SFT trainer, as far as its documentation describes it without padding."""
    import torch

    class DataCollatorForLanguageModeling:
        def __init__(self, pad_token_id, padding_free=False):
            assert padding_free
            self.pad_token_id = pad_token_id

        def __call__(self, examples):
            rows = [torch.tensor(example["input_ids"]) for example in examples]
            position_ids = torch.cat([torch.arange(len(row)) for row in rows])[None]
            input_ids = torch.cat(rows)[None]
            return {"input_ids": input_ids, "position_ids": position_ids,
                    "labels": input_ids.masked_fill(position_ids == 0, -100)}

    names = ["trl", "trl.trainer", "trl.trainer.sft_trainer"]
    modules = {name: types.ModuleType(name) for name in names}
    modules[names[-1]].DataCollatorForLanguageModeling = DataCollatorForLanguageModeling
    return modules
