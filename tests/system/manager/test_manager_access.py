# SPDX-License-Identifier: Apache-2.0
"""TLS, accounts and startup messages: access control, and whether each message says what to do."""

import base64
import concurrent.futures
import hashlib
import http.client
import os
import signal
import socket
import ssl
import subprocess
import time

import pytest

from fleet_world import CHUNK_BYTES, CHUNKS, Engine
from manager_process import Grpc, Http, Manager, executable, free_port, stubs, wait_until

pytest.importorskip("grpc_tools")


def code(reply):
    return reply["header"]["status"]["code"]


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """Signs certificates of its own."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca",
                "-keyout", folder / "ca.key", "-out", folder / "ca.pem")
        self.ca = folder / "ca.pem"

    def sign(self, name):
        key, request, pem = (self.folder / f"{name}{ending}" for ending in (".key", ".csr", ".pem"))
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-addext",
                "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.folder / "ca.key",
                "-CAcreateserial", "-copy_extensions", "copy", "-days", "2", "-out", pem)
        return pem, key


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


def refused(folder, *arguments, ports=True):
    """The message of a manager that does not start."""
    folder.mkdir(exist_ok=True)
    free = [f"--listen.{name}_port={0 if name != 'admin_grpc' else free_port()}"
            for name in ("grpc", "http", "admin_grpc", "admin_http")] if ports else []
    done = subprocess.run([executable(), "manager", *free, *arguments], cwd=folder,
                          capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    assert done.returncode != 0, done.stderr
    assert "listening" not in done.stderr
    return done.stderr


# ---- TLS files -----------------------------------------------------------------------------------


def test_tls_files_that_are_wrong_are_named(tmp_path, authority):
    pem, key = authority.sign("server")
    _, other_key = authority.sign("other")
    rubbish, missing = tmp_path / "rubbish", tmp_path / "missing"
    rubbish.write_text("not a certificate")

    def said(certificate, its_key, *more):
        return refused(tmp_path / "m", f"--tls.certificate={certificate}", f"--tls.key={its_key}",
                       *more)

    for certificate, its_key, ca, named, why in (
            (missing, key, None, missing, "No such file"),
            (pem, missing, None, missing, "No such file"),
            (pem, tmp_path, None, tmp_path, ""),
            (rubbish, key, None, rubbish, ""),
            (pem, rubbish, None, rubbish, ""),
            (pem, other_key, None, other_key, "mismatch"),
            (pem, key, missing, missing, "No such file"),
            (pem, key, rubbish, rubbish, "")):
        more = [] if ca is None else [f"--tls.client_ca={ca}"]
        text = said(certificate, its_key, *more)
        assert "TLS" in text and str(named) in text and why in text, text
        assert "error:0" not in text, text


def tls(manager, port, context, path="/livez"):
    connection = http.client.HTTPSConnection("127.0.0.1", manager.ports[port], timeout=10,
                                             context=context)
    connection.request("GET", path)
    return connection.getresponse().status


@pytest.fixture
def encrypted(tmp_path, authority):
    """A manager that asks for certificates and accounts, with one of each."""
    pem, key = authority.sign("server")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"admin ops {hashlib.sha256(b'secret').hexdigest()}\n")
    tokens.chmod(0o600)
    manager = Manager(tmp_path / "m", "--auth.required=true", f"--auth.token_file={tokens}",
                      f"--tls.certificate={pem}", f"--tls.key={key}",
                      f"--tls.client_ca={authority.ca}", ready=False)
    yield manager
    assert manager.stop() == 0


def channel_of(manager, authority, pem, key, port="grpc"):
    import grpc
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes(), key.read_bytes(),
                                               pem.read_bytes())
    return grpc.secure_channel(f"127.0.0.1:{manager.ports[port]}", credentials)


def grpc_code(channel, service, method, metadata=()):
    import grpc
    messages, services = stubs()[service]
    stub = getattr(services, {"meta": "MetaServiceStub", "admin": "AdminServiceStub"}[service])
    try:
        getattr(stub(channel), method)(getattr(messages, method + "Request")(), timeout=10,
                                       metadata=metadata)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def test_certificates_are_looked_at(encrypted, authority, tmp_path):
    stranger = Authority(tmp_path / "stranger")
    token = (("authorization", "Bearer secret"),)
    client, admin = authority.sign("engine"), authority.sign("boss")
    # A certificate without an account passes TLS, but does not authenticate; together with a token
    # it does.
    channel = channel_of(encrypted, authority, *client)
    assert grpc_code(channel, "meta", "GetInstanceInfo") == "UNAUTHENTICATED"
    assert grpc_code(channel, "meta", "GetInstanceInfo", token) == "OK"
    # One that another authority signed does not.
    other = channel_of(encrypted, authority, *stranger.sign("engine"))
    assert grpc_code(other, "meta", "GetInstanceInfo", token) == "UNAVAILABLE"
    for port in ("http", "admin_http"):
        context = ssl.create_default_context(cafile=authority.ca)
        context.load_cert_chain(*client)
        assert tls(encrypted, port, context) == 200
        for chain in (None, stranger.sign("engine")):
            context = ssl.create_default_context(cafile=authority.ca)
            if chain is not None:
                context.load_cert_chain(*chain)
            try:
                assert tls(encrypted, port, context) in (401, 403)
            except (ssl.SSLError, OSError, http.client.HTTPException):
                pass
    # One that is an account's is that account.
    admins = channel_of(encrypted, authority, *client, port="admin_grpc")
    messages, services = stubs()["admin"]
    wait_until(lambda: grpc_code(admins, "admin", "ListAccount", token) == "OK")
    for name, role in (("engine", "ROLE_USER"), ("boss", "ROLE_ADMIN")):
        reply = services.AdminServiceStub(admins).AddAccount(messages.AddAccountRequest(
            trace_id="t", user_name=name, password="p", role=role), metadata=token)
        assert reply.header.status.code == 1, reply
    assert grpc_code(channel, "meta", "GetInstanceInfo") == "OK"
    assert grpc_code(admins, "admin", "ListAccount") == "PERMISSION_DENIED"
    boss = channel_of(encrypted, authority, *admin, port="admin_grpc")
    assert grpc_code(boss, "admin", "ListAccount") == "OK"
    # Another name is shown beside the certificate: what is shown counts, and is wrong.
    assert grpc_code(boss, "admin", "ListAccount",
                     (("authorization", "Bearer wrong"),)) == "UNAUTHENTICATED"


@pytest.mark.parametrize("port", ["grpc", "http", "admin_grpc", "admin_http"])
def test_plain_text_meets_tls_and_tls_meets_plain_text(encrypted, tmp_path, port):
    with socket.create_connection(("127.0.0.1", encrypted.ports[port]), 10) as s:
        s.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = s.recv(4096)
    assert b"200" not in answer
    plain = Manager(tmp_path / "plain")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((ssl.SSLError, OSError)):
        with socket.create_connection(("127.0.0.1", plain.ports[port]), 10) as s:
            context.wrap_socket(s)
    assert plain.get("/livez")[0] == 200
    assert plain.stop() == 0


def test_engines_reach_a_manager_over_tls(tmp_path, authority):
    """With a token, and only if its certificate is of an authority that they trust."""
    pem, key = authority.sign("server")
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text(f"user engine {hashlib.sha256(b'secret').hexdigest()}\n")
    token.write_text("secret")
    for path in (tokens, token):
        path.chmod(0o600)
    (tmp_path / "nfs").mkdir()
    manager = Manager(tmp_path / "m", "--auth.required=true", f"--auth.token_file={tokens}", f"--tls.certificate={pem}",
                      f"--tls.key={key}", ready=False, startup=Manager.usual_startup(storage=tmp_path / "nfs"))
    context = ssl.create_default_context(cafile=authority.ca)
    wait_until(lambda: tls(manager, "http", context, "/readyz") == 200)
    url = f"fleet+tls://127.0.0.1:{manager.ports['grpc']}/default?token_file={token}&ca_file="
    content = os.urandom(CHUNKS * CHUNK_BYTES)
    engine = Engine(f"{url}{authority.ca}")
    engine.store(content)
    engine.close()
    other = Authority(tmp_path / "other")
    for ca, found in ((other.ca, 0), (authority.ca, CHUNKS)):
        engine = Engine(f"{url}{ca}")
        assert engine.found() == found
        assert found == 0 or engine.load() == content
        engine.close()
    assert manager.stop() == 0


# ---- accounts ------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{role} {role} {hashlib.sha256(role.encode()).hexdigest()}\n"
                              for role in ("admin", "user")))
    tokens.chmod(0o600)
    manager = Manager(tmp_path / "m", "--auth.required=true", f"--auth.token_file={tokens}",
                      "--serve.workers=2", f"--registry.uri=local://{tmp_path}/registry")
    yield manager
    assert manager.stop() == 0


def basic(name, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def status(manager, headers, port="http", path="/api/getInstanceInfo", method="POST"):
    return Http(manager, headers).raw(manager.ports[port], path, "{}", method)[0]


def admin_of(manager):
    return Http(manager, {"Authorization": "Bearer admin"})


def add_account(manager, name, password, role="ROLE_USER"):
    assert code(admin_of(manager).call("admin", "AddAccount", trace_id="t", user_name=name,
                                       password=password, role=role)) == "OK"


def test_an_account_that_changes_is_known_as_it_is(guarded):
    add_account(guarded, "u", "old")
    assert status(guarded, basic("u", "old")) == 200
    assert status(guarded, basic("u", "old"), "admin_http", "/api/listAccount") == 403
    assert code(admin_of(guarded).call("admin", "DeleteAccount", trace_id="t",
                                       user_name="u")) == "OK"
    assert status(guarded, basic("u", "old")) == 401
    add_account(guarded, "u", "new", "ROLE_ADMIN")
    assert status(guarded, basic("u", "old")) == 401
    assert status(guarded, basic("u", "new"), "admin_http", "/api/listAccount") == 200
    add_account(guarded, "v", "old")  # the same password, another account
    assert status(guarded, basic("v", "old")) == 200
    assert status(guarded, basic("u", "old")) == 401


def test_wrong_passwords_keep_nobody_from_the_workers(guarded):
    """Password guesses wait in their own short queue: known clients, and calls that wait for a
    disk, are not delayed."""
    add_account(guarded, "engine", "right")
    assert status(guarded, basic("engine", "right")) == 200
    stop = []

    def guess(number):
        got = set()
        while not stop:
            got.add(status(guarded, basic("engine", f"wrong{number}{len(got)}")))
        return got

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        guesses = [pool.submit(guess, i) for i in range(200)]
        try:
            wait_until(lambda: any(g.running() for g in guesses))
            admin = admin_of(guarded)
            for i in range(3):  # a change of the registry forgets nobody; each waits behind the guesses
                assert code(admin.call("admin", "CreateInstanceGroup", trace_id="t",
                                       instance_group={})) != "OK"
                add_account(guarded, f"other{i}", "p")
                assert status(guarded, basic("engine", "right")) == 200
        finally:
            stop.append(True)
        got = set().union(*(g.result() for g in guesses))
    assert got <= {401, 503}, got
    assert 503 in got  # more than the queue holds are told so at once


@pytest.mark.parametrize("path", ["/metrics", "/api/page", "/"])
def test_users_may_look(guarded, path):
    """Users may read pages for browsers and collectors, but may not change anything."""
    headers = {"Authorization": "Bearer user"}
    assert status(guarded, headers, "admin_http", path, "GET") == 200
    assert status(guarded, headers, "admin_http", "/api/listAccount") == 403


def test_nobody_may_enter(tmp_path):
    text = refused(tmp_path / "a", "--auth.required=true")
    assert "auth.token_file" in text
    registry = f"--registry.uri=local://{tmp_path}/registry"
    manager = Manager(tmp_path / "b", "--auth.required=true", registry)
    assert "nobody_may_enter" in (manager.folder / "stderr.log").read_text()
    assert manager.stop() == 0


def test_global_quotas_are_read_again(tmp_path):
    """By SIGHUP, from the configuration file: a larger quota for rejected writes, and a smaller
    one."""
    config = tmp_path / "manager.yaml"
    config.write_text("quota.groups: default_quota_group=5000\n")
    manager = Manager(tmp_path / "m", f"--config={config}")
    said = manager.folder / "logs" / "kv_cache_manager.log"
    try:
        api = Http(manager)
        reply = api.call("meta", "RegisterInstance", instance_group="default", instance_id="i",
                         block_size=4, model_deployment={"model_name": "m", "dtype": "bf16"},
                         location_spec_infos=[{"name": "tp0", "size": 1000}])
        assert reply["header"]["status"]["code"] == "OK", reply

        def room(keys):
            reply = api.call("meta", "StartWriteCache", instance_id="i", block_keys=keys,
                             write_timeout_seconds=30)
            api.call("meta", "FinishWriteCache", instance_id="i",
                     write_session_id=reply["write_session_id"], success_blocks={"offset": 0})
            return len(reply["locations"])

        def read_again(text, event):
            before = said.read_text().count(event)
            config.write_text(text)
            manager.process.send_signal(signal.SIGHUP)
            wait_until(lambda: said.read_text().count(event) > before)

        assert room(list(range(10))) == 5
        read_again("quota.groups: default_quota_group=8000\n", "manager.read_again")
        wait_until(lambda: room(list(range(10))) == 8)
        read_again("quota.groups: default_quota_group=lots\n", "manager.cannot_read_again")
        wait_until(lambda: room(list(range(10))) == 8)
        read_again("quota.groups: other=1\n", "manager.read_again")
        wait_until(lambda: room(list(range(10))) == 10)
    finally:
        manager.stop()


def test_tokens_and_certificates_are_read_again(tmp_path):
    """By SIGHUP: all of them, or none if one is invalid."""
    folders = {}
    for name in ("first", "second"):
        authority = Authority(tmp_path / name)
        folders[name] = (authority, *authority.sign("server"))
    files = [tmp_path / name for name in ("server.pem", "server.key", "tokens")]

    def put(token, certificate, key):
        files[2].write_text(f"admin ops {hashlib.sha256(token.encode()).hexdigest()}\n")
        files[2].chmod(0o600)
        for source, to in ((certificate, files[0]), (key, files[1])):
            to.write_bytes(source.read_bytes())

    put("old", *folders["first"][1:])
    manager = Manager(tmp_path / "m", "--auth.required=true", f"--auth.token_file={files[2]}",
                      f"--tls.certificate={files[0]}", f"--tls.key={files[1]}", ready=False)
    said = manager.folder / "logs" / "kv_cache_manager.log"

    def read_again(event):
        before = said.read_text().count(event)
        manager.process.send_signal(signal.SIGHUP)
        wait_until(lambda: said.read_text().count(event) > before)

    def answers(name, token):
        """Of HTTP and of gRPC: 401 and UNAUTHENTICATED are answers of a stranger's token."""
        import grpc
        ca = folders[name][0].ca
        got = []
        context = ssl.create_default_context(cafile=ca)
        for port, path in (("http", "/api/getInstanceInfo"), ("admin_http", "/api/listAccount")):
            connection = http.client.HTTPSConnection("127.0.0.1", manager.ports[port], timeout=10,
                                                     context=context)
            try:
                connection.request("POST", path, "{}", {"Authorization": f"Bearer {token}"})
                got.append(connection.getresponse().status)
            except ssl.SSLError:
                got.append("TLS")
        credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        for port, service in (("grpc", "meta"), ("admin_grpc", "admin")):
            method = "GetInstanceInfo" if service == "meta" else "ListAccount"
            with grpc.secure_channel(f"127.0.0.1:{manager.ports[port]}", credentials) as channel:
                got.append(grpc_code(channel, service, method,
                                     (("authorization", f"Bearer {token}"),)))
        return got

    works, stranger, encrypted = ([200, 200, "OK", "OK"],
                                  [401, 401, "UNAUTHENTICATED", "UNAUTHENTICATED"],
                                  ["TLS", "TLS", "UNAVAILABLE", "UNAVAILABLE"])
    assert answers("first", "old") == works and answers("second", "old") == encrypted
    put("new", folders["second"][1], folders["first"][2])  # a key of another certificate
    read_again("manager.cannot_read_again")
    assert str(files[1]) in said.read_text() and "mismatch" in said.read_text()
    assert answers("first", "old") == works and answers("first", "new") == stranger
    put("new", *folders["second"][1:])
    files[0].write_text("not a certificate")
    read_again("manager.cannot_read_again")
    assert f"cannot load {files[0]}" in said.read_text()
    files[0].unlink()
    read_again("manager.cannot_read_again")
    assert answers("first", "old") == works and answers("second", "old") == encrypted
    put("new", *folders["second"][1:])
    files[2].write_text("root new\n")
    read_again("manager.cannot_read_again")
    assert "line 1" in (manager.folder / "stderr.log").read_text()
    assert answers("first", "old") == works
    put("new", *folders["second"][1:])
    context = ssl.create_default_context(cafile=folders["first"][0].ca)
    before = http.client.HTTPSConnection("127.0.0.1", manager.ports["http"], timeout=30,
                                         context=context)
    before.connect()
    read_again("manager.read_again")
    # The connection goes on with its certificate; the token that it shows must be a new one.
    for token, status_code in (("old", 401), ("new", 200)):
        before.request("POST", "/api/getInstanceInfo", "{}", {"Authorization": f"Bearer {token}"})
        answer = before.getresponse()
        assert (answer.status, answer.read() != b"") == (status_code, True)
    assert answers("second", "new") == works and answers("second", "old") == stranger
    assert answers("first", "new") == encrypted
    assert manager.stop() == 0


