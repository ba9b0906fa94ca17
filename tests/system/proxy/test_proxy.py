# SPDX-License-Identifier: Apache-2.0
"""`tierce proxy` before HTTP servers that behave as vLLM does: streams, failures, slow and vanished clients."""

import hashlib
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from engine_like import SECONDS, Engine, Proxy, event, wait_for
from manager_process import executable
from serve_process import make_certificates

PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_host": "10.0.0.1", "big": 12345678901234567890}


@pytest.fixture
def start(tmp_path):
    proxies = []

    def start(*arguments, **engines):
        proxies.append(Proxy(tmp_path, *arguments, **engines))
        return proxies[-1]
    yield start
    for proxy in proxies:
        proxy.end()


def whole_stream(text):
    return b"".join(event(letter) for letter in text) + b"data: [DONE]\n\n"


def test_whole_answers(start):
    engine = Engine()
    proxy = start(decode=[engine])
    status, data = proxy.ask("POST", "/v1/completions", {"prompt": "x"}, Authorization="Bearer its-own",
                             **{"X-Request-Id": "mine", "traceparent": "00-1-2-03"})
    assert status == 200 and json.loads(data)["choices"] == [{"text": "abc"}]
    path, headers, body = engine.requests[-1]
    assert (path, body) == ("/v1/completions", {"prompt": "x"})
    assert headers["authorization"] == "Bearer its-own" and headers["x-request-id"] == "mine"
    assert headers["traceparent"] == "00-1-2-03" and "expect" not in headers
    assert proxy.ask("POST", "/v1/chat/completions", {"messages": []})[0] == 200
    assert engine.requests[-1][1]["x-request-id"].startswith("tierce-"), "each request has a name"
    assert json.loads(proxy.ask("GET", "/v1/models")[1])["data"] == [{"id": "m"}]
    assert proxy.ask("GET", "/health") == (200, b"ok\n")
    assert proxy.ask("GET", "/v1/embeddings")[0] == 404
    # Bytes that are no JSON reach the engine, which says what is wrong with them.
    assert proxy.ask("POST", "/v1/completions", b"{not json")[0] == 200
    assert engine.requests[-1][2] == b"{not json"
    # A rejected request keeps the engine's words.
    engine.status = 400
    assert proxy.complete() == (400, b'{"error": {"message": "of the engine"}}')
    assert proxy.metric("answers") == 5 and proxy.metric("requests_now", total=False) == 0


def test_stream_passes_on_each_event_at_once(start):
    engine = Engine("abcdef")
    engine.hold_after = 2
    proxy = start(decode=[engine])
    response = proxy.open(body={"prompt": "x", "stream": True}).getresponse()
    assert response.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert response.read(len(event("a")) * 2) == event("a") + event("b"), "before the third exists"
    engine.release()
    assert response.read() == whole_stream("cdef")
    assert proxy.metric("streams") == 1 and proxy.metric("streams_broken") == 0
    # Without chunks, the end of the connection is the end of a stream that is complete.
    engine.is_chunked, engine.hold_after = False, None
    assert proxy.complete(stream=True) == (200, whole_stream("abcdef"))


def test_a_client_that_leaves_ends_the_engine_s_work(start):
    engine = Engine()
    proxy = start(decode=[engine])
    for stream in (True, False):  # one in the middle of a stream, one before the first byte
        engine.hold_after, before = 1, engine.disconnects
        connection = proxy.open(body={"prompt": "x", "stream": stream})
        if stream:
            connection.getresponse().read(len(event("a")))
        else:
            wait_for(lambda: len(engine.requests) == 2)
        connection.sock.close() if connection.sock else connection.close()
        del connection
        wait_for(lambda: engine.disconnects > before, "the engine goes on for nobody")
    assert proxy.metric("clients_gone") == 2


def test_a_slow_client_slows_the_engine(start):
    """The proxy and the buffers of sockets hold a bounded part for it, and nothing is lost."""
    padding = " " * (1 << 16)
    engine = Engine("x" * 400)
    engine.padding = len(padding)
    proxy = start("--limit.stream=64KiB", decode=[engine])
    connection = proxy.open(body={"prompt": "x", "stream": True}, receive=1 << 14)
    wait_for(lambda: proxy.metric("pauses") > 0)
    seen = []

    def stands_still():
        seen.append(engine.sent)
        return len(seen) > 20 and len(set(seen[-20:])) == 1
    wait_for(stands_still)
    assert engine.sent < 400 * len(padding) / 2, "two send buffers of 4 MiB, a receive buffer of 0.5 MiB, limit.stream"
    others = [proxy.open(body={"prompt": "x", "stream": True}, receive=1 << 14) for _ in range(10)]
    seen.clear()
    wait_for(stands_still)
    before = proxy.metric("pauses")
    digest = hashlib.sha256()
    response = connection.getresponse()
    while data := response.read(1 << 16):
        digest.update(data)
    assert digest.digest() == hashlib.sha256(event("x" + padding) * 400 + b"data: [DONE]\n\n").digest()
    assert proxy.metric("pauses") - before < 2 * 400 * len(padding) / (32 << 10), "one client's reading wakes no other"
    for other in others:
        other.close()


