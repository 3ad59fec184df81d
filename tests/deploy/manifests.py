#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manifests and scripts of deploy/ fit together, and name what tools and library have. manifests.py SOURCE EP-ADMIN

No cluster is asked. The checks are those that a reader would make: kinds and fields that Kubernetes requires, names that
refer to each other, variables that covey reads, commands that ep-admin has. Where kubectl is, it builds the kustomization,
alone and with the patch for GPUs.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import yaml
except ImportError:
    print("skipped: no PyYAML")
    sys.exit(77)

VERSIONS = {"Service": "v1", "StatefulSet": "apps/v1", "Job": "batch/v1", "PodDisruptionBudget": "policy/v1"}
QUANTITY = re.compile(r"^\d+(\.\d+)?(m|k|M|G|Ki|Mi|Gi)?$")
NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
FIELDS = {  # what a pod's own fields are for
    "metadata.labels['apps.kubernetes.io/pod-index']": "StatefulSet",
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "Job",
    "metadata.labels['batch.kubernetes.io/controller-uid']": "Job",
}


def documents(path):
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


class Checker:
    def __init__(self, source, admin):
        self.source, self.folder, self.wrong = source, source / "deploy/kubernetes", []
        page = (source / "docs/reference/environment.md").read_text()
        self.variables = set(re.findall(r"^\|.*?`(COVEY_[A-Z_]+)` \|", page, re.M))
        told = subprocess.run([admin, "--help"], check=True, capture_output=True, text=True).stdout
        self.commands = set(re.findall(r"^  ([a-z]+) ", told, re.M))
        self.options = set(re.findall(r"--([a-z]+)", told))

    def need(self, holds, text):
        if not holds:
            self.wrong.append(text)

    # ---- one object ----

    def head(self, where, d):
        kind = d.get("kind")
        self.need(kind in VERSIONS, f"{where}: kind {kind}")
        self.need(d.get("apiVersion") == VERSIONS.get(kind), f"{where}: {kind} has apiVersion {d.get('apiVersion')}")
        self.need(NAME.match(d.get("metadata", {}).get("name", "")), f"{where}: {kind} has no fit name")

    def workload(self, where, d):
        spec, labels = d["spec"], d["spec"]["template"]["metadata"]["labels"]
        pod = spec["template"]["spec"]
        if d["kind"] == "StatefulSet":
            self.need(spec["selector"]["matchLabels"].items() <= labels.items(), f"{where}: the selector misses its pods")
            self.need(isinstance(spec.get("replicas"), int), f"{where}: replicas")
            self.need("restartPolicy" not in pod, f"{where}: a StatefulSet restarts always")
        else:
            self.need(spec.get("completionMode") == "Indexed", f"{where}: without an index no pod has a rank")
            self.need(spec.get("completions") == spec.get("parallelism"), f"{where}: all ranks have to run at once")
            self.need(pod.get("restartPolicy") == "Never", f"{where}: restartPolicy")
        self.need(not ("maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec),
                  f"{where}: maxFailedIndexes is for backoffLimitPerIndex")
        for c in pod["containers"]:
            self.container(f"{where}: {c['name']}", d, pod, c)

    def container(self, where, d, pod, c):
        self.need(c.get("image"), f"{where}: no image")
        volumes = {v["name"] for v in pod.get("volumes", [])}
        for mount in c.get("volumeMounts", []):
            self.need(mount["name"] in volumes, f"{where}: no volume {mount['name']}")
            self.need(mount["mountPath"].startswith("/"), f"{where}: {mount['mountPath']}")
        for v in pod.get("volumes", []):
            self.need(v["name"] in {m["name"] for m in c.get("volumeMounts", [])}, f"{where}: {v['name']} is not mounted")
        for kind, table in c.get("resources", {}).items():
            self.need(kind in ("requests", "limits"), f"{where}: {kind}")
            for name, amount in table.items():
                self.need(QUANTITY.match(str(amount)), f"{where}: {name}: {amount}")
        for which in ("readinessProbe", "livenessProbe"):
            if which in c:
                self.need({"exec", "tcpSocket"} & set(c[which]), f"{where}: {which} looks at nothing")
        ports = {p["name"] for p in c.get("ports", [])}
        for p in c.get("ports", []):
            self.need(0 < p["containerPort"] < 65536 and len(p["name"]) < 16, f"{where}: port {p}")
        if "tcpSocket" in c.get("readinessProbe", {}):
            self.need(c["readinessProbe"]["tcpSocket"]["port"] in ports, f"{where}: readinessProbe: no such port")
        self.environment(where, d, c)

    def environment(self, where, d, c):
        env = {e["name"]: e for e in c.get("env", [])}
        self.need(len(env) == len(c.get("env", [])), f"{where}: a variable is given twice")
        for name, e in env.items():
            self.need(("value" in e) != ("valueFrom" in e), f"{where}: {name} has no value, or two")
            self.need(isinstance(e.get("value", ""), str), f"{where}: {name}: a value is a string: quote it")
            if name.startswith("COVEY_"):
                self.need(name in self.variables, f"{where}: covey reads no {name}")
            field = e.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            self.need(field is None or FIELDS.get(field) == d["kind"], f"{where}: {name}: {field} in a {d['kind']}")
        if "COVEY_RANK" not in env:
            return
        count = d["spec"].get("replicas", d["spec"].get("completions"))
        self.need(env.get("COVEY_WORLD", {}).get("value") == str(count), f"{where}: COVEY_WORLD is not {count}")
        for name in ("COVEY_STORE", "COVEY_GROUP", "COVEY_STORE_PASSWORD"):
            self.need(name in env, f"{where}: no {name}")
        if "COVEY_METRICS" in env:
            port = env["COVEY_METRICS"]["value"].rsplit(":", 1)[1]
            self.need(port in {str(p["containerPort"]) for p in c["ports"]}, f"{where}: no port {port} for metrics")

    # ---- objects together ----

    def names(self, objects):
        services = {d["metadata"]["name"]: d for d in objects if d["kind"] == "Service"}
        pods = [d for d in objects if d["kind"] in ("StatefulSet", "Job")]
        for d in objects:
            name = d["metadata"]["name"]
            if d["kind"] == "StatefulSet":
                self.need(d["spec"]["serviceName"] in services, f"{name}: no service {d['spec']['serviceName']}")
            if d["kind"] in ("Service", "PodDisruptionBudget"):
                selector = d["spec"]["selector"]
                selector = selector.get("matchLabels", selector)
                chosen = [p for p in pods if selector.items() <= p["spec"]["template"]["metadata"]["labels"].items()]
                self.need(chosen, f"{d['kind']} {name} chooses no pod")
                for p in d["spec"].get("ports", []):
                    have = {q["name"] for w in chosen for c in w["spec"]["template"]["spec"]["containers"]
                            for q in c.get("ports", [])}
                    self.need(p["targetPort"] in have, f"service {name}: no port {p['targetPort']}")
            if d["kind"] == "PodDisruptionBudget":
                self.need(("maxUnavailable" in d["spec"]) != ("minAvailable" in d["spec"]), f"{name}: one bound")
        for d in pods:
            for c in d["spec"]["template"]["spec"]["containers"]:
                for e in c.get("env", []):
                    if e["name"] == "COVEY_STORE":
                        host, port = re.fullmatch(r"redis://([-a-z]+):(\d+)", e["value"]).groups()
                        have = {p["port"] for p in services.get(host, {"spec": {"ports": []}})["spec"]["ports"]}
                        self.need(int(port) in have, f"{d['metadata']['name']}: no service {host}:{port}")

    def kustomization(self):
        k = documents(self.folder / "kustomization.yaml")[0]
        self.need(k["kind"] == "Kustomization" and k["apiVersion"] == "kustomize.config.k8s.io/v1beta1", "kustomization")
        maps = {m["name"]: m["files"] for m in k["configMapGenerator"]}
        for name in k["resources"] + [f for files in maps.values() for f in files]:
            self.need((self.folder / name).exists(), f"kustomization.yaml: no file {name}")
        return maps

    def commands_of(self, d, maps):
        """The scripts that a pod runs are in a volume that is mounted there."""
        pod = d["spec"]["template"]["spec"]
        for c in pod["containers"]:
            said = [c.get("command", [])] + [c.get(p, {}).get("exec", {}).get("command", []) for p in
                                             ("readinessProbe", "livenessProbe")]
            said.append(c.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", []))
            for command in said:
                path = Path(command[1]) if len(command) > 1 and command[1].endswith(".sh") else None
                if not path:
                    continue
                mounts = {m["mountPath"]: m["name"] for m in c["volumeMounts"]}
                volume = [v for v in pod["volumes"] if v["name"] == mounts.get(str(path.parent))]
                files = maps.get(volume[0]["configMap"]["name"], []) if volume else []
                self.need(path.name in files, f"{d['metadata']['name']}: {path} is mounted from nowhere")
                if path.name == "probe.sh":
                    text = (self.folder / "probe.sh").read_text()
                    self.need(re.search(rf"^{command[2]}\)$", text, re.M), f"probe.sh knows no {command[2]}")

    def scripts(self):
        for path in [*self.folder.glob("*.sh"), self.source / "deploy/slurm/job.sbatch"]:
            text = re.sub(r"#.*", "", path.read_text()) if path.suffix == ".sh" else path.read_text()
            for words in re.findall(r"\$admin ([^|)&\n]*)", text):
                plain = [w for w in words.split() if not w.startswith(("-", "2>", '"')) and not w.isdigit()]
                self.need(plain and plain[0] in self.commands, f"{path.name}: ep-admin {words}")
                for option in re.findall(r"--([a-z]+)", words):
                    self.need(option in self.options, f"{path.name}: ep-admin has no --{option}")
            for variable in set(re.findall(r"COVEY_[A-Z_]+", text)) - {"COVEY_DEPLOY"}:
                self.need(variable in self.variables, f"{path.name}: covey reads no {variable}")
            shell = "bash" if path.suffix == ".sbatch" else "sh"
            said = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
            self.need(said.returncode == 0, f"{path.name}: {said.stderr}")

    def slurm(self):
        text = (self.source / "deploy/slurm/job.sbatch").read_text()
        head = text[:text.index("\nset ")]
        options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", head, re.M))
        for option in ("nodes", "ntasks-per-node", "time", "no-kill"):
            self.need(option in options, f"job.sbatch: no --{option}")
        self.need("#SBATCH" not in text[text.index("\nset "):].replace("# With", ""),
                  "job.sbatch: sbatch reads no option behind the first command")
        srun = re.search(r"^srun (.*)$", text, re.M).group(1)
        for option in ("--no-kill", "--kill-on-bad-exit=0", "--wait=0"):
            self.need(option in srun, f"job.sbatch: srun without {option} ends all ranks with one")
        script = re.search(r'"\$here/(\S+)"', srun).group(1)
        self.need((self.source / "deploy" / script).exists(), f"job.sbatch: no {script}")

    def kubectl(self):
        if not shutil.which("kubectl"):
            print("no kubectl: the kustomization is not built")
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "k"
            shutil.copytree(self.folder, copy)
            for patched in (False, True):
                if patched:
                    with open(copy / "kustomization.yaml", "a") as out:
                        out.write("patches:\n  - path: gpu.yaml\n")
                said = subprocess.run(["kubectl", "kustomize", str(copy)], capture_output=True, text=True)
                self.need(said.returncode == 0, f"kubectl kustomize: {said.stderr}")
                built = [d for d in yaml.safe_load_all(said.stdout) if d]
                ranks = [d for d in built if d["kind"] == "StatefulSet" and d["metadata"]["name"] == "covey-ranks"]
                limits = ranks[0]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
                self.need(("nvidia.com/gpu" in limits) == patched, f"gpu.yaml: limits {limits}")
                names = {e["name"] for e in ranks[0]["spec"]["template"]["spec"]["containers"][0]["env"]}
                self.need({"COVEY_RANK", "COVEY_STORE"} <= names and ("COVEY_DEVICE" in names) == patched,
                          f"gpu.yaml: variables {sorted(names)}")

    def all(self):
        files = {p.name: documents(p) for p in self.folder.glob("*.yaml") if p.name != "kustomization.yaml"}
        patch = files.pop("gpu.yaml")[0]
        maps = self.kustomization()
        for name, objects in files.items():
            for d in objects:
                self.head(name, d)
                if d["kind"] in ("StatefulSet", "Job"):
                    self.workload(f"{name}: {d['metadata']['name']}", d)
                    self.commands_of(d, maps)
        for chosen in ("serve.yaml", "batch.yaml"):
            self.names(files["store.yaml"] + files[chosen])
        self.environment("gpu.yaml", {"kind": "StatefulSet", "spec": {}}, patch["spec"]["template"]["spec"]["containers"][0])
        self.need(patch["metadata"]["name"] in [d["metadata"]["name"] for d in files["serve.yaml"]], "gpu.yaml: its target")
        self.scripts()
        self.slurm()
        self.kubectl()
        return self.wrong


def main():
    wrong = Checker(Path(sys.argv[1]), sys.argv[2]).all()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
