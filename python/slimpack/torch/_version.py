# SPDX-License-Identifier: Apache-2.0
"""Which torch this subpackage is for."""
from __future__ import annotations

NEEDED = "2.15"


def check_torch() -> None:
    """Raises ImportError of one sentence unless torch is there in the minor version that was tested: what is used
    of its pipeline runtime is private and changes between them."""
    try:
        from torch import __version__ as found
    except ImportError as error:
        raise ImportError(f"slimpack.torch needs torch {NEEDED}.*, which cannot be imported: {error}") from error
    if found.split("+")[0].split(".")[:2] != NEEDED.split("."):
        raise ImportError(f"slimpack.torch needs torch {NEEDED}.*, found {found}")
