"""Java: the class with `main` is called Main. Assertions are on."""

from agentrl.sandbox.languages.recipe import Recipe

HELLO = """\
import java.util.Scanner;

public class Main {
    public static void main(String[] args) {
        Scanner in = new Scanner(System.in);
        System.out.println(in.nextInt() + in.nextInt());
    }
}
"""

# One heap region and no parallel collector: a short program should cost neither the threads nor the memory.
RECIPE = Recipe(
    name="java",
    source="Main.java",
    compile=("javac", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-cp", ".", "Main.java"),
    run=("java", "-XX:+UseSerialGC", "-cp", ".", "-ea", "Main"),
    needs=("java", "javac"),
    hello=HELLO,
)
