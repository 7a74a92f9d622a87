"""Test scripts run apart from the solution: right ones pass as they are written, forged answers never do."""

# ruff: noqa: E501, ISC004 - programs
import asyncio
from contextlib import suppress

import pytest

from agentrl.rewards.code import grade, read_cases
from agentrl.rewards.code.analysis import read
from agentrl.rewards.code.values import MALFORMED, decode
from agentrl_sandbox.job import CommandResult, Job, Limits, Result
from tests.rewards.code.conftest import Grade

pytestmark = pytest.mark.integration

HAS_CLOSE = """
from typing import List
def has_close_elements(numbers: List[float], threshold: float) -> bool:
    return any(abs(a - b) < threshold for i, a in enumerate(numbers) for j, b in enumerate(numbers) if i != j)
"""
CHECK_CLOSE = """
METADATA = {'author': 'x', 'dataset': 'test'}

def check(candidate):
    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True
    assert candidate([1.0, 2.0, 5.9, 4.0, 5.0], 0.95) == True
    assert candidate([1.0, 2.0, 5.9, 4.0, 5.0], 0.8) == False
check(has_close_elements)
"""
CYCLIC = """
def encode_cyclic(s):
    groups = [s[i:i + 3] for i in range(0, len(s), 3)]
    return "".join(g[1:] + g[0] if len(g) == 3 else g for g in groups)
def decode_cyclic(s):
    return encode_cyclic(encode_cyclic(s))
"""
CHECK_CYCLIC = """
def check(candidate):
    from random import randint, choice
    import string
    for _ in range(100):
        str = ''.join(choice(string.ascii_lowercase) for i in range(randint(10, 20)))
        encoded_str = encode_cyclic(str)
        assert candidate(encoded_str) == str
check(decode_cyclic)
"""
PLUS = """
import math
def is_floats(x):
    return isinstance(x, float) or (isinstance(x, (list, tuple)) and all(isinstance(i, float) for i in x))
def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert math.isclose(out, exp, rel_tol=1e-07, abs_tol=atol)
    else:
        assert out == exp, f"out: {out}, exp: {exp}"
inputs = [[i, 3] for i in range(1, 80)]
results = [i / 3 for i in range(1, 80)]
for i, (inp, exp) in enumerate(zip(inputs, results)):
    assertion(div(*inp), exp, 0)
"""
STACK = """
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __eq__(self, other): return self.items == other.items
class EmptyError(Exception): pass
def top(stack):
    if not len(stack): raise EmptyError("empty")
    return stack.items[-1]
"""
UNITTEST = """
import unittest
class TestDiv(unittest.TestCase):
    def test_value(self): self.assertAlmostEqual(div(1, 3), 0.333333, places=5)
    def test_error(self):
        with self.assertRaises(ZeroDivisionError): div(1, 0)
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(TestDiv))
assert result.wasSuccessful()
"""
DIV = "def div(a, b):\n    return a / b"

