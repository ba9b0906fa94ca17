#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TLS in front of a server of loopback that speaks none.

    tls_front.py LISTEN_PORT SERVER_PORT CERTIFICATE KEY
"""

import asyncio
import ssl
import sys


async def pass_on(reader, writer):
    try:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def main(listen_port, server_port, certificate, key):
    async def serve(reader, writer):
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", server_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, server_writer), pass_on(server_reader, writer))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(serve, "127.0.0.1", int(listen_port), ssl=context)
    await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))
