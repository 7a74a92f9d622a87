"""An assistant in a terminal that learns from thumbs: `python agents/assistant.py http://127.0.0.1:8000`.

Shows: an agent that agentrl did not start. Each question is a session: its key names it, `+` or `-` is its reward, and
POST .../end ends it. An empty line gives none: the session is dropped when its time is over. With a token in
AGENTRL_GATEWAY_TOKEN keys begin with it. Ctrl-D ends it.
"""

import os
import secrets
import sys

import httpx
import openai

THUMBS = {"+": 1.0, "-": 0.0}


def talk(url: str, token: str | None, http: httpx.Client) -> None:
    """Ask and answer until the input ends."""
    while True:
        question = input("you: ")
        key = f"{token}.{secrets.token_hex(8)}" if token else secrets.token_hex(8)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, http_client=http, max_retries=6)  # type: ignore[arg-type]
        said = [{"role": "user", "content": question}]
        answer = client.chat.completions.create(model="policy", messages=said)  # type: ignore[arg-type]
        print(f"it:  {answer.choices[0].message.content}")
        thumb = THUMBS.get(input("good? + or -: ").strip())
        if thumb is not None:
            http.post(f"{url}/s/{key}/end", json={"reward": thumb}).raise_for_status()


def main() -> None:
    """Talk, also over a restart of the training."""
    if len(sys.argv) != 2:
        sys.exit("write the address of the training: python agents/assistant.py http://127.0.0.1:8000")
    http = httpx.Client(transport=httpx.HTTPTransport(retries=6), timeout=600)  # over half a minute
    try:
        talk(sys.argv[1].rstrip("/"), os.environ.get("AGENTRL_GATEWAY_TOKEN"), http)
    except (EOFError, KeyboardInterrupt):
        print()
    except (openai.OpenAIError, httpx.HTTPError) as error:
        sys.exit(f"the training does not answer; has it ended? {error}")


if __name__ == "__main__":
    main()
