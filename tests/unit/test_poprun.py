"""What `poprun` understands of its words, and the plans that it refuses before anything starts."""

import dataclasses
import os
import shlex
import socket
import subprocess
import sys

import pytest

from layermark import cli
from layermark.cli import launch
from layermark.cli.parsing import Parser
from layermark.errors import UserError
from layermark.launch import instance, mpirun, topology, words
from layermark.launch.poprun import Options, plan, script_of, shared
from layermark.launch.ports import Ports
from layermark.launch.ranks import TOKEN, from_environment
from layermark.options import options_of, read_record


def parsed(*argv):
    parser = Parser(prog="poprun", description="")
    launch.configure(parser)
    return launch.parse(parser, argv)


def options(*argv):
    return Options(**read_record(Options, launch.texts(parsed(*argv), options_of(Options))))


@pytest.mark.parametrize(
    "argv",
    [
        ["--num-instances=4", "--numa-aware=yes", "--num-replicas=4", "--ipus-per-replica=1"],
        ["--num-instances", "4", "--numa-aware", "1", "--num-replicas", "4", "--ipus-per-replica", "1"],
    ],
    ids=["joined", "separate"],
)
def test_a_value_may_be_joined_or_separate(argv):
    expected = Options(num_instances=4, numa_aware=True, num_replicas=4, ipus_per_replica=1)
    assert expected == options(*argv, "python", "run.py")


@pytest.mark.parametrize("word", ["yes", "true", "on", "1", "YES"])
def test_words_for_yes(word):
    assert options(f"--numa-aware={word}", "python").numa_aware
    assert options("--offline-mode", word, "python").offline_mode


@pytest.mark.parametrize("word", ["no", "false", "off", "0", "No"])
def test_words_for_no(word):
    assert not options("--numa-aware", word, "python").numa_aware


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'poprun --mpi-global-args="--allow-run-as-root --tag-output" --mpi-local-args="-x POPLAR_ENGINE_OPTIONS"'
            " --num-instances=4 --numa-aware=yes --num-replicas=4 --ipus-per-replica=1"
            " python run_benchmark.py --config resnet50-mk2 --batch-size 1",
            (4, 4, 1, True, "--allow-run-as-root --tag-output", "-x POPLAR_ENGINE_OPTIONS"),
        ),
        (
            "poprun --numa-aware=yes --num-replicas=4 --num-instances=4 --ipus-per-replica 4 python train.py --epoch 1",
            (4, 4, 4, True, "", ""),
        ),
        (
            "poprun --numa-aware 1 --num-replicas 8 --ipus-per-replica 2 --num-instances 8 python train.py --shards 2",
            (8, 8, 2, True, "", ""),
        ),
        (
            "poprun --num-replicas 4 --ipus-per-replica 1 --num-instances 4 --numa-aware 1 python3 validation.py -v 1",
            (4, 4, 1, True, "", ""),
        ),
    ],
    ids=["S6", "S11", "S13", "S21"],
)
def test_the_documents_lines_are_understood(line, expected):
    own = shlex.split(line)[1:]
    found = options(*own)
    counts = (found.num_instances, found.num_replicas, found.ipus_per_replica, found.numa_aware)
    assert expected == (*counts, found.mpi_global_args, found.mpi_local_args)
    assert own[own.index(next(word for word in own if word.startswith("python"))) :] == parsed(*own).program


def test_a_value_may_begin_with_a_dash():
    argv = ["--mpi-global-args", "--allow-run-as-root --tag-output", "--mpi-local-args", "-x NAME", "ls"]
    assert ("--allow-run-as-root --tag-output", "-x NAME") == (
        options(*argv).mpi_global_args,
        options(*argv).mpi_local_args,
    )


def test_options_end_at_the_program():
    given = ["python", "run.py", "--num-instances", "7", "--help", "-v", "--", "--num"]
    args = parsed("--num-instances", "2", "-vv", "--offline-mode", *given)
    assert ("2", 2, "on", given) == (args.num_instances, args.v, args.offline_mode, args.program)