RIGHT = {
    "HumanEval": (HAS_CLOSE, CHECK_CLOSE),
    "HumanEval with another of the solution's functions, at random": (CYCLIC, CHECK_CYCLIC),
    "HumanEval+": (DIV, PLUS),
    "MBPP": (DIV, "assert div(6, 3) == 2.0"),
    "MBPP with a set": ("def f(a, b): return list(set(a) & set(b))", "assert set(f((3, 4), (4, 5))) == set((4,))"),
    "MBPP with math": (DIV, "import math\nassert math.isclose(div(10, 4), 2.5, rel_tol=0.001)"),
    "a tolerance": (DIV, "assert abs(div(8, 2) - 4.0) < 1e-6"),
    "truth": ("def even(n): return n % 2 == 0", "assert even(4)\nassert not even(3)"),
    "unittest": (DIV, UNITTEST),
    "an argument changed in place": (
        "def order(items): items.sort()",
        "x = [3, 1, 2]\nassert order(x) is None\nassert x == [1, 2, 3]\nd = {'a': x}",
    ),
    "an exception": (DIV, "try:\n    div(1, 0)\n    assert False\nexcept ZeroDivisionError as e:\n    assert 'zero' in str(e)"),
    "an exception of the solution's own": (STACK, "try:\n    top(Stack())\nexcept EmptyError:\n    x = 1\nassert x == 1"),
    "objects": (STACK, "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert len(s) == 1\nassert top(s) == 1"),
    "objects that compare": (STACK, "assert Stack().push(1) == Stack().push(1)\nassert Stack() != Stack().push(2)"),
    "Solution": ("class Solution:\n    def two(self, a): return [a, 0]", "s = Solution()\nassert s.two(3) == [3, 0]"),
    "a generator": ("def count(n):\n    for i in range(n): yield i", "assert list(count(3)) == [0, 1, 2]\nassert sum(count(4)) == 6"),
    "a generator by next": ("def count():\n    yield 1\n    yield 2", "g = count()\nassert next(g) == 1\nassert next(g) == 2"),
    "an endless generator": (
        "def naturals():\n    i = 0\n    while True:\n        yield i\n        i += 1",
        "from itertools import islice\nassert list(islice(naturals(), 4)) == [0, 1, 2, 3]",
    ),
    "calls that depend on each other": ("def step(x): return x * 2 + 1", "x = 0\nfor _ in range(6):\n    x = step(x)\nassert x == 63"),
    "a loop until it is done": (
        "def collatz(n): return n // 2 if n % 2 == 0 else 3 * n + 1",
        "n, steps = 6, 0\nwhile n != 1:\n    n = collatz(n)\n    steps += 1\nassert steps == 8",
    ),
    "state": ("seen = []\ndef add(x):\n    seen.append(x)\n    return len(seen)", "assert add(1) == 1\nassert add(1) == 2\nassert seen == [1, 1]"),
    "what it prints": (
        "def hello(): print('hi')",
        "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    hello()\nassert out.getvalue() == 'hi\\n'",
    ),
    "a name that shadows": ("def f(x): return x", "def check(f):\n    assert f(1) == 1\ncheck(f)"),
    "a function as an argument": ("def twice(g, x): return g(g(x))", "assert twice(lambda x: x + 1, 1) == 3"),
    "a named tuple": (
        "def x_of(p): return p.x",
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\nassert x_of(P(1, 2)) == 1",
    ),
    "types of the standard library": (
        "from collections import Counter, deque\nfrom decimal import Decimal\nfrom datetime import date, timedelta\n"
        "def count(x): return Counter(x)\ndef add(a, b): return a + b\ndef turn(d): d.rotate(1)\ndef upto(n): return range(n)",
        "from collections import Counter, deque\nfrom datetime import date, timedelta\nfrom decimal import Decimal\n"
        "assert count('aab').most_common(1) == [('a', 2)]\nassert add(Decimal('1.1'), Decimal('2.2')) == Decimal('3.3')\n"
        "assert add(date(2024, 1, 31), timedelta(1)) == date(2024, 2, 1)\nassert upto(3) == range(3)\n"
        "assert add(Counter('a'), Counter('b')) == Counter('ab')",
    ),
    "a list of objects": (
        "class Node:\n    def __init__(self, v): self.val = v\ndef nodes(n): return [Node(i) for i in range(n)]\n"
        "def bump(items):\n    for item in items: item.val += 1",
        "x = nodes(3)\nassert [n.val for n in x] == [0, 1, 2]\nbump(x)\nassert x[2].val == 3\nassert len(x) == 3",
    ),
    "nested objects": (
        "class Node:\n    def __init__(self, v, n=None): self.val, self.next = v, n\ndef chain(items):\n"
        "    head = None\n    for v in reversed(items): head = Node(v, head)\n    return {'head': head}",
        "n, found = chain([1, 2, 3])['head'], []\nwhile n:\n    found.append(n.val)\n    n = n.next\nassert found == [1, 2, 3]",
    ),
    "every": ("def inc(x): return x + 1", "assert all(inc(i) == i + 1 for i in range(50))"),
    "a script that asserts nothing": (DIV, "div(1, 2)"),
}  # fmt: skip


STANDARD = {
    "from collections import Counter\ndef f(x): return Counter('aab')": "{'a': 2, 'b': 1}",
    "from collections import OrderedDict\ndef f(x): return OrderedDict(a=1)": "{'a': 1}",
    "from collections import defaultdict\ndef f(x): return defaultdict(list, a=[1])": "{'a': [1]}",
    "from decimal import Decimal\ndef f(x): return Decimal('0.5')": "0.5",
    "from fractions import Fraction\ndef f(x): return Fraction(1, 2)": "0.5",
    "def f(x): return bytearray(b'x')": "b'x'",
}


@pytest.mark.parametrize("code", STANDARD)
def test_values_of_the_standard_library_equal_literals(verdict: Grade, code: str) -> None:
    scripts = [f"assert f(1) == {STANDARD[code]}", f"x = f(1)\nassert x == {STANDARD[code]}", "assert f(1) == 'x'"]
    assert verdict(code, {"assert_case": scripts}).results == [True, True, False]


def test_no_form_keeps_the_grader_busy() -> None:
    forms = [
        ["Fraction", ["1e1000000000", 1]],
        ["bytearray", [10**12]],
        ["Decimal", ["1e999999999999"]],
        ["range", [0, 1]],
    ]
    for kind, args in forms:
        with suppress(*MALFORMED):
            assert decode({"standard": [kind, {"list": args}]}) != 1


