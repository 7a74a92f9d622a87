"""Java: the class with `main` is called Main. Assertions are on."""

from agentrl_sandbox.languages.recipe import HEAP, Recipe

HELLO = """\
import java.util.Scanner;

public class Main {
    public static void main(String[] args) {
        Scanner in = new Scanner(System.in);
        System.out.println(in.nextInt() + in.nextInt());
    }
}
"""

# One heap region and no parallel collector: a short program should cost neither the threads nor the memory. Java sizes
# its heap by the host's memory and its threads by the host's cores, and on a large host does not even start.
_SIZE = ("-XX:+UseSerialGC", "-XX:ActiveProcessorCount=2", "-Xms16m", f"-Xmx{HEAP}m")
RECIPE = Recipe(
    name="java",
    source="Main.java",
    compile=("javac", *(f"-J{word}" for word in _SIZE), "-J-XX:TieredStopAtLevel=1", "-cp", ".", "Main.java"),
    run=("java", *_SIZE, "-cp", ".", "-ea", "Main"),
    needs=("java", "javac"),
    hello=HELLO,
)
