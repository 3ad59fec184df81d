#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pods of deploy/kubernetes, and tasks of deploy/slurm, as processes. pods.py SOURCE TOOLS PROGRAM

What Kubernetes does is done here by hand: the fields of a pod are filled in from its index, the name of the service
becomes an address, a pod that ended is started again with its index. Command, variables, probes and the hook before
the end are those of the manifests. Of Slurm only srun is played: the script of the job runs as it is. PROGRAM is tests/hosts/job/steady.c.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import yaml
except ImportError:
    print("skipped: no PyYAML")
    sys.exit(77)

PATIENCE_S = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def end_group(process):
    """The process, and those that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all have ended
    process.wait()


class Workload:
    """The pods of one StatefulSet or Job."""

    def __init__(self, folder, file, name, where, tools, program, port, uid):
        objects = [d for d in yaml.safe_load_all((folder / file).read_text()) if d]
        self.spec = [d for d in objects if d["metadata"]["name"] == name and d["kind"] in ("StatefulSet", "Job")][0]["spec"]
        self.container = self.spec["template"]["spec"]["containers"][0]
        self.count = self.spec.get("replicas", self.spec.get("completions"))
        self.folder, self.where, self.program, self.port, self.uid = folder, where, program, port, uid
        self.path = f"{tools}:{os.environ['PATH']}"
        self.stop = where / f"{name}.stop"
        self.pods, self.logs = {}, {}

    def variable(self, e, index):
        if "value" in e:
            value = e["value"].replace("covey-store:6379", f"127.0.0.1:{self.port}")
            return f"unix:{self.where}/m-{{rank}}-{{pid}}" if e["name"] == "COVEY_METRICS" else value
        source = e["valueFrom"]
        if "secretKeyRef" in source:
            assert source["secretKeyRef"] == {"name": "covey-store", "key": "password"}, source
            return "secret"
        field = source["fieldRef"]["fieldPath"]
        return self.uid if "uid" in field else str(index)

    def environment(self, index):
        env = {"PATH": self.path, "HOME": str(self.where), "COVEY_HOST": f"pod-{index}-{self.uid}",
               "COVEY_HANG_MS": "10000"}  # a pod is a host of its own; a machine under load is no death
        env |= {e["name"]: self.variable(e, index) for e in self.container["env"]}
        return env

    def command(self, words):
        return [w.replace("/opt/covey", str(self.folder)) for w in words]

    def start(self, index):
        log = self.logs.setdefault(index, self.where / f"{self.container['name']}-{self.uid}-{index}.log")
        command = self.command(self.container["command"]) + [self.program, str(self.stop)]
        self.pods[index] = subprocess.Popen(command, env=self.environment(index), stdout=open(log, "a"),
                                            stderr=subprocess.STDOUT, start_new_session=True)

    def kill(self, index):
        """As a node that dies: no hook runs."""
        os.killpg(self.pods[index].pid, signal.SIGKILL)
        self.pods.pop(index).wait()

    def ask(self, index, words):
        """What a kubelet runs in the pod; its exit code."""
        said = subprocess.run(self.command(words), env=self.environment(index), capture_output=True, text=True)
        self.said = said.stdout + said.stderr
        return said.returncode

    def probe(self, index, which):
        return self.ask(index, self.container[which]["exec"]["command"])

    def until(self, index, pattern, times=1):
        end = time.monotonic() + PATIENCE_S
        while len(re.findall(pattern, self.logs[index].read_text(), re.M)) < times:
            if time.monotonic() > end:
                self.show()
                sys.exit(f"pod {index} never said {pattern!r} {times} times")
            time.sleep(0.05)

    def until_probe(self, index, which, code):
        end = time.monotonic() + PATIENCE_S
        while self.probe(index, which) != code:
            if time.monotonic() > end:
                self.show()
                sys.exit(f"{which} of pod {index} is never {code}: {self.said}")

    def show(self):
        for index, log in self.logs.items():
            print(f"---- pod {index}\n{log.read_text()}")

    def end(self):
        """All come to their end by themselves, with code 0."""
        self.stop.touch()
        for index, pod in self.pods.items():
            if pod.wait(PATIENCE_S):
                self.show()
                sys.exit(f"pod {index} ended with code {pod.returncode}")
        self.pods = {}

    def drop(self):
        for pod in self.pods.values():
            end_group(pod)


def start_store(folder, where, port):
    """The container of store.yaml, with its own command; until_answers() follows."""
    objects = [d for d in yaml.safe_load_all((folder / "store.yaml").read_text()) if d]
    container = [d for d in objects if d["kind"] == "StatefulSet"][0]["spec"]["template"]["spec"]["containers"][0]
    args = [a.replace("port 6379", f"port {port}") for a in container["args"]]
    return subprocess.Popen(container["command"] + args, env=dict(os.environ, REDIS_PASSWORD="secret"), cwd=where,
                            stdout=open(where / "store.log", "w"), stderr=subprocess.STDOUT, start_new_session=True)


def until_answers(store, where, port):
    end = time.monotonic() + PATIENCE_S
    while subprocess.run(["redis-cli", "-p", str(port), "-a", "secret", "--no-auth-warning", "ping"],
                         capture_output=True, text=True).stdout != "PONG\n":
        if time.monotonic() > end or store.poll() is not None:
            sys.exit("the store does not start: " + (where / "store.log").read_text())
        time.sleep(0.05)


def play_serve(w):
    for index in range(w.count):
        w.start(index)
    for index in range(w.count):
        w.until(index, rf"rank {index} epoch \d+ ranks {w.count}$")
        w.until_probe(index, "readinessProbe", 0)
        assert w.probe(index, "livenessProbe") == 0, w.said
        assert f"rank {index} starts as a founder\n" in w.logs[index].read_text()

    # A pod that is killed comes back with its rank, and nobody had to say that it is a replacement.
    w.kill(2)
    w.start(2)
    w.until(2, r"rank 2 is back at step [1-9]")
    w.until(0, rf"rank 0 epoch \d+ ranks {w.count}$", 2)
    w.until_probe(2, "readinessProbe", 0)

    # A pod that is deleted leaves first: nobody has to find out. It comes back, too.
    assert w.ask(1, w.container["lifecycle"]["preStop"]["exec"]["command"]) == 0, w.said
    w.until_probe(1, "readinessProbe", 1)
    w.pods[1].wait(PATIENCE_S)
    w.start(1)
    w.until(1, r"rank 1 is back at step [1-9]")
    w.until_probe(1, "readinessProbe", 0)

    # kubectl scale: a pod behind the last one, whose COVEY_WORLD is that of the manifest.
    w.start(w.count)
    w.until(w.count, rf"rank {w.count} is back at step [1-9]")
    w.until(0, rf"rank 0 epoch \d+ ranks {w.count + 1}$")
    w.end()


def play_crash(w):
    """All pods die at once: those that are started again form a new group."""
    for index in range(w.count):
        w.start(index)
    for index in range(w.count):
        w.until(index, rf"rank {index} epoch 1 ranks {w.count}$")
    for index in range(w.count):
        w.kill(index)
    for index in range(w.count):
        w.start(index)
    for index in range(w.count):
        w.until(index, rf"rank {index} epoch 1 ranks {w.count}$", 2)
        assert "is back" not in w.logs[index].read_text()


def play_batch(w):
    for index in range(w.count):
        w.start(index)
    w.until(3, rf"rank 3 epoch \d+ ranks {w.count}$")
    w.kill(3)
    w.start(3)
    w.until(3, r"rank 3 is back at step [1-9]")
    w.end()


def starts_of(folder, where, state):
    """What start.sh gives a program that fails twice, while ep-admin says this of the group."""
    admin = where / "told.sh"
    admin.write_text(f"echo '{state}'\n")
    env = {"PATH": os.environ["PATH"], "EP_ADMIN": f"sh {admin}", "START_AGAIN": "1", "COVEY_STORE": "redis://nowhere:1",
           "SLURM_PROCID": "1", "COVEY_CREATE": "first"}
    said = subprocess.run(["sh", str(folder / "start.sh"), "sh", "-c", "echo $COVEY_CREATE $COVEY_RANK; exit 7"], env=env,
                          capture_output=True, text=True)
    assert said.returncode == 7, said
    return said.stdout.splitlines(), said.stderr.splitlines()


def play_again(folder, where):
    """A rank that fails before the group has been formed is a founder again; else it is a replacement."""
    founder = "start.sh: rank of the launcher starts as a founder"
    again = "start.sh: sh ended with code 7 and is started again as a"
    assert starts_of(folder, where, '{"phase": "form"}') == (["first", "first"], [founder, f"{again} founder"])
    assert starts_of(folder, where, '{"phase": "run"}') == (
        ["first", "never 1"], [founder, f"{again} replacement or joiner"])


SRUN = """#!/bin/sh
while case $1 in --*) true ;; *) false ;; esac; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4
for SLURM_PROCID in 0 1 2 3; do
	export SLURM_PROCID
	"$@" >"$LOGS/task-$SLURM_PROCID.log" 2>&1 &
	tasks="$tasks $!"