def test_failures_before_the_first_byte_are_retried(start):
    bad, good = Engine("bad"), Engine("good")
    proxy = start("--retry.decode=1", decode=[bad, good])
    for status in (500, 503, 429, 0):
        bad.status = status
        for stream in (False, True, False, True):
            got, data = proxy.complete(stream=stream)
            assert got == 200 and (data == whole_stream("good") if stream else b"good" in data), (status, stream, data)
    bad.status, bad.cut_after = 200, 0  # its headers have come, and no byte of the body
    for _ in range(2):
        assert proxy.complete(stream=True) == (200, whole_stream("good"))
    assert proxy.metric("decode_failures") > 0
    # If all fail, the client gets the words of the last one, or an error that says why.
    bad.status = good.status = 500
    assert proxy.complete() == (500, b'{"error": {"message": "of the engine"}}')
    bad.status = good.status = 0
    status, data = proxy.complete()
    assert status == 502 and "2 of the engines failed" in json.loads(data)["error"]["message"], data


def test_an_engine_that_nobody_listens_for(start):
    gone, engine = Engine(), Engine()
    proxy = start(decode=[gone, engine])
    gone.stop()
    wait_for(lambda: b"1 of 2 engines" in proxy.ask("GET", "/readyz")[1])
    assert all(proxy.complete()[0] == 200 for _ in range(4))
    # One that answers, and whose health is bad, gets nothing; then it returns.
    engine.health = 500
    wait_for(lambda: proxy.ask("GET", "/readyz")[0] == 503)
    status, data = proxy.complete()
    assert status == 503 and json.loads(data)["error"]["code"] == 503
    engine.health = 200
    wait_for(lambda: proxy.ask("GET", "/readyz")[0] == 200)
    assert proxy.complete()[0] == 200
    log = proxy.log.read_text()
    assert f"proxy_engine_down engine={gone.url}" in log and f"proxy_engine_up engine={engine.url}" in log


def test_an_engine_that_hangs_is_left(start):
    """Its health checks fail while a client waits for the first byte: another engine answers."""
    hanging, good = Engine("bad"), Engine("good")
    hanging.hold_after = 0
    proxy = start(decode=[hanging])
    proxy.end()
    proxy = start(decode=[hanging, good])
    answers = []
    clients = [threading.Thread(target=lambda: answers.append(proxy.complete())) for _ in range(2)]
    for client in clients:
        client.start()
    wait_for(lambda: hanging.requests)
    hanging.health = 500
    for client in clients:
        client.join(SECONDS)
    assert [status for status, _ in answers] == [200, 200] and all(b"good" in data for _, data in answers)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("within", [None, 12])
def test_a_cut_stream_ends_with_an_error_event(start, chunked, within):
    """Also within an event, of which the client gets nothing."""
    engine = Engine("abcdef")
    engine.cut_after, engine.is_chunked, engine.cut_bytes = 3, chunked, within
    proxy = start("--timeout.silence=200ms", decode=[engine])
    expected = b"".join(map(event, "abc"))
    status, data = proxy.complete(stream=True)
    assert status == 200 and data.startswith(expected)
    error = json.loads(data[len(expected):].removeprefix(b"data: "))["error"]
    assert error["code"] == 502 and "incomplete" in error["message"]
    assert b"[DONE]" not in data
    # One that falls silent too.
    engine.cut_after, engine.hold_after = None, 2
    data = proxy.complete(stream=True)[1]
    assert b"timeout.silence" in data and b"[DONE]" not in data
    assert proxy.metric("streams_broken") == 2


def test_a_stream_that_has_begun_is_not_repeated(start):
    """Neither by another engine of decode.urls nor by another prefill, whatever ends it: the client would get the beginning twice."""
    prefills, decoders = [Engine("p"), Engine("q")], [Engine("abcdef"), Engine("abcdef")]
    for engine in prefills:
        engine.params = PARAMS
    proxy = start("--retry.decode=3", "--retry.prefill=3", "--timeout.silence=1s", decode=decoders, prefill=prefills)
    for number, (cut, hold) in enumerate(((3, None), (1, None), (None, 3)), 1):
        for engine in decoders:
            engine.cut_after, engine.hold_after = cut, hold
        status, data = proxy.complete(stream=True)
        begun = b"".join(map(event, "abcdef"[:cut or hold]))
        assert status == 200 and data.startswith(begun) and b"[DONE]" not in data
        assert json.loads(data[len(begun):].removeprefix(b"data: "))["error"]["code"] == 502
        assert [sum(len(e.bodies()) for e in role) for role in (prefills, decoders)] == [number, number]
    assert proxy.metric("streams_broken") == 3 and proxy.metric("decode_failures") == proxy.metric("prefill_failures") == 0