def test_one_address_does_not_keep_all_connections(tmp_path):
    manager = Manager(tmp_path / "m", "--serve.connections_per_address=8")
    held = []

    def let_in(port):
        made = socket.create_connection(("127.0.0.1", manager.ports[port]))
        made.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            if made.recv(100):
                held.append(made)
        except ConnectionError:
            pass
        return made in held

    for port in ("http", "admin_http"):
        for _ in range(8):  # those that the harness had may not be gone yet
            wait_until(lambda: let_in(port))
    for port in ("grpc", "admin_grpc"):
        held += [socket.create_connection(("127.0.0.1", manager.ports[port])) for _ in range(8)]

    def status_from(source):
        made = http.client.HTTPConnection("127.0.0.1", manager.ports["http"], 10, (source, 0))
        try:
            made.request("GET", "/livez")
            return made.getresponse().status
        except ConnectionError:
            return None
        finally:
            made.close()

    assert status_from("127.0.0.1") is None and status_from("127.0.0.2") == 200
    for s in held:
        s.close()
    wait_until(lambda: status_from("127.0.0.1") == 200)
    assert manager.stop() == 0


# ---- startup messages ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grpc", "http", "admin_grpc", "admin_http"])
def test_a_port_in_use_names_its_parameter(tmp_path, name):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refused(tmp_path, *(f"--listen.{n}_port={port if n == name else free_port()}"
                                   for n in ("grpc", "http", "admin_grpc", "admin_http")),
                       ports=False)
    assert f"listen.{name}_port" in text and str(port) in text and "in use" in text, text


