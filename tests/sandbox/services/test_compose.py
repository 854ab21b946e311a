"""Compose files: what they mean, and that nothing in one is passed over."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from vf.runtime.errors import ConfigError
from vf.sandbox.container.joined import CAPABILITIES
from vf.sandbox.services.compose import OWN_FOLDER, Compose, read_compose
from vf.sandbox.services.service_spec import Health
from vf.sandbox.spec import Build

MAIN = "services:\n  main: {image: vf-sandbox}\n"


def read(tmp_path: Path, text: str, **variables: str) -> Compose:
    path = tmp_path / "docker-compose.yaml"
    path.write_text(dedent(text))
    return read_compose(path, variables)


def test_a_file_says_how_each_service_is_made(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "init.sql").touch()
    (tmp_path / "db.env").write_text("A=1\nB='two words'  # a comment\nexport C=\"x\\ny $D\"\n")
    found = read(
        tmp_path,
        """
        version: "3.9"
        name: task
        x-limits: &limits {mem_limit: 256m, cpus: "0.5", pids_limit: 64}
        services:
          main:
            build: {context: ., args: {TOKEN: "${TOKEN:-none}"}, target: final}
            command: sh -c "sleep infinity"
            depends_on: [api]
            tty: true
            volumes: ["shared:/shared:ro", "${LOGS}:/logs"]
          api:
            image: api:1
            depends_on: {db: {condition: service_healthy}}
            deploy: {resources: {limits: {cpus: 2, memory: 1.5G, pids: 10}}}
          db:
            <<: *limits
            image: postgres:16
            container_name: the-db
            env_file: db.env
            environment: [B=3, "E=$$5", D, NOT_SET]
            entrypoint: ["docker-entrypoint.sh"]
            command: postgres -c 'max_connections = 10'
            user: 999
            working_dir: /var
            hostname: database
            networks: {default: {aliases: [store]}}
            healthcheck: {test: pg_isready, interval: 5s, timeout: 1m30s, start_period: 500ms}
            volumes:
              - shared:/shared
              - ./db/init.sql:/docker-entrypoint-initdb.d/init.sql:ro
              - {type: tmpfs, target: /cache, tmpfs: {size: 1m}}
            tmpfs: /run:size=64k
            shm_size: 64mb
            cap_drop: [ALL]
            cap_add: [CAP_CHOWN, SETUID]
        volumes:
          shared:
        """,
        LOGS=OWN_FOLDER,
        D="4",
    )
    main, (db, api) = found.main, found.sides
    assert found.volumes == ("shared",)
    assert main.build == Build(tmp_path, args={"TOKEN": "none"}, target="final")
    assert main.command == ("sh", "-c", "sleep infinity")
    assert main.volumes == (("shared", "/shared", True),)
    assert main.folders == ("/logs",)
    assert main.capabilities == tuple(sorted(CAPABILITIES))
    assert api.after == (("db", "service_healthy"),)
    assert (api.cpus, api.memory, api.pids) == (2, 1536 * 2**20, 10)
    assert db.aliases == ("db", "store", "the-db")
    assert dict(db.env) == {"A": "1", "B": "3", "C": "x\ny 4", "D": "4", "E": "$5"}
    assert db.entrypoint == ("docker-entrypoint.sh",)
    assert db.command == ("postgres", "-c", "max_connections = 10")
    assert (db.user, db.workdir, db.hostname) == ("999", "/var", "database")
    assert db.health == Health("pg_isready", 5.0, 90.0, 3, 0.5)
    assert db.copies == ((tmp_path / "db" / "init.sql", "/docker-entrypoint-initdb.d/init.sql"),)
    assert db.tmpfs == (("/cache", 2**20), ("/run", 64 * 2**10))
    assert (db.memory, db.cpus, db.pids, db.shm) == (256 * 2**20, 0.5, 64, 64 * 2**20)
    assert db.capabilities == ("CHOWN", "SETUID")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("ports: ['80:80']", "services.db.ports: remove it: every port"),
        ("privileged: true", "services.db.privileged: remove it: containers of episodes"),
        ("cap_add: [SYS_ADMIN]", "services.db.cap_add: remove SYS_ADMIN"),
        ("network_mode: host", "services.db.network_mode: remove it: all services"),
        ("networks: [back]", "services.db.networks.back: remove it: all services"),
        ("devices: [/dev/kvm]", "services.db.devices: remove it: no container"),
        ("container_name: main", "services.db.networks: 'main' is the service 'main' already"),
        ("restart: always", "services.db.restart: remove it: a service that ends"),
        ("profiles: [x]", "services.db.profiles: remove it"),
        ("enviroment: {A: 1}", "services.db.enviroment: this key is not done here"),
        ("enviroment: {A: 1}", "environment"),
        ("volumes: ['/etc:/etc:ro']", "'/etc' of this machine cannot be mounted"),
        ("volumes: ['./x:/x']", "'./x' of this machine cannot be mounted"),
        ("volumes: ['../..:/x:ro']", "'../..' of this machine cannot be mounted"),
        ("volumes: ['/var/run/docker.sock:/s:ro']", "cannot be mounted"),
        ("volumes: ['data:/data']", "services.db.volumes[0]: the file's volumes have no 'data'"),
        ("volumes: ['data']", "'data' is not an absolute path"),
        ("security_opt: ['seccomp:unconfined']", "services.db.security_opt.0"),
        ("mem_limit: much", "services.db.mem_limit: 'much' is no size"),
        ("cpus: -1", "services.db.cpus"),
        (
            "healthcheck: {test: [curl, x]}",
            'services.db.healthcheck.test: a list begins with "CMD"',
        ),
        (
            "healthcheck: {test: x, interval: 3}",
            "services.db.healthcheck.interval: 3 is no duration",
        ),
        ("depends_on: [bd]", "services.db.depends_on: there is no service 'bd'"),
        ("depends_on: [main]", "services.db.depends_on: remove 'main'"),
        ("depends_on: [db]", "services.db.depends_on: a circle: db -> db"),
        ("depends_on: {main: {restart: true}}", "services.db.depends_on.main.restart"),
        ("stdin_open: true", "services.db.stdin_open: remove it"),
        ("image: ''", "services.db.image"),
        ("tmpfs: '/run:mode=777'", "services.db.tmpfs: the option 'mode=777' is not known"),
        ("command: $NOPE", "services.db.command: the variable NOPE is not set"),
        ("command: ${NOPE:?give it}", "services.db.command: give it"),
        ("command: ${NOPE:-x", "services.db.command: a brace is not closed"),
        ("command: x\n    command: y", "the key 'command' is there twice"),
        ("env_file: nowhere.env", "nowhere.env cannot be read"),
        ("build: {context: ., ssh: [default]}", "services.db.build.ssh"),
        ("deploy: {mode: global}", "services.db.deploy.mode"),
    ],
)
def test_what_is_not_done_is_an_error_that_names_it(keys: str, said: str, tmp_path: Path) -> None:
    text = MAIN + "  db:\n    image: x\n    " + keys + "\n"
    text = text.replace("    image: x\n    image", "    image")
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("services: [", "is not YAML"),
        ("version: 3", "has no services"),
        ("services: {man: {image: x}}", "there is no service 'main', which is the sandbox"),
        ("services: {main: {command: x}}", "services.main.image: there is none"),
        (MAIN + "secrets: {a: {file: b}}", "secrets: use a variable"),
        (MAIN + "volumes: {a: {external: true}}", "volumes.a.external"),
        (MAIN + "networks: {back: {}}", "networks.back: remove it"),
    ],
)
def test_a_file_as_a_whole_is_checked(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A ${A} $$A", "one one $A"),
        ("${NOPE-x}${E-x}${E:-y}", "xy"),
        ("${A:+yes}${NOPE:+no}${E+set}${E:+no}", "yesset"),
        ("${NOPE:-${A:-${ALSO_NOT}}}", "one"),
        ("${A?}${E?}", "one"),
    ],
)
def test_variables_are_replaced(text: str, value: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"services: {{main: {{image: x, hostname: 'h{text}'}}}}", A="one", E="")
    assert found.main.hostname == "h" + value


def test_variables_come_from_a_file_beside_and_never_from_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    (tmp_path / ".env").write_text("TAG=2\nNAME=beside\n")
    text = "services: {main: {image: 'a:$TAG', hostname: $NAME}}"
    found = read(tmp_path, text, NAME="given")
    assert (found.main.image, found.main.hostname) == ("a:2", "given")
    with pytest.raises(ConfigError, match="SECRET is not set"):
        read(tmp_path, "services: {main: {image: $SECRET}}")


@pytest.mark.parametrize("text", ["services: {db: {image: x}}", "services: {main: {user: a}}"])
def test_main_is_built_from_the_folder_where_the_file_says_nothing(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").touch()
    assert read(tmp_path, text).main.build == Build(tmp_path)
    (tmp_path / "Dockerfile").unlink()
    with pytest.raises(ConfigError, match="main"):
        read(tmp_path, text)


def test_words_are_not_booleans_and_times_no_numbers(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "services: {main: {image: x, environment: {A: no, B: 12:30, C: true, D: 1.0, E: 0x1f}}}",
    )
    assert dict(found.main.env) == {"A": "no", "B": "12:30", "C": "true", "D": "1.0", "E": "31"}


def test_the_file_in_the_documentation_is_understood(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "services.md").read_text()
    (tmp_path / "schema.sql").touch()
    found = read(tmp_path, page.split("```yaml\n")[1].split("```")[0])
    assert found.main.build == Build(tmp_path)
    assert [side.name for side in found.sides] == ["db"]
    for name in CAPABILITIES:
        assert f"`{name}`" in page
