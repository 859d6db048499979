// A gRPC client of Quire: streams one answer.   usage: example_client HOST:PORT QUESTION
#include <iostream>
#include <grpcpp/grpcpp.h>
#include "quire/v1/inference.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::cerr << "usage: example_client HOST:PORT QUESTION\n", 2;
  auto stub = quire::v1::InferenceService::NewStub(
      grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  quire::v1::GenerateRequest request;
  auto* message = request.add_messages();
  message->set_role("user");
  message->set_content(argv[2]);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(64);

  grpc::ClientContext context;
  auto stream = stub->Generate(&context, request);
  for (quire::v1::GenerateResponse response; stream->Read(&response);) {
    if (response.has_delta()) std::cout << response.delta().text() << std::flush;
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) std::cerr << status.error_message();
  std::cout << "\n";
  return status.ok() ? 0 : 1;
}
