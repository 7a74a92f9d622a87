"""A row's test cases, in the three shapes that verl's data has."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import UserError

FENCE = "```"


WHERE = "reward_model.ground_truth"
CODE_SOURCES = ("apps", "codecontests", "codeforces", "taco")
"""Values of `data_source` that mean test cases in this layout."""


@dataclass(frozen=True)
class TestCases:
    """Inputs and what should come of them, one for one."""

    __test__ = False

    inputs: Sequence[Any]
    """Standard input; or a function's arguments, each as one line of JSON, or a list of them."""
    outputs: Sequence[Any]
    """Standard output; or the function's value. None for a case of `asserts`."""
    fn_name: str | None = None
    """The function to call, global or a method of Solution; None: the solution is a whole program."""
    asserts: Sequence[str] = ()
    """Scripts that run after the solution, one a case, in place of inputs and outputs."""

    def __len__(self) -> int:
        return len(self.inputs)

    def first(self, number: int) -> "TestCases":
        """The first `number` cases."""
        return TestCases(self.inputs[:number], self.outputs[:number], self.fn_name, self.asserts[:number])

    def arguments(self, index: int) -> list[Any]:
        """Arguments of the function in case `index`. Raises UserError."""
        given = self.inputs[index]
        if not isinstance(given, str):
            return list(given)
        try:
            return [json.loads(line) for line in given.split("\n")] if given.strip() else []
        except ValueError as error:
            raise UserError(f"{WHERE}: inputs[{index}] is not one JSON value a line ({error}): correct it") from None


def read_cases(ground_truth: Any) -> TestCases:
    """The test cases of a row: {"inputs", "outputs", "fn_name"?} or {"assert_case"}, also as JSON text.

    Raises UserError.
    """
    given = _mapping(ground_truth)
    asserts = given.get("assert_case")
    if asserts is not None and len(asserts):
        return TestCases([""] * len(asserts), [None] * len(asserts), asserts=[str(script) for script in asserts])
    inputs, outputs = given.get("inputs"), given.get("outputs")
    if inputs is None or outputs is None or len(inputs) != len(outputs) or not len(inputs):
        raise UserError(f"{WHERE} needs inputs and outputs, equally many and at least one, or assert_case")
    return TestCases(list(inputs), list(outputs), given.get("fn_name") or None)


def text_of(value: Any) -> str:
    """Standard input or output: text, or a list of lines."""
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return str(value)


def _mapping(ground_truth: Any) -> Mapping[str, Any]:
    given = ground_truth
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise UserError(f"{WHERE} holds no test cases ({error}): write them as a JSON object") from None
    if not isinstance(given, Mapping):
        raise UserError(f"{WHERE} is a {type(given).__name__}: write test cases as a mapping or a JSON object")
    return given


def extract_code(solution: str, language: str = "python") -> str | None:
    """The last block fenced as `language`, else the first block of any kind; None where there is none.

    A block that is never closed reaches to the end. A first line that is only a language's name is no code.
    """
    marked = FENCE + language
    if marked in solution:
        return solution.rpartition(marked)[2].partition(FENCE)[0]
    if FENCE not in solution:
        return None
    block = solution.split(FENCE)[1]
    first, line_break, rest = block.partition("\n")
    return rest if line_break and first.strip().isalpha() else block
