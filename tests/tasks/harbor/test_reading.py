"""Task folders: read as they are, or refused in one line that names file and field."""

import os
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config.schema.rollout import Containers
from agentrl.core.errors import UserError
from agentrl.tasks.harbor.folder import find_tasks, read_task, task_rows
from agentrl.tasks.harbor.format import HarborTask
from agentrl.tasks.harbor.task import Copy
from agentrl.tasks.runner import TaskRunner, task_for
from tests.tasks.harbor.unpack import HERE, unpack

PLAIN = {
    "task.toml": "",
    "instruction.md": "Do it.",
    "environment/Dockerfile": "FROM debian:bookworm-slim",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt",
}


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
)
"""69 thousand million nodes in a dozen lines."""
REFUSED = [
    ("{network_mode: host}", "main.network_mode is not"),
    ("{build: ../../other}", "/other' is outside of"),
    ("{build: /etc}", "'/etc' is outside of"),
    ("{build: {context: ., dockerfile: ../../Dockerfile}}", "build.dockerfile is not"),
    ("{env_file: ../../.env}", "main.env_file is not"),
    ("{volumes: ['../../data:/data']}", "/data' is outside of"),
    ("{volumes: ['~/.ssh:/keys']}", "/.ssh' is outside of"),
    ("{volumes: ['$HOME:/home']}", "needs the environment variable HOME"),
    ("{volumes: [{type: bind, source: '${HOME}/x', target: /x}]}", "needs the environment variable HOME"),
    ("{deploy: {resources: {reservations: {devices: [{driver: nvidia}]}}}}", "main.deploy.resources.reservations.dev"),
    ("{mem_limit: much}", "main.mem_limit is 'much': write a size"),
    ("{environment: {A: '${AGENTRL_NOT_SET}'}}", "docker-compose.yaml needs the environment variable AGENTRL_NOT_SET"),
    ("{environment: [AGENTRL_NOT_SET]}", "docker-compose.yaml needs the environment variable"),
    ("{command: 'sh -c \"'}", "it cannot be read: No closing quotation"),
    ("{volumes: 5}", "it cannot be read: "),
    ("{environment: 5}", "it cannot be read: "),
    ("{deploy: [5]}", "main.deploy is [5]: write a table"),
]

REFUSED_BESIDE = [
    *((text, line.replace("main.", "db.")) for text, line in REFUSED[:1] + REFUSED[5:9]),
    ("{privileged: true}", "services.db.privileged is not supported; leave the task out"),
    ("{network_mode: 'container:other'}", "db.network_mode is not"),
    ("{network_mode: 'service:main'}", "db.network_mode is not"),
    *(
        (f"{{{key}: x}}", f"db.{key} is not")
        for key in ("pid", "ipc", "cap_add", "devices", "volumes_from", "provider")
    ),
    *((f"{{{key}: x}}", f"db.{key} is not") for key in ("use_api_socket", "security_opt", "runtime", "label_file")),
    ("{extends: {file: ../../x.yaml, service: x}}", "db.extends.file is not"),
    ("{env_file: {path: /etc/passwd}}", "'/etc/passwd' is outside of"),
    ("{env_file: [{path: /etc/passwd}]}", "'/etc/passwd' is outside of"),
    ("{environment: [HOME]}", "needs the environment variable HOME"),
]
"""Services beside the container."""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("folders", tmp_path_factory.mktemp("tasks"))


def test_all_folders_are_read(folders: Path) -> None:
    tasks = {name: read_task(folder) for name, folder in find_tasks(folders).items()}
    assert len(tasks) == len(list((HERE / "folders").iterdir())) >= 20
    assert all(task.solution is not None and not task.notes for task in tasks.values())