def test_answers_that_end_with_their_connection(start):
    """They are passed on if they are whole, and otherwise another engine is asked."""
    cut, good = Engine("cut"), Engine("good")
    cut.is_chunked = False
    proxy = start(decode=[cut])
    assert b"cut" in proxy.complete()[1]
    cut.cut_bytes = 20
    status, data = proxy.complete()
    assert status == 502 and "before the end of the answer" in json.loads(data)["error"]["message"], data
    proxy = start(decode=[cut, good])
    assert all(status == 200 and b"good" in data for status, data in (proxy.complete() for _ in range(4)))


def test_an_engine_that_drains_finishes_its_answers(start):
    """It accepts no connections and fails its health checks; nobody else can take the request."""
    engine = Engine("whole")
    engine.hold_after = 0
    proxy = start(decode=[engine])
    connection = proxy.open(body={"prompt": "hello"})
    wait_for(lambda: engine.bodies())
    engine.health = 503
    wait_for(lambda: proxy.ask("GET", "/readyz")[0] == 503)
    assert proxy.complete()[0] == 503
    checks = engine.checks
    wait_for(lambda: engine.checks > checks + 8)  # the proxy has looked at its requests meanwhile
    engine.release()
    response = connection.getresponse()
    assert response.status == 200 and b"whole" in response.read()
    connection.close()


def test_prefill_and_decode(start):
    prefill, decode = Engine("p"), Engine("answer")
    prefill.params = PARAMS
    proxy = start(decode=[decode], prefill=[prefill])
    request = {"model": "m", "prompt": "hello", "max_tokens": 7, "min_tokens": 3, "stream": True,
               "stream_options": {"include_usage": True}, "temperature": 0.25, "é": "ü\n"}
    assert proxy.ask("POST", "/v1/completions", request) == (200, whole_stream("answer"))
    asked = prefill.bodies()[0]
    params = asked.pop("kv_transfer_params")
    assert params == {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                      "remote_block_ids": None, "remote_host": None, "remote_port": None}
    assert asked == {"model": "m", "prompt": "hello", "max_tokens": 1, "stream": False, "temperature": 0.25, "é": "ü\n"}
    assert decode.bodies()[0] == {**request, "kv_transfer_params": PARAMS}
    assert prefill.requests[0][1]["x-request-id"] == decode.requests[0][1]["x-request-id"]
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9}
    assert proxy.ask("POST", "/v1/chat/completions", chat)[0] == 200
    asked = prefill.bodies("/v1/chat/completions")[0]
    assert asked["max_completion_tokens"] == asked["max_tokens"] == 1
    assert decode.bodies("/v1/chat/completions")[0] == {**chat, "kv_transfer_params": PARAMS}
    # Several prompts or answers have no one KV: the decoder computes them.
    for more in ({"prompt": ["a", "b"]}, {"n": 2}, {"best_of": 2}, {"prompt": [[1, 2]]}):
        assert proxy.complete(**more)[0] == 200
        assert "kv_transfer_params" not in decode.bodies()[-1]
    assert len(prefill.requests) == 2 and proxy.metric("prefills_skipped") == 4
    assert proxy.complete(prompt=[1, 2])[0] == 200 and len(prefill.requests) == 3
    # A prefiller without an answer for others.
    prefill.params = None
    assert proxy.complete()[0] == 200 and "kv_transfer_params" not in decode.bodies()[-1]
    assert proxy.metric("prefills_empty") == 1 and proxy.metric("prefills") == 4


def test_the_prefiller_gets_the_inbox_of_the_decoder(start):
    """The decoder is chosen first. Its tickets are used once each, and it is asked for more; without any, the KV is read."""
    prefill, decoders = Engine("p"), [Engine("a"), Engine("b")]
    prefill.params = PARAMS
    for number, decoder in enumerate(decoders):
        decoder.inbox = {"host": "10.0.0.1", "port": 7000 + number, "tickets": ["t%d%d" % (number, n) for n in range(2)], "seconds": 600}
    proxy = start(decode=decoders, prefill=[prefill])
    places = []
    for _ in range(6):
        before = [len(d.bodies()) for d in decoders]
        assert proxy.complete()[0] == 200
        (chosen,) = [n for n in range(2) if len(decoders[n].bodies()) > before[n]]
        place = prefill.bodies()[-1]["kv_transfer_params"]["tierce"]["push"]
        assert place["host"] == "10.0.0.1" and place["port"] == 7000 + chosen
        assert decoders[chosen].bodies()[-1]["kv_transfer_params"] == PARAMS
        places.append(place["ticket"])
    assert places == ["t01", "t11", "t00", "t10", "t01", "t11"] or places == ["t11", "t01", "t10", "t00", "t11", "t01"]
    assert [d.asked for d in decoders] == [2, 2] and proxy.metric("inbox_queries") == 4 and proxy.metric("pushes") == 6
    # It fails to answer, and has none any more: asked again after a pause only.
    decoders[0].inbox = decoders[1].inbox = None
    for _ in range(8):
        assert proxy.complete()[0] == 200
    assert "tierce" not in prefill.bodies()[-1]["kv_transfer_params"]
    assert proxy.metric("pushes") == 8 and [d.asked for d in decoders] == [3, 3]
    assert proxy.metric("decodes_alone") == proxy.metric("decode_failures") == 0


