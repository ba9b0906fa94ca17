# SPDX-License-Identifier: Apache-2.0
"""tierce itself and tierce config."""

import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
import unittest

from cli_case import EXECUTABLE, CliCase

REFERENCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../docs/using/ref")


class Basics(CliCase):
    def test_version(self):
        result = self.check(0, "--version")
        self.assertRegex(result.stdout, r"^tierce \d+\.\d+\.\d+\n$")

    def test_help_names_every_command_and_each_has_help(self):
        result = self.check(0, "help", out=["Exit status: 0"])
        self.assertEqual(result.stdout, self.check(0, "--help").stdout)
        commands = re.findall(r"^  (\w+) ", result.stdout, re.M)
        self.assertIn("config", commands)
        self.assertIn("doctor", commands)
        for command in commands:
            if command != "help":
                text = self.check(0, "help", command).stdout
                self.assertTrue(text.startswith(f"usage: tierce {command} "), text)
                self.assertEqual(text, self.check(0, command, "--help").stdout)

    def test_wrong_commands(self):
        self.check(2, err=["usage: tierce COMMAND"])
        self.check(2, "confg", err=['no command "confg"; the nearest is "config"'])
        self.check(2, "serve", err=['no command "serve"; tierce help lists all'])  # like no other
        self.check(2, "help", "docter", err=['the nearest is "doctor"'])
        self.check(2, "help", "config", "more", err=["accepts at most one command"])
        self.check(2, "--verison", err=['the nearest is "--version"'])
        self.check(2, "inspekt", err=['the nearest is "inspect"'])
        self.check(0, "help", "help", out=["usage: tierce COMMAND"])
        for wrong, right in (("storage lst", "storage list"), ("cluster lgo", "cluster log"),
                             ("cache loook", "cache look"), ("group \x1bshow", "group show")):
            self.check(2, *wrong.split(" "), err=[
                f'there is no "{wrong}"; the nearest is "{right}"\n'.replace("\x1b", "?")])
        self.check(2, "storage", err=["tierce storage: requires an action: list, "])
        self.check(2, "\x1b[31m", err=['"?[31m"'])

    def test_keygen(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "key")
            public = self.check(0, "keygen", path).stdout
            self.assertRegex(public, r"^\S{40}\n$")
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.assertNotIn(public.strip(), open(path).read())
            self.assertEqual(self.check(0, "keygen", "--public", path).stdout, public)
            self.check(1, "keygen", path, err=["File exists; choose another FILE"])
            with open(path, "w") as file:
                file.write(public[:39])
            self.check(1, "keygen", "--public", path, err=["does not hold a secret key of CURVE"])
        self.check(2, "keygen", err=["one FILE is required"])

    def test_a_full_disk_is_said(self):
        with open("/dev/full", "w") as full:
            result = self.tierce("config", stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertIn("No space left", result.stderr)

    def test_closed_standard_files_are_no_others(self):
        """A store's file that is opened as descriptor 1 would get what is printed."""
        for command in ("config", "help"):
            for closed in (">&-", ">&- <&-", ">&- <&- 2>&-"):
                result = subprocess.run(["sh", "-c", f'exec "$0" "$@" {closed}', EXECUTABLE,
                                         command], stderr=subprocess.PIPE, timeout=60, text=True,
                                        check=False)
                self.assertEqual(result.returncode, 1)
                if "2" not in closed:
                    self.assertIn("could not be written", result.stderr)
        text = self.check(0, "config").stdout
        path = self.write("in.yaml", text)
        self.check(0, "config", "--file", path)


class Config(CliCase):
    def test_sources_override_in_their_order(self):
        path = self.write("t.yaml", "memory: {size: 2GiB, pins: 10%}\ndisk: {size: 3GiB}\n")
        env = {"TIERCE_DISK_SIZE": "4GiB", "TIERCE_CONFIG": path, "TIERCE_DISK_DEPTH": "8"}
        result = self.check(0, "config", "--disk.depth=9", "--set", "disk.path=/kv #1", env=env)
        values = dict(re.findall(r"^  (\w+): +(.*?) +# ", result.stdout, re.M))
        self.assertEqual(values["pins"], "0.1")
        self.assertEqual(values["depth"], "9")
        self.assertRegex(result.stdout, r'path: "/kv #1" +# ')
        self.assertRegex(result.stdout, r"size: 2GiB +# file .*t.yaml:1\n")
        self.assertRegex(result.stdout, r"size: 4GiB +# environment TIERCE_DISK_SIZE\n")
        self.assertRegex(result.stdout, r"depth: 9 +# --disk.depth\n")
        self.assertRegex(result.stdout, r"tokens: 256 +# default\n")

    def test_the_output_is_a_configuration(self):
        first = self.check(0, "config", "--disk.path=/a\"b\\ ä", "--memory.size=1.5GiB").stdout
        path = self.write("again.yaml", first)
        second = self.check(0, "config", "--file", path).stdout
        strip = re.compile(r" *# .*$", re.M)
        self.assertEqual(strip.sub("", first), strip.sub("", second))
        self.assertNotIn("# default", second)

    def test_refusals(self):
        self.check(2, "config", "--memory.sise=1GiB", err=['nearest name is "memory.size"'])
        self.check(2, "config", "--memory.size=1", err=["accepted are values from 1MiB to 16TiB"])
        self.check(2, "config", "--disk.encryption=aes-256-gcm", err=["disk.encryption requires encryption.key_file or"])
        self.check(2, "config", "--remote.encryption=aes-256-gcm", err=["config: remote.encryption requires encryption.key_file or"])
        self.check(2, "config", "--encryption.key_file=/k", "--encryption.key_command=k", err=["are both set; remove one"])
        self.check(2, "config", "--disk.gpu_direct=1KiB", err=["disk.gpu_direct is 1KiB; set it to 0, or to 1MiB or more"])
        self.check(0, "config", "--disk.size=16MiB", "--disk.chunks=4096")
        self.check(2, "config", "--disk.size=16MiB", "--disk.chunks=1000000",
                   err=["disk.chunks is 1000000, but the index of a disk.size of 16MiB has room for"])
        self.check(2, "config", "--codec.lossy=int8", err=["codec.lossy requires codec.quality"])
        self.check(0, "config", "--codec.lossy=int8", "--codec.quality=/q", "--disk.encryption=aes-256-gcm", "--encryption.key_file=/k")
        self.check(2, "config", "--memory.size", err=["requires a value"])
        self.check(2, "config", "--set", "x", err=["is not PARAMETER=VALUE"])
        self.check(2, "config", "extra", err=['"extra" is not expected', "--file"])
        self.check(2, "config", "memory.size=1GiB", err=["--memory.size=1GiB"])
        self.check(2, "config", "--fil", err=['no option "--fil"', '"--file"'])
        self.check(2, "config", "--markdwon", err=['no option "--markdwon"', '"--markdown"'])
        self.check(2, "config", "--", err=['no option "--"'])
        self.check(2, "config", "--file", err=["--file requires a value"])
        self.check(2, "config", "--file", "", err=["--file"])
        self.check(2, "config", "--set", err=["--set requires a value"])
        self.check(2, "config", "--file", self.folder, err=["is not a file"])
        for content in (b"\x00\x01", b"\xff\xfe: 1", "text", "- a\n"):
            self.check(2, "config", "--file", self.write("odd.yaml", content), err=["odd.yaml:"])
        self.check(0, "config", "--file", self.write("empty.yaml", ""), out=["# default"])
        self.check(2, "config", "--file", "/nowhere.yaml", err=[
            "/nowhere.yaml: cannot be read: No such file or directory; it is given as the configuration file"])
        self.check(2, "config", env={"TIERCE_CONFIG": "/nowhere.yaml"}, err=["cannot be read"])
        self.check(2, "config", env={"TIERCE_MEMROY_SIZE": "1"}, err=["TIERCE_MEMORY_SIZE"])
        path = self.write("bad.yaml", "disk:\n  sise: 1GiB\n")
        self.check(2, "config", "--file", path, err=[":2: ", '"disk.size"'])
        path = self.write("broken.yaml", "disk: [\n")
        self.check(2, "config", "--file", path, err=[":2:1: is not valid YAML"])

    def test_a_wrong_key_has_one_status_in_every_program(self):
        path = self.write("bad.yaml", "memory:\n  sise: 1GiB\n")
        self.check(2, "config", "--file", path, err=['no parameter "memory.sise"'])
        for program in "node", "manager":
            self.check(2, program, "--config", path, err=['no parameter "memory.sise"'])
            self.check(2, program, "--config", "none.yaml", err=["none.yaml: cannot be read: No such file"])

    def test_a_parameter_without_a_value(self):
        for program, name in ("node", "disk.path"), ("node", "listen.lm"), ("manager", "log.folder"):
            self.check(2, program, f"--{name}",
                       err=[f"tierce {program}: --{name} requires a value: --{name}=VALUE\n"])
            for wrong in f"--{name}x", name, "--", "":
                self.check(2, program, wrong, err=[
                    f'tierce {program}: "{wrong}" is not an argument of the {program}; parameters are '
                    f"written --NAME=VALUE (see tierce help {program})\n"])
        self.check(2, "node", "\x1b[31m", err=['"?[31m" is not an argument'])

    def test_a_node_that_cannot_start_names_the_remedy(self):
        def start(*arguments, err):
            self.check(1, "node", "--listen.resp_port=0", "--listen.lm_port=0", "--listen.http_port=0",
                       "--control.socket=", *arguments, err=err)
        start("--memory.size=64MiB", "--listen.native=/none/x", err=[
            "tierce node: listen.native: the folder /none: No such file or directory; create it, "
            "with access for this user only (mode 0700)\n"])
        start("--memory.size=64MiB", "--listen.native=/sys/x", err=[
            "tierce node: cannot listen on /sys/x: ",
            "; this user must be able to create files in its folder\n"])
        with open("/proc/sys/vm/overcommit_memory", encoding="ascii") as file:
            if file.read().strip() != "1":
                start("--memory.size=16TiB", err=[
                    "tierce node: memory.size: cannot reserve 16TiB: Cannot allocate memory; set "
                    "memory.size to a smaller value\n"])

    def test_remote_urls_are_checked_as_by_a_node(self):
        good = "redis://h:1/0?ttl=24h file:///s3://no?size=1GiB"
        self.check(0, "config", f"--remote.urls={good}  s3://bucket/a", out=["s3://bucket/a"])
        self.check(2, "config", f"--remote.urls={7 * 'redis://h '}", err=["remote.urls, number 7: there are more than 6"])
        for wrong in ("redis//h", "redis:/h", "gopher://h", "redis://h:99999", "redis://[::1",
                      "redis://u:secret%@h", "redis://h?ttl", "redis://h?a=%zz", "://h"):
            urls = f"--remote.urls=redis://127.0.0.1:1 {wrong}"
            result = self.check(2, "config", urls, err=["remote.urls, number 2: "])
            said = result.stderr.split("remote.urls, ")[1]
            self.assertNotIn("secret", said)
            self.assertEqual(result.stdout, "")
            self.check(2, "node", urls, "--memory.size=64MiB", "--control.socket=",
                       "--listen.resp_port=0", "--listen.lm_port=0", "--listen.http_port=0", err=[said])

    def test_addresses_of_managers_need_ports(self):
        for argument, name in (("pool.manager=fleet://h/mem", "pool.manager: "), ("mover.manager=fleet://h", "mover.manager"),
                               ("remote.urls=fleet://h/default", "remote.urls, number 1: ")):
            self.check(2, "node", "--memory.size=64MiB", "--pool.memory=1MiB" if "pool" in argument else "--control.socket=",
                       "--listen.resp_port=0", "--listen.lm=false", "--listen.http_port=0", f"--{argument}",
                       err=[name, 'the manager "h" has no port; each one must be HOST:PORT'])

    def check_reference(self, page, printed_by, configuration):
        """The page is what the command prints, and has what the configuration has."""
        reference = self.check(0, *printed_by).stdout
        with open(os.path.join(REFERENCES, page), encoding="utf-8") as file:
            self.assertEqual(file.read(), reference,
                             f"tierce {' '.join(printed_by)} >docs/using/ref/{page}")
        names = re.findall(r"^\| `([a-z_.]+)` \|", reference, re.M)
        section, printed = "", []
        for line in self.check(0, *configuration).stdout.splitlines():
            if match := re.match(r"^(\w+):$", line):
                section = match[1]
            elif match := re.match(r"^  (\w+): ", line):
                printed.append(f"{section}.{match[1]}")
            elif match := re.match(r"^(\w+): ", line):
                printed.append(match[1])
        self.assertEqual(sorted(names), sorted(printed))
        self.assertGreater(len(names), 20)

    def test_the_reference_lists_what_the_configuration_has(self):
        self.check_reference("config.md", ("config", "--markdown"), ("config",))

    def test_the_reference_lists_what_the_manager_has(self):
        self.check_reference("manager.md", ("manager", "--markdown"), ("manager", "--print-config"))

    def test_the_manager_prints_its_configuration(self):
        path = self.write("manager.yaml", "listen:\n  http_port: 17\n")
        self.check(0, "manager", "--print-config", "--config", path, "--serve.loops=3",
                   out=["http_port: 17", "manager.yaml:2", "loops: 3", "--serve.loops"])
        warned = self.check(0, "manager", "--print-config", "-e", "other=1", "-e", "another=2")
        lines = warned.stderr.splitlines()
        self.assertEqual(len(lines), 2, warned.stderr)
        for line in lines:
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z tierce manager: .")
        self.check(2, "manager", "--print-config", "--listen.htp_port=1",
                   err=['nearest name is "listen.http_port"'])

    def test_a_manager_that_cannot_start_names_the_parameter(self):
        ports = [f"--listen.{name}_port=0" for name in
                 ("grpc", "http", "admin_grpc", "admin_http")]
        for value, words in (("registry.uri=foo", "registry.uri must begin with local://, redis://"),
                             ("registry.uri=redis://127.0.0.1:1",
                              "registry.uri must have ?cluster_name=NAME for a registry in Redis"),
                             ("registry.uri=local:///none/x", "registry.uri: the folder /none: No"),
                             ("elector.uri=foo://x", "elector.uri must begin with memory://, file://"),
                             ("elector.uri=file:///none", "elector.uri: the folder /none: No"),
                             ("log.folder=none/x", "log.folder: cannot create the folder none/x "
                              "below the working directory: No such file or directory; set "
                              "log.folder to a folder that this user can write\n")):
            self.check(1 if "none" in value else 2, "manager", *ports, f"--{value}", err=["tierce manager: " + words])


class SeveralManagers(CliCase):
    def start(self, name, words):
        """Starts a manager, and waits until all words were printed."""
        ports = [f"--listen.{port}_port=0" for port in ("grpc", "http", "admin_grpc", "admin_http")]
        process = subprocess.Popen(
            [EXECUTABLE, "manager", *ports, f"--registry.uri=local://{self.folder}/registry", f"--elector.node_id={name}",
             f"--elector.uri=file://{self.folder}", f"--log.folder={self.folder}/{name}", "--log.console=true"],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=self.folder,
            env={**os.environ, "STATE_DIRECTORY": self.folder})

        def end():
            process.terminate()
            process.communicate()
        self.addCleanup(end)
        for line in process.stderr:
            if all(word in line for word in words):
                return
        self.fail(f"{name} ended")

    def test_a_standby_and_an_index_in_memory(self):
        self.start("first", ["manager.index_in_memory", "group=default", "redis"])
        self.start("second", ["standby: manager first leads"])


class Administration(CliCase):
    """Replies that no manager of this build sends."""

    def answer(self, status, reply):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.dumps({"header": {"status": status}, **reply}).encode()
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # the end waits so long
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def test_code_without_a_name(self):
        url = self.answer({"code": 4242, "message": "too new"}, {})
        self.check(1, "storage", "list", "--url", url, err=("4242: too new",))

    def test_column_with_a_point(self):
        url = self.answer({"code": "OK"}, {"instance_info": [{"name": "a", "x.y": "found"}]})
        self.check(0, "instance", "list", "g", "--url", url, out=("name  x.y", "a     found"))

    def test_rows_with_different_fields(self):
        url = self.answer({"code": "OK"}, {"instance_info": [{"name": "a", "none": ""}, {"name": "b", "more": 1}]})
        done = self.check(0, "instance", "list", "g", "--url", url, out=("name  more", "a", "b     1"))
        self.assertNotIn("none", done.stdout)

    def test_list_of_storages(self):
        """Each row fits a terminal, whatever the first one is; passwords in URIs are not shown."""
        url = self.answer({"code": "OK"}, {"storage": [
            {"global_unique_name": "n", "nfs": {"root_path": "/kv/"}, "capacity_bytes": "1500000000", "status": "well",
             "scrub": {"state": "incomplete", "missing_files": "3", "reason": "no access"}, "drain": "moving"},
            {"global_unique_name": "m.a", "tierce": {"nodes": ["10.0.0.5:6495"], "medium": "memory", "version": "1",
             "heard_ms": "1250", "used_bytes": "1234567890"}, "status": "well", "scrub": {"state": "none"}},
            {"global_unique_name": "r", "redis": {"uri": "redis://u:pw@h:1/", "key_prefix": "p:"}, "status": "well",
             "reason": "gone"}]})
        done = self.check(0, "storage", "list", "--url", url,
                          out=("10.0.0.5:6495 memory", "1.1GiB", "1.2 s ago", "1500MB", "incomplete, 3 missing",
                               "no access", "redis://h:1/ p:", "gone"))
        self.assertNotIn("pw", done.stdout)
        self.assertLess(max(map(len, done.stdout.splitlines())), 120)

    def test_states_in_words(self):
        url = self.answer({"code": "OK"}, {"state": "", "left_locations": "-1", "reason": ""})
        self.check(0, "storage", "drain", "n", "show", "--url", url,
                   out=("state: not drained", "left_locations: not counted yet"))
        url = self.answer({"code": "OK"}, {"state": "none", "checked_files": "0"})
        self.check(0, "storage", "scrub", "n", "--url", url, out=("no scrub since",))
        url = self.answer({"code": "OK"}, {"began_us": "1795923185858531", "accounts": []})
        self.check(0, "account", "list", "--url", url, out=("began_us: 2026-11-2", "accounts: none"))

    def test_reasons_without_forms_of_kvcm(self):
        for code, message, shown in (
                ("INTERNAL_ERROR", 'Failed to x: {"error_msg":["no \\"y\\""]}', 'tierce storage: Failed to x: no "y"'),
                ("INSTANCE_NOT_EXIST", "get X metrics collector failed: no i", "INSTANCE_NOT_EXIST: no i"),
                ("INVALID_ARGUMENT", "missing or invalid fields: {AddStorage: {storage: {storage_spec}}}",
                 "INVALID_ARGUMENT: missing or invalid fields: storage.storage_spec\n"),
                ("SERVER_NOT_LEADER", "Server is not leader; the leader is a", "the leader is a; set --url"),
                ("INTERNAL_ERROR", "", "INTERNAL_ERROR: ")):
            url = self.answer({"code": code, "message": message}, {})
            self.check(1, "storage", "list", "--url", url, err=(shown,))

    def test_names_in_json(self):
        """The manager ignores names that it does not know; a person's typo must not be."""
        for command, text, said in (
                (("storage", "add"), '{"nsf":{}}', ('StorageConfig has no field "nsf"', '"nfs"')),
                (("storage", "add"), '{"nfs":{"root_pat":"/x"}}', ("at nfs", '"root_pat"', '"root_path"')),
                (("group", "create"), '{"quota":{"quota_config":[{"storage_type":"ST_NSF"}]}}',
                 ("quota.quota_config.storage_type", '"ST_NSF"', '"ST_NFS"')),
                (("instance", "register"), '{"instance_idd":"x"}', ('"instance_idd"', '"instance_id"')),
                (("group", "update"), '{"header":{},"instance_group":{"nam":"x"}}', ('"nam"', '"name"'))):
            self.check(1, *command, text, "--url", "http://127.0.0.1:1", err=said)
        url = self.answer({"code": "OK"}, {})
        self.check(0, "group", "create", '{"quota":{"quotaConfig":[{"storage_type":5}]}}', "--url", url)
        self.check(0, "group", "update", '{"header":{},"instance_group":{"name":"x"}}', "--url", url)  # of show --json

    def test_files_with_secrets(self):
        secret = os.path.join(self.folder, "secret")
        with open(secret, "w", encoding="ascii") as file:
            file.write("token\n")
        url = self.answer({"code": "OK"}, {"storage": []})
        for option, value in (("--token-file", secret), ("--user", f"me:{secret}")):
            os.chmod(secret, 0o640)
            self.check(1, "storage", "list", option, value, "--url", url, err=(option, "chmod 600"))
            os.chmod(secret, 0o600)
            self.check(0, "storage", "list", option, value, "--url", url)


if __name__ == "__main__":
    unittest.main()
