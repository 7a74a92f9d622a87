"""sympy's side of algebra.py, loaded in the other process only: what is imported here does not count for its limits."""

import resource
from contextlib import suppress

from sympy import simplify
from sympy.parsing import sympy_parser

MEMORY = 4 << 30
"""Bytes of address space for one comparison."""
RULES = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)


def zero(expression: str) -> bool:
    """Whether an expression in Python's syntax simplifies to 0; False where it cannot be read."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most < 0 else min(MEMORY, most), most))
    try:
        return bool(simplify(sympy_parser.parse_expr(expression, transformations=RULES)) == 0)
    except Exception:  # the model's text may raise anything in sympy
        return False
