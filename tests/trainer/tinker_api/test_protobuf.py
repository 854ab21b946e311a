"""Messages against Google's own library, with the API's fields written down as it needs them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from vf.runtime.errors import ConfigError
from vf.trainer.tinker_api import protobuf as wire
from vf.trainer.tinker_api.datums import Limits, read_protobuf
from vf.trainer.tinker_api.results import PassOutput, PromptLogprobs, Sampled, SampleOutput

LIMITS = Limits(512, 64)
TYPES = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
# As in the SDK's published descriptor: name, number, type, and * where a field is repeated.
MESSAGES = {
    "Sequence": "stop_reason 1 int32, tokens 2 bytes, logprobs 3 bytes",
    "Topk": "token_ids 1 bytes, logprobs 2 bytes, k 3 uint32, length 4 uint32",
    "Sample": "sequences 1 Sequence*, prompt_logprobs 2 bytes, topk_prompt_logprobs 3 Topk",
    "Batched": "data 1 bytes, offsets 2 bytes, dtype 3 int32, trailing_shape 4 int64*",
    "Field": "key 1 string, value 2 Batched",
    "Metric": "key 1 string, value 2 double",
    "Record": "type_tag 1 string, fields 2 Field*, num_datums 3 int64",
    "Output": "type 1 string, outputs 2 Record*, metrics 3 Metric*",
    "Csr": "values 1 bytes",
    "Tensor": "dense 1 bytes, sparse_csr 2 Csr, dtype 3 int32, shape 4 int64*",
    "Input": "key 1 string, value 2 Tensor",
    "Text": "tokens 1 bytes",
    "Chunk": "encoded_text 1 Text, image 2 Text",
    "Datum": "model_input 1 Chunk*, loss_fn_inputs 2 Input*",
    "Number": "number 1 double, text 2 string",
    "Option": "key 1 string, value 2 Number",
    "Request": "model_id 1 string, seq_id 2 int32, data 3 Datum*, loss_fn 4 string, "
    "loss_fn_config 5 Metric*, forward_only 6 bool, loss_fn_config_v2 7 Option*, later 99 string",
}


@pytest.fixture(scope="module")
def messages() -> Any:
    """Google's classes, by name."""
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor.FileDescriptorProto(name="api.proto", package="api", syntax="proto3")
    for name, text in MESSAGES.items():
        message = file.message_type.add(name=name)
        for entry in text.split(", "):
            field, number, kind = entry.split()
            one = message.field.add(name=field, number=int(number), label=3 if "*" in kind else 1)
            kind = kind.rstrip("*")
            one.type = TYPES.get(kind, 11)
            if kind not in TYPES:
                one.type_name = f".api.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"api.{name}"))
        for name in MESSAGES
    }


def request(messages: Any, **more: Any) -> Any:
    body = messages["Request"](model_id="m", seq_id=300, loss_fn="ppo", later="x", **more)
    one = body.data.add()
    one.model_input.add().encoded_text.tokens = np.array([5, 6], "<i4").tobytes()
    one.model_input.add().encoded_text.tokens = np.array([7], "<i4").tobytes()
    for name, values in (("target_tokens", [6, 7, 8]), ("logprobs", [-1.0, -2.0, -3.0])):
        entry = one.loss_fn_inputs.add(key=name)
        entry.value.dtype = 2 if name == "target_tokens" else 1
        kind = "<i8" if name == "target_tokens" else "<f4"
        entry.value.dense = np.array(values, kind).tobytes()
        entry.value.shape.append(3)
    entry = one.loss_fn_inputs.add(key="advantages")
    entry.value.dtype, entry.value.dense = 1, np.zeros(3, "<f4").tobytes()
    return body


def test_a_request_is_read(messages: Any) -> None:
    body = request(messages)
    body.loss_fn_config.add(key="clip_low_threshold", value=0.7)
    body.loss_fn_config_v2.add(key="clip_high_threshold").value.number = 1.5
    read = read_protobuf(body.SerializeToString(), LIMITS)
    assert (read.model_id, read.seq_id, read.gradient) == ("m", 300, True)
    assert read.config == {"clip_low_threshold": 0.7, "clip_high_threshold": 1.5}
    [datum] = read.data
    assert datum.tokens.tolist() == [5, 6, 7]
    assert datum.targets.tolist() == [6, 7, 8]
    assert datum.inputs["logprobs"].tolist() == [-1.0, -2.0, -3.0]
    assert datum.shifted
    body.forward_only = True
    assert not read_protobuf(body.SerializeToString(), LIMITS).gradient


