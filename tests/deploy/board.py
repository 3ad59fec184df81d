#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The board and the alerts in deploy/ use metrics and labels that members have. board.py SOURCE MANUAL EP-ADMIN

MANUAL prints the registry of metrics, so a metric that is renamed fails here. Files of YAML are parsed where PyYAML is;
rules are checked by promtool, too, where that is.
"""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

OURS = {"group", "rank"}  # labels of every sample, src/observe/metrics.c
THEIRS = {"job", "instance"}  # Prometheus adds these


def registry(manual):
    """{name: (type, labels)}"""
    text = subprocess.run([manual, "metrics"], check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^\| `(covey_\w+)` \| (gauge|counter)(?:, by `(\w+)`)? \|", text, re.M)
    return {name: (kind, OURS | ({label} if label else set())) for name, kind, label in rows}


def inside_call(expression, at, calls):
    """Is the place in the brackets of one of these functions?"""
    depth = 0
    for i in range(at, -1, -1):
        depth += {")": 1, "(": -1}.get(expression[i], 0)
        if depth < 0:
            word = re.search(r"(\w+)\s*$", expression[:i])
            if word and word.group(1) in calls:
                return True
            depth = 0
    return False


def wrong_in(expression, metrics, legend=""):
    """What is wrong in an expression of PromQL, and in the legend of its curves, as a list of sentences."""
    wrong, labels = [], set(THEIRS)
    made = set(re.findall(r'count_values\("(\w+)"', expression))
    bare = re.sub(r'count_values\("\w+",', "count_values(", expression)
    names = [(m.group(1), m.start(), m.group(2) or "") for m in re.finditer(r"\b(covey_\w+)(\{[^}]*\})?", bare)]
    if not names:
        wrong.append("no metric of covey")
    for name, at, selector in names:
        if name not in metrics:
            wrong.append(f"{name} is no metric")
            continue
        kind, has = metrics[name]
        labels |= has
        rated = inside_call(bare, at, {"rate", "increase"})
        if (kind == "counter") != rated:
            wrong.append(f"{name} is a {kind}: a counter is for rate() or increase(), a gauge is not")
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            if label not in has | THEIRS:
                wrong.append(f"{name} has no label {label}")
    groups = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", bare)
    shown = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", legend)
    for label in [x.strip() for g in groups for x in g.split(",") if x.strip()]:
        if label not in labels:
            wrong.append(f"by {label}: no metric of the expression has that label")
    kept = {x.strip() for g in groups for x in g.split(",")} | made if groups or made else labels
    for label in shown:
        if label not in kept:
            wrong.append(f"the legend shows {label}, which the result does not have")
    if bare.count("(") != bare.count(")") or bare.count("{") != bare.count("}"):
        wrong.append("brackets do not match")
    return wrong


def check_checker(metrics):
    """The checks above find what they are for."""
    for expression, legend, want in [
        ("covey_epok", "", "is no metric"),
        ("rate(covey_epoch[5m])", "", "is a gauge"),
        ("covey_views_total > 3", "", "is a counter"),
        ('covey_epoch{host="a"}', "", "has no label host"),
        ("sum by (kind) (covey_epoch)", "", "by kind"),
        ("sum by (rank) (covey_epoch)", "{{kind}}", "legend shows kind"),
        ("max(covey_epoch", "", "brackets"),
        ("up == 0", "", "no metric"),
    ]:
        found = wrong_in(expression, metrics, legend)
        if not any(want in x for x in found):
            yield f"the check does not see {want!r} in {expression}: {found}"
    if wrong_in('sum by (kind) (rate(covey_operations_total{rank=~"1"}[1m]))', metrics, "{{kind}}"):
        yield "the check finds something in what is right"


def check_board(path, metrics):
    board = json.loads(path.read_text())
    used, places = set(), set()
    ids = [p["id"] for p in board["panels"]]
    if len(ids) != len(set(ids)):
        yield "two panels have one id"
    for variable in ("source", "group", "rank"):
        if variable not in [v["name"] for v in board["templating"]["list"]]:
            yield f"no variable {variable}"
    for variable in board["templating"]["list"]:
        asked = re.fullmatch(r"label_values\((covey_\w+).*, (\w+)\)", str(variable.get("query", {}).get("query"))) \
            if isinstance(variable["query"], dict) else None
        if asked and (asked.group(1) not in metrics or asked.group(2) not in metrics[asked.group(1)][1]):
            yield f"variable {variable['name']}: {asked.group(0)}"
    for panel in board["panels"]:
        for needed in ("title", "description", "type", "targets"):
            if not panel.get(needed):
                yield f"panel {panel.get('title', panel['id'])} has no {needed}"
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield f"panel {panel['title']} has no unit"
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if cells & places or at["x"] + at["w"] > 24:
            yield f"panel {panel['title']} lies over another, or beyond the edge"
        places |= cells
        for target in panel["targets"]:
            used |= set(re.findall(r"covey_\w+", target["expr"]))
            for wrong in wrong_in(target["expr"], metrics, target["legendFormat"]):
                yield f"panel {panel['title']}: {wrong}"
            for variable in re.findall(r"\$(\w+)", target["expr"]):
                if variable not in ("group", "rank", "__rate_interval"):
                    yield f"panel {panel['title']}: no variable {variable}"
    for mark in board["annotations"]["list"]:
        for wrong in wrong_in(mark["expr"].replace("changes(", "("), metrics):
            yield f"annotation {mark['name']}: {wrong}"
    for name in sorted(set(metrics) - used):
        yield f"{name} is on no panel"


def said_commands(text):
    """The commands of ep-admin in a text: `ep-admin -g x top` gives top."""
    for words in re.findall(r"`ep-admin ([^`]*)`", text):
        yield re.sub(r"-g (\{\{.*?\}\}|\S+) ", "", words).split()[0]


def check_rules(path, metrics, commands):
    try:
        import yaml
    except ImportError:
        print("no PyYAML: the alerts are not parsed")
        return
    rules = [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    names = [rule.get("alert") for rule in rules]
    if len(names) != len(set(names)) or None in names:
        yield f"names of alerts: {names}"
    for rule in rules:
        name, notes = rule["alert"], rule.get("annotations", {})
        text = " ".join(notes.values())
        for wrong in wrong_in(rule["expr"].replace("changes((", "(("), metrics, text):
            yield f"{name}: {wrong}"
        if rule.get("labels", {}).get("severity") not in ("critical", "warning"):
            yield f"{name}: severity"
        if set(rule) - {"alert", "expr", "for", "labels", "annotations"}:
            yield f"{name}: {sorted(rule)}"
        if "for" in rule and not re.fullmatch(r"\d+[smh]", rule["for"]):
            yield f"{name}: for {rule['for']}"
        if not notes.get("summary", "").endswith("."):
            yield f"{name}: no sentence says what happened"
        action = notes.get("action", "")
        if len(action.split()) < 8 or not action.endswith(".") or not re.match(
                r"(Run|Read|Start|Let|Look|Give|Raise|Take) ", action):
            yield f"{name}: no sentence says what to do"
        for command in said_commands(text):
            if command not in commands:
                yield f"{name}: ep-admin has no command {command}"
        for page in re.findall(r"docs/[\w/-]+\.md", text):
            if not (path.parents[2] / page).exists():
                yield f"{name}: there is no {page}"
        for variable in re.findall(r"COVEY_[A-Z_]+", text):
            if f"`{variable}`" not in (path.parents[2] / "docs/reference/environment.md").read_text():
                yield f"{name}: there is no {variable}"


def main():
    source, manual, admin = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    metrics = registry(manual)
    told = subprocess.run([admin, "--help"], check=True, capture_output=True, text=True).stdout
    commands = set(re.findall(r"^  ([a-z]+) ", told, re.M))
    rules = source / "deploy/prometheus/alerts.yml"
    wrong = list(check_checker(metrics)) + list(check_board(source / "deploy/grafana/covey.json", metrics)) + list(
        check_rules(rules, metrics, commands))
    if len(metrics) < 16 or "top" not in commands:
        wrong.append(f"the registry was not read: {sorted(metrics)} {sorted(commands)}")
    if shutil.which("promtool"):
        said = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True)
        if said.returncode:
            wrong.append(said.stdout + said.stderr)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


sys.exit(main())