def test_tickets_of_a_decoder_that_failed_are_not_used(start):
    """It may have been restarted. Without prefill.push, no decoder is asked for tickets."""
    prefill, decoder = Engine("p"), Engine("a")
    prefill.params = PARAMS
    decoder.inbox = {"host": "10.0.0.1", "port": 7000, "tickets": ["old"] * 8, "seconds": 600}
    proxy = start(decode=[decoder], prefill=[prefill])
    assert proxy.complete()[0] == 200 and prefill.bodies()[-1]["kv_transfer_params"]["tierce"]["push"]["ticket"] == "old"
    decoder.status = 0  # the connection is closed
    assert proxy.complete()[0] == 502
    decoder.status, decoder.inbox["tickets"] = 200, ["new"] * 8
    assert proxy.complete()[0] == 200 and prefill.bodies()[-1]["kv_transfer_params"]["tierce"]["push"]["ticket"] == "new"
    assert decoder.asked == 2
    proxy = start("--prefill.push=false", decode=[decoder], prefill=[prefill])
    assert proxy.complete()[0] == 200 and "tierce" not in prefill.bodies()[-1]["kv_transfer_params"]
    assert decoder.asked == 2 and proxy.metric("pushes") == proxy.metric("inbox_queries") == 0


def test_the_client_s_own_kv_transfer_params_reach_no_engine(start):
    prefill, decode = Engine(), Engine("answer")
    prefill.params = PARAMS
    proxy = start(decode=[decode], prefill=[prefill])
    own = b'{"prompt": "x", "n": %d, "kv_transfer\\u005fparams": {"remote_host": "10.6.6.6"}, "kv_transfer_params": {"a": 1}}'
    for n, status, expected in ((1, 200, PARAMS), (2, 200, None), (1, 500, None)):
        prefill.status = status
        assert proxy.ask("POST", "/v1/completions", own % n)[0] == 200
        expected = {"prompt": "x", "n": n, **({"kv_transfer_params": expected} if expected else {})}
        assert decode.bodies()[-1] == expected
    before = len(decode.requests)
    deep = b"[" * 70 + b"]" * 70
    for bad, why in ((b'{"kv_transfer_params": {}, "x": ', b"not valid JSON"), (b'{"kv_transfer_params": {}, "x": %s}' % deep, b"not valid JSON"),
                     (b'{"kv_transfer_params": {}, "%s": 1}' % (b"x" * 5000), b"64 bytes")):
        status, data = proxy.ask("POST", "/v1/completions", bad)
        assert status == 400 and why in data
    assert len(decode.requests) == before


def test_prefillers_that_fail(start):
    first, second, decode = Engine(), Engine(), Engine("answer")
    second.params = PARAMS
    proxy = start(decode=[decode], prefill=[first, second])
    for status in (500, 0):
        first.status = status
        for _ in range(2):
            assert proxy.complete(stream=True)[1] == whole_stream("answer")
            assert decode.bodies()[-1]["kv_transfer_params"] == PARAMS, "the second has computed it"
    assert proxy.metric("prefill_failures") > 0 and proxy.metric("decodes_alone") == 0
    second.status = 500  # all of them: the decoder computes
    assert proxy.complete()[0] == 200 and "kv_transfer_params" not in decode.bodies()[-1]
    assert proxy.metric("decodes_alone") == 1
    # A client does not say where KV is read from, whether a prefiller is asked or not.
    for more in {}, {"n": 2}:
        assert proxy.complete(kv_transfer_params={"remote_host": "h"}, **more)[0] == 200
        assert decode.bodies()[-1] == {"model": "m", "prompt": "hello", **more}
    assert "proxy_decode_alone" in proxy.log.read_text()
    first.status = second.status = 400  # rejected: not sent to the other one
    before = len(first.requests) + len(second.requests)
    decode.status = 400
    assert proxy.complete()[0] == 400
    assert len(first.requests) + len(second.requests) == before + 1


def test_a_decoder_that_fails_after_a_prefill(start):
    """It may have read the KV, which the prefiller then drops: the next one computes."""
    prefill, bad, good = Engine(), Engine(), Engine("good")
    prefill.params, bad.status = PARAMS, 500
    proxy = start(decode=[bad, good], prefill=[prefill])
    for _ in range(3):
        assert b"good" in proxy.complete()[1]
    assert len(good.bodies()) == 3 and bad.bodies()
    assert all("kv_transfer_params" in body for body in bad.bodies())
    alone = ["kv_transfer_params" not in body for body in good.bodies()]
    assert sum(alone) == len(bad.bodies()) == proxy.metric("decodes_alone")


