"""An assistant in a terminal that learns from thumbs: `python agents/assistant.py http://127.0.0.1:8000`.

Shows: an agent that agentrl did not start. Each question is a session: its key names it, `+` or `-` is its reward, and
POST .../end ends it. An empty line gives none: the session is dropped when its time is over. With a token in
AGENTRL_GATEWAY_TOKEN keys begin with it.
"""

import os
import secrets
import sys

import httpx
import openai

THUMBS = {"+": 1.0, "-": 0.0}


def main() -> None:
    """Ask and answer until the input ends."""
    url, token = sys.argv[1], os.environ.get("AGENTRL_GATEWAY_TOKEN")
    while True:
        try:
            question = input("you: ")
            key = f"{token}.{secrets.token_hex(8)}" if token else secrets.token_hex(8)
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=10)
            said = [{"role": "user", "content": question}]
            answer = client.chat.completions.create(model="policy", messages=said)  # type: ignore[arg-type]
            print(f"it:  {answer.choices[0].message.content}")
            thumb = THUMBS.get(input("good? + or -: ").strip())
        except EOFError:
            return
        if thumb is not None:
            httpx.post(f"{url}/s/{key}/end", json={"reward": thumb}, timeout=600).raise_for_status()


if __name__ == "__main__":
    main()