def test_fields_of_today_and_of_before(folders: Path) -> None:
    old = read_task(folders / "sum-column")
    assert (old.spec.memory_mb, old.spec.storage_mb, old.spec.network) == (1024, 5120, "full")
    assert old.instruction.startswith("`/data/sales.csv` has")  # without the mark of a benchmark
    assert old.tests.timeout == 60
    new = read_task(folders / "sqlite-orders")
    assert (new.spec.memory_mb, new.spec.cpus, new.spec.network, new.spec.storage_mb) == (512, 1, "full", None)
    assert (new.spec.build, new.agent_timeout) == (folders / "sqlite-orders/environment", None)
    assert read_task(folders / "no-network").spec.network == "none"
    closed = write(folders.parent / "closed", PLAIN | {"task.toml": "[environment]\nallow_internet = false"})
    assert read_task(closed).spec.network == "none"
    assert read_task(folders / "shell-function").spec.workdir == "/work"
    assert read_task(folders / "fix-failing-test").tags == ("repository", "python", "swe", "software-engineering")
    ready = read_task(folders / "ready-image")
    copied = (Copy(folders / "ready-image/environment"),)
    assert (ready.spec.image, ready.spec.build, ready.files) == ("agentrl-test-tasks", None, copied)


def test_environment_variables(
    folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("AGENTRL_TEST_REGION", raising=False)
    task = read_task(folders / "env-config")
    assert task.spec.env == {"APP_MODE": "staging", "APP_REGION": "eu-west"}
    assert task.tests.env == {"EXPECTED": "mode=staging region=eu-west"}
    monkeypatch.setenv("AGENTRL_TEST_REGION", "us")
    kept = read_task(folders / "env-config")
    assert kept.spec.env["APP_REGION"] == "eu-west"
    asks = "environment.env.APP_REGION asks for AGENTRL_TEST_REGION of this machine, which rollout.containers.pass_env"
    assert kept.notes == (f"{asks} hands over",)
    task_rows(str(folders / "env-config"))
    assert asks in caplog.text
    assert read_task(folders / "env-config", ["AGENTRL_TEST_REGION"]).spec.env["APP_REGION"] == "us"


def test_users_health_check_and_compose(folders: Path) -> None:
    task = read_task(folders / "plain-user")
    assert (task.spec.user, task.tests.user) == ("dev", "root")
    check = read_task(folders / "slow-service").healthcheck
    assert check is not None
    assert (check.command, check.interval, check.retries) == ("curl -fs localhost:9000/count", 0.2, 3)
    assert read_task(folders / "one-service-compose").spec.env == {"GREETING": "good morning"}


def test_a_verifier_in_a_container_of_its_own(tmp_path: Path) -> None:
    toml = """
    artifacts = ["/app/out.txt", {source = "/data"}]
    [environment]
    memory_mb = 512
    [verifier]
    environment_mode = "separate"
    network_mode = "no-network"
    [[verifier.collect]]
    command = "sync"
    """
    task = read_task(write(tmp_path / "copy", PLAIN | {"task.toml": toml}))
    assert task.separate is not None
    assert (task.separate.spec.build, task.separate.spec.memory_mb) == (tmp_path / "copy/environment", 512)
    assert (task.separate.spec.network, task.spec.network) == ("none", "full")
    assert task.separate.artifacts == ("/app/out.txt", "/data")
    assert [hook.command for hook in task.separate.collect] == ["sync"]
    assert task.tests.files == (Copy(tmp_path / "copy/tests", "/tests"),)
    toml = "[verifier.environment]\nmemory_mb = 256"
    task = read_task(write(tmp_path / "own", PLAIN | {"task.toml": toml, "tests/Dockerfile": "FROM debian"}))
    assert task.separate is not None
    assert (task.separate.spec.build, task.separate.spec.memory_mb) == (tmp_path / "own/tests", 256)
    assert task.tests.files == ()
    assert not task.notes


def test_the_first_format_of_terminal_bench(tmp_path: Path) -> None:
    special = unpack("special", tmp_path)
    task = read_task(special / "first-format")
    assert (task.parser, task.agent_timeout, task.tests.timeout) == ("pytest", 60, 30)
    assert task.spec.command == ("sh", "-c", "sleep infinity")
    assert task.spec.env == {"TEST_DIR": "/tests"}
    typed = read_task(special / "typed-solution")
    assert typed.instruction == "Write the word blue to /app/colour.txt."
    assert typed.solution is not None
    assert typed.solution.command == "cd /app\nprintf blue > colour.txt"


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"task.toml": "= 3"}, "task.toml: it cannot be read: Invalid statement"),
        ({"task.toml": "artifacts = 5\n[verifier.environment]"}, "task.toml: it cannot be read: "),
        ({"task.toml": "[verifier.environment]\n[verifier]\ncollect = [5]"}, "task.toml: it cannot be read: "),
        ({"task.toml": "[verifier]\ntimeout_sec = 'soon'"}, "verifier.timeout_sec is 'soon': write a number"),
        ({"task.toml": "agent = 3"}, "task.toml: agent is 3: write a table"),
        ({"task.toml": "[environment]\nmemory = 'much'"}, "environment.memory is 'much': write a size"),
        ({"task.toml": "[environment]\ngpus = 1"}, "environment.gpus: containers with a GPU or TPU are not"),
        ({"task.toml": "[verifier.environment]\ngpus = 2"}, "verifier.environment.gpus: containers with a GPU"),
        ({"task.toml": "[environment]\nos = 'windows'"}, "environment.os is windows: only linux"),
        ({"task.toml": "a = " + "[" * 9000}, "task.toml: "),
        ({"trajectory.json": "{}"}, "a conversation before the task is not supported"),
        ({"task.toml": "[[steps]]\nname = 'a'"}, "steps/a/instruction.md is missing"),
        ({"task.toml": "[[steps]]\nname = '../a'"}, "steps[0].name is '../a': write the name of its folder"),
        (
            {"task.toml": "[[environment.mcp_servers]]\nname = 'a'"},
            "mcp_servers[0].name is 'a': write a name, and a url",
        ),
        (
            {"task.toml": "artifacts = ['out']\n[verifier.environment]\ncpus = 1"},
            "artifacts is 'out': write full paths",
        ),
        ({"task.toml": "[environment]\nnetwork_mode = 'some'"}, "network_mode is 'some': write one of public"),
        ({"task.toml": "[environment.env]\nA = '${AGENTRL_NOT_SET}'"}, "environment.env.A needs the environment"),
        ({"instruction.md": " \n"}, "instruction.md is empty"),
        ({"instruction.md": None}, "instruction.md is missing"),
        ({"tests/test.sh": None}, "tests/test.sh is missing"),
        ({"environment/Dockerfile": None}, "environment/Dockerfile is missing: write one, or name"),
        *(
            ({"environment/docker-compose.yaml": f"services: {{main: {{}}, db: {text}}}"}, line)
            for text, line in REFUSED_BESIDE
        ),
        ({"environment/docker-compose.yaml": "services: {main: {privileged: true}}"}, "main.privileged is not"),
        (
            {"environment/docker-compose.yaml": "services: {main: {volumes: ['/etc:/x']}}"},
            "'/etc' is outside of",
        ),
        *(({"environment/docker-compose.yaml": f"services: {{main: {text}}}"}, line) for text, line in REFUSED),
        ({"environment/docker-compose.yaml": "a"}, "is no Compose file with services"),
        ({"environment/docker-compose.yaml": "{services: {main: {}}, include: [a]}"}, "top.include is not"),
        ({"environment/docker-compose.yaml": "a: ["}, "is no Compose file: "),
        ({"environment/docker-compose.yaml": LAUGHS}, "has more than 1000000 values"),
        ({"task.toml": None}, "is no task folder: it has neither task.toml nor task.yaml"),
    ],
)
def test_what_cannot_be_run_is_one_line(files: dict[str, str | None], line: str, tmp_path: Path) -> None:
    merged = PLAIN | files
    write(tmp_path, {name: text for name, text in merged.items() if text is not None})
    with pytest.raises(UserError, match=r"(?s).") as caught:
        read_task(tmp_path)
    assert line in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