def test_the_router_index_decides(start):
    router, engines = Engine(), [Engine("0"), Engine("1")]
    urls = [f"{engine.url}#{number}" for number, engine in enumerate(engines)]
    proxy = start(f"--router.url={router.url}", decode=urls)
    for number in (1, 0):
        router.matched = {str(number): 2048, "7": 4096}
        for _ in range(3):
            assert json.loads(proxy.complete()[1])["choices"][0]["text"] == str(number)
    assert router.bodies("/query")[0] == {"model": "m", "model_name": "m", "token_ids": [1, 2, 3]}
    tokenized = [body for engine in engines for body in engine.bodies("/tokenize")]
    assert tokenized == [{"model": "m", "prompt": "hello"}] * 6
    assert proxy.complete(prompt=[5, 6])[0] == 200 and router.bodies("/query")[-1]["token_ids"] == [5, 6]
    assert len([b for e in engines for b in e.bodies("/tokenize")]) == 6, "tokens are there already"
    router.status = 500  # without it, the load decides
    assert {json.loads(proxy.complete()[1])["choices"][0]["text"] for _ in range(4)} == {"0", "1"}
    assert proxy.metric("router_failures") == 4 and proxy.metric("router_choices") == 7


def test_the_router_index_chooses_the_prefiller(start):
    """One answer of the index ranks both lists: the prefiller and the decoder that hold the prompt's blocks."""
    router, prefillers, decoders = Engine(), [Engine("p"), Engine("q")], [Engine("0"), Engine("1")]
    for engine in prefillers:
        engine.params = PARAMS
    urls = [f"{engine.url}#{number}" for number, engine in enumerate(prefillers + decoders)]
    proxy = start(f"--router.url={router.url}", prefill=urls[:2], decode=urls[2:])

    def chosen():
        before = [len(engine.bodies()) for engine in prefillers + decoders]
        assert proxy.complete(prompt=[5, 6])[0] == 200
        return [number for number, engine in enumerate(prefillers + decoders) if len(engine.bodies()) > before[number]]

    for number in (1, 0):
        router.matched = {str(number): 2048, str(1 - number): 1024, "3": 4096, "7": 8192}
        assert [chosen() for _ in range(3)] == [[number, 3]] * 3
    assert len(router.bodies("/query")) == proxy.metric("prefills") == 6
    prefillers[0].status = 500  # the next best takes its place, and the KV comes from there
    assert chosen() == [0, 1, 3] and decoders[1].bodies()[-1]["kv_transfer_params"] == PARAMS
    router.status = 500  # without the index, the load decides
    prefillers[0].status = 200
    assert {chosen()[0] for _ in range(4)} == {0, 1} and proxy.metric("router_failures") == 4


def test_a_router_index_with_tokens(start, tmp_path):
    router, engine = Engine(), Engine()
    router.matched, router.status = {"1": 2048}, 401
    proxy = start(f"--router.url={router.url}", decode=[f"{engine.url}#1"])
    assert all(proxy.complete(prompt=[1, 2])[0] == 200 for _ in range(3))
    log = proxy.log.read_text()
    assert proxy.metric("router_failures") == 3 and log.count("proxy_router_refused") == 1 and "router.token_file" in log
    path = tmp_path / "router_token"
    path.write_text("router-key\n")
    path.chmod(0o600)
    router.status = 200
    proxy = start(f"--router.url={router.url}", f"--router.token_file={path}", decode=[f"{engine.url}#1"])
    assert proxy.ask("POST", "/v1/completions", {"prompt": [1, 2]}, Authorization="Bearer its-own")[0] == 200
    assert router.requests[-1][1]["authorization"] == "Bearer router-key"
    assert engine.requests[-1][1]["authorization"] == "Bearer its-own" and proxy.metric("router_choices") == 1


