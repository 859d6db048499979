// InferenceService over gRPC (callback API), in front of a Dispatcher. Router and worker run this
// very code, which is why both answer alike.
#ifndef QUIRE_COMMON_INFERENCE_INFERENCE_SERVICE_H_
#define QUIRE_COMMON_INFERENCE_INFERENCE_SERVICE_H_

#include <memory>

#include "common/inference/generate_call.h"

namespace grpc {
class Service;
}

namespace quire {

// `front` must outlive the service.
std::unique_ptr<grpc::Service> MakeInferenceService(InferenceFront* front);

}  // namespace quire

#endif  // QUIRE_COMMON_INFERENCE_INFERENCE_SERVICE_H_
