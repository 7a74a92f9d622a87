"""A trial of an entry in a process of its own: exit code 1 and one line where it does not work."""

import json
import os
import sys

from agentrl.environments.entry import Entry
from agentrl.environments.server import Answer, answered, prepare

UNLIKE = (
    "two environments with the same seed begin differently, so the samples of a group are not comparable: let the seed "
    "decide, for example by the path of a function of `seed` that makes it"
)


def main() -> None:
    """Reset two environments with one seed and compare them."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = answered(lambda: _tried(Entry(**json.loads(sys.argv[1]))))
    if trouble := answer.get("refused") or answer.get("failed"):
        answers.write(f"{trouble}\n")
        answers.flush()
        os._exit(1)
    os._exit(0)


def _tried(entry: Entry) -> Answer:
    prepare(entry)
    texts = []
    for _ in range(2):
        environment = entry.make()
        texts.append(environment.reset(entry.first_seed).text)
        environment.close()
    return {} if texts[0] == texts[1] else {"refused": UNLIKE}


if __name__ == "__main__":
    main()