def test_tokens_and_limits(start, tmp_path):
    engine = Engine()
    own, of_engine = tmp_path / "tokens", tmp_path / "engine_token"
    own.write_text("use alice " + hashlib.sha256(b"secret").hexdigest() + "\n")
    of_engine.write_text("engine-key\n")
    for path in (own, of_engine):
        path.chmod(0o600)
    proxy = start(f"--auth.token_file={own}", f"--engine.token_file={of_engine}", "--limit.request=4KiB", "--limit.answer=1KiB",
                  "--limit.requests=1", decode=[engine])
    token = {"Authorization": "Bearer secret"}
    assert proxy.complete()[0] == 401 and proxy.ask("GET", "/metrics")[0] == 401 and proxy.ask("GET", "/readyz")[0] == 200
    proxy.headers = token
    assert proxy.metric("denied") == 2
    for _ in range(50):  # one in progress is the limit: the end of an answer comes after its place is free
        assert proxy.ask("POST", "/v1/completions", {"prompt": "x"}, **token)[0] == 200
    assert engine.requests[-1][1]["authorization"] == "Bearer engine-key", "the proxy's token is not for engines"
    assert proxy.ask("POST", "/v1/completions", b"x" * 5000, **token)[0] == 413
    engine.text = "x" * 2000
    status, data = proxy.ask("POST", "/v1/completions", {"prompt": "x"}, **token)
    assert status == 502 and b"limit.answer" in data
    engine.text, engine.hold_after = "abc", 1
    connection = proxy.open(body={"prompt": "x", "stream": True}, **token)
    wait_for(lambda: proxy.metric("requests_now", total=False) == 1)
    assert proxy.ask("POST", "/v1/completions", {"prompt": "x"}, **token)[0] == 503
    own.write_text("use bob " + hashlib.sha256(b"other").hexdigest() + "\n")
    proxy.process.send_signal(signal.SIGHUP)
    wait_for(lambda: proxy.ask("GET", "/v1/models", **token)[0] == 401)
    engine.release()
    assert connection.getresponse().read() == whole_stream("abc")
    of_engine.write_text("new-key\n")
    proxy.process.send_signal(signal.SIGHUP)
    token = {"Authorization": "Bearer other"}

    def gets_the_new_one():
        proxy.ask("GET", "/v1/models", **token)
        return engine.requests[-1][1]["authorization"] == "Bearer new-key"
    wait_for(gets_the_new_one)
    # Without a token for engines, they get none; with one and without tokens of the proxy, theirs replaces the client's.
    proxy = start(f"--auth.token_file={own}", decode=[engine])
    assert proxy.ask("GET", "/v1/models", **token)[0] == 200 and "authorization" not in engine.requests[-1][1]
    proxy = start(f"--engine.token_file={of_engine}", decode=[engine])
    assert proxy.ask("GET", "/v1/models", **token)[0] == 200
    assert engine.requests[-1][1]["authorization"] == "Bearer new-key"
    of_engine.write_text("k" * 300000)
    refused = subprocess.run([str(executable()), "proxy", f"--engine.token_file={of_engine}", f"--decode.urls={engine.url}"],
                             capture_output=True, text=True)
    assert refused.returncode == 2 and "engine.token_file" in refused.stderr and "too large" in refused.stderr


def write_tokens(path, *lines):
    """(token, tenant) of clients."""
    path.write_text("".join(f"use {token} {hashlib.sha256(token.encode()).hexdigest()} {tenant}\n" for token, tenant in lines))
    path.chmod(0o600)


def test_tenants(start, tmp_path):
    """A request goes to engines of its token's tenant only, whatever is down or holds the prompt; each tenant has its own
    tokens for engines and the router index."""
    names = ("a1", "a2", "b1", "plain")
    engines = {name: Engine(name) for name in names}
    prefill, router = Engine("p"), Engine()
    prefill.params = PARAMS
    router.matched = {"1": 4096, "2": 0, "3": 4096}  # a number belongs to a tenant of the index
    own, of_engine, of_router = (tmp_path / name for name in ("own", "of_engine", "of_router"))
    write_tokens(own, ("alice", "a"), ("bob", "b"), ("carol", ""), ("dave", "c"))
    for path, text in ((of_engine, "key-a a\nkey-b b\n"), (of_router, "index\nindex-a a\n")):
        path.write_text(text)
        path.chmod(0o600)
    urls = [f"{engines[name].url}#{rest}" for name, rest in zip(names, ("1;tenant=a", "2;tenant=a", "1;tenant=b", "3"))]
    proxy = start(f"--auth.token_file={own}", f"--engine.token_file={of_engine}", f"--router.token_file={of_router}",
                  f"--router.url={router.url}", "--retry.decode=3", decode=urls, prefill=[f"{prefill.url}#9;tenant=a"])
    proxy.headers = {"Authorization": "Bearer carol"}

    def ask(token, method="POST", path="/v1/completions", **more):
        body = {"model": "m", "prompt": [1, 2], **more} if method == "POST" else None
        return proxy.ask(method, path, body, **({"Authorization": f"Bearer {token}"} if token else {}))

    def counts():
        return [len(engines[name].bodies()) for name in names]

    for token, expected, key, index in (("alice", [6, 0, 0, 0], "Bearer key-a", "Bearer index-a"), ("bob", [6, 0, 6, 0], "Bearer key-b", None),
                                        ("carol", [6, 0, 6, 6], None, "Bearer index")):
        for _ in range(3):
            assert ask(token)[0] == 200 and ask(token, stream=True)[0] == 200
        assert counts() == expected
        used = next(engines[n] for n in names if engines[n].requests and engines[n].requests[-1][1].get("authorization") == key)
        assert used and router.requests[-1][1].get("authorization") == index
        assert router.requests[-1][2].get("tenant_id") == {"alice": "a", "bob": "b", "carol": None}[token]
    assert len(prefill.bodies()) == 6, "the engine for prompts belongs to a"
    assert {h.get("authorization") for _, h, _ in prefill.requests} == {"Bearer key-a"}
    # A tenant without engines gets none of others'. A request without a valid token is rejected.
    status, data = ask("dave")
    assert status == 403 and json.loads(data)["error"]["message"] == (
        "decode.urls has no engine of the token's tenant 'c'; use another token, or add an engine with ;tenant=NAME")
    for token in (None, "mallory", "a", "key-a", "index-a", ""):
        status, data = ask(token)
        assert status == 401 and "auth.token_file" in json.loads(data)["error"]["message"]
    assert ask("dave", "GET", "/v1/models")[0] == 403 and ask("bob", "GET", "/metrics")[0] == 403
    # b's only engine fails: nobody else answers.
    before = counts()
    engines["b1"].status = 500
    assert ask("bob")[0] == 500 and ask("bob", stream=True)[0] == 500
    engines["b1"].stop()
    wait_for(lambda: b"3 of 4 engines" in proxy.ask("GET", "/readyz")[1])
    status, data = ask("bob")
    assert status == 503 and [after - had for after, had in zip(counts(), before)] == [0, 0, 2, 0]
    engines["a1"].stop()
    wait_for(lambda: ask("alice")[0] == 200 and counts()[1] > 0)
    assert counts()[3] == before[3]
    # The end of an answer is counted after its client has read it.
    wait_for(lambda: b'proxy_tenant_requests_now{tenant="a"} 0\n' in proxy.ask("GET", "/metrics", **proxy.headers)[1])
    page = proxy.ask("GET", "/metrics", **proxy.headers)[1].decode()
    for line in ('tenant_requests_total{tenant="b"} 9', 'tenant_errors_total{tenant="b"} 1', 'tenant_requests_now{tenant="a"} 0'):
        assert f"tierce_proxy_{line}\n" in page, page
    assert re.search(r'engine_up{role="decode",engine="[^"]*",tenant="b"} 0', page) and 'tenant=""' not in page
    # SIGHUP moves a token to another tenant.
    write_tokens(own, ("alice", ""), ("carol", ""))
    proxy.process.send_signal(signal.SIGHUP)
    wait_for(lambda: ask("bob")[0] == 401)
    had = counts()
    assert ask("alice")[0] == 200 and counts() == had[:3] + [had[3] + 1]