MOUNTS = """
services:
  main:
    network_mode: none
    volumes:
      - ./data:/data:ro
      - ./absent:/absent
      - cache:/cache
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
      - {type: bind, source: ./seed.txt, target: /seed.txt}
"""


def test_files_that_compose_mounts_are_copied(tmp_path: Path) -> None:
    place = tmp_path / "environment"
    files = {"environment/docker-compose.yaml": MOUNTS, "environment/data/a": "1", "environment/seed.txt": "2"}
    task = read_task(write(tmp_path, PLAIN | files))
    assert task.files == (Copy(place / "data", "/data"), Copy(place / "seed.txt", "/seed.txt"))
    assert task.spec.network == "none"


def test_tests_and_solution_of_a_mounted_task_stay_away_from_the_agent(tmp_path: Path) -> None:
    files = {
        "task.yaml": "instruction: Do it.",
        "docker-compose.yaml": "services: {client: {build: ., volumes: ['.:/app']}}",
        "Dockerfile": "FROM debian",
        "run-tests.sh": "pytest",
        "solution.sh": "true",
        "tests/test_it.py": "",
        "main.c": "",
    }
    task = read_task(write(tmp_path, files))
    assert {copy.to for copy in task.files} == {
        f"/app/{name}" for name in ("Dockerfile", "docker-compose.yaml", "main.c", "task.yaml")
    }
    assert {copy.to for copy in task.tests.files} >= {
        "/tests",
        "/tests/run-tests.sh",
        "/app/tests",
        "/app/run-tests.sh",
    }


