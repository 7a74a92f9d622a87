"""The tools that ship with agentrl, through the YAML that ships with them."""

import pytest

from agentrl.core.errors import UserError
from agentrl.trajectory.trajectory import Outcome


async def answers(tools, name, *calls, kwargs=None):
    session = tools.open("k", kwargs or {}, None)
    await session.start()
    results = [await session.call(name, arguments) for arguments in calls]
    rewards = await session.rewards()
    await session.release()
    return results, rewards


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ** 10", "1024"),
        ("0.1 + 0.2", "0.3"),
        ("10 / 4", "2.5"),
        ("10 / 5", "2"),
        ("1,234,567 + 1", "1234568"),
        ("1e3", "1000"),
        (" 3\n", "3"),
    ],
)
async def test_calculator_works_out(load, expression, text):
    (result,), _ = await answers(load("tools/calculator.yaml"), "calculator", {"expression": expression})
    assert (result.text, result.outcome) == (text, Outcome.OK)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 / 0", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("10.0 ** 400", "too large"),
        ("1e308 * 10", "too large"),
        ("2 ** -99999", "too large"),
        ("(-8) ** 0.5", "not real"),
        ("__import__('os').getcwd()", "is not allowed"),
        ("x + 1", "'x' is not allowed"),
        ("1 if 2 else 3", "is not allowed"),
        ("'a' * 3", "is not allowed"),
        ("True + 1", "is not allowed"),
        ("[1] * 5", "is not allowed"),
        ("2 +", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("(" * 150, "not an arithmetic expression"),
        ("1" * 201, "longer than 200"),
    ],
)
async def test_calculator_refuses_in_words(load, expression, words):
    (result,), _ = await answers(load("tools/calculator.yaml"), "calculator", {"expression": expression})
    assert words in result.text
    assert result.outcome is Outcome.MODEL_ERROR


ROW = {
    "bank": {"create_kwargs": {"balances": {"alice": 50, "bob": 0, "carol": None}, "target": {"alice": 20, "bob": 30}}}
}


async def test_bank_keeps_state_and_judges_it(load):
    results, rewards = await answers(
        load("tools/bank.yaml"),
        "bank",
        {"action": "balance", "account": "alice"},
        {"action": "transfer", "account": "alice", "to": "bob", "amount": 40},
        {"action": "withdraw", "account": "bob", "amount": 10},
        {"action": "deposit", "account": "alice", "amount": 10},
        kwargs=ROW,
    )
    assert [result.text for result in results] == ["alice: 50", "alice: 10, bob: 40", "bob: 30", "alice: 20"]
    assert rewards == {"bank": 1.0}


async def test_bank_refuses_and_changes_nothing(load):
    results, rewards = await answers(
        load("tools/bank.yaml"),
        "bank",
        {"action": "withdraw", "account": "alice", "amount": 51},
        {"action": "transfer", "account": "alice", "to": "carol", "amount": 5},
        {"action": "transfer", "account": "alice", "amount": 5},
        {"action": "deposit", "account": "alice"},
        {"action": "deposit", "account": "alice", "amount": -5},
        {"action": "rob", "account": "alice", "amount": 5},
        {"action": "balance", "account": "alice"},
        kwargs=ROW,
    )
    *refused, balance = results
    assert all(result.outcome is Outcome.MODEL_ERROR for result in refused)
    assert "alice has only 50" in refused[0].text
    assert "The accounts are: alice, bob" in refused[1].text
    assert "needs the parameter 'to'" in refused[2].text
    assert "must be one of 'balance'" in refused[5].text
    assert balance.text == "alice: 50"
    assert rewards == {"bank": 0.0}


async def test_bank_branches_are_apart_and_closed(load):
    tools = load("tools/bank.yaml")
    sessions = [tools.open(str(i), {"bank": {"create_kwargs": {"balances": {"a": i}}}}, None) for i in range(5)]
    for session in sessions:
        await session.start()
    texts = [(await session.call("bank", {"action": "balance", "account": "a"})).text for session in sessions]
    assert texts == [f"a: {i}" for i in range(5)]
    for session in sessions:
        await session.release()
    assert tools.runners["bank"].methods["create"].fn.__self__.branches == {}