def test_two_dashes_end_the_options():
    assert ["--odd", "name"] == parsed("--dry-run", "--", "--odd", "name").program


def test_options_of_clusters_are_named_as_without_effect():
    args = parsed("--vipu-server-host", "h", "--vipu-partition=p", "--num-ilds", "2", "--reset-partition=no", "ls")
    assert ["--num-ilds", "--reset-partition", "--vipu-partition", "--vipu-server-host"] == args.no_effect
    assert ["ls"] == args.program


ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def planned(*argv, environment=ENVIRONMENT):
    with Ports(0) as ports:
        return plan(options(*argv), parsed(*argv).program, environment, ports)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--num-instances", "2", "--num-replicas", "3", "ls"], "cannot be dealt out .* such as --num-replicas 4"),
        (["--num-instances", "0", "ls"], "--num-instances 0: expected a whole number of at least 1"),
        (["--host", "no-such-host.invalid", "ls"], "unknown host 'no-such-host.invalid'"),
        (["--host", "localhost:x", "ls"], "expected NAME or NAME:SLOTS"),
        (["--host", "localhost:", "ls"], "expected NAME or NAME:SLOTS"),
        (
            ["--host", "localhost:1", "--num-instances", "2", "--num-replicas", "2", "ls"],
            "fewer slots than --num-instances 2; a host without a number takes the rest",
        ),
        (["--launcher", "builtin", "--mpi-global-args", "--mca a b", "ls"], "--mca is mpirun's"),
        (["--launcher", "builtin", "--host", "192.0.2.1", "ls"], "serves this host only, not 192.0.2.1"),
        (["--mpi-global-args", "'", "ls"], "--mpi-global-args .*no closing quotation"),
        (["--mpi-global-args", "--hostfile none-such", "ls"], "host file none-such cannot be read"),
        (["--mpi-global-args", "--xml", "--print-topology", "ls"], "leave out one or the other"),
        (["--only-output-from-instance", "1", "ls"], "expected an instance from 0 to 0"),
        (["--nonsense", "3", "ls"], "unknown option '--nonsense'"),
        (["--num-instance", "3", "ls"], "did you mean --num-instances"),
        (["no-such-program"], "the program 'no-such-program' does not exist"),
        (["python3", "no-such-script.py"], "the program 'no-such-script.py' does not exist"),
        (["python3", "-u", "-W", "error", "none.py"], "the program 'none.py' does not exist"),
        (["--launcher", "screen", "ls"], "expected one of auto, mpirun, builtin"),
        ([], "no program; expected: poprun"),
    ],
)
def test_a_wrong_plan_is_refused(argv, reason):
    with pytest.raises(UserError, match=reason):
        planned(*argv)


@pytest.mark.parametrize(
    ("program", "script"),
    [
        ("python3 -u -W error run.py -m", ("run.py", "-m")),
        ("/usr/bin/python3.11 -Werror -Xdev run.py", ("run.py",)),
        ("python -X importtime -B run.py", ("run.py",)),
        ("./run.py -u", ("./run.py", "-u")),
        ("python -m run none.py", ()),
        ("python -uc print() none.py", ()),
        ("python - none.py", ()),
        ("python", ()),
        ("ls run.txt", ()),
    ],
)
def test_the_file_of_a_python_program_is_seen_through_its_options(program, script):
    assert script == script_of(program.split())


def test_a_wrong_plan_is_one_line_and_status_2(capsys):
    assert 2 == cli.main(["launch", "--num-instances", "2", "--num-replicas", "3", "ls"])
    captured = capsys.readouterr()
    assert ("", 1) == (captured.out, len(captured.err.splitlines()))
    assert captured.err.startswith("layermark: error: --num-replicas 3 ")


