"""The reward functions of well-known data sets, by `data_source`: their rows need none named in the configuration."""

from agentrl.config.schema import Data

CODE_SOURCES = ("apps", "codecontests", "codeforces", "taco")
"""Values of `data_source` that mean test cases in verl's layout."""
CODE_FUNCTION = "agentrl.rewards.code:compute_score"
SOURCE_FUNCTION = "agentrl.rewards.sources:compute_score"
"""Chooses among FUNCTIONS, row by row."""

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "agentrl.rewards.standard.functions:gsm8k": ("openai/gsm8k",),
    "agentrl.rewards.standard.functions:math": (
        "lighteval/MATH",
        "DigitalLearningGmbH/MATH-lighteval",
        "HuggingFaceH4/MATH-500",
    ),
    "agentrl.rewards.standard.functions:dapo": ("math", "math_dapo", "math_dapo_reasoning", "aime*"),
    "agentrl.rewards.standard.functions:numina": (
        "numina_aops_forum",
        "numina_synthetic_math",
        "numina_amc_aime",
        "numina_synthetic_amc",
        "numina_cn_k12",
        "numina_olympiads",
    ),
    "agentrl.rewards.standard.functions:geometry3k": ("hiyouga/geometry3k",),
    "agentrl.rewards.standard.functions:search_r1": (
        "searchR1_nq",
        "searchR1_triviaqa",
        "searchR1_popqa",
        "searchR1_hotpotqa",
        "searchR1_2wikimultihopqa",
        "searchR1_musique",
        "searchR1_bamboogle",
    ),
    "agentrl.rewards.code.standard:compute_score": CODE_SOURCES,
}
"""By function, the data sets it is for, those of verl, with verl's numbers; a trailing * stands for any ending."""


def function_for(data_source: str) -> str | None:
    """The ready-made reward function for rows of a data set; None where there is none."""
    for function, names in FUNCTIONS.items():
        for name in names:
            if data_source == name or (name.endswith("*") and data_source.startswith(name[:-1])):
                return function
    return None


def known_source(data: Data) -> bool:
    """Whether the first row comes from one of those data sets; one that cannot be read does not."""
    from agentrl.data.dataset import first_row

    row = first_row(data)
    return row is not None and function_for(row.data_source) is not None