@pytest.mark.parametrize("name", RIGHT)
def test_right_solutions_pass(verdict: Grade, name: str) -> None:
    code, script = RIGHT[name]
    found = verdict(code, {"assert_case": [script]})
    assert found.results == [True], found.metadata


LIAR = """
class Liar:
    def __init__(self, *a): pass
    def yes(self, *a): return True
    def no(self, *a): return False
    def me(self, *a): return self
    def zero(self, *a): return 0.0
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = yes
    __ne__ = no
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __rmul__ = __truediv__ = __mod__ = __and__ = __rand__ = me
    __abs__ = __neg__ = __round__ = me
    __call__ = __getattr__ = __getitem__ = me
    __hash__ = lambda self: 0
    def __iter__(self): return iter(())
    def __len__(self): return 0
"""
INT = (
    LIAR
    + """
class Int(int):
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = Liar.yes
    __ne__ = Liar.no
    __sub__ = __rsub__ = __abs__ = Liar.zero
    __hash__ = int.__hash__
class Float(float):
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = Liar.yes
    __ne__ = Liar.no
    __sub__ = __rsub__ = __abs__ = Liar.zero
    __hash__ = float.__hash__
class Str(str):
    __eq__ = Liar.yes
    __ne__ = Liar.no
    __hash__ = str.__hash__
class List(list):
    __eq__ = Liar.yes
    __ne__ = Liar.no
"""
)
ATTACKS = {
    "an object that lies": f"{LIAR}\ndef f(x): return Liar()",
    "the class itself": f"{LIAR}\nf = Liar",
    "an object in place of the function": f"{LIAR}\nf = Liar()",
    "an int": f"{INT}\ndef f(x): return Int(1)",
    "a float": f"{INT}\ndef f(x): return Float(1)",
    "a text": f"{INT}\ndef f(x): return Str('')",
    "a list": f"{INT}\ndef f(x): return List()",
    "a list of liars": f"{LIAR}\ndef f(x): return [Liar()]",
    "builtins.abs": "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.isinstance = lambda *a: True\ndef f(x): return 1",
    "every builtin": (
        "import builtins\nfor name in 'abs all any sum sorted len round min max set list float int'.split():\n"
        "    setattr(builtins, name, lambda *a, **k: 0)\ndef f(x): return 1"
    ),
    "math.isclose": "import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 1",
    "settrace": (
        "import sys\ndef trace(frame, event, arg):\n    frame.f_trace_lines = True\n"
        "    for name in ('x', 'expected'): frame.f_locals[name] = 1\n    return trace\nsys.settrace(trace)\ndef f(x): return 1"
    ),
    "exits": "import sys\ndef f(x): sys.exit(0)",
    "leaves": "import os\ndef f(x): os._exit(0)",
    "leaves at once": "import os\nos._exit(0)",
    "AssertionError": "def f(x): raise AssertionError",
    "StopIteration": "def f(x): raise StopIteration",
    "GeneratorExit": "def f(x): raise GeneratorExit",
    "SystemExit with a class": "class E(SystemExit): pass\ndef f(x): raise E(0)",
    "the check": "def check(*a): pass\nassertion = check\ndef f(x): return 1",
    "another answer each time": "import time, random\nrandom.seed(time.time_ns())\ndef f(x): return random.random()",
    "a reply of its own": (
        'import os\nfor n in range(3, 64):\n    try: os.write(n, b\'{"answers": [{"value": 42}, {"value": 42}]}\')\n'
        "    except OSError: pass\ndef f(x): return 1"
    ),
    "a verdict of its own": (
        'import os\nfor n in range(3, 64):\n    try: os.write(n, b\'{"state": "passed", "sure": true, "calls": []}\')\n'
        "    except OSError: pass\nos._exit(0)"
    ),
    "prints a verdict": 'def f(x):\n    print(\'{"state": "passed", "sure": true, "calls": []}\')\n    return 1',
    "a reference to what is not there": "class E(dict): pass\ndef f(x): return {'ref': '1.0'}",
    "objects without end": "class N:\n    def __iter__(self): return iter([N()])\n    def __next__(self): return N()\ndef f(x): return N()",
    "nothing": "pass",
}
CALLED = "def check(candidate):\n    for x in (7, 8):\n        {}\ncheck(f)"
SCRIPTS = [
    "assert abs(f(7) - 42.5) < 1e-6",
    "import math\nassert math.isclose(f(7), 42.5)",
    "assert round(f(7)) == 42",
    CALLED.format("assert candidate(x) == 42"),
    CALLED.format("assert abs(candidate(x) - 42.5) < 1e-6"),
    CALLED.format("assert sorted(candidate(x)) == [1, 2]"),
    CALLED.format("assert candidate(x) == x + 35 and 42 == candidate(x)"),
    "expected = 42\nx = f(7)\nassert x == expected\nassert x - expected == 0",
    "assert all(map(lambda x: f(x) == 42, [7, 8])) and f(7) > 40",
    "assert not f(7) != 42, 'wrong'",
    "assert {f(7): 1} == {42: 1}",
    "assert [f(x) for x in range(3)] == [42, 43, 44]",
    "class T:\n    def go(self):\n        if f(7) != 42: raise ValueError\nT().go()",
]