done
code=0
for task in $tasks; do
	wait "$task" || code=$?
done
exit $code
"""


def task_of(program, index):
    """The process of a task: a child of start.sh."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "exe") == program and f"SLURM_PROCID={index}".encode() in (
                    entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:
            continue  # it has ended, or is not ours
    sys.exit(f"task {index} is not there")


def take_port(port):
    """A socket that takes connections there and says nothing, unless somebody else has the port already."""
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", port))
        s.listen()
    except OSError:
        pass
    return s


def look_from_outside(told, env):
    """The file of variables is the owner's alone, and enough to see the group."""
    assert told.stat().st_mode & 0o777 == 0o600, oct(told.stat().st_mode)
    said = subprocess.run(["sh", "-c", f". {told} && exec ep-admin status"], env=env, capture_output=True, text=True)
    assert said.returncode == 0 and f"slurm-{env['SLURM_JOB_ID']}" in said.stdout, said


def play_slurm(source, where, tools, program):
    """job.sbatch with an srun that starts four tasks here; a task that is killed is started again in its place."""
    names, stop, told = where / "bin", where / "slurm.stop", where / f"covey-{os.getpid()}.env"
    names.mkdir()
    busy = take_port(20000 + os.getpid() % 10000)  # the first port that the script tries
    for name, text in (("srun", SRUN), ("hostname", "#!/bin/sh\necho 127.0.0.1\n")):
        (names / name).write_text(text)
        (names / name).chmod(0o755)
    env = {"PATH": f"{names}:{tools}:{os.environ['PATH']}", "HOME": str(where), "LOGS": str(where), "tasks": "",
           "COVEY_DEPLOY": str(source / "deploy"), "SLURM_JOB_ID": str(os.getpid()), "COVEY_HANG_MS": "10000"}
    job = subprocess.Popen(["bash", str(source / "deploy/slurm/job.sbatch"), program, str(stop)], env=env, cwd=where,
                           stdout=open(where / "slurm.log", "w"), stderr=subprocess.STDOUT, start_new_session=True)
    logs = {i: where / f"task-{i}.log" for i in range(4)}

    def until(index, pattern):
        end = time.monotonic() + PATIENCE_S
        while not (logs[index].exists() and re.search(pattern, logs[index].read_text(), re.M)):
            if time.monotonic() > end or job.poll() is not None:
                for log in [where / "slurm.log", *logs.values()]:
                    print(f"---- {log.name}\n{log.read_text() if log.exists() else ''}")
                sys.exit(f"task {index} never said {pattern!r}")
            time.sleep(0.05)

    try:
        for index in range(4):
            until(index, rf"rank {index} epoch \d+ ranks 4$")
        look_from_outside(told, env)
        os.kill(task_of(os.path.realpath(program), 1), signal.SIGKILL)
        until(1, r"rank 1 is back at step [1-9]")
        stop.touch()
        code = job.wait(PATIENCE_S)
        if code:
            sys.exit(f"job.sbatch ended with code {code}: " + (where / "slurm.log").read_text())
        assert not told.exists(), f"{told} remains after the job"
        said = (where / "slurm.log").read_text() + "".join(log.read_text() for log in logs.values())
        assert "no setting of covey" not in said, said
    finally:
        end_group(job)
        busy.close()