def test_tenants_that_cannot_be(tmp_path):
    own = tmp_path / "own"
    write_tokens(own, ("alice", "a"))
    for arguments, words in ((["--decode.urls=http://a#;tenant=x"], "tenant 'x', which requires auth.token_file"),
                             (["--decode.urls=http://a#;tenant=x", "--prefill.urls=http://b#;tenant=y"], "prefill.urls has an engine of the tenant 'y'"),
                             (["--decode.urls=http://a#;tenant=x", "--prefill.urls=http://b"], "prefill.urls has an engine without a tenant")):
        if "requires" not in words:
            arguments.append(f"--auth.token_file={own}")
        result = subprocess.run([str(executable()), "proxy", *arguments], capture_output=True, text=True, timeout=SECONDS)
        assert result.returncode == 2 and words in result.stderr, result.stderr


def test_a_full_memory_is_503(start, tmp_path):
    engine = Engine("x" * (2 << 20))
    proxy = start("--limit.memory=1MiB", "--limit.request=4KiB", decode=[engine])
    response = proxy.open(body={"prompt": "x"}).getresponse()
    assert response.status == 503 and response.getheader("Retry-After") == "1" and b"limit.memory" in response.read()
    refused = subprocess.run([str(executable()), "proxy", "--limit.memory=32MiB", f"--decode.urls={engine.url}"], capture_output=True, text=True)
    assert refused.returncode == 2 and "limit.memory must be at least three times limit.request" in refused.stderr


def test_too_few_files_are_reported(start):
    """Those of engines count too."""
    code = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000)); os.execv(sys.argv[1], sys.argv[1:])"
    for requests, is_reported in ((100, False), (2000, True)):
        with subprocess.Popen([sys.executable, "-c", code, str(executable()), "proxy", "--listen.port=0", "--limit.connections=100",
                               f"--limit.requests={requests}", "--decode.urls=http://127.0.0.1:1"], stderr=subprocess.PIPE, text=True) as process:
            text = ""
            while "listening on" not in text:
                line = process.stderr.readline()
                assert line, text
                text += line
            process.terminate()
            process.communicate(timeout=SECONDS)
        assert ("too few for" in text) == is_reported, text


def test_an_end_waits_for_answers(start):
    engine = Engine("abc")
    engine.hold_after = 1
    proxy = start(decode=[engine])
    response = proxy.open(body={"prompt": "x", "stream": True}).getresponse()
    response.read(len(event("a")))
    proxy.process.send_signal(signal.SIGINT)
    wait_for(lambda: proxy.ask("GET", "/readyz")[0] == 503)
    assert proxy.complete()[0] == 503
    engine.release()
    assert response.read() == whole_stream("bc")
    assert proxy.process.wait(SECONDS) == 0