def test_what_is_wrong_is_told_under_the_name_that_was_typed(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/poprun", "nosuchprogram"])
    assert 2 == launch.poprun()
    assert capsys.readouterr().err.startswith("poprun: error: the program 'nosuchprogram' does not exist")


def test_without_mpirun_the_built_in_launcher_serves(tmp_path):
    assert "builtin" == planned("/bin/ls", environment={"PATH": str(tmp_path)}).launcher
    with pytest.raises(UserError, match="Open MPI's mpirun is not on the path"):
        planned("--launcher", "mpirun", "/bin/ls", environment={"PATH": str(tmp_path)})


def test_another_mpirun_is_left_alone(tmp_path):
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA\n")
    (tmp_path / "mpirun").chmod(0o755)
    assert "builtin" == planned("/bin/ls", environment={"PATH": str(tmp_path)}).launcher


def test_python_is_this_interpreter_where_the_system_has_only_python3(tmp_path):
    assert (sys.executable, "-V") == planned("python", "-V", environment={"PATH": str(tmp_path)}).program


def test_a_taken_master_port_is_refused():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match=r"MASTER_PORT \d+ is not free"),
    ):
        planned("ls", environment={**ENVIRONMENT, "MASTER_PORT": str(taken.getsockname()[1])})


@pytest.mark.parametrize("given", [False, True])
def test_the_master_port_is_kept_for_instance_0(given):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        number = probe.getsockname()[1]
    environment = {**ENVIRONMENT, **({"MASTER_PORT": str(number)} if given else {})}
    with Ports(0) as ports:
        job = plan(options("ls"), parsed("ls").program, environment, ports)
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind(("127.0.0.1", job.master_port))
        with socket.create_server(("127.0.0.1", job.master_port)):  # as all that listen, it sets SO_REUSEADDR
            pass
    with socket.socket() as another:
        another.bind(("127.0.0.1", job.master_port))


@pytest.mark.parametrize("port", ["seven", "70000"])
def test_a_port_is_a_port(port):
    with pytest.raises(UserError, match="expected a port from 1 to 65535"):
        planned("ls", environment={**ENVIRONMENT, "MASTER_PORT": port})


def test_more_instances_than_cpus_are_named():
    assert "1000 instances share" in shared(planned("--num-instances", "1000", "--num-replicas", "1000", "ls"))
    assert "" == shared(planned("ls"))


def test_mpirun_is_handed_the_words_as_they_are(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    argv = [
        "--mpi-global-args",
        "--tag-output",
        "--mpi-local-args",
        "-x SET -x UNSET -x A=B",
        "--launcher",
        "builtin",
        "ls",
    ]
    job = planned(*argv, environment={**ENVIRONMENT, "SET": "1"})
    command = mpirun.command(job, job.setting, {"SET": "1"})
    before = ["mpirun", "--tag-output", "--bind-to", "none", "--oversubscribe", "-np", "1"]
    assert [*before, "-x", "SET", "-x", "A=B", "-x", "LAYERMARK_JOB_TOKEN"] == command[: command.index(sys.executable)]
    assert ["--", "ls"] == command[-2:]


def test_root_and_slots_of_hosts_are_seen_to(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    job = planned(
        "--host", "localhost,127.0.0.1:5", "--num-instances", "3", "--num-replicas", "3", "--launcher", "builtin", "ls"
    )
    command = mpirun.command(job, job.setting, {})
    assert "--allow-run-as-root" in command and "localhost:1,127.0.0.1:5" in command


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("localhost:1,127.0.0.1", "localhost:1,127.0.0.1:3"),
        ("localhost:1,127.0.0.1,127.0.0.2", "localhost:1,127.0.0.1:2,127.0.0.2:1"),
        ("localhost,127.0.0.1", "localhost:2,127.0.0.1:2"),
        ("localhost:4,127.0.0.1", "localhost:4,127.0.0.1:1"),
    ],
)
def test_hosts_without_a_number_get_the_instances_that_the_others_leave(hosts, expected):
    four = ["--num-instances", "4", "--num-replicas", "4", "--launcher", "builtin"]
    job = planned("--host", hosts, *four, "ls")
    assert expected in mpirun.command(job, job.setting, {})


