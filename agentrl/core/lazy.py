"""Names of a package that load when they are first asked for."""


def declared_names(file: str) -> dict[str, str]:
    """The names of a package, and the module of each.

    `file` has a line `from MODULE import NAME as NAME` for each, which type checkers read.
    """
    with open(file, encoding="utf-8") as source:
        lines = [line.split() for line in source]
    return {line[3]: line[1] for line in lines if len(line) == 6 and line[0] == "from" and line[3] == line[5]}
