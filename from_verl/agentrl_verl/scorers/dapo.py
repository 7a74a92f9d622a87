r"""DAPO's data and AIME: 1 for the right answer and -1 for any other (arXiv 2503.14476).

The answer is the last "Answer: ..." in the last 300 characters, in the normal form of Minerva (arXiv 2206.14858,
appendix D); without one, the last `\boxed{...}` in the last 100, compared as it stands.
"""

import re
from collections.abc import Sequence
from typing import Any

from agentrl_verl.scorers import boxes

LAST, LAST_OF_BOX = 300, 100
"""Characters at the end of a solution that count, and of those, the ones for a box."""
INVALID = "[INVALID]"
"""The answer of a solution that names none."""
ANSWER = r"(?i)Answer\s*:\s*([^\n]+)"

REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
UNITS = (
    "square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits cents degrees cm gm "
    "pounds meters meals edges students childrentickets multiples"
)
DROPPED = (*UNITS.split(), "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}")
DROPPED += ("\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots")
REWRITTEN = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r".*?\$(.*?)\$.*", r"$\1$"),
        (r"\\text\{(.*?)\}", r"\1"),
        (r"\\textbf\{(.*?)\}", r"\1"),
        (r"\\overline\{(.*?)\}", r"\1"),
        (r"\\boxed\{(.*)\}", r"\1"),
        (r"frac([^{])(.)", r"frac{\1}{\2}"),
        (r"sqrt([^{])", r"sqrt{\1}"),
    )
]


def compute_score(
    solution_str: str,
    ground_truth: str,
    strict_box_verify: bool = False,
    pause_tokens_index: Sequence[int] | None = None,
) -> dict[str, Any]:
    """`score` 1 or -1, `acc`, and `pred`, the answer that was compared."""
    right, answer = verify(solution_str[-LAST:], ground_truth, strict_box_verify, pause_tokens_index)
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": answer}


def verify(
    solution_str: str,
    answer: str,
    strict_box_verify: bool = False,
    pause_tokens_index: Sequence[int] | None = None,
) -> tuple[bool, str | None]:
    """(whether the answer is right, the answer); `strict_box_verify`: only a box counts."""
    if not strict_box_verify:
        right, said = is_correct_minerva(solution_str, answer)
        if said != INVALID:
            return right, said
    verdict, boxed = is_correct_strict_box(solution_str, answer, pause_tokens_index)
    if boxed is None and not strict_box_verify:
        return right, said
    return verdict == 1, boxed


def is_correct_minerva(
    solution_str: str, gt: str, gt_need_extract: bool = False, answer_pattern: str = ANSWER
) -> tuple[bool, str]:
    """(whether the last match of `answer_pattern` has the truth's normal form, that match's normal form).

    `gt_need_extract`: the truth stands in a box.
    """
    named = re.findall(answer_pattern, solution_str)
    said = normalize_final_answer(named[-1] if named else INVALID)
    truth = remove_boxed(last_boxed_only_string(gt) or "") if gt_need_extract else gt
    return said == normalize_final_answer(truth), said


def is_correct_strict_box(
    pred: str, gt: str, pause_tokens_index: Sequence[int] | None = None
) -> tuple[int, str | None]:
    """(1 or -1, what stands in the last box of the last 100 characters).

    With `pause_tokens_index`, four of them, the 100 characters before the last of these, and what follows.
    """
    start = -LAST_OF_BOX
    if pause_tokens_index is not None:
        if len(pause_tokens_index) != 4:
            raise AssertionError("pause_tokens_index needs four indices")
        start = pause_tokens_index[-1] - LAST_OF_BOX
    box = last_boxed_only_string(pred[start:])
    boxed = None if box is None else remove_boxed(box)
    return (1 if boxed == gt else -1), boxed


def normalize_final_answer(final_answer: str) -> str:
    """Minerva's normal form: without units, LaTeX's dressing, and what stands before an equals sign."""
    text = final_answer.rpartition("=")[2]
    for old, new in (*REPLACED, *((dropped, "") for dropped in DROPPED)):
        text = text.replace(old, new)
    for pattern, new in REWRITTEN:
        text = pattern.sub(new, text)
    text = text.replace("$", "")
    whole = text.replace(",", "")
    return whole if whole.isdigit() else text.strip()


def last_boxed_only_string(string: str) -> str | None:
    r"""The last `\boxed{...}`; None where it is not closed."""
    return boxes.last_box(string, "\\boxed{")


remove_boxed = boxes.content