def test_a_certificate_that_is_missing_is_not_of_a_port(tmp_path):
    text = refused(tmp_path, "--tls.certificate=/none/cert.pem", "--tls.key=/none/key.pem")
    assert "/none/cert.pem" in text and "No such file" in text and "listen." not in text, text


@pytest.mark.parametrize("argument", ["--registry.uri=local://{}/none/registry",
                                      "--elector.uri=file://{}/none"])
def test_folders_that_are_missing_are_named(tmp_path, argument):
    text = refused(tmp_path / "m", argument.format(tmp_path))
    assert f"{tmp_path}/none" in text and "No such file" in text, text
    assert argument.split("=")[0].strip("-") in text, text


def test_the_command_line_says_how_to_start_one(tmp_path):
    port = free_port()
    done = subprocess.run([executable(), "storage", "list", "--url", f"http://127.0.0.1:{port}"],
                          capture_output=True, text=True, timeout=20)
    assert done.returncode != 0
    assert "tierce manager" in done.stderr and str(port) in done.stderr, done.stderr


def test_the_command_line_says_what_is_not_accepted(guarded, tmp_path):
    secret = tmp_path / "secret"

    def said(*arguments, port="admin_http", scheme="http"):
        done = subprocess.run([executable(), "storage", "list", "--url",
                               f"{scheme}://127.0.0.1:{guarded.ports[port]}", *arguments],
                              capture_output=True, text=True, timeout=20)
        assert done.returncode == (0 if done.stdout else 1)
        return done.stderr

    token, account = ("--token-file", str(secret)), ("--user", f"nobody:{secret}")
    secret.write_text("admin\n")
    secret.chmod(0o600)
    assert said(*token) == ""
    assert "set --url to the manager's HTTP port for administrators" in said(*token, port="http")
    assert "check --url" in said(*token, scheme="https")
    secret.write_text("other\n")
    assert "does not know the token of --token-file" in said(*token)
    assert "does not know the name and password of --user" in said(*account)
    assert "authentication required; see --token-file and --user" in said()
    secret.write_text("user\n")
    assert "an administrator is required" in said(*token)


