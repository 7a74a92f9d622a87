"""The scores that verl gives on the data sets it knows: the same number on every answer, a strange one too.

One module a data set, with verl's names and signatures. They compare text by fixed rules, so they are strict in some
places and lenient in others; `agentrl.rewards.scorers`, `maths` and `questions` compare what the answers mean.
Where versions of verl differ, the newest counts (0.9.1). `functions` makes reward functions of them.
"""

from agentrl.rewards.code.cases import CODE_SOURCES

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "agentrl_verl.scorers.functions:gsm8k": ("openai/gsm8k",),
    "agentrl_verl.scorers.functions:math": (
        "lighteval/MATH",
        "DigitalLearningGmbH/MATH-lighteval",
        "HuggingFaceH4/MATH-500",
    ),
    "agentrl_verl.scorers.functions:dapo": ("math", "math_dapo", "math_dapo_reasoning", "aime*"),
    "agentrl_verl.scorers.functions:numina": (
        "numina_aops_forum",
        "numina_synthetic_math",
        "numina_amc_aime",
        "numina_synthetic_amc",
        "numina_cn_k12",
        "numina_olympiads",
    ),
    "agentrl_verl.scorers.functions:geometry3k": ("hiyouga/geometry3k",),
    "agentrl_verl.scorers.functions:search_r1": (
        "searchR1_nq",
        "searchR1_triviaqa",
        "searchR1_popqa",
        "searchR1_hotpotqa",
        "searchR1_2wikimultihopqa",
        "searchR1_musique",
        "searchR1_bamboogle",
    ),
    "agentrl_verl.scorers.code:compute_score": CODE_SOURCES,
}
"""By function, the data sets that it is for; a trailing * stands for any ending."""
