"""Every language that is installed here really runs: its self-test, a failing program, what recipes promise."""

import asyncio
from collections.abc import Iterator

import pytest

from agentrl_sandbox.job import Job, Limits, Result, Unavailable
from agentrl_sandbox.languages import NAMES, OTHERS, RECIPES, find
from agentrl_sandbox.languages.recipe import Recipe
from agentrl_sandbox.pool import Pool

pytestmark = pytest.mark.integration

LIMITS = Limits(wall=60.0)
ALWAYS = {"python", "pytest", "bash"}
"""What a machine that runs these tests has."""

FAILING = {
    "python": "1 / 0",
    "pytest": "def test_sum():\n    assert 1 + 1 == 3\n",
    "bash": "exit 3",
    "cpp": "int main() { return 3; }",
    "nodejs": "throw new Error('no')",
    "typescript": "const x: number = 3; throw new Error('no' + x)",
    "java": "public class Main { public static void main(String[] args) { assert 1 > 2; } }",
    "go": "package main\n\nfunc main() { panic(3) }",
    "rust": "fn main() { panic!(); }",
    "php": "exit(3);",
    "ruby": "raise 'no'",
    "perl": "die",
    "lua": "error('no')",
    "R": "stop('no')",
    "sql": "select * from nothing;",
}
BROKEN = {"cpp": "int main() {", "java": "class {", "go": "package", "rust": "fn"}


class Sandbox:
    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.pool = Pool()
        self.runner.run(self.pool.start())

    def run(self, language: str, code: str, stdin: bytes = b"") -> Result:
        job = Job(language, code, [stdin], compile_limits=LIMITS, run_limits=LIMITS)
        return self.runner.run(self.pool.run(job))

    def close(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


def installed(name: str) -> Recipe:
    """The recipe; the test is skipped where the toolchain is missing, which is never hidden for those in ALWAYS."""
    recipe = find(name)
    try:
        recipe.locate()
    except Unavailable as error:
        if name in ALWAYS:
            raise
        pytest.skip(str(error))
    return recipe


@pytest.mark.parametrize("name", RECIPES)
def test_the_self_test_passes(sandbox: Sandbox, name: str) -> None:
    recipe = installed(name)
    result = sandbox.run(name, recipe.hello, recipe.stdin)
    (run,) = result.runs
    assert (run.status, run.return_code) == ("Finished", 0), run
    assert recipe.expected in run.stdout
    assert (result.compiled is None) == (recipe.compile is None)


@pytest.mark.parametrize("name", RECIPES)
def test_a_failing_program_says_so(sandbox: Sandbox, name: str) -> None:
    installed(name)
    result = sandbox.run(name, FAILING[name])
    assert result.compiled is None or result.compiled.return_code == 0, result.compiled
    assert result.runs[0].status == "Finished"
    assert result.runs[0].return_code not in (0, None)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_program_fails_to_compile(sandbox: Sandbox, name: str) -> None:
    installed(name)
    result = sandbox.run(name, BROKEN[name])
    assert result.compiled is not None
    assert result.compiled.return_code not in (0, None)
    assert not result.runs


def test_libraries_that_the_code_asks_for(sandbox: Sandbox) -> None:
    installed("cpp")
    threads = '#include <thread>\n#include <iostream>\nint main() { std::thread([] { std::cout << "in"; }).join(); }'
    assert sandbox.run("cpp", threads).runs[0].stdout == b"in"
    recipe = find("cpp")
    assert "-lcrypto" in (recipe.compile_command("#include <openssl/sha.h>") or ())
    assert "-lcrypto" not in (recipe.compile_command("int main() {}") or ())


def test_php_with_and_without_its_tag(sandbox: Sandbox) -> None:
    installed("php")
    assert sandbox.run("php", "echo 1;").runs[0].stdout == b"1"
    assert sandbox.run("php", "<p>\n<?php echo 1; ?>").runs[0].stdout == b"<p>\n1"


def test_sql_shows_rows_and_stops_at_an_error(sandbox: Sandbox) -> None:
    installed("sql")
    run = sandbox.run("sql", "select 1, 'a';\nselect nothing;\nselect 2;").runs[0]
    assert (run.stdout, run.return_code) == (b"1|a\n", 1)


def test_types_are_stripped_and_not_checked(sandbox: Sandbox) -> None:
    installed("typescript")
    assert sandbox.run("typescript", "const x: string = 3 as any; console.log(x)").runs[0].stdout == b"3\n"


def test_known_and_never_installed() -> None:
    for name in OTHERS:
        with pytest.raises(Unavailable, match=f"^language not installed: {name}$"):
            find(name)


def test_unknown() -> None:
    with pytest.raises(Unavailable, match="language unknown: 'cobol'; known are python, pytest"):
        find("cobol")


def test_missing_programs_and_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match=r"^language not installed: cpp \(needs g\+\+\)$"):
        find("cpp").locate()
    lacking = Recipe(name="x", source="x", run=("python3",), needs=("python3",), hello="", modules=("no_such_module",))
    with pytest.raises(Unavailable, match=r"language not installed: x \(needs no_such_module\)"):
        lacking.locate(__import__("sys").executable)


def test_names_are_those_of_the_protocol() -> None:
    assert len(set(NAMES)) == len(NAMES) == 29
    assert all(name == recipe.name for name, recipe in RECIPES.items())
    assert [name for name, recipe in RECIPES.items() if recipe.zygote] == ["python"]


async def test_a_pool_refuses_what_is_not_there() -> None:
    pool = Pool()
    await pool.start()
    try:
        with pytest.raises(Unavailable, match="language not installed: racket"):
            await pool.run(Job("racket", "(display 1)"))
    finally:
        await pool.close()