def test_what_is_not_served_in_a_request_is_named(messages: Any) -> None:
    body = request(messages)
    body.data[0].model_input.add().image.tokens = b"x"
    with pytest.raises(ConfigError, match=r"data\[0\].model_input: an image chunk"):
        read_protobuf(body.SerializeToString(), LIMITS)
    body = request(messages)
    body.data[0].loss_fn_inputs[0].value.sparse_csr.values = b"x"
    with pytest.raises(ConfigError, match=r"data\[0\].target_tokens: a sparse tensor"):
        read_protobuf(body.SerializeToString(), LIMITS)
    body = request(messages)
    body.data[0].loss_fn_inputs[0].value.dense = b"xyz"
    with pytest.raises(ConfigError, match="its bytes are not whole numbers"):
        read_protobuf(body.SerializeToString(), LIMITS)
    body = request(messages)
    body.data[0].loss_fn_inputs[1].value.shape[:] = [3, 1, 1]
    with pytest.raises(ConfigError, match=r"it must be \[N\] or \[N, K\]"):
        read_protobuf(body.SerializeToString(), LIMITS)


def test_a_message_that_is_cut_anywhere_is_refused_or_read(messages: Any) -> None:
    raw = request(messages).SerializeToString()
    for end in range(len(raw)):
        with suppress(wire.WireError, ConfigError):
            read_protobuf(raw[:end], LIMITS)
    with pytest.raises(wire.WireError, match="ends too early"):
        read_protobuf(raw[:-1], LIMITS)


def test_a_passs_output_is_written(messages: Any) -> None:
    arrays = [np.array(values, np.float32) for values in ([-1.0, -2.5], [-3.0])]
    output = messages["Output"]()
    output.ParseFromString(PassOutput(arrays, {"loss:sum": 2.5}).protobuf())
    [record] = output.outputs
    [field] = record.fields
    assert (record.num_datums, field.key, field.value.dtype) == (2, "logprobs", 1)
    assert np.frombuffer(field.value.offsets, "<i8").tolist() == [0, 8, 12]
    assert np.frombuffer(field.value.data, "<f4").tolist() == [-1.0, -2.5, -3.0]
    assert [(one.key, one.value) for one in output.metrics] == [("loss:sum", 2.5)]


def test_outputs_of_several_targets_are_records_of_one_width_each(messages: Any) -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones(4, np.float32)]
    output = messages["Output"]()
    output.ParseFromString(PassOutput(arrays, {}).protobuf())
    fields = [record.fields[0].value for record in output.outputs]
    assert [record.num_datums for record in output.outputs] == [1, 1]
    assert [[*field.trailing_shape] for field in fields] == [[2], []]
    assert np.frombuffer(fields[0].data, "<f4").tolist() == [*range(6)]


def test_samples_are_written(messages: Any) -> None:
    prompt = PromptLogprobs(
        np.array([np.nan, -0.5], np.float32),
        np.array([[0, 0], [3, 4]], np.int32),
        np.array([[-99999.0, -99999.0], [-0.5, -1.0]], np.float32),
    )
    samples = [Sampled([300, 2], [-0.25, -4.0], True), Sampled([1], [-1.0], False)]
    result = SampleOutput(samples, prompt)
    message = messages["Sample"]()
    message.ParseFromString(result.protobuf())
    assert [one.stop_reason for one in message.sequences] == [0, 1]
    assert np.frombuffer(message.sequences[0].tokens, "<i4").tolist() == [300, 2]
    assert np.frombuffer(message.sequences[0].logprobs, "<f4").tolist() == [-0.25, -4.0]
    top = message.topk_prompt_logprobs
    assert (top.k, top.length, np.frombuffer(top.token_ids, "<i4").tolist()) == (2, 2, [0, 0, 3, 4])
    assert result.json()["topk_prompt_logprobs"] == [None, [(3, -0.5), (4, -1.0)]]
    assert result.json()["prompt_logprobs"] == [None, -0.5]
