"""C++17 by g++, linked with OpenSSL where the code includes it."""

from agentrl_sandbox.languages.recipe import Recipe


def command(code: str) -> tuple[str, ...]:
    """g++ and the libraries that the code asks for."""
    libraries = ("-lcrypto", "-lssl") if "<openssl/" in code else ()
    return ("g++", "-std=c++17", "main.cpp", "-o", "main", *libraries, "-lpthread")


RECIPE = Recipe(
    name="cpp",
    source="main.cpp",
    compile=command,
    run=("./main",),
    needs=("g++",),
    hello="#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }\n",
)
