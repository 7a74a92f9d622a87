"""Families 17 to 20 and 23: files, names, input and source texts that attack the sandbox itself."""

from dataclasses import replace

from tests.sandbox.attacks.attack import COMPILER, SMALL, Attack, Slow, fails, fetched_nothing, prints, returns

SECRETS = ("@SECRET@", "link", "folder/secret", "hard", "../../../../../..@SECRET@")
SHELL = "ln -s @SECRET@ link; ln -s @FOLDER@ folder; ln @SECRET@ hard; mkfifo fifo; ln -s /dev/zero zero; ln -s . loop"
CRASH = b"import os; os._exit(3)"

ATTACKS = [
    Attack("17 files back", "links", SHELL, "bash", fetch=SECRETS, checks=[fetched_nothing]),
    Attack(
        "17 files back",
        "fifo, device, folder, loop",
        SHELL,
        "bash",
        fetch=["fifo", "zero", "loop", ".", "loop/loop/loop/fifo", ""],
        checks=[fetched_nothing],
    ),
    Attack(
        "17 files back",
        "sparse and large",
        "with open('x', 'wb') as f: f.truncate(15 << 20)\nos.truncate('main.py', 1 << 40)\n",
        fetch=["x", "main.py"],
    ),
    Attack(
        "17 files back",
        "odd names",
        "open('\\n', 'w').close(); open(b'\\xff', 'w').close(); open('x' * 255, 'w').close(); print('end')",
        fetch=["\n", "x" * 255, "x" * 300, "a/" * 2000 + "x"],
        checks=[prints("end")],
    ),
    Attack(
        "17 files back",
        "a folder turned link between two runs",
        """
import shutil
if os.path.isdir("data") and not os.path.islink("data"):
    shutil.rmtree("data"); os.symlink("@FOLDER@", "data")
""",
        files={"data/x": b"x"},
        stdins=[b"", b""],
        fetch=["data/secret"],
        checks=[fetched_nothing],
    ),
    Slow(
        "18 names and sizes",
        "2,000 files",
        "print(len(os.listdir()))",
        files={f"f{n}": b"" for n in range(2000)},
        limits=replace(SMALL, inodes=4000),
        checks=[prints("2001")],
    ),
    Slow("18 names and sizes", "more than fit", "print('end')", files={"big": bytes(20 << 20)}, checks=[fails]),
    Slow(
        "18 names and sizes",
        "more files than may be",
        "print('end')",
        files={f"f{n}": b"" for n in range(3000)},
        checks=[],
    ),
    Attack(
        "18 names and sizes",
        "they replace what Python imports",
        "import os, json\nprint('end')",
        files={"os.py": b"", "json.py": b"print('own json')", "sitecustomize.py": CRASH, "usercustomize.py": CRASH},
        prelude=False,
        checks=[prints("own json")],
    ),
    Attack("19 stdin", "never read", "print('end')", stdins=[bytes(8 << 20)], checks=[prints("end"), returns(0)]),
    Attack(
        "19 stdin",
        "closed early",
        "os.close(0); print('end'); sys.exit(5)",
        stdins=[bytes(8 << 20)],
        checks=[prints("end"), returns(5)],
    ),
    Slow(
        "19 stdin",
        "read whole",
        "print(len(sys.stdin.buffer.read()))",
        stdins=[bytes(8 << 20)],
        checks=[prints(str(8 << 20))],
    ),
    Slow(
        "19 stdin", "100 MB never read", "print('end')", stdins=[bytes(100 << 20)], checks=[prints("end"), returns(0)]
    ),
    Attack(
        "20 encodings",
        "bytes that are no text",
        "os.write(1, bytes(range(256)) + b'\\xed\\xa0\\x80 end'); os.write(2, b'\\xff\\0')",
        checks=[prints("end"), returns(0)],
    ),
    Attack("20 encodings", "lone surrogates in the source", "print('\udcff end')", prelude=False),
    Attack("20 encodings", "NUL in the source", "print('\0 end')", prelude=False),
    Attack("20 encodings", "terminal escapes", "print('\x1b]0;owned\x07\x1b[2J end')", checks=[prints("end")]),
    Attack(
        "23 compilers",
        "include and incbin",
        """
#include "@SECRET@"
__asm__(".section .rodata\\nsecret: .incbin \\"@SECRET@\\"\\n.byte 0\\n");
int main() { return 0; }
""",
        "cpp",
        checks=[fails],
    ),
    Slow(
        "23 compilers",
        "incbin alone",
        """
#include <cstdio>
__asm__(".section .rodata\\n.global secret\\nsecret: .incbin \\"@SECRET@\\"\\n.byte 0\\n.text\\n");
extern "C" char secret[];
int main() { puts(secret); }
""",
        "cpp",
        checks=[fails],
    ),
    Slow(
        "23 compilers",
        "a source without end",
        '#include "/dev/zero"\nint main() {}\n',
        "cpp",
        checks=[fails],
        compile_limits=replace(COMPILER, wall=3.0, memory_mb=512),
    ),
    Slow(
        "23 compilers",
        "templates without end",
        """
template <int N> struct A { static const int v = A<N - 1>::v + A<N - 2>::v + A<N * 2>::v; };
int main() { return A<100>::v; }
""",
        "cpp",
        checks=[fails],
        compile_limits=replace(COMPILER, wall=3.0),
    ),
    Slow(
        "23 compilers",
        "a huge program",
        "char x[100u << 20] = {1};\nint main() { return x[5]; }\n",
        "cpp",
        checks=[fails],
    ),
    Slow(
        "23 compilers",
        "a program larger than is kept",
        "char x[100u << 20] = {1};\nint main() { return x[5]; }\n",
        "cpp",
        compile_limits=replace(COMPILER, disk_mb=400),
    ),
    Slow(
        "23 compilers",
        "errors without end",
        "#define A(x) x x x x x x x x\n" + "A(" * 9 + "undefined;" + ")" * 9 + "\nint main() {}\n",
        "cpp",
        checks=[fails],
    ),
    Slow(
        "23 compilers",
        "a native bomb",
        """
#include <unistd.h>
#include <sys/mman.h>
int main() { for (;;) { fork(); mmap(0, 1 << 24, 3, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0); } }
""",
        "cpp",
        checks=[fails],
        limits=replace(SMALL, wall=2.0),
    ),
    Slow(
        "23 compilers",
        "environment of the compiler",
        '#include <cstdio>\n#define S(x) #x\n#include "/proc/self/environ"\nint main() {}\n',
        "cpp",
    ),
    Slow(
        "23 compilers",
        "rust includes",
        'fn main() { println!("{}", include_str!("@SECRET@")); }',
        "rust",
        checks=[fails],
    ),
    Slow(
        "23 compilers",
        "java reads",
        """
import java.nio.file.*;
public class Main {
    public static void main(String[] a) throws Exception {
        System.out.println(new String(Files.readAllBytes(Paths.get("@SECRET@"))));
    }
}
""",
        "java",
        checks=[fails],
    ),
    Slow(
        "23 compilers",
        "node reads and connects",
        """
const fs = require('fs'), net = require('net');
try { console.log(fs.readFileSync('@SECRET@', 'utf8')); } catch (e) { console.log('refused'); }
const s = net.connect(@PORT@, '127.0.0.1');
s.on('connect', () => { console.log('ESCAPED'); s.end(); });
s.on('error', () => console.log('end'));
""",
        "nodejs",
        checks=[],
        limits=replace(SMALL, wall=10.0, memory_mb=1024, processes=128),
    ),
]
