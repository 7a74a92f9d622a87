r"""Solutions and truths on which agentrl's scorers are compared with verl's: a table of edge cases, and a fuzz.

`scorers()` pairs each scorer with verl's; `cases(name)` are what both are asked.
"""

# ruff: noqa: E501 (tables)
import random
from collections.abc import Callable, Iterator
from typing import Any

from agentrl_verl.default_scores import default_compute_score
from agentrl_verl.scorers import dapo, geometry3k, grader, gsm8k, hendrycks, numbers, numina, search_r1, verified
from tests.from_verl.scorers.reference import verl

Case = tuple[tuple[Any, ...], dict[str, Any]]
LONG = "x" * 250

ANSWERS = r"""72|72.0|72.|.5|0.5|1/2|-1/2|2/4|+3|-3|- 3|1,234|1,234.50|12,34|1234|0|-0|007|7e2|nan|inf|1_000|٣|½|√9|∞
\frac{1}{2}|\dfrac12|\tfrac{1}{2}|\frac1{72}|\frac{72}1|\frac|\frac1|\sqrt3|\sqrt{3}|\sqrt|2\sqrt{2}|\sqrt{8}|\frac{\sqrt3}2
\$72|$72|72$|50%|50\%|72 apples|72 cm|72\text{ cm}|72\text{cm}|\text{72}|\text{ a }\text{ b }|72^\circ|72^{\circ}|72 degrees
x=72|k = 72|answer=72|x+1|1+x|2x|x*2|a+b|a+b+c|2^{10}|2^10|1024|10^6|1 million|1000000|\pi|2\pi|3.14|6.28|6.2832|\frac{\pi}{2}
(1,2)|(1, 2)|[1,2]|[1,2)|(2,1)|1,2|1 and 2|{1,2}|\left(1,2\right)|(-\infty,2)|(0.5, x)|(1/2, x)|{3}|7 3/4|7\frac{3}{4}|31/4
\begin{pmatrix}1\2\end{pmatrix}|[[1],[2]]|Matrix([[1],[2]])|Interval(1,2)|Interval.open(1,2)|Point(1,2)|101_2|5
yes|Yes|None|a cat|The Eiffel Tower!|eiffel tower|an answer|12\!34|1{,}234|3 feet|2×3|6|2·3|\mathrm{th}|five|\ |"""
SHAPES = r"""{}|#### {}|so\n#### {}\n|####{}|#### {} apples|#### 1\n#### {}|The answer is {}|The answer is {}.|answer: {}
Answer: {}|Answer: {}\nbye|**Answer:** {}|ANSWER :{}|Answer: ${}$|Answer: \boxed{@}|\boxed{@}|\boxed{@|so $\boxed{@}$ done|\fbox{@}
\boxed {}|\boxed {}$ and|\boxed{\boxed{@}}|\boxed{1} then \boxed{@}|\boxed{@} then \boxed{2|<think>a</think> \boxed{@}
<think>a</think>\n\boxed{@} end|<think>a \boxed{@}</think>| <think></think>\boxed{@}|<answer>{}</answer>|<answer> the {} </answer>
<answer>1</answer><answer>{}</answer>|<answer>{}|</answer>{}<answer>|x = {}|we get {}|{} is the answer|It must be {}. Good|{}\n"""
PIECES = r"""\boxed{|}|{|\frac|\dfrac{1}{2}|1|2|72|1,234|-|.|,|0.5|/|$|\$|%|\%|####|#### | |Answer: |answer:|The answer is |\text{ cm}
\text{cm}|\sqrt|\sqrt{3}|\pi|x|=|(|)|[|]|<answer>|</answer>|\fbox{|\boxed |an |a |the |<think>|</think>|degrees|^\circ|\left|^2
million|½|٣|\\|and| or |_|e5|\ |mbox{|frac12|{,}|. |is |\begin{pmatrix}1\end{pmatrix}|Matrix([[1]])|Point(1,2)"""
LONGER = [LONG + " #### 72", "#### 72 " + LONG, "#### 72 " + LONG * 2, "Answer: 72" + LONG, "Answer: 72" + LONG * 2]
LONGER += ["\\boxed{72}" + "." * 80, "\\boxed{72}" + "." * 95, "\\boxed{72}" + "." * 290, "<answer>x</answer>" * 11]
LONGER += [
    "",
    " ",
    "\n",
    "#### ",
    "#### .",
    "#### -",
    "#### ,",
    "....",
    "\x00",
    "\ud800",
    "😀 #### 72",
    "\\boxed{}",
    "{}}{",
]
SOURCES = ["openai/gsm8k", "lighteval/MATH", "HuggingFaceH4/MATH-500", "math_dapo", "math", "aime2024", "searchR1_nq"]
ALGEBRA = ["numina_olympiads", "hiyouga/geometry3k"]
"""Sources whose scorers ask sympy."""


def listed(table: str) -> list[str]:
    return [entry.replace("\\n", "\n") for line in table.split("\n") for entry in line.split("|")]


