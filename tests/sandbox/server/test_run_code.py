"""The wire format of /run_code: fields, enums, status rules."""

import base64

import pytest

CPP = "#include <iostream>\nint main(){ int a; std::cin >> a; std::cout << a + 1 << std::endl; return a == 7 ? 3 : 0; }"


def test_a_program_that_ends_well(server):
    reply = server.python("import sys; print(input()); print('e', file=sys.stderr)", stdin="hello")
    assert (reply["status"], reply["message"], reply["compile_result"]) == ("Success", "", None)
    run = reply["run_result"]
    assert (run["status"], run["return_code"], run["stdout"], run["stderr"]) == ("Finished", 0, "hello\n", "e\n")
    assert run["execution_time"] > 0
    assert reply["executor_pod_name"] is None
    assert reply["files"] == {}
    assert {"isolation", "status", "message", "compile_result", "run_result", "executor_pod_name", "files"} == set(
        reply
    )


def test_extras_are_beside_the_known_fields(server):
    run = server.python("print(1)")["run_result"]
    assert {"status", "execution_time", "return_code", "stdout", "stderr"} < set(run)
    assert run["limit_hit"] is None
    assert run["truncated"] is False
    assert run["cpu_time"] >= 0
    assert run["memory_peak_MB"] >= 0


def test_a_return_code_other_than_0_is_failed_with_no_message(server):
    reply = server.python("import sys; print('before'); sys.exit(5)")
    assert (reply["status"], reply["message"]) == ("Failed", "")
    assert (reply["run_result"]["return_code"], reply["run_result"]["stdout"]) == (5, "before\n")


def test_a_traceback_is_on_stderr(server):
    run = server.python("1/0")["run_result"]
    assert run["return_code"] == 1
    assert run["stderr"].startswith("Traceback")
    assert run["stderr"].endswith("ZeroDivisionError: division by zero\n")


def test_a_signal_is_a_negative_return_code(server):
    reply = server.python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (reply["status"], reply["run_result"]["return_code"]) == ("Failed", -11)


def test_a_time_limit_keeps_what_was_printed(server):
    reply = server.python("print('part', flush=True)\nwhile True: pass", run_timeout=1)
    run = reply["run_result"]
    assert (reply["status"], run["status"], run["return_code"]) == ("Failed", "TimeLimitExceeded", None)
    assert run["stdout"] == "part\n"
    assert run["limit_hit"] in ("time", "cpu")


def test_a_compiled_language(server):
    status, reply = server.post("/run_code", {"language": "cpp", "code": CPP, "stdin": "41", "compile_timeout": 60})
    assert (status, reply["status"], reply["compile_result"]["return_code"]) == (200, "Success", 0)
    assert reply["run_result"]["stdout"] == "42\n"


def test_what_does_not_compile_is_not_run(server):
    _, reply = server.post("/run_code", {"language": "cpp", "code": "int main( {", "compile_timeout": 60})
    assert (reply["status"], reply["run_result"], reply["message"]) == ("Failed", None, "")
    assert reply["compile_result"]["return_code"] == 1
    assert "error" in reply["compile_result"]["stderr"]


def test_files_go_in_and_come_out(server):
    code = "open('out/b.bin', 'wb').write(open('in/a.txt', 'rb').read()[::-1])"
    code = "import os; os.mkdir('out'); " + code
    files = {"in/a.txt": base64.b64encode(b"\x00abc").decode(), "absent": None}
    reply = server.python(code, files=files, fetch_files=["out/b.bin", "missing"])
    assert reply["files"] == {"out/b.bin": base64.b64encode(b"cba\x00").decode()}


def test_several_tests_after_one_compilation(server):
    tests = [{"stdin": "1"}, {"stdin": "7"}, {"stdin": "9"}]
    body = {"language": "cpp", "code": CPP, "tests": tests, "compile_timeout": 60}
    _, reply = server.post("/run_code", body)
    assert reply["status"] == "Failed"
    assert [run["return_code"] for run in reply["tests"]] == [0, 3, 0]
    assert [run["stdout"] for run in reply["tests"]] == ["2\n", "8\n", "10\n"]
    assert reply["run_result"] == reply["tests"][1]  # an old client sees the failure
    _, reply = server.post("/run_code", body | {"stop_on_failure": True})
    assert [run["return_code"] for run in reply["tests"]] == [0, 3]


@pytest.mark.parametrize("language", ["csharp", "lean", "cuda"])
def test_a_language_that_is_not_installed(server, language):
    status, reply = server.post("/run_code", {"language": language, "code": "x"})
    assert (status, reply["status"]) == (200, "SandboxError")
    assert reply["message"] == f"language not installed: {language}"
    assert (reply["compile_result"], reply["run_result"]) == (None, None)


def test_output_of_any_bytes_and_any_input(server):
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[:3] + b'\\xff\\x00\\xed\\xa0\\x80')"
    reply = server.python(code, stdin="é\U0001f600")
    assert reply["status"] == "Success"
    assert reply["run_result"]["stdout"].startswith("é")
    assert "�" in reply["run_result"]["stdout"]


def test_a_program_that_ends_before_it_reads_its_input(server):
    reply = server.python("raise SystemExit(4)", stdin="x" * 5_000_000)
    assert (reply["status"], reply["run_result"]["return_code"]) == ("Failed", 4)


def test_output_beyond_its_limit_is_marked(server):
    run = server.python("print('x' * 300_000)")["run_result"]
    assert (len(run["stdout"]), run["truncated"]) == (300_001, False)
    run = server.python("while True: print('x' * 1000)", limits={"output_bytes": 10_000})["run_result"]
    assert (len(run["stdout"]), run["truncated"], run["limit_hit"]) == (10_000, True, "output")


def test_memory_beyond_its_limit_says_so(server):
    reply = server.python("x = bytearray(900_000_000); print(len(x))", memory_limit_MB=128)
    assert reply["status"] == "Failed"
    assert reply["run_result"]["limit_hit"] == "memory"


def test_small_paths(server):
    assert server.get("/v1/ping") == (200, "pong")
    assert server.get("/list_datasets") == (200, [])
    assert server.get("/nowhere")[0] == 404
    assert server.get("/run_code")[0] == 405


def test_health_says_what_isolates_and_why(server):
    status, report = server.get("/health")
    assert (status, report["status"]) == (200, "ok")
    chosen = next(probe for probe in report["probes"] if probe["tier"] == report["isolation"])
    assert chosen["ok"]
    assert report["memory"].startswith("all memory of a run counts")
    assert "python" in report["languages"]["available"]
    assert report["languages"]["missing"]["lean"] == "language not installed: lean"
    assert report["load"]["pending_bytes"] == 0
    assert server.get("/")[1]["isolation"] == report["isolation"]  # by a redirect


def test_metrics_count_runs(server):
    def runs():
        text = server.get("/metrics")[1]
        lines = [line for line in text.splitlines() if line.startswith('agentrl_sandbox_runs_total{language="python"}')]
        return float(lines[0].split()[-1])

    server.python("1")
    before = runs()
    server.python("1", tests=[{"stdin": ""}] * 3)
    assert runs() == before + 3