def play_no_store(source, where):
    """A redis-server that ends at every port ends the job, before any rank starts."""
    names = where / "no-store"
    names.mkdir()
    for name, text in (("redis-server", "exit 1"), ("srun", "echo a rank starts")):
        (names / name).write_text(f"#!/bin/sh\n{text}\n")
        (names / name).chmod(0o755)
    env = {"PATH": f"{names}:{os.environ['PATH']}", "COVEY_DEPLOY": str(source / "deploy"), "SLURM_JOB_ID": "7"}
    said = subprocess.run(["bash", str(source / "deploy/slurm/job.sbatch"), "job"], env=env, cwd=where, capture_output=True,
                          text=True)
    assert said.returncode == 1 and "ended at each of 20 ports up to 20026" in said.stderr and not said.stdout, said


def main():
    source, tools, program = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    for needed in ("redis-server", "redis-cli"):
        if not shutil.which(needed):
            print(f"skipped: no {needed}")
            sys.exit(77)
    folder, where, port = source / "deploy/kubernetes", Path(tempfile.mkdtemp()), free_port()
    store, made = start_store(folder, where, port), []  # made: workloads

    def workload(file, name, uid):
        made.append(Workload(folder, file, name, where, tools, program, port, uid))
        return made[-1]

    try:
        until_answers(store, where, port)
        play_again(folder, where)
        play_no_store(source, where)
        play_serve(workload("serve.yaml", "covey-ranks", "serve"))
        crash = workload("serve.yaml", "covey-ranks", "crash")
        crash.stop = where / "never"
        play_crash(crash)
        play_batch(workload("batch.yaml", "covey-batch", "batch"))
        play_slurm(source, where, tools, program)
    finally:
        end_group(store)
        for w in made:
            w.drop()
        shutil.rmtree(where, ignore_errors=True)


main()
