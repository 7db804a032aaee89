# SPDX-License-Identifier: Apache-2.0
"""What slimpack raises besides Python's own exceptions."""
from __future__ import annotations


class InvalidInput(ValueError):
    """Input that breaks a rule: one sentence that names the place, the rule and the value."""


class Infeasible(RuntimeError):
    """There is no feasible plan.

    Attributes:
        constraint: what is lacking and where, with the unit of both numbers.
        needed: how much of it a plan needs.
        available: how much of it there is.
    """

    def __init__(self, constraint: str, needed: int, available: int) -> None:
        super().__init__(constraint, needed, available)
        self.constraint = constraint
        self.needed = needed
        self.available = available

    def __str__(self) -> str:
        return f"no feasible plan: {self.constraint}: needed {self.needed}, available {self.available}"