def solutions(rng: random.Random, number: int) -> list[tuple[str, str]]:
    """Pairs of a solution and a truth that is often the right one."""
    answers, shapes = listed(ANSWERS), listed(SHAPES)
    pairs = []
    for _ in range(number):
        at = rng.randrange(len(answers))
        truth = rng.choice([answers[at], answers[at], answers[(at + rng.randrange(-3, 4)) % len(answers)], "72"])
        pairs.append((rng.choice(shapes).replace("{}", answers[at]).replace("@", answers[at]), truth))
    return pairs


def table() -> list[tuple[str, str]]:
    """Every shape with the answer 72 in many forms, and every answer in the usual shapes, against 72 and themselves."""
    answers, shapes = listed(ANSWERS), listed(SHAPES)
    usual = ["#### {}", "Answer: {}", "\\boxed{{}}", "<answer>{}</answer>"]
    pairs = [(shape.replace("{}", said).replace("@", said), "72") for shape in shapes for said in answers[:3]]
    pairs += [(shape.replace("{}", said, 1), truth) for shape in usual for said in answers for truth in (said, "72")]
    return pairs + [(said, "72") for said in LONGER]


def garbage(rng: random.Random, longest: int) -> str:
    return "".join(rng.choices(listed(PIECES), k=rng.randrange(longest + 1)))


def truth_for(source: str, truth: str) -> Any:
    return {"target": [truth, "other"]} if source.startswith("searchR1") else truth


def scorers() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """By name: agentrl's and verl's."""
    theirs = verl()
    prime, search, math, box = theirs.prime_math, theirs.search_r1_like_qa_em, theirs.math_reward, theirs.geo3k
    by_source = dict.fromkeys(SOURCES + ALGEBRA, (default_compute_score, theirs.default_compute_score))
    return by_source | {
        "gsm8k.extract_solution": (gsm8k.extract_solution, theirs.gsm8k.extract_solution),
        "gsm8k, flexible": (gsm8k.compute_score, theirs.gsm8k.compute_score),
        "math.is_equiv": (hendrycks.is_equiv, math.is_equiv),
        "math.strip_string": (hendrycks.strip_string, math.strip_string),
        "math.last_boxed_only_string": (hendrycks.last_boxed_only_string, math.last_boxed_only_string),
        "math_batch": (hendrycks.compute_score_batched, theirs.math_batch.compute_score_batched),
        "dapo, strict box": (dapo.compute_score, theirs.math_dapo.compute_score),
        "dapo.normalize_final_answer": (dapo.normalize_final_answer, theirs.math_dapo.normalize_final_answer),
        "search_r1, substring": (search_r1.compute_score_subem, search.compute_score_subem),
        "search_r1.em_check": (search_r1.em_check, search.em_check),
        "geo3k.format_reward": (geometry3k.format_reward, box.format_reward),
        "geo3k, as its tool asks": (geometry3k.compute_score, box.compute_score),
        "prime_math": (numina.compute_score, prime.compute_score),
        "prime_math.match_answer": (numina.match_answer, prime.match_answer),
        "prime_math.math_equal": (numbers.math_equal, prime.math_equal),
        "prime_math.normal_form": (grader.normal_form, prime._normalize),
        "mathruler.normal_form": (_mathruler, box.grade_answer.__globals__["_normalize"]),
        "math_verify": (verified.compute_score, _in_this_process),
    }


def cases(name: str, *, seed: int = 0, number: int = 300) -> Iterator[Case]:
    """What both are asked: the table first where it is cheap, then `number` random cases."""
    rng = random.Random(f"{name} {seed}")
    slow = name in (*ALGEBRA, "prime_math", "geo3k, as its tool asks", "math_verify")
    pairs = solutions(rng, number if not slow else number // 3) + (
        [] if name == "math_verify" else table()[:: 4 * slow or 1]
    )
    pairs += [] if slow else [(garbage(rng, 12), garbage(rng, 4)) for _ in range(number)]
    for said, truth in pairs:
        yield _case(name, said, truth)


def _case(name: str, said: str, truth: str) -> Case:
    if name in SOURCES + ALGEBRA:
        return (name, said, truth_for(name, truth)), {}
    if name in ("gsm8k.extract_solution", "gsm8k, flexible"):
        return ((said,) if name.endswith("solution") else (said, truth)), {"method": "flexible"}
    if name == "dapo, strict box":
        return (said, truth, True), {}
    if name.startswith("search_r1,"):
        return (said, {"target": truth}), {"format_score": 0.1}
    if name == "geo3k, as its tool asks":
        return (said, truth, False, 0.0), {}
    if name == "math_batch":
        return (["s"], [said], [truth], [None]), {}
    one = ("strip_string", "only_string", "final_answer", "format_reward", "match_answer", "normal_form")
    return ((said,) if name.endswith(one) else (said, truth)), {}


def _mathruler(text: str) -> str:
    return grader.normal_form(text, grader.MATHRULER)


def _in_this_process(model_output: str, ground_truth: str) -> float:
    """verl's scorer by math-verify, without the pool of processes around it."""
    said: float = verl().math_verify._verify_in_subprocess(f"\\boxed{{{ground_truth}}}", model_output)
    return said
