"""The way from the host to a sandbox whose network leads nowhere: passes TCP connections on.

    python gateway.py LISTEN_PORT TARGET_HOST TARGET_PORT

The container it runs in is on two networks, the sandbox on one of them: connections go in and none come out.
"""

import asyncio
import sys

CHUNK = 1 << 16


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends; the end is passed on."""
    try:
        while part := await reader.read(CHUNK):
            writer.write(part)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def serve(port: int, host: str, target: int) -> None:
    """Pass on until cancelled."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, target)
        except OSError as error:
            sys.stderr.write(f"{host}:{target}: {error.strerror or error}\n")
            writer.close()
            return
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        for side in (writer, far_writer):
            side.close()

    server = await asyncio.start_server(connected, "0.0.0.0", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
