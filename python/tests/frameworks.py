# SPDX-License-Identifier: Apache-2.0
"""The one module of a framework that a test needs, without what the rest of the framework imports."""
import importlib
import importlib.machinery
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


class Absent(types.ModuleType):
    """A package that is not installed, with a class for every name that is asked of it."""
    __path__: list = []
    __version__ = "4.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}))
        return getattr(self, name)


def trl_modules():
    """trl.trainer.sft_trainer as it is installed; of what it imports only what holds tables of data is a stub."""
    pytest.importorskip("torch")
    for name in ("trl", "accelerate"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    modules = {}
    for name in ("datasets", "pyarrow", "pyarrow.compute", "pyarrow.types", "pandas"):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            continue
        modules[name] = Absent(name)
        modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    return modules