def test_a_solution_without_its_variables_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTRL_NOT_SET", raising=False)
    files = {"task.toml": "[solution.env]\nA = '${AGENTRL_NOT_SET}'", "solution/solve.sh": "true"}
    task = read_task(write(tmp_path, PLAIN | files))
    assert task.solution is None
    (note,) = task.notes
    assert note.startswith("it is not solved: ")
    assert "solution.env.A needs the environment variable AGENTRL_NOT_SET: allow it" in note


def test_fields_without_an_effect_are_noted(tmp_path: Path) -> None:
    toml = "[agent]\npatience = 3\nnetwork_mode = 'no-network'\n"
    toml += "[[environment.mcp_servers]]\nname = 'a'\nurl = 'http://a/mcp'\n"
    task = read_task(write(tmp_path, PLAIN | {"task.toml": toml}))
    assert task.spec.network == "none"
    assert task.notes == (
        "agent.network_mode holds for the tests too",
        "agent.patience is unknown",
    )


def test_a_task_has_its_own_limits_and_no_others(tmp_path: Path) -> None:
    plain = read_task(write(tmp_path / "plain", PLAIN)).spec
    assert (plain.cpus, plain.memory_mb, plain.storage_mb, plain.processes) == (None, None, None, None)
    text = """
    services:
      main:
        command: sh -c 'echo $$HOME ${AGENTRL_NOT_SET:-x} > /tmp/served'
        entrypoint: [/start, '-v']
        environment: [A=b=c, 'TEST_DIR=${T_BENCH_TEST_DIR}']
        hostname: here
        tty: true
        deploy: {replicas: 1, resources: {limits: {cpus: '1.5', memory: 6G, pids: 700}}}
    """
    toml = "[environment]\nmemory_mb = 512\nstorage_mb = 64"
    task = read_task(write(tmp_path / "own", PLAIN | {"environment/docker-compose.yaml": text, "task.toml": toml}))
    spec = task.spec
    assert (spec.cpus, spec.memory_mb, spec.storage_mb, spec.processes) == (1.5, 6144, 64, 700)
    assert spec.command == ("/start", "-v", "sh", "-c", "echo $HOME x > /tmp/served")
    assert (spec.entrypoint, spec.env) == (False, {"A": "b=c"})
    assert task.notes == tuple(
        f"docker-compose.yaml: main.{name} has no effect" for name in ("hostname", "deploy.replicas")
    )
    files = {"environment/docker-compose.yaml": "services: {main: {mem_limit: 1073741824, pids_limit: 9, cpus: 2}}"}
    spec = read_task(write(tmp_path / "service", PLAIN | files)).spec
    assert (spec.cpus, spec.memory_mb, spec.processes) == (2, 1024, 9)


OUTSIDE = ("environment", "tests", "environment/Dockerfile", "instruction.md", "task.toml", "tests/deep/secret")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_link_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    outside = write(tmp_path / "host", PLAIN | {"tests/deep/secret": "the host's"})
    task = write(tmp_path / "set/task", PLAIN | {"tests/deep/x": ""})
    replaced = task / name
    if replaced.exists():
        replaced.rename(tmp_path / "away")
    replaced.symlink_to(os.path.relpath(outside / name, replaced.parent))
    with pytest.raises(UserError, match=r"is outside of .*/set/task"):
        task_rows(str(tmp_path / "set"))
    with pytest.raises(UserError, match=r"is outside of .*/set/task"):
        HarborTask({"path": str(task)})


