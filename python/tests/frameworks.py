# SPDX-License-Identifier: Apache-2.0
"""Single modules of training frameworks, imported from their packages without what these depend on."""
from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any, Sequence

import pytest


def package(name: str, *, hollow: Sequence[str] = (), absent: Sequence[str] = ()) -> Path:
    """Makes a framework importable module by module: the `__init__` of `name` and of the packages `hollow` do not run,
    modules `absent` have whatever is asked of them. Gives its folder. Skips the test where it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name} is not installed")
    root = Path(spec.submodule_search_locations[0])
    for place in [name, *hollow]:
        if place not in sys.modules:
            made = types.ModuleType(place)
            made.__path__ = [str(root.joinpath(*place[len(name) + 1 :].split(".")))]
            sys.modules[place] = made
    for place in absent:
        stub: Any = types.ModuleType(place)
        stub.__getattr__ = _anything
        sys.modules[place] = stub
    return root


def _anything(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