async def test_bank_without_balances_names_the_key(load):
    session = load("tools/bank.yaml").open("k", {"bank": {"create_kwargs": {}}}, None)
    with pytest.raises(UserError, match="create_kwargs.balances is None: write a mapping"):
        await session.start()
    await session.release()


async def test_search_finds_the_passage(load):
    (found, nothing, empty), _ = await answers(
        load("tools/search.yaml", max_response=5000),
        "search",
        {"query": "Who built the lighthouse on Orrin Island?"},
        {"query": "zeppelin"},
        {"query": "the of and"},
    )
    assert found.text.startswith("Orrin Light\n")
    assert "Marta Quill" in found.text
    assert found.metrics == {"passages": 3}
    assert found.text.count("\n\n") == 2
    assert nothing.text == empty.text == "Nothing found. Try other words."


async def test_search_over_a_corpus_of_one_s_own(load, write):
    corpus = write("mine.jsonl", '{"text": "red apples"}\n\n{"contents": "Pear\\ngreen pears"}\n')
    yaml = f"""
    tools:
      - class_name: search.Search
        config: {{corpus: "{corpus}", top_k: 9}}
        tool_schema:
          type: function
          function:
            name: search
            description: Searches.
            parameters: {{type: object, properties: {{query: {{type: string}}}}}}
    """
    from agentrl.core.resources import share

    write("search.py", (share() / "tools" / "search.py").read_text())
    (result,), _ = await answers(load(write("tools.yaml", yaml)), "search", {"query": "green"})
    assert result.text == "Pear\ngreen pears"
    for wrong, words in (
        ("null", "config.corpus is missing"),
        ("nowhere.jsonl", "config.corpus: nowhere.jsonl does not"),
    ):
        path = write("wrong.yaml", yaml.replace(f'"{corpus}"', wrong))
        with pytest.raises(UserError, match=words):
            load(path)


GSM8K_CALLS = [  # of verl 0.7's tool: what the model reads, and the step's reward
    ("72", "answer='72' reward=1.0", 0.0),
    ("72", "answer='72' reward=1.0", -0.05),
    ("71", "answer='71' reward=0.0", -0.05),
    ("#### 72", "answer='#### 72' reward=1.0", 0.0),
    ("It is 72", "answer='It is 72' reward=1.0", -0.05),
    ("none", "answer='none' reward=0", -0.05),
    ("72.0", "answer='72.0' reward=0.0", -0.05),
    ("72.", "answer='72.' reward=0.0", -0.05),
    ("1, 72", "answer='1, 72' reward=1.0", 0.0),
]


async def test_gsm8k_answers_as_verl_s_tool_does(load):
    calls = [{"answer": answer} for answer, _, _ in GSM8K_CALLS]
    truth = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}}
    results, rewards = await answers(load("tools/gsm8k.yaml"), "calc_gsm8k_reward", *calls, kwargs=truth)
    assert [result.text for result in results] == [f"Current parsed {text}" for _, text, _ in GSM8K_CALLS]
    assert [result.reward for result in results] == [reward for _, _, reward in GSM8K_CALLS]
    assert rewards == {"calc_gsm8k_reward": 1.0}


async def test_gsm8k_without_ground_truth_names_the_key(load):
    session = load("tools/gsm8k.yaml").open("k", {"calc_gsm8k_reward": {}}, None)
    with pytest.raises(UserError, match="has no ground_truth: add it to the row"):
        await session.start()
    await session.release()


@pytest.mark.parametrize("name", ["calculator", "bank", "gsm8k", "search", "retrieval"])
def test_the_docs_and_the_files_name_each_other(load, name):
    """Every ready-made tool has its YAML beside it, loads from any folder, and describes each parameter or lists it."""
    (schema,) = load(f"tools/{name}.yaml").schemas()
    for parameter in schema["function"]["parameters"]["properties"].values():
        assert parameter.keys() & {"description", "enum"}


def test_ready_made_files_are_found_from_any_folder(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(load("tools/search.yaml")) == 1
