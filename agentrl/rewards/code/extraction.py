"""The code in a model's words, found as verl finds it."""

FENCE = "```"


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
