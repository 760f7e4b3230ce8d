"""A real Slurm on this machine: a controller with accounting and two nodes of one processor each. Needs root."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged", "mungekey", "sacct", "runuser")
CONTROLLER = """ClusterName=graphopt
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AuthInfo=cred_expire=5
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
JobRequeue=1
KillWait=5
MinJobAge=300
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeAddr=127.0.0.1 NodeHostname=localhost Port=17001 CPUs=1 RealMemory=4000
NodeName=n2 NodeAddr=127.0.0.1 NodeHostname=localhost Port=17002 CPUs=1 RealMemory=4000
NodeName=n3 NodeAddr=127.0.0.1 NodeHostname=localhost Port=17003 CPUs=1 RealMemory=4000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=apart Nodes=n3 MaxTime=60 State=UP PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=60 State=UP PriorityTier=10
"""
ACCOUNTING = """AuthType=auth/munge
DbdHost=localhost
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile={root}/slurmdbd.log
PidFile={root}/slurmdbd.pid
"""
DATABASE = """CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct_db.* TO slurm@localhost;
"""


def missing() -> str:
    """Why there can be no such cluster here; empty where there can."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"no {', '.join(lacking)}: apt-get install slurm-wlm munge slurmdbd mariadb-server"
    return "" if os.geteuid() == 0 else "Slurm's daemons of these tests need root"


@contextmanager
def cluster(root: Path) -> Iterator[dict[str, str]]:
    """What its commands need in their environment, while it runs."""
    config = root / "slurm.conf"
    config.write_text(CONTROLLER.format(root=root))
    for folder in ("state", "spool.n1", "spool.n2", "spool.n3", "database"):
        (root / folder).mkdir()
    variables, begun = {**os.environ, "SLURM_CONF": str(config)}, list[subprocess.Popen[bytes]]()

    def start(*command: str) -> None:
        with (root / f"{Path(command[0]).name}.out").open("ab") as out:
            begun.append(subprocess.Popen(command, env=variables, stdout=out, stderr=out, start_new_session=True))

    try:
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        if not Path("/etc/munge/munge.key").exists():
            subprocess.run(["mungekey", "--create"], check=True)
            shutil.chown("/etc/munge/munge.key", "munge", "munge")
        start("runuser", "-u", "munge", "--", "munged", "--foreground", "--force")
        _database(root, start)
        (accounting := root / "slurmdbd.conf").write_text(ACCOUNTING.format(root=root))
        accounting.chmod(0o600)
        start("slurmdbd", "-D")
        _until(
            lambda: subprocess.run(["sacctmgr", "-n", "show", "cluster"], env=variables, capture_output=True).returncode
        )
        start("slurmctld", "-D")
        for node in ("n1", "n2", "n3"):
            start("slurmd", "-D", "-N", node)
        _until(
            lambda: (
                subprocess.check_output(["sinfo", "-h", "-o", "%t%D"], env=variables).decode().split()[:1] != ["idle3"]
            )
        )
        yield variables
    finally:
        for process in reversed(begun):
            process.terminate()
        for process in begun:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _database(root: Path, start: Callable[..., None]) -> None:
    data, socket = root / "database", "/run/mysqld/mysqld.sock"
    Path(socket).parent.mkdir(exist_ok=True)
    for folder in (data, Path(socket).parent, *root.parents, root):
        if folder in (data, Path(socket).parent):
            shutil.chown(folder, "mysql")
        elif folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)  # that the database gets there
    subprocess.run(["mariadb-install-db", "--user=mysql", f"--datadir={data}", "--skip-test-db"], check=True,
                   capture_output=True)  # fmt: skip
    start("mariadbd", "--user=mysql", f"--datadir={data}", "--skip-networking", f"--socket={socket}")
    _until(lambda: subprocess.run(["mariadb", f"--socket={socket}", "-e", DATABASE], capture_output=True).returncode)


def _until(busy: Callable[[], object], seconds: float = 60.0) -> None:
    """Until a function gives nothing."""
    end = time.monotonic() + seconds
    while busy():
        if time.monotonic() > end:
            raise TimeoutError("a part of the cluster does not start")
        time.sleep(0.2)
