# SPDX-License-Identifier: Apache-2.0
"""tierce migrate: configurations of LMCache."""

import re
import unittest

from cli_case import CliCase


class Migrate(CliCase):
    def migrate(self, text, *args, status=0, out=(), err=(), env=None):
        """The parameters that a file becomes, and the whole output."""
        result = self.check(status, "migrate", self.write("lmcache.yaml", text), *args, out=out, err=err, env=env)
        values = re.findall(r"^([a-z_.]+): (.*)$", result.stdout, re.M)
        self.assertEqual(len(values), len(dict(values)), result.stdout)
        return dict(values), result

    def accepted(self, values, result):
        printed = self.check(0, "config", "--file", self.write("tierce.yaml", result.stdout)).stdout
        self.assertEqual(printed.count(" # file "), len(values), printed)

    def test_memory_and_disk(self):
        values, result = self.migrate(
            "chunk_size: 512\nlocal_cpu: true\nmax_local_cpu_size: 1.5\nlocal_disk: file:///var/kv/\n"
            "max_local_disk_size: 20\ncache_policy: LFU\nsave_unfull_chunk: false\nsave_decode_cache: True\n"
            "min_retrieve_tokens: 64\nblocking_timeout_secs: 2.5\npin_timeout_sec: 300\n"
            "enable_async_loading: 1\nblend_recompute_ratios: [0.2]\nblend_special_str: ' # # '\n"
            "internal_api_server_enabled: true\ninternal_api_server_port_start: 7001\nenable_pd: off\nmp_host: null\n"
            "storage_plugins: []\nlocal_device: cpu\nextra_config:\n  use_odirect: false\n  disk_io_threads: 8\n"
            "  force_store_wait: true\n  get_blocking_failed_threshold: 3\n  waiting_time_for_recovery: 300\n"
            "  fallback_policy: local_cpu\n  histogram_bucket_x: [1, 2]\n  discard_partial_chunks: true\n"
            '  "s3_x\\nmemory.size: 1TiB": 1\n', "--ranks", "2")
        self.assertEqual(values, {
            "chunk.tokens": "512", "memory.size": "3GiB", "disk.path": "/var/kv", "disk.size": "40GiB",
            "memory.policy": "lfu", "disk.policy": "lfu", "chunk.tail": "false", "save.decode": "true",
            "load.min_tokens": "64", "timeout.load": "2500ms", "timeout.pin": "5min", "load.async": "true",
            "blend.share": "0.2", "blend.separator": '" # # "', "metrics.port": "7001", "disk.direct": "false",
            "disk.depth": "8", "timeout.store": "10s", "breaker.errors": "3", "breaker.retry": "5min",
            "breaker.fallback": "skip"})
        self.assertIn("# chunk_size: 512 (line 1)\n#   Tokens of a chunk. It must be a multiple of vLLM's block size.\n"
                      "chunk.tokens: 512\n", result.stdout)
        self.assertIn("# local_cpu: true (line 2)\n#   Tierce always caches in memory.", result.stdout)
        self.assertEqual(result.stderr, "")
        self.accepted(values, result)

    def test_without_values(self):
        for text, line in (("# nothing\n", "(not set; LMCache's default)"),
                           ("extra_config:\nmax_local_cpu_size: null\nlocal_disk: /kv\n", "(line 2)")):
            values, result = self.migrate(text, out=[f"# max_local_cpu_size: 5.0 {line}\n"])
            self.assertEqual(values, {"memory.size": "5GiB"}, text)
        self.assertIn("LMCache has no disk tier without", result.stdout)

    def test_remote_stores(self):
        """The second URL is the built-in Redis plug-in's, to which every scheme may be given."""
        for remote, redis, extra, urls in (
                ("lm://h:65432", "redis://h:6379", {}, "lm://h:65432 redis://h:6379"),
                ("resp://h:6379", "unix:///run/redis.sock", {"username": "u", "password": "p@/s"},
                 "redis://u:p%40%2Fs@h:6379 redis+unix:///run/redis.sock"),
                ("redis-sentinel://a:26379, b:26379", "redis-cluster://a:1, b:2", {},
                 "redis+sentinel://a:26379,b:26379/redismaster redis+cluster://a:1,b:2"),
                ("valkey://h:1, i:1", "rediss://h:1", {"tls_enable": "true", "valkey_mode": "cluster",
                                                      "valkey_database": 3, "valkey_enable_ttl": "true"},
                 "valkeys+cluster://h:1,i:1?ttl=24h rediss://h:1"),
                ("valkey://h:6379", "hf3fs:///mnt/3fs",
                 {"valkey_database": 3, "valkey_enable_ttl": "true", "valkey_ttl_sec": "600"},
                 "valkey://h:6379?db=3&ttl=600s file:///mnt/3fs"),
                ("s3://b.s3.eu-west-1.amazonaws.com", "blackhole://", {}, "s3://b?region=eu-west-1"),
                ("s3://b.minio:9000", "fs://h:1/mnt/kv", {"disable_tls": "true", "s3_region": "auto"},
                 "s3://b?endpoint=http://minio:9000&path_style=false&insecure=true&region=auto file:///mnt/kv"),
                ("s3://my.bucket.s3.us-east-1.amazonaws.com", "s3://b.s3.amazonaws.com", {},
                 "s3://my.bucket?region=us-east-1 s3://b"),
                ("s3://my.bucket.s3.us-east-1.amazonaws.com", "blackhole://", {"disable_tls": "true"},
                 "s3://my.bucket?endpoint=http://s3.us-east-1.amazonaws.com&path_style=false&insecure=true&region=us-east-1"),
                ("s3://b.s3.cn-north-1.amazonaws.com.cn", "s3://b.s3.dualstack.us-east-1.amazonaws.com", {"s3_region": "r"},
                 "s3://b?endpoint=https://s3.cn-north-1.amazonaws.com.cn&path_style=false&region=r "
                 "s3://b?endpoint=https://s3.dualstack.us-east-1.amazonaws.com&path_style=false&region=r"),
                ("s3://b.bucket.vpce-1a.s3.us-east-1.vpce.amazonaws.com", "hf3fs:///mnt/my kv?b%20", {"s3_region": "r"},
                 "s3://b?endpoint=https://bucket.vpce-1a.s3.us-east-1.vpce.amazonaws.com&path_style=false&region=r "
                 "file:///mnt/my%20kv%3Fb%2520"),
                ("redis://h?db=2", "unix:///run/r.sock?db=1", {}, "redis://h?db=2 redis+unix:///run/r.sock?db=1"),
                # LMCache splits these two itself, and does not decode them.
                ("redis-sentinel://u:p%41s/s?:@a:26379", "redis-cluster://u:p w@a:1,b:2", {},
                 "redis+sentinel://u:p%2541s%2Fs%3F%3A@a:26379/redismaster redis+cluster://u:p%20w@a:1,b:2"),
                ("resp://h:6379", "blackhole://", {"username": "off", "password": "0"}, "redis://off:0@h:6379"),
                ("audit://h:1?verify=true", "mooncakestore://m:50051/",
                 {"audit_actual_remote_url": "lm://h:65432", "protocol": "tcp", "mooncake_protocol": "rdma",
                  "master_server_address": "n:50051"}, "lm://h:65432 mooncake://n:50051?protocol=rdma")):
            text = f"remote_url: {remote}\nremote_serde: naive\nremote_storage_plugins: [redis]\nextra_config:\n"
            text += "".join(f"  {k}: '{v}'\n" for k, v in {**extra, "redis_url": redis}.items())
            values, result = self.migrate(text, err=[])
            self.assertEqual(values["remote.urls"].strip('"'), urls, result.stdout)
            unused = {"protocol", "valkey_mode"} & set(extra)  # the prefixed name counts; a cluster has no databases
            self.assertEqual(result.stdout.count("has no effect"), len(unused), result.stdout)
            self.assertNotIn("p@/s", result.stdout)

    def test_builtin_plugins(self):
        """The form that LMCache recommends today in place of remote_url."""
        values, result = self.migrate(
            "remote_storage_plugins: [fs.a, fs, mooncakestore, redis]\nextra_config:\n"
            "  remote_storage_plugin.fs.a.base_path: /mnt/a\n  fs_base_path: /mnt/b\n"
            "  mooncake_master_server_address: m:50051\n  remote_storage_plugin.redis.redis_url: redis://u:sesame@h\n")
        self.assertEqual(values["remote.urls"],
                         '"file:///mnt/a file:///mnt/b mooncake://m:50051 redis://u:sesame@h"')
        self.assertEqual(len(re.findall("sesame", result.stdout)), 1, result.stdout)
        for note in (r"fs\.a: LMCache sets no limit", r"fs: LMCache sets no limit", "mooncakestore: Values of the file"):
            self.assertRegex(result.stdout.replace("\n#  ", ""), note)
        self.accepted(values, result)

    def test_plugins_of_others(self):
        """A name may be any text, also one that would be a parameter on a line of its own."""
        letters = "\u00e4" * 40
        values, result = self.migrate(
            f'remote_storage_plugins: [mine, "a\\nmemory.size:\\t1TiB\\t#", {letters}, fs]\n'
            "extra_config:\n  fs_base_path: /kv\n", status=1, err=["mine: Write the store", "a?memory.size:?1TiB?#: Write the store"])
        self.assertEqual(values, {"memory.size": "5GiB", "remote.urls": '"file:///kv"'})
        self.assertNotIn("\nmemory.size:\t", result.stdout)
        self.accepted(values, result)
        values, result = self.migrate(f"remote_storage_plugins: [{', '.join(f'fs.{i}' for i in range(7))}]\n"
                                      "extra_config:\n  fs_base_path: /kv\n", status=1, err=["at most 6 remote stores"])
        self.assertEqual(values, {"memory.size": "5GiB"})

    def test_programs(self):
        values, result = self.migrate("runtime_plugin_locations: [/srv/a.py, /srv/b.sh]\n")
        self.assertEqual(values["plugins.start"], '"/srv/a.py /srv/b.sh"')
        self.accepted(values, result)
        self.assertEqual(self.migrate("runtime_plugin_locations: []\n")[0], {"memory.size": "5GiB"})

    def test_refused(self):
        keys = (("enable_pd: true", "handover.listen"), ("enable_p2p: true", "peers://"),
                ("enable_controller: true", "directory.manager"), ("mp_host: h", "node.socket"),
                ("enable_blending: true", "blend.quality"), ("gds_path: /g", "disk.gpu_direct"),
                ("remote_serde: cachegen", "codec.quality"), ("remote_url: azure://c", "no client of Azure"),
                ("remote_storage_plugins: [fs, mine]", "mine: Write the store into remote.urls if Tierce knows it"),
                ("max_local_cpu_size: 0", "requires memory"), ("chunk_size: 0", "chunk.tokens"),
                ("local_disk: /a,/b", "one store folder"), ("cache_policy: best", "memory.policy"),
                ("save_decode_cache: maybe", "not true or false"), ("storage_plugins: [a, b]", "python://"),
                ("runtime_plugin_locations: [/srv/a.py, /srv]", "absolute paths of files"),
                ("plugin_locations: [a.py]", "absolute paths of files"),
                ("ec_chunk_size: 256", "TierceECConnector"),
                ("chunk_sise: 1", 'ignores this key. The nearest key is "chunk_size"'),
                ("extra_config.use_odirekt: 1", 'does not read this member .* nearest key is "use_odirect"'),
                ("extra_config.fallback_policy: hope", "not recompute or local_cpu"),
                ("extra_config.aws_secret_access_key: sesame", "AWS_SECRET_ACCESS_KEY"),
                ("extra_config.AWS_SESSION_TOKEN: sesame", "does not read this member"),
                ("extra_config.passwd: sesame", "does not read this member"),
                ("azure_account_key: sesame", "ignores this key"), ("my_auth: sesame", "ignores this key"))
        plain = [key for key, _ in keys if "." not in key.split(":")[0]]
        extra = [key.replace("extra_config.", "  ") for key, _ in keys if key.startswith("extra_config.")]
        values, result = self.migrate("\n".join([*plain, "max_local_disk_size: 5", "extra_config:", *extra,
                                                 "  fs_base_path: /kv", "  hf_token: sesame", ""]),
                                      status=1, out=["# ---- refused"])
        self.assertEqual(values, {"disk.size": "5GiB", "remote.urls": '"file:///kv"'})
        for key, reason in keys:
            name = re.escape(key.split(":")[0])
            self.assertRegex(result.stderr, rf"lmcache.yaml:\d+: {name} is refused: .*{reason}")
        self.assertEqual(result.stderr.count(" is refused: "), len(keys) + 1)
        self.assertNotIn("sesame", result.stdout + result.stderr)
        self.accepted(values, result)

    def test_refused_values(self):
        for text, reasons in (
                ("remote_url: h:1\nmax_local_cpu_size: much\n", ["is not one of LMCache's", "number of GiB"]),
                ("remote_url: fs://h:1/a,b\nlocal_disk: true\nmax_local_disk_size: 5\n",
                 ["one folder", "not the path of a folder"]),
                ("remote_url: s3://b.s3express-use1.x\nremote_storage_plugins: [mooncakestore]\n",
                 ["S3 Express", "master_server_address"]),
                ("remote_url: rediss://h?ssl_cert_reqs=none\nremote_storage_plugins: [redis]\n"
                 "extra_config:\n  redis_url: mooncakestore://h:1?device=mlx5_0\n",
                 ["remote_url is refused: Options after the '?'", "redis: Options after the '?'"]),
                ("remote_url: redis-sentinel://u:sesame@h:1?x=y\nremote_storage_plugins: [redis]\n"
                 "extra_config:\n  redis_url: unix:///r?password=sesame\n", ["Options after the '?'"]),
                ("remote_url: valkey://h:1,i:1\nremote_storage_plugins: [fs]\nextra_config:\n  fs_base_path: cache\n",
                 ["valkey_mode: cluster", "not an absolute path"]),
                ("remote_url: 'redis://:my sesame@h:1'\npriority_limit: 0\n",
                 ["must be percent-encoded", "requests of every priority"]),
                ('remote_url: "redis://u:sesame\\u0085@h"\nblocking_timeout_secs: 1e17\n',
                 ['remote.urls cannot be "redis://h"', "not a number of seconds"]),
                ("remote_url: s3://b.s3.dualstack.us-east-1.amazonaws.com\nsave_decode_cache: 'on'\nchunk_size: 1\n"
                 "save_unfull_chunk: on\n", ["set s3_region", "save_decode_cache is refused: The value is not true or false"])):
            _, result = self.migrate(text, status=1, out=["# ---- refused"], err=["is refused: ", *reasons])
            self.assertEqual(result.stderr.count("is refused"), 2, result.stderr)
            self.assertNotIn("sesame", result.stdout + result.stderr)
        # A long path is not repeated before the reason.
        self.check(1, "migrate", self.write("x" * 60 + "/lmcache.yaml", "chunk_size: 0\n"),
                   err=["chunk_size is refused: chunk.tokens cannot be 0"])

    def test_environment(self):
        env = {"LMCACHE_CHUNK_SIZE": "128", "LMCACHE_LOCAL_CPU": "False", "LMCACHE_ENABLE_P2P": "True",
               "LMCACHE_REMOTE_URL": "'redis://h:6379'", "LMCACHE_LOG_LEVEL": "INFO", "LMCACHE_SAVE_DECODE_CACHE": "yes",
               "LMCACHE_EXTRA_CONFIG": '{"use_odirect": true, "lookup_backoff_time": 0.1}'}
        values, result = self.migrate(
            "chunk_size: 256\nmin_retrieve_tokens: 9\nextra_config:\n  disk_io_threads: 8\n", "--environment",
            status=1, env=env, out=["# chunk_size: 128 (environment)\n", "lmcache.yaml and the environment"],
            err=["environment: enable_p2p is refused: ", "save_decode_cache is refused: The value is not true or false"])
        self.assertEqual(values, {"chunk.tokens": "128", "load.min_tokens": "9", "memory.size": "5GiB",
                                  "remote.urls": '"redis://h:6379"', "disk.direct": "true"})
        self.assertNotIn("LOG_LEVEL", result.stdout.upper())
        self.check(0, "migrate", "--environment", env={"LMCACHE_CONFIG_FILE": "lmcache.yaml"},
                   out=["chunk.tokens: 256\n", "disk.depth: 8\n"])
        self.check(2, "migrate", "--environment", env={"LMCACHE_EXTRA_CONFIG": "[1]"},
                   err=["extra_config in the environment: must be a mapping"])

    def test_a_multiprocess_server(self):
        """Its memory and stores are the host's, so the ranks do not multiply them."""
        transfer = ('{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": '
                    '{"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 6555, "lmcache.mp.save_decode_cache": true}}')
        result = self.check(0, "migrate", "--ranks", "4", "--kv-transfer-config", transfer, "--", "lmcache", "server",
                            "--l1-size-gb=1.5", "--eviction-policy", "ARC", "--chunk-size", "512", "--no-l1-use-lazy",
                            "--disable-metrics", "--prometheus-port", "9091", "--script-allowed-imports", "a", "b",
                            "--l2-adapter", '{"type": "fs", "base_path": "/kv", "max_capacity_gb": 20, "num_workers": 4}',
                            "--l2-adapter", '{"type": "fs_native", "base_path": "/more kv", "max_capacity_gb": 20}',
                            "--l2-adapter", '{"type": "resp", "host": "h", "port": 6379, "username": "u", "password": "p@/s"}',
                            "--l2-adapter", '{"type": "valkey", "startup_nodes": "a:1, b:2", "cluster_mode": true, '
                            '"tls_enable": true, "ttl_seconds": 60}', "--l2-adapter", '{"type": "mock"}',
                            "--l2-adapter", '{"type": "s3", "s3_endpoint": "s3://b.s3.eu-west-1.amazonaws.com", '
                            '"s3_region": "eu-west-1"}', "--l2-adapter", '{"type": "mooncake_store", "protocol": "tcp", '
                            '"master_server_addr": "m:50051", "local_hostname": "x"}')
        values = dict(re.findall(r"^([a-z_.]+): (.*)$", result.stdout, re.M))
        self.assertEqual(values, {
            "node.start": "shared", "save.decode": "true", "memory.size": "1536MiB", "memory.policy": "arc",
            "disk.policy": "arc", "chunk.tokens": "512", "metrics.port": "9091", "disk.path": "/kv", "disk.size": "20GiB",
            "remote.urls": '"file:///more%20kv redis://u:p%40%2Fs@h:6379 valkeys+cluster://a:1,b:2?ttl=60s '
                           's3://b?region=eu-west-1 mooncake://m:50051?protocol=tcp&host=x"'})
        for line in ("# lmcache.mp.port: 6555 (kv_connector_extra_config)", "# --l1-use-lazy: false (command line)",
                     "# --disable-metrics: true (command line)", "# --script-allowed-imports: a,b (command line)",
                     "# --l2-adapter.3.password: *** (command line)"):
            self.assertIn(line + "\n", result.stdout)
        self.assertNotIn("p@/s", result.stdout)
        self.assertNotIn("not set; LMCache's default", result.stdout)
        self.accepted(values, result)

    def test_a_multiprocess_server_alone(self):
        result = self.check(0, "migrate", "--", "python3", "-m", "lmcache.v1.multiprocess.http_server", "--l1-size-gb", "2",
                            out=["# --port: 5555 (not set; LMCache's default)\n"])
        self.assertEqual(re.findall(r"^[a-z_.]+: .*$", result.stdout, re.M), ["memory.size: 2GiB", "node.start: shared"])
        result = self.check(0, "migrate", "--kv-transfer-config", '{"lmcache.mp.autostart": true}')
        self.assertEqual(re.findall(r"^[a-z_.]+: .*$", result.stdout, re.M), ["node.start: shared"])

    def test_values_of_the_connector_override_the_file(self):
        values, result = self.migrate(
            "chunk_size: 256\nsave_decode_cache: false\nextra_config:\n  disk_io_threads: 8\n", "--kv-transfer-config",
            '{"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"lmcache.chunk_size": 128, '
            '"lmcache.extra_config": {"use_odirect": false}}}',
            out=["# chunk_size: 128 (kv_connector_extra_config)\n", "lmcache.yaml and kv_connector_extra_config.\n"])
        self.assertEqual(values, {"chunk.tokens": "128", "save.decode": "false", "memory.size": "5GiB", "disk.direct": "false"})
        values, _ = self.migrate("chunk_size: 256\n", "--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1"}')
        self.assertEqual(values, {"chunk.tokens": "256", "memory.size": "5GiB"})

    def test_flags_that_are_refused(self):
        for words, reason in (
                (["--l1-sise-gb", "3"], 'no such flag. The nearest key is "l1-size-gb"'),
                (["--engine-type", "blend"], "Blended answers differ"), (["--isolated-ipc"], "share memory"),
                (["--runtime-plugin-locations", "/a.py", "/b.py"], "A node starts none"),
                (["--l1-size-gb", "0"], "Tierce requires memory"), (["--l1-size-gb", "x"], "not a number of GiB"),
                (["--eviction-policy", "noop"], "memory.policy cannot be"),
                (["--l2-adapter", '{"type": "native_plugin", "module_path": "tierce.lmcache"}'], "parameters of Tierce"),
                (["--l2-adapter", '{"type": "plugin", "module_path": "x"}'], "methods of python://"),
                (["--l2-adapter", '{"type": "nixl_native"}'], "nixl:///FOLDER"),
                (["--l2-adapter", '{"type": "own"}'], "not one of LMCache 0.5.6's adapters"),
                (["--l2-adapter", '{"type": "fs", "base_path": "cache"}'], "not an absolute path"),
                (["--l2-adapter", '{"type": "valkey", "startup_nodes": "a:1,b:2"}'], "cluster_mode: true"),
                (["--l2-adapter", '{"type": "resp", "host": "h", "port": "sesame", "password": "sesame"}'], "a port must be between"),
                (["--l2-adapter", '{"type": "mock", "serde": {"type": "fp8"}}'], "is approximate"),
                (["--l2-adapter", '{"type": "mock", "aws_access_key_id": "sesame"}'], "AWS_ACCESS_KEY_ID")):
            result = self.check(1, "migrate", "--", "lmcache", "server", *words, err=["command line: --", reason])
            self.assertEqual(result.stderr.count("is refused"), 1, result.stderr)
        for transfer, reason in (('{"lmcache.mp.hostt": 1}', "connector ignores this key"),
                                 ('{"lmcache.mp.server_urls": ["a", "b"]}', "one node"),
                                 ('{"mine": 1}', "kv_connector_extra_config.mine is refused")):
            self.check(1, "migrate", "--kv-transfer-config", transfer, err=["kv_connector_extra_config: ", reason])
        for words, reason in ((["--kv-transfer-config", "[1]"], "must be a mapping"),
                              (["--", "lmcache", "--l2-adapter", "7"], "--l2-adapter in the command line: must be a mapping"),
                              (["--"], "one FILE is required")):
            self.check(2, "migrate", *words, err=[reason])

    def test_files_that_are_not_of_lmcache(self):
        for text, reason in (
                ("services: 1\nimage: 2\n", 'lmcache.yaml:1: "services": no key of this file is one of LMCache\'s'),
                ("chunk_size: 1\nchunk_size: 2\n", 'lmcache.yaml:2: "chunk_size": is given twice'),
                ("extra_config: text\n", "must be a mapping"), ("- a\n", "is not a mapping"),
                ("chunk_size: &a 1\nmin_retrieve_tokens: *a\n", "aliases are not supported")):
            self.check(2, "migrate", self.write("lmcache.yaml", text), err=[reason])
        self.check(2, "migrate", err=["one FILE is required"])


if __name__ == "__main__":
    unittest.main()
