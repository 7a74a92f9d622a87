"""Conversations that between them meet everything a template may stumble over."""

from typing import Any

Message = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Evaluate an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "What to evaluate."}},
                "required": ["expression"],
            },
        },
    }
]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def calls(*expressions: str, text: str = "", start: int = 0, **more: Any) -> Message:
    """An assistant turn with one call per expression."""
    made = [
        {
            "id": f"callabc{start + i:02d}",
            "type": "function",
            "function": {"name": "calculate", "arguments": {"expression": expression}},
        }
        for i, expression in enumerate(expressions)
    ]
    return answer(text, tool_calls=made, **more)


def result(text: str, number: int = 0) -> Message:
    return {"role": "tool", "name": "calculate", "tool_call_id": f"callabc{number:02d}", "content": text}


CONVERSATIONS: dict[str, list[Message]] = {
    "chat": [user("Who wrote Faust?"), answer("Goethe."), user("When?"), answer("From 1772 on.")],
    "system": [{"role": "system", "content": "Be brief."}, user("Hello"), answer("Hi."), user("Bye"), answer("Bye.")],
    "unicode": [user("Grüße 你好 🙂"), answer("Ça va ✓ 👩‍👩‍👧 é"), user("שלום\n\n\tتجربة"), answer("\u200b→ ok")],
    "empty": [user("Say nothing."), answer(""), user("Again."), answer("")],
    "tools": [
        user("What is 17*23?"),
        calls("17*23"),
        result("391"),
        calls("391+1", start=1),
        result("392", 1),
        answer("392."),
    ],
    "spoken call": [user("What is 2+2?"), calls("2+2", text="Let me see."), result("4"), answer("It is 4.")],
    "parallel": [user("2+2 and 3*3?"), calls("2+2", "3*3"), result("4"), result("9", 1), answer("4 and 9.")],
    "tools, then user": [
        user("What is 2+2?"),
        calls("2+2"),
        result("4"),
        answer("4."),
        user("And 3?"),
        calls("2+3", start=1),
        result("5", 1),
        answer("5."),
    ],
    "thinking": [
        user("What is 17*23?"),
        calls("17*23", reasoning_content="I should calculate."),
        result("391"),
        answer("391.", reasoning_content="The tool said so."),
    ],
    "thinking, then user": [
        user("Hello"),
        answer("Hi.", reasoning_content="They greet me."),
        user("Bye"),
        answer("Bye.", reasoning_content="They leave."),
    ],
    "awkward results": [
        user("Go."),
        calls('"a\\b" + \'c\'\n{"x": [1, 2]}'),
        result('line 1\n\n  line 2 "quoted" {"k": null} </tool_response> é\n'),
        answer("Done."),
    ],
    "empty result": [user("Go."), calls("0"), result(""), answer("Nothing.")],
}


def uses_tools(messages: list[Message]) -> bool:
    return any(message["role"] == "tool" for message in messages)