def test_binding_that_was_asked_of_mpirun_is_left_to_it():
    job = planned("--mpi-global-args", "--bind-to core", "--launcher", "auto", "ls", environment=ENVIRONMENT)
    assert not job.setting.bind


def test_hosts_come_from_mpiruns_words_too(tmp_path):
    (tmp_path / "hosts").write_text("# ours\n\na slots=2\nb\n")
    assert ["a", "b"] == words.hosts(["--hostfile", str(tmp_path / "hosts")])
    assert ["c", "d"] == words.hosts(["--tag-output", "-H", "c:2,d"])


@pytest.mark.parametrize(("count", "expected"), [(1, [(0, 1, 2, 3)]), (2, [(0, 1), (2, 3)]), (3, [(0,), (1,), (2, 3)])])
def test_cores_are_dealt_out_equally(count, expected):
    cores = [(0,), (1,), (2,), (3,)]
    assert expected == [topology.equal_share(cores, index, count) for index in range(count)]


def test_instances_go_to_numa_nodes_round_robin(monkeypatch):
    monkeypatch.setattr(topology, "cores", lambda: [(0,), (1,), (2,), (3,)])
    monkeypatch.setattr(topology, "numa_nodes", lambda: [{0, 1}, {2, 3}])
    assert [(0, 1), (2, 3)] == [topology.share(index, 2, numa_aware=True) for index in range(2)]
    assert [(0,), (2,), (1,), (3,)] == [topology.share(index, 4, numa_aware=True) for index in range(4)]
    assert [(0,), (2, 3), (1,)] == [topology.share(index, 3, numa_aware=True) for index in range(3)]
    assert [(0,), (1,), (2,), (3,)] == [topology.share(index, 4, numa_aware=False) for index in range(4)]


@pytest.mark.parametrize(
    ("cpus", "budget", "count", "asked", "expected"),
    [((0, 1), 4, 2, "", 2), ((0, 1), 2, 2, "", 1), ((0,), 2, 4, "", 1), ((0, 1), 4, 2, "1", 1), ((0, 1), 4, 2, "8", 2)],
)
def test_threads_of_all_instances_fit_the_host(cpus, budget, count, asked, expected):
    found = topology.thread_limits(cpus, budget, count, {"OMP_NUM_THREADS": asked} if asked else {})
    assert dict.fromkeys(topology.THREAD_VARIABLES, str(expected)) == found


@pytest.mark.parametrize("name", topology.THREAD_VARIABLES[1:])
def test_no_variable_of_threads_is_raised(name):
    found = topology.thread_limits(range(4), 4, 1, {"OMP_NUM_THREADS": "3", name: "1"})
    assert dict.fromkeys(topology.THREAD_VARIABLES, "3") | {name: "1"} == found
    assert "4" == topology.thread_limits(range(4), 4, 1, {name: "8"})[name]


def test_an_instance_sees_itself():
    seen = topology.observe(3, "here")
    assert (3, "here") == (seen.rank, seen.host)
    assert tuple(sorted(os.sched_getaffinity(0))) == seen.cpus


def test_the_topology_calls_a_limit_a_limit():
    seen = topology.Observed(rank=1, pid=7, host="here", cpus=(0, 1, 4), thread_limit=2, memory_nodes=(0,))
    assert "instance 1 on here: pid 7, 3 CPUs (0-1,4), thread limit 2 (OMP_NUM_THREADS), memory node 0" == seen.line()


