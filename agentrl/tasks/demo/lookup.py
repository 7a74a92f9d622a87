"""Questions about a country that does not exist, answered by searching its encyclopedia.

The corpus is generated and written to the rows' folder, together with the search tool and a YAML that points at it.
Towns and their mayors stand in different passages, so that some questions take two searches. No model knows the answers
by heart.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from agentrl.core.errors import UserError
from agentrl.core.foreign import read_beside
from agentrl.core.points import task
from agentrl.core.resources import find
from agentrl.tasks.demo.base import Option, Problem, Script, Task, call, say

TEXTS = read_beside(__file__, "lookup.yaml")
"""Parts of names, crafts; questions, each with the field of the answer and whether the mayor leads to the town."""


@dataclass(frozen=True)
class Town:
    """All there is to know about a town and its mayor."""

    name: str
    river: str
    founded: str
    people: str
    craft: str
    mayor: str
    mayor_born: str


@task("lookup")
class Lookup(Task):
    """Questions for the search tool over a generated corpus."""

    HELP = "questions over a generated encyclopedia, answered with the search tool"
    OPTIONS: ClassVar[dict[str, Option]] = {
        "towns": Option("towns in the encyclopedia; each gives nine questions", default=400, type=int, metavar="N"),
        "corpus_seed": Option("seed of the encyclopedia", default=0, type=int, metavar="SEED"),
    }
    DATA_SOURCE = "agentrl/lookup"
    ABILITY = "search"
    REWARD = "agentrl.rewards.scorers:exact_match"

    def __init__(self, *, towns: int, corpus_seed: int) -> None:
        if not 1 <= towns <= 1000:
            raise UserError(f"--towns {towns}: choose between 1 and 1000")
        self.towns = make_towns(towns, random.Random(f"towns/{corpus_seed}"))

    def draw(self, rng: random.Random) -> Problem:
        """A question about one of the towns."""
        town = rng.choice(self.towns)
        text, field, _ = question = rng.choice(TEXTS["questions"])
        answer = getattr(town, field)
        asked = f"{text.format(name=town.name, mayor=town.mayor)} Reply with the answer alone."
        return Problem(asked, answer, {"answer": answer, "tool_selection": ["search"]}, solution=(town, question))

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """One search, or two where the way to the town leads over its mayor."""
        town, (_, field, by_mayor) = problem.solution
        if by_mayor or field == "mayor_born":
            yield call("search", 0, query=town.mayor)
        if by_mayor or field not in ("mayor", "mayor_born"):
            yield call("search", 1, query=town.name)
        if field == "mayor":
            yield call("search", 2, query=f"mayor of {town.name}")
        yield say(problem.ground_truth)

    def tool_config(self, out: Path) -> str | None:
        """The YAML that points at the generated corpus."""
        return str(out / "search.yaml")

    def files(self, out: Path) -> dict[str, str]:
        """The corpus, the search tool, and a YAML that brings the two together."""
        passages = [passage for town in self.towns for passage in describe(town)]
        corpus = str((out / "corpus.jsonl").resolve())
        settings = find("tools/search.yaml", what="the search tool").read_text()
        return {
            "corpus.jsonl": "".join(json.dumps(passage) + "\n" for passage in passages),
            "search.yaml": settings.replace("corpus: tools/corpus.jsonl", f"corpus: {json.dumps(corpus)}"),
            "search.py": find("tools/search.py", what="the search tool").read_text(),
        }


def make_towns(number: int, rng: random.Random) -> list[Town]:
    """Towns and mayors with distinct names."""
    stems = [start + middle for start in TEXTS["starts"] for middle in TEXTS["middles"]]
    places = [stem + end for stem in stems for end in TEXTS["ends"]]
    # Distinct words, surnames too: a search finds whole words, and one word must be enough to find one passage.
    surnames = [stem + end for stem in stems for end in TEXTS["surname_ends"]]
    names = rng.sample(places, number)
    mayors = [f"{rng.choice(TEXTS['first_names'])} {surname}" for surname in rng.sample(surnames, number)]
    return [
        Town(
            name=name,
            river=rng.choice(TEXTS["starts"]) + rng.choice(("a", "in", "o", "une")),
            founded=str(rng.randint(1100, 1900)),
            people=str(rng.randint(300, 90000)),
            craft=rng.choice(TEXTS["crafts"]),
            mayor=mayor,
            mayor_born=str(rng.randint(1940, 1995)),
        )
        for name, mayor in zip(names, mayors, strict=True)
    ]


def describe(town: Town) -> list[dict[str, str]]:
    """The encyclopedia's passages about a town and its mayor."""
    place = (
        f"{town.name} is a town on the river {town.river}. It was founded in {town.founded}. "
        f"{town.people} people live there. It is known for {town.craft}."
    )
    mayor = f"{town.mayor}, born in {town.mayor_born}, is the mayor of {town.name}."
    return [{"title": town.name, "text": place}, {"title": town.mayor, "text": mayor}]
