"""The languages of the sandbox: `RECIPES` for those that run if their programs are installed.

A new language is one module with a `RECIPE`, and its name in `MODULES`.
"""

from importlib import import_module

from agentrl_sandbox.job import Unavailable
from agentrl_sandbox.languages.recipe import HEAP, PYTHON, Recipe

MODULES = (
    *("python", "pytest", "bash", "cpp", "nodejs", "typescript", "java", "go", "rust"),
    *("php", "ruby", "perl", "lua", "r", "sql"),
)
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (import_module(f"{__name__}.{name}").RECIPE for name in MODULES)
}
OTHERS = (
    *("go_test", "csharp", "cuda", "D_ut", "scala", "julia", "junit", "kotlin_script", "jest", "verilog"),
    *("python_gpu", "lean", "swift", "racket"),
)
"""Further languages of SandboxFusion, which are never installed here."""
NAMES = (*RECIPES, *OTHERS)

__all__ = ["HEAP", "NAMES", "OTHERS", "PYTHON", "RECIPES", "Recipe", "find"]


def find(language: str) -> Recipe:
    """The recipe of that name. Raises Unavailable; so does its `locate` if programs are missing."""
    if language in RECIPES:
        return RECIPES[language]
    if language in OTHERS:
        raise Unavailable(f"language not installed: {language}")
    raise Unavailable(f"language unknown: {language!r}; known are {', '.join(NAMES)}")