def test_a_pipe_that_nobody_reads_here_gives_way_to_a_connection(tmp_path, monkeypatch):
    """As of a host that shares the folder of temporary files with poprun's."""
    monkeypatch.setenv(TOKEN, "secret")
    os.mkfifo(tmp_path / "3.stdout")
    here = dataclasses.replace(SETTING, lines_folder=str(tmp_path))
    with pytest.raises(OSError, match="No such device"):
        instance._line(here, 3, "stdout")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        os.close(instance._line(dataclasses.replace(here, lines_address=address), 3, "stdout"))
        with listener.accept()[0] as line:
            assert b'{"token": "secret", "rank": 3, "stream": "stdout"}\n' == line.recv(1000)


@pytest.mark.parametrize(("parent", "status"), [("os.getppid()", 0), ("os.getppid() + 1", 137), ("None", 0)])
def test_who_has_lost_its_parent_already_ends(parent, status):
    code = f"import os; from layermark.launch.instance import end_with_parent; end_with_parent(parent={parent})"
    assert status == subprocess.run([sys.executable, "-c", code]).returncode


SETTING = instance.Setting(instances=4, replicas=8, devices_per_replica=2, master_address="127.0.0.1", master_port=1234)


def test_the_variables_of_an_instance_say_who_it_is():
    place = instance.Place(rank=3, local_rank=1, local_size=2)
    given = instance.variables(SETTING, place)
    assert {
        "POPDIST_NUM_TOTAL_REPLICAS": "8",
        "POPDIST_NUM_LOCAL_REPLICAS": "2",
        "POPDIST_NUM_IPUS_PER_REPLICA": "2",
        "POPDIST_REPLICA_INDEX_OFFSET": "6",
        "POPDIST_INSTANCE_INDEX": "3",
        "POPDIST_NUM_INSTANCES": "4",
        "POPDIST_LOCAL_INSTANCE_INDEX": "1",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
    } == given
    found = from_environment(given)
    assert (3, 4, 1, 2, 8, 2, "127.0.0.1", 1234, "poprun") == (
        found.rank,
        found.size,
        found.local_rank,
        found.local_replicas,
        found.total_replicas,
        found.devices_per_replica,
        found.master_address,
        found.master_port,
        found.launcher,
    )


def test_no_launcher_no_ranks():
    assert from_environment({"PATH": "/bin"}) is None


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_NAMESPACE": "123",
}


def test_torchruns_variables_are_read():
    found = from_environment(TORCHRUN)
    assert ("torchrun", 1, 2, "node0", 29500) == (
        found.launcher,
        found.rank,
        found.size,
        found.master_address,
        found.master_port,
    )


def test_where_torchruns_agent_listens_all_ranks_agree_on_another_port():
    agent = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    first, second = from_environment(agent), from_environment({**agent, "RANK": "0"})
    assert first.master_port == second.master_port != 29500
    assert first.token == second.token != ""


def test_ranks_of_mpirun_agree_and_jobs_differ():
    first, second = from_environment(MPIRUN), from_environment({**MPIRUN, "OMPI_COMM_WORLD_RANK": "0"})
    other = from_environment({**MPIRUN, "PMIX_NAMESPACE": "124"})
    assert ("mpirun", 1, 2, 1, 2) == (
        first.launcher,
        first.rank,
        first.size,
        first.local_replicas,
        first.total_replicas,
    )
    assert (first.master_port, first.token) == (second.master_port, second.token)
    assert first.token != other.token


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"RANK": "x"}, "RANK='x'; expected a whole number"),
        ({"RANK": "2"}, "rank 2 of 2; expected a rank below the size"),
    ],
)
def test_a_broken_environment_is_refused(change, reason):
    with pytest.raises(UserError, match=reason):
        from_environment({**TORCHRUN, **change})


def test_replicas_that_do_not_add_up_are_refused():
    given = instance.variables(SETTING, instance.Place(rank=0, local_rank=0, local_size=4))
    with pytest.raises(UserError, match=r"3 replicas in each of 4 instances and 8 in all; expected 12"):
        from_environment({**given, "POPDIST_NUM_LOCAL_REPLICAS": "3"})
