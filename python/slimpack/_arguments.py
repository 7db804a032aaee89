# SPDX-License-Identifier: Apache-2.0
"""Arguments of Python as the words that the command line is given."""
from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Callable, Optional, Sequence, TypedDict, Union

import numpy as np

from . import _core
from ._errors import InvalidInput

Lengths = Union[str, "os.PathLike[str]", Sequence[int], "np.ndarray[Any, Any]"]
Path = Union[str, "os.PathLike[str]"]
Number = Union[int, float, str]
Progress = Union[bool, Callable[[int, int], None]]


class TuneOptions(TypedDict, total=False):
    """What `plan`, `compare` and `tune` share; the defaults are those of `plan`."""

    model: Path
    cluster: Path
    dp: Number
    pp: Number
    tp: Number
    context: Number
    effort: str
    threads: Optional[int]
    overlong: str
    batch_samples: Optional[Number]
    step: int
    seed: int
    shuffle: bool
    chunks: Optional[Number]
    head: Optional[str]
    recompute: Optional[str]
    weights: Optional[str]
    granularity: Number
    merge: Optional[Number]
    max_units: Optional[Number]
    optimizer: str
    weight_state: Optional[str]
    runtime: Optional[str]
    memory: Optional[Number]
    cost: Optional[Path]


class Options(TuneOptions, total=False):
    """The same, with what `tune` has as an argument of its own."""

    batch_tokens: Optional[Number]


DEFAULTS: dict[str, str] = _core.defaults()


def words(options: dict[str, Any]) -> dict[str, str]:
    """Options as the command line has them; None leaves an option at its default."""
    for name in options:
        if name not in DEFAULTS:
            raise TypeError(f"unexpected keyword argument {name!r}")
    return {name: word(value) for name, value in options.items() if value is not None}


def word(value: Any) -> str:
    """One value as a word; a float is written so that no digit is lost."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, np.generic):
        value = value.item()
    return repr(value) if isinstance(value, float) else str(value)


def lengths_of(lengths: Lengths, name: str = "lengths") -> Any:
    """A path as it is, anything else as an array of integers with one axis."""
    if isinstance(lengths, (str, os.PathLike)):
        return os.fspath(lengths)
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise InvalidInput(f"{name}: must have one axis, got {array.ndim}")
    if array.size == 0:
        raise InvalidInput(f"{name}: holds no length")
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"{name}: must be integers, got {array.dtype}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def tell(notes: Sequence[str]) -> None:
    """Warns of what users should know of their input."""
    for note in notes:
        warnings.warn(note[len("slimpack: "):] if note.startswith("slimpack: ") else note, stacklevel=3)


class Bar:
    """What is told of a search while it runs: tqdm's bar, where it is wanted and tqdm is installed, or a call."""

    def __init__(self, wanted: Progress, label: str) -> None:
        self._bar: Any = None
        self._call = wanted if callable(wanted) else None
        if wanted and self._call is None:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                print("progress: tqdm is not installed, so no bar is shown", file=sys.stderr)
            else:
                self._bar = tqdm(desc=label, unit="simulation", total=0)

    @property
    def report(self) -> Optional[Callable[[int, int], None]]:
        return self._call if self._bar is None else self._show

    def _show(self, done: int, most: int) -> None:
        self._bar.total = most or None
        self._bar.n = done
        self._bar.refresh()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *ignored: object) -> None:
        if self._bar is not None:
            self._bar.close()