def test_keys_of_kvcm_that_are_not_there(tmp_path):
    manager = Manager(tmp_path, "-e", "kvcm.cache.compression=zstd",
                      "-e", "kvcm.distributed_lock.url=")
    text = (manager.folder / "stderr.log").read_text()
    assert manager.stop() == 0
    line = next(line for line in text.splitlines() if "kvcm.cache.compression" in line)
    assert "nearest" not in line and "docs/using/manager.md" in line, line
    assert '"kvcm.distributed_lock.uri"' in text, text


# ---- storages ------------------------------------------------------------------------------------


def test_a_storage_that_is_to_be_looked_at_when_it_is_added(tmp_path):
    manager = Manager(tmp_path / "m")
    api = Http(manager)

    def add(name, root, check):
        return api.call("admin", "AddStorage", trace_id="t", storage={
            "global_unique_name": name, "nfs": {"root_path": root, "key_count_per_file": 8},
            "check_storage_available_when_open": check})["header"]["status"]

    refused_status = add("a", f"{tmp_path}/none/below/", True)
    assert refused_status["code"] == "INTERNAL_ERROR"
    assert "No such file" in refused_status["message"], refused_status
    assert "a" not in [s["global_unique_name"] for s in
                       api.call("admin", "ListStorage", trace_id="t")["storage"]]
    assert add("a", f"{tmp_path}/none/below/", False)["code"] == "OK"
    assert add("b", f"{tmp_path}/made/", True)["code"] == "OK"
    assert add("b", f"{tmp_path}/none/below/", True)["code"] != "OK"
    assert add("c", "", True)["code"] == "INVALID_ARGUMENT"
    assert not (tmp_path / "none").exists()
    assert manager.stop() == 0


