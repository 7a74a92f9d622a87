"""Rust by rustc; where rustup is in charge, by the compiler behind its proxy, which needs no home folder."""

import os
from pathlib import Path

from agentrl_sandbox.languages.recipe import Recipe

HELLO = """\
use std::io;

fn main() {
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
    let sum: i64 = line.split_whitespace().map(|word| word.parse::<i64>().unwrap()).sum();
    println!("{}", sum);
}
"""


def toolchains() -> tuple[str, ...]:
    """bin/ of rustup's toolchains, stable ones first."""
    found = Path(os.path.expanduser("~/.rustup/toolchains")).glob("*/bin")
    return tuple(map(str, sorted(found, key=lambda folder: (not folder.parent.name.startswith("stable"), folder))))


RECIPE = Recipe(
    name="rust",
    source="main.rs",
    compile=("rustc", "main.rs", "-o", "main"),
    run=("./main",),
    needs=("rustc", "cc"),
    folders=toolchains,
    hello=HELLO,
)