def test_a_second_signal_ends_answers_with_an_event(start):
    engine = Engine("abc")
    engine.hold_after = 1
    proxy = start(decode=[engine])
    response = proxy.open(body={"prompt": "x", "stream": True}).getresponse()
    response.read(len(event("a")))
    proxy.process.send_signal(signal.SIGTERM)
    wait_for(lambda: proxy.ask("GET", "/readyz")[0] == 503)
    proxy.process.send_signal(signal.SIGTERM)
    error = json.loads(response.read().removeprefix(b"data: "))["error"]
    assert error == {"message": "the proxy is shutting down", "type": "overloaded_error", "param": None, "code": 503}
    assert proxy.process.wait(SECONDS) == 0


def test_random_bodies_and_bytes(start):
    """Whatever clients send, the proxy answers and lives."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    prefill, decode = Engine(), Engine()
    prefill.params = PARAMS
    proxy = start(decode=[decode], prefill=[prefill])
    base = json.dumps({"model": "m", "prompt": "hello", "max_tokens": 7, "stream": False, "n": 1, "é": [1, {"b": None}]}).encode()
    for _ in range(200):
        data = bytearray(base)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data))
            data[at:at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        status, _ = proxy.ask("POST", "/v1/completions", bytes(data))
        assert status in (200, 400), (status, bytes(data))
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", proxy.port)) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n" + rng.randbytes(rng.randrange(99)))
    assert proxy.complete()[0] == 200


@pytest.mark.parametrize("arguments, words", [
    (["--decode.urls="], "decode.urls must name at least one engine"),
    (["--decode.urls=ftp://x"], "must be http or https"),
    (["--decode.urls=http://a,http://a"], "is given twice"),
    (["--decode.urls=http://a", "--router.url=http://r"], "#1"),
    (["--decode.urls=http://a", "--listen.host=0.0.0.0"], "listen.insecure"),
    (["--decode.urls=http://a", "--tls.key=x"], "tls.certificate"),
    (["--decode.url=http://a"], "decode.urls"),
])
def test_invalid_parameters(arguments, words):
    result = subprocess.run([str(executable()), "proxy", *arguments], capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode == 2 and words in result.stderr, result.stderr


def test_sources_of_parameters(tmp_path):
    """A file, the environment and flags; what is printed can be read back."""
    file = tmp_path / "proxy.yaml"
    file.write_text("decode:\n  urls: http://a:1\ntimeout.silence: 7s\nlimit:\n  requests: 5\n")
    environment = {**os.environ, "TIERCE_PROXY_CONFIG": str(file), "TIERCE_PROXY_LIMIT_REQUESTS": "6", "TIERCE_PROXY_RETRY_DECODE": "3"}

    def printed(*arguments, env=environment):
        result = subprocess.run([str(executable()), "proxy", *arguments, "--print-config"], capture_output=True, text=True, env=env,
                                timeout=SECONDS)
        assert result.returncode == 0, result.stderr
        return result.stdout
    text = printed("--retry.decode=4")
    for name, value in (("urls", "http://a:1"), ("silence", "7s"), ("requests", "6"), ("decode", "4")):
        assert re.search(rf"\b{name}: \"?{value}\"?\s", text), (name, text)
    other = tmp_path / "printed.yaml"
    other.write_text(text)
    values = re.sub(r"\s*#.*", "", text)
    assert re.sub(r"\s*#.*", "", printed("--config", str(other), env=dict(os.environ))) == values


def test_tls_on_both_sides(start, tmp_path):
    """The proxy shows its certificate; a proxy in front of it verifies that. Both read their files again."""
    files = make_certificates(tmp_path)
    ca, trusted = files / "ca.pem", tmp_path / "trusted.pem"
    inner = start(f"--tls.certificate={files / 'server.pem'}", f"--tls.key={files / 'server.key'}", decode=[Engine()], ready=False)
    context = ssl.create_default_context(cafile=str(ca))
    with socket.create_connection(("127.0.0.1", inner.port)) as plain, context.wrap_socket(plain, server_hostname="localhost") as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in sock.recv(4096)
    trusted.write_bytes((files / "other.pem").read_bytes())
    outer = start(f"--engine.ca_file={trusted}", decode=[f"https://localhost:{inner.port}"], ready=False)
    wait_for(lambda: "event=proxy_engine_down" in outer.log.read_text() and "certificate" in outer.log.read_text())
    assert outer.ask("GET", "/readyz")[0] == 503 and outer.complete()[0] in (502, 503)
    trusted.write_bytes(ca.read_bytes())  # the next connection reads it
    wait_for(lambda: outer.ask("GET", "/readyz")[0] == 200)
    assert outer.complete(stream=True) == (200, whole_stream("abc"))
    for name in ("server.pem", "server.key"):
        (files / name).write_bytes((files / name.replace("server", "mallory")).read_bytes())
    inner.process.send_signal(signal.SIGHUP)
    context = ssl.create_default_context(cafile=str(files / "other.pem"))

    def shows_the_new_one():
        with socket.create_connection(("127.0.0.1", inner.port)) as plain:
            try:
                return context.wrap_socket(plain, server_hostname="localhost").version() is not None
            except ssl.SSLError:
                return False
    wait_for(shows_the_new_one)