def test_deleting_in_a_storage_whose_root_is_gone_comes_to_an_end(tmp_path):
    manager = Manager(tmp_path / "m")
    api = Http(manager)
    assert code(api.call("meta", "RegisterInstance", trace_id="t", instance_group="default",
                         instance_id="i", block_size=4,
                         model_deployment={"model_name": "m", "dtype": "bf16"},
                         location_spec_infos=[{"name": "tp0", "size": 64}])) == "OK"
    started = api.call("meta", "StartWriteCache", trace_id="t", instance_id="i",
                       block_keys=[1, 2], write_timeout_seconds=30)
    assert code(api.call("meta", "FinishWriteCache", trace_id="t", instance_id="i",
                         write_session_id=started["write_session_id"],
                         success_blocks={"offset": 2})) == "OK"
    assert not any(manager.storage.iterdir())
    manager.storage.rmdir()  # the last folder of it is made again by the next probe
    assert code(api.call("meta", "RemoveCache", trace_id="t", instance_id="i",
                         block_keys=[1, 2])) == "OK"

    def deleted():
        status, text = manager.get("/metrics", "admin_http")
        return status == 200 and b'tierce_schedule_plan_executor_waiting_task_count 0\n' in text

    wait_until(deleted, 60)
    assert manager.stop() == 0
