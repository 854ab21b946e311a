import json
import struct
import sys
import zlib


def varint(data, at):
    number = 0
    for index in range(5):
        if at + index >= len(data):
            raise ValueError("cut off")
        byte = data[at + index]
        number |= (byte & 127) << (7 * index)
        if byte < 128:
            return number, at + index + 1
    raise ValueError("too long")


def decoded(kind, payload):
    if kind == 1:
        return {"text": payload.decode("utf-8")}
    if kind == 2:
        time, value = struct.unpack("<Id", payload)
        return {"time": time, "value": value}
    if kind != 3:
        raise ValueError("unknown kind")
    numbers, at, last = [], 0, 0
    while at < len(payload):
        step, at = varint(payload, at)
        last += step // 2 if step % 2 == 0 else -(step + 1) // 2
        numbers.append(last)
    return {"numbers": numbers}


def record(data, at):
    if at + 2 > len(data):
        raise ValueError("cut off")
    length, start = varint(data, at + 2)
    end = start + length
    if end + 4 > len(data):
        raise ValueError("cut off")
    if zlib.crc32(data[at + 1 : end]) != struct.unpack("<I", data[end : end + 4])[0]:
        raise ValueError("checksum")
    return decoded(data[at + 1], data[start:end]), end + 4


with open(sys.argv[1], "rb") as file:
    data = file.read()
if data[:5] != b"RECS\x01":
    sys.exit(1)
at = 5
while at < len(data):
    if data[at] == 0xA5:
        try:
            found, at = record(data, at)
        except (ValueError, struct.error):
            at += 1
        else:
            print(json.dumps(found))
    else:
        at += 1