@pytest.mark.prevents("a model learns to fool its tests: objects that equal everything, patched built-ins, early exits")
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_pass_nothing(verdict: Grade, name: str) -> None:
    found = verdict(ATTACKS[name], {"assert_case": SCRIPTS}, wall=5.0)
    assert found.score == 0.0, found.results
    assert not found.forgeable


def test_names_of_the_solution_stand_for_their_values(verdict: Grade) -> None:
    scripts = [
        "assert LIMIT == 5",
        "assert LIMIT != 5",
        "assert len(TABLE) == 2 and TABLE[0] == 1 and 2 in TABLE",
        "TABLE[0] = 7\nassert total() == 9",
        "print(f'{LIMIT}')\nassert True",
    ]
    code = "LIMIT = 5\nTABLE = [1, 2]\ndef total(): return sum(TABLE)"
    found = verdict(code, {"assert_case": scripts})
    assert found.results == [True, False, True, True, False], "text of a name is no use of the solution"


def test_the_answer_passes_them() -> None:
    """The scripts ask for something that can be done, each by itself."""
    assert not [script for script in SCRIPTS if read(script).together]


def test_what_is_expected_never_meets_the_solution() -> None:
    seen: list[Job] = []

    async def run(job: Job) -> Result:
        seen.append(job)
        replies = [b'{"state": "failed", "sure": false, "calls": [[{"name": "f"}, [1], {}]]}'] * len(job.stdins)
        if "solution.py" in job.files:
            replies = [b'{"answers": [{"value": 1}]}'] * len(job.stdins)
        return Result("x", runs=[CommandResult("Finished", 0.0, 0, reply, b"") for reply in replies])

    cases = read_cases({"assert_case": ["assert abs(f(1) - 4711) < 1", "assert f(1) == 'x4711'"]})
    found = asyncio.run(grade(run, "secret_solution", cases, language="python", limits=Limits(), total=9))
    assert found.results == [False, False]
    for job in seen:
        sent = b"".join([job.code.encode(), *job.stdins, *job.files.values()])
        assert (b"4711" in sent) is ("solution.py" not in job.files)
        assert (b"secret_solution" in sent) is ("solution.py" in job.files)


def test_what_rests_on_the_solution_is_marked() -> None:
    for source in ("assert f(2) == 4", "assert abs(f(2) - 4.0) < 1e-6", "assert Solution().f(2) == 4", CHECK_CLOSE):
        assert not read(source).forgeable, source
    for source in (
        "assert f(2) == input()",
        "assert g(f(2)) == 2",
        "assert Point(1) == Point(1)",
        "async def t(): await f()",
    ):
        assert read(source).forgeable, source


@pytest.mark.parametrize("reply", [b"", b"[]", b"5", b'{"answers": []}', b'{"answers": [[]]}', b'{"answers": [{"value": {"x": 1}}]}',
                                   b'{"answers": [{"value": {"list": 5}}]}'])  # fmt: skip
def test_forged_answers_fail(reply: bytes) -> None:
    async def run(job: Job) -> Result:
        return Result("x", runs=[CommandResult("Finished", 0.0, 0, reply, b"")])

    cases = read_cases({"assert_case": ["assert f(1) == 2"]})
    assert asyncio.run(grade(run, "x", cases, language="python", limits=Limits(), total=9)).results == [False]


@pytest.mark.parametrize("depth", [100, 300, 900, 950, 970, 980, 985, 990, 995, 5000])
def test_answers_of_any_depth_are_no_trouble_of_the_graders(depth: int) -> None:
    deep = b'{"list": [' * (depth // 2) + b"1" + b"]}" * (depth // 2)

    async def run(job: Job) -> Result:
        reply = b'{"state": "failed", "sure": false, "calls": [[{"name": "f"}, [1], {}]]}'
        if "solution.py" in job.files:
            reply = b'{"answers": [{"value": ' + deep + b"}]}"
        return Result("x", runs=[CommandResult("Finished", 0.0, 0, reply, b"")])

    for script in ("assert f(1) == 2", "x = f(1)\nassert x == 2"):
        cases = read_cases({"assert_case": [script]})
        assert asyncio.run(grade(run, "x", cases, language="python", limits=Limits(), total=9)).results == [False]
