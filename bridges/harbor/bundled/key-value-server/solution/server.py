import asyncio
import re
import sys

store = {}
NUMBER = re.compile(r"[+-]?\d+")


def answer(line):
    command, _, rest = line.partition(" ")
    command = command.upper()
    key, space, value = rest.partition(" ")
    if command == "COUNT" and not rest:
        return f"VALUE {len(store)}"
    if not key:
        return "ERROR"
    if command == "SET" and space:
        store[key] = value
        return "OK"
    if command == "GET" and not space:
        return f"VALUE {store[key]}" if key in store else "NONE"
    if command == "DEL" and not space:
        return "NONE" if store.pop(key, None) is None else "OK"
    if command == "ADD":
        old = store.get(key, "0")
        if NUMBER.fullmatch(old) and NUMBER.fullmatch(value):
            store[key] = str(int(old) + int(value))
            return f"VALUE {store[key]}"
    return "ERROR"


async def serve(reader, writer):
    while line := await reader.readline():
        text = line.decode().rstrip("\r\n")
        last = text.upper() == "QUIT"
        writer.write(("BYE" if last else answer(text)).encode() + b"\n")
        await writer.drain()
        if last:
            break
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=1 << 24)
    await server.serve_forever()


asyncio.run(main())
