"""Ready-made reward functions, for `reward.custom_reward_function.name=agentrl.rewards.scorers:<function>`."""

import re
from typing import Any

from agentrl.core.errors import last_line
from agentrl.rewards.answers import NUMBER, same_answer
from agentrl.rewards.gym import score_answer

ANSWER_IS = re.compile(r"^(?:(?:the )?(?:final )?answer(?: is)?:? )", re.IGNORECASE)


def final_number(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1.0 when the last number in the model's text equals the ground truth, 0.0 otherwise; "1,234.0" equals "1234"."""
    numbers = NUMBER.findall(solution_str)
    return float(bool(numbers) and same_answer(numbers[-1].rstrip(","), str(ground_truth)))


def gsm8k(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, *, method: str = "strict"
) -> float:
    """1.0 when the number after the last "####" equals the ground truth; `method` flexible takes the last number."""
    _, mark, after = solution_str.rpartition("####")
    numbers = NUMBER.findall(after if method == "strict" else solution_str)
    if not numbers or (method == "strict" and not mark):
        return 0.0
    return float(same_answer((numbers[0] if method == "strict" else numbers[-1]).rstrip(","), str(ground_truth)))


def exact_match(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1.0 when the model's last line is the ground truth, 0.0 otherwise.

    Letter case, white space, a full stop, and a leading "The answer is" are ignored; numbers compare as numbers.
    """
    answer = ANSWER_IS.sub("", last_line(solution_str))
    return float(same_answer(answer, str(ground_truth)))


def reasoning_gym(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """reasoning-gym's own verdict, 0 to 1, for rows of the task reasoning_gym.

    The answer is the content of the last <answer> tag, else the text after the last "####", else the last line.
    """
    return score_answer(extra_info["reasoning_gym"], extract_answer(solution_str))


def extract_answer(solution: str) -> str:
    """The answer in the model's text."""
    tagged = re.findall(r"<answer>(.*?)</answer>", solution, re.DOTALL)
    if tagged:
        return str(tagged[-1]).strip()
    _, mark, after = solution.rpartition("####")
    return after.strip().partition("\n")[0].strip() if mark else last_line(solution)
