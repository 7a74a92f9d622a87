"""The reward function of verl's code data sets, which need none named in the configuration."""

from agentrl.config.schema import Data
from agentrl.errors import UserError

CODE_SOURCES = ("apps", "codecontests", "codeforces", "taco")
"""Values of `data_source` that mean test cases in verl's layout."""
CODE_FUNCTION = "agentrl.rewards.code:compute_score"


def of_code(data: Data) -> bool:
    """Whether the first row comes from one of those data sets; one that cannot be read does not."""
    from agentrl.data import read_rows

    files = data.train_files or data.val_files
    if not files or data.custom_cls.path:
        return False
    try:
        rows = read_rows(files, prompt_key=data.prompt_key, reward_fn_key=data.reward_fn_key)
        return len(rows) > 0 and rows[0].data_source in CODE_SOURCES
    except UserError:
        return False  # told where the rows are read in earnest
