r"""verl's reward functions under its names and signatures, by agentrl's own comparisons.

They take a solution and the truth alone, as verl's do, for users' reward functions call them.
"""

import asyncio
import re
from threading import Thread
from typing import Any

from agentrl.answers import NUMBER, final_answer, same_answer
from agentrl.rewards import maths, questions
from agentrl.rewards.ready_made import function_for

LAST = 100
r"""Characters in which a strict check looks for \boxed{...}."""
BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, *_: Any, **__: Any
) -> Any:
    """What the ready-made function for `data_source` says. Raises NotImplementedError where there is none."""
    if function_for(data_source) is None:
        raise NotImplementedError(f"there is no reward function for data_source={data_source!r}")
    found: list[Any] = []
    # In a thread with a loop of its own: the caller may be on one already.
    worker = Thread(
        target=lambda: found.append(asyncio.run(_scored(data_source, solution_str, ground_truth, extra_info)))
    )
    worker.start()
    worker.join()
    if not found:
        raise RuntimeError(f"the score for data_source={data_source!r} failed; the error is above")
    return found[0]


def gsm8k(
    solution_str: str, ground_truth: str, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """`score` for the right answer, `format_score` for a wrong one, 0 for none.

    With method strict only what follows `####` is an answer.
    """
    answer = final_answer(solution_str) if method == "flexible" or "####" in solution_str else None
    if answer is None:
        return 0.0
    return score if same_answer(answer, ground_truth) else format_score


def gsm8k_solution(solution_str: str, method: str = "strict") -> str | None:
    """The number after the last `####`, or with method flexible the last number; without commas."""
    text = solution_str.rpartition("####")[2] if method == "strict" else solution_str
    numbers = NUMBER.findall(text) if method != "strict" or "####" in solution_str else []
    if not numbers:
        return None
    return str(numbers[0 if method == "strict" else -1]).replace(",", "").replace("$", "")


def last_boxed_only_string(string: str) -> str | None:
    r"""The last \boxed{...} with its braces; None without one that is closed."""
    for begin in reversed([match.start() for match in BOXED.finditer(string)]):
        depth = 0
        for place in range(begin, len(string)):
            depth += (string[place] == "{") - (string[place] == "}")
            if string[place] == "}" and depth == 0:
                return string[begin : place + 1]
    return None


def remove_boxed(s: str) -> str:
    r"""What stands in \boxed{...}. Raises ValueError where `s` is anything else."""
    if not (BOXED.match(s) and s.endswith("}")):
        raise ValueError(f"no \\boxed{{...}}: {s[:80]!r}")
    return s[s.index("{") + 1 : -1]


def is_equiv(str1: str | None, str2: str | None, verbose: bool = False) -> bool:
    """Whether two answers are the same as mathematics."""
    if str1 is None or str2 is None:
        return str1 is str2
    return maths.same(str1, str2)


def math_reward(solution_str: str, ground_truth: str) -> float:
    r"""1 when the last \boxed{...} equals the truth; 0 otherwise."""
    boxed = last_boxed_only_string(solution_str)
    return float(boxed is not None and is_equiv(remove_boxed(boxed), ground_truth))


def math_verify(model_output: str, ground_truth: str, timeout_score: float = 0) -> float:
    """1 when the last answer equals the truth."""
    return maths.equal("", model_output, ground_truth)


def math_dapo(
    solution_str: str, ground_truth: str, strict_box_verify: bool = False, pause_tokens_index: Any = None
) -> dict[str, Any]:
    r"""`score` 1 or -1, `acc` and `pred`: the last "Answer: ...", or with strict_box_verify the last \boxed{...}."""
    if not strict_box_verify:
        said = maths.dapo("", solution_str, ground_truth)
        return {"score": said["score"], "acc": bool(said["acc"]), "pred": final_answer(solution_str[-maths.MOST :])}
    boxed = last_boxed_only_string(solution_str[-LAST:])
    answer = remove_boxed(boxed) if boxed else None
    right = answer is not None and same_answer(answer, str(ground_truth))
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": answer}


def format_reward(predict_str: str) -> float:
    r"""1 for <think>...</think> ... \boxed{...}."""
    return float(bool(maths.THOUGHT_AND_BOXED.fullmatch(predict_str.strip())))


def acc_reward(predict_str: str, ground_truth: str, use_boxed: bool = True) -> float:
    """1 for the right answer."""
    answer = final_answer(predict_str) if use_boxed else predict_str
    return float(answer is not None and maths.same(answer, ground_truth))


def geo3k(predict_str: str, ground_truth: str, use_boxed: bool = True, format_score: float = 0.1) -> float:
    """The answer, and `format_score` of the whole for the form."""
    answer = acc_reward(predict_str, ground_truth, use_boxed)
    return (1 - format_score) * answer + format_score * format_reward(predict_str)


def search_r1_solution(solution_str: str) -> str | None:
    """What stands in the last <answer> tag."""
    found = questions.ANSWER.findall(solution_str)
    return str(found[-1]).strip() if found else None


def em_check(prediction: str, golden_answers: Any) -> int:
    """1 when `prediction` is one of the answers, whatever its case, articles and punctuation."""
    return int(questions.exact_match("", f"<answer>{prediction}</answer>", golden_answers))


def search_r1(
    solution_str: str, ground_truth: Any, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """`score` for the right answer, `format_score` for a wrong one, 0 for none."""
    answer = search_r1_solution(solution_str)
    if answer is None:
        return 0.0
    return score if em_check(answer, ground_truth) else format_score


async def _scored(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> Any:
    from agentrl.rewards.sources import compute_score
    from agentrl.sandbox.sandbox import Sandbox

    sandbox = Sandbox()
    try:
        return await compute_score(data_source, solution_str, ground_truth, extra_info, sandbox=sandbox)
    finally:
        await sandbox.close()
