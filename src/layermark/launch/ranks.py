"""Who this process is among the instances of a job: rank and size, as poprun, torchrun or mpirun tell them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from layermark.errors import UserError

TOKEN = "LAYERMARK_JOB_TOKEN"

# Below the range from which the kernel picks ports for outgoing connections (32768 on).
_PORTS = range(20000, 32000)


@dataclass(frozen=True, kw_only=True)
class JobPlace:
    """Where this process stands in its job. `token` is what the instances of the job know each other by."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    """How many instances there are on this host."""
    local_replicas: int
    total_replicas: int
    devices_per_replica: int
    master_address: str
    master_port: int
    launcher: str
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raise `UserError` if the numbers contradict each other."""
        if not 0 <= self.rank < self.size:
            raise UserError(f"the environment says rank {self.rank} of {self.size}; expected a rank below the size")
        if self.local_replicas * self.size != self.total_replicas:
            raise UserError(
                f"the environment says {self.local_replicas} replicas in each of {self.size} instances and"
                f" {self.total_replicas} in all; expected {self.local_replicas * self.size}"
            )


def from_environment(environment: Mapping[str, str] | None = None) -> JobPlace | None:
    """Return this instance's place in its job, or None where no launcher started it."""
    variables = os.environ if environment is None else environment
    if "POPDIST_NUM_INSTANCES" in variables:
        return _poprun(variables)
    if "RANK" in variables and "WORLD_SIZE" in variables:
        return _ranks(variables, "torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
    if "OMPI_COMM_WORLD_RANK" in variables:
        names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        return _ranks(variables, "mpirun", names)
    return None


def from_tf_config(environment: Mapping[str, str] | None = None) -> JobPlace:
    """Return this process's place among the workers of TF_CONFIG; they meet at the address of the first."""
    text = (os.environ if environment is None else environment).get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        workers, index = config["cluster"]["worker"], int(config["task"]["index"])
        hosts = [str(each).rpartition(":")[0] for each in workers]
        host, number, own = hosts[0], int(str(workers[0]).rpartition(":")[2]), hosts[index]
        kind = config["task"].get("type", "worker")
    except (ValueError, KeyError, TypeError, IndexError):
        raise UserError(
            f"--distributed: TF_CONFIG is {text!r}; expected "
            '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": N}}'
        ) from None
    if kind != "worker" or set(config["cluster"]) != {"worker"}:
        others = sorted({str(kind), *config["cluster"]} - {"worker"})
        raise UserError(f"--distributed: TF_CONFIG names {', '.join(others)}; every process is a worker here")
    job = hashlib.sha256("\n".join(map(str, workers)).encode()).hexdigest()
    return JobPlace(
        rank=index,
        size=len(workers),
        master_address=host,
        master_port=number,
        local_rank=hosts[:index].count(own),
        local_size=hosts.count(own),
        local_replicas=1,
        total_replicas=len(workers),
        devices_per_replica=1,
        launcher="TF_CONFIG",
        token=job,
    )


def _poprun(variables: Mapping[str, str]) -> JobPlace:
    return JobPlace(
        rank=_number(variables, "POPDIST_INSTANCE_INDEX"),
        size=_number(variables, "POPDIST_NUM_INSTANCES"),
        local_rank=_number(variables, "POPDIST_LOCAL_INSTANCE_INDEX", 0),
        local_size=_number(variables, "LOCAL_WORLD_SIZE", _number(variables, "POPDIST_NUM_INSTANCES")),
        local_replicas=_number(variables, "POPDIST_NUM_LOCAL_REPLICAS"),
        total_replicas=_number(variables, "POPDIST_NUM_TOTAL_REPLICAS"),
        devices_per_replica=_number(variables, "POPDIST_NUM_IPUS_PER_REPLICA", 1),
        master_address=variables.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_number(variables, "MASTER_PORT"),
        launcher="poprun",
        token=variables.get(TOKEN, ""),
    )


def _ranks(variables: Mapping[str, str], launcher: str, names: Sequence[str]) -> JobPlace:
    """An instance of a launcher that knows nothing of replicas: each has one. Unless told, all are on one host."""
    rank, size, local_rank, local_size = names
    job = _job(variables)
    return JobPlace(
        rank=_number(variables, rank),
        size=_number(variables, size),
        local_rank=_number(variables, local_rank, 0),
        local_size=_number(variables, local_size, _number(variables, size)),
        local_replicas=1,
        total_replicas=_number(variables, size),
        devices_per_replica=1,
        master_address=variables.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_port(variables, job),
        launcher=launcher,
        token=variables.get(TOKEN) or job,
    )


def _job(variables: Mapping[str, str]) -> str:
    """What tells this job from others where the launcher gives no secret: the same in all its instances."""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return hashlib.sha256("\n".join(variables.get(name, "") for name in names).encode()).hexdigest()


def _port(variables: Mapping[str, str], job: str) -> int:
    """MASTER_PORT; a port of the job's own where nobody named one or torchrun's agent already listens there."""
    if "MASTER_PORT" in variables and variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return _number(variables, "MASTER_PORT")
    return _PORTS[int(job, 16) % len(_PORTS)]


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = variables.get(name, "")
    if text.isdigit():
        return int(text)
    if text or default is None:
        raise UserError(f"the environment says {name}={text!r}; expected a whole number, as poprun sets it")
    return default
