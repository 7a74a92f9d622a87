"""Three models by their names: an assistant, which is trained, and a customer and a judge, which are not.

Shows: a simulated user, and a reward from inside the program. The judge reads the conversation and ends with a number,
which is the reward of the rollout. The program gets what the customer wants in its first argument.
"""

import re
import sys
from typing import Any

import openai

TURNS = 2
CUSTOMER = "You are a customer of a shop, and write to its support: {wish} Write one short message, as the customer."
JUDGE = 'Score the support of a shop from 0 to 10. Write "Score: " and the number.\n\nThe wish: {wish}\n{talk}'


def main() -> None:
    """Hold one conversation, have it judged, and post the judge's number."""
    wish = sys.argv[1]
    client: Any = openai.OpenAI()

    def ask(model: str, *messages: tuple[str, str], **wishes: float) -> str:
        said = [{"role": role, "content": text} for role, text in messages]
        answer = client.chat.completions.create(model=model, messages=said, max_tokens=64, **wishes)
        return answer.choices[0].message.content or ""

    talk: list[tuple[str, str]] = []
    for _ in range(TURNS):
        seen = [({"user": "assistant", "assistant": "user"}[role], text) for role, text in talk]  # the sides change
        start = ("user", CUSTOMER.format(wish=wish))
        talk.append(("user", ask("customer", start, *seen)))
        talk.append(("assistant", ask("policy", ("system", "You are the support of a shop."), *talk)))
    shown = "\n".join(f"{'Customer' if role == 'user' else 'Support'}: {text}" for role, text in talk)
    verdict = ask("judge", ("user", JUDGE.format(wish=wish, talk=shown)), temperature=0.0)
    score = re.search(r"Score: *(10|[0-9])\b", verdict)
    if score is None:
        sys.exit(f"the judge gave no score: {verdict}")  # an infrastructure error: the rollout is tried again
    client.post("/rewards", body={"reward": int(score[1]) / 10}, cast_to=object)
    print(shown, verdict, sep="\n")


if __name__ == "__main__":
    main()
