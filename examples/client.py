#!/usr/bin/env python3
"""A gRPC client of Quire: streams one answer.   usage: client.py HOST:PORT QUESTION

Needs grpcio and protobuf (Debian: python3-grpcio, python3-protobuf; PyPI: grpcio, protobuf) and the
message classes, made once with:  protoc -I proto --python_out=. proto/quire/v1/inference.proto
"""
import sys

import grpc
from quire.v1 import inference_pb2 as q

target, question = sys.argv[1:]
generate = grpc.insecure_channel(target).unary_stream(
    "/quire.v1.InferenceService/Generate",
    request_serializer=q.GenerateRequest.SerializeToString,
    response_deserializer=q.GenerateResponse.FromString)
request = q.GenerateRequest(messages=[q.Message(role="user", content=question)],
                            sampling=q.SamplingParams(temperature=0, max_tokens=64))
for response in generate(request):
    print(response.delta.text, end="", flush=True)
print()