def test_links_within_the_folder_and_into_the_container_stay(tmp_path: Path) -> None:
    task = write(tmp_path / "task", PLAIN)
    (task / "tests/again.sh").symlink_to("test.sh")
    (task / "environment/tool").symlink_to("/no/such/place/of/this/machine")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/chosen").symlink_to(task)  # a link of the person who trains
    (tmp_path / "set/all").symlink_to("/")
    assert [row.uid.rpartition("/")[2] for row in task_rows(str(tmp_path / "set"))] == ["chosen"]
    assert main(["tasks", "check", str(tmp_path / "set"), "--task", "none"]) == 2


def test_variables_of_this_machine_are_passed_by_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_SECRET", "hf_123")
    text = "services: {main: {environment: [AGENTRL_SECRET, 'URL=http://${AGENTRL_SECRET}@x']}}"
    tables = [f"[{table}.env]\nA = '${{AGENTRL_SECRET}}'" for table in ("environment", "verifier")]
    for files in ({"environment/docker-compose.yaml": text}, *({"task.toml": toml} for toml in tables)):
        folder = write(tmp_path / str(len(list(tmp_path.iterdir()))), PLAIN | files)
        (row,) = task_rows(str(folder))
        with pytest.raises(UserError, match=r"needs .* AGENTRL_SECRET: allow it with rollout.containers.pass_env=\[AG"):
            TaskRunner().expect([row])
        task = task_for(row, Containers(pass_env=["AGENTRL_SECRET"]))
        assert isinstance(task, HarborTask)
        assert "hf_123" in f"{task.spec.env} {task.task.tests.env}"


def test_what_has_no_effect_is_one_line_of_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        write(tmp_path / name, PLAIN | {"task.toml": "[environment]\nskills_dir = '/skills'"})
    task_rows(str(tmp_path))
    (line,) = caplog.messages
    assert "environment.skills_dir: agent programs get it (2 tasks)" in line


def test_a_verdict_needs_a_parser_that_is_known(tmp_path: Path) -> None:
    files = {"task.yaml": "instruction: Do it.\nparser_name: mine", "Dockerfile": "FROM debian", "run-tests.sh": ""}
    write(tmp_path, files)
    with pytest.raises(UserError, match=r"parser_name: nothing reads the verdict of 'mine'; there are .*swebench"):
        task_rows(str(tmp_path))


def test_rows_of_a_folder(folders: Path) -> None:
    rows = task_rows(str(folders))
    names = [row.uid.rpartition("/")[2] for row in rows]
    assert names == sorted(names)
    assert len(set(names)) == len(names) >= 20
    row = rows[names.index("hello-file")]
    assert row.uid == f"tasks:{folders}/hello-file"
    assert row.prompt == [
        {"role": "user", "content": "Write the file `/app/hello.txt`. It has one line: `Hello, world!`\n"}
    ]
    assert (row.data_source, row.ability) == (folders.name, "files")
    assert HarborTask(row.extra_info["task"]).agent_timeout == 60


def test_rows_are_chosen(folders: Path, tmp_path: Path) -> None:
    assert [row.uid.rpartition("/")[2] for row in task_rows(f"{folders}?tag=git")] == ["git-conflict", "git-recover"]
    assert len(task_rows(f"{folders}?name=*-service&processes=keep")) == 3
    assert task_rows(f"{folders}?name=hello-file&processes=keep")[0].extra_info["task"]["processes"] == "keep"
    assert [row.uid for row in task_rows(f"{folders}/hello-file")] == [f"tasks:{folders}/hello-file/hello-file"]
    with pytest.raises(UserError, match="choose among broken, name, processes, tag"):
        task_rows(f"{folders}?tags=git")
    nested = write(tmp_path / "deep/er/one", PLAIN).parents[1]
    write(tmp_path / "deep/two", PLAIN | {"task.toml": "[environment]\ngpus = 1"})
    with pytest.raises(UserError, match=r"two/task.toml: environment.gpus.*\?broken=skip"):
        task_rows(str(nested))
    assert [row.uid for row in task_rows(f"{nested}?broken=skip")] == [f"tasks:{nested}/er/one"]


def test_a_folder_without_tasks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no task folder"):
        find_tasks(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        find_tasks(tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"format": "harbor"}, "extra_info.task.path is missing"),
        ({"path": "x", "proceses": "keep"}, "extra_info.task.proceses: no such field"),
        ({"path": "x", "processes": "maybe"}, "extra_info.task.processes is 'maybe': write stop or keep"),
    ],
)
def test_wrong_arguments_of_a_row(arguments: dict[str, str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        HarborTask(arguments)
