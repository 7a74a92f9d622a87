"""Go, one file, with the standard library."""

from agentrl_sandbox.languages.recipe import Recipe

HELLO = """\
package main

import "fmt"

func main() {
	var a, b int
	fmt.Scan(&a, &b)
	fmt.Println(a + b)
}
"""

RECIPE = Recipe(
    name="go",
    source="main.go",
    compile=("go", "build", "-o", "main", "main.go"),
    run=("./main",),
    needs=("go",),
    hello=HELLO,
    # No modules to fetch, no C compiler to wait for.
    env={"GO111MODULE": "off", "CGO_ENABLED": "0", "GOTELEMETRY": "off"},
)
