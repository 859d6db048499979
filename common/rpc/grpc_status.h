// Where absl::Status meets grpc::Status. The codes are the same numbers; payloads (RetryInfo)
// become a google.rpc.Status in the error details. Include in gRPC shells only: it brings gRPC's
// headers.
#ifndef QUIRE_COMMON_RPC_GRPC_STATUS_H_
#define QUIRE_COMMON_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace quire {

grpc::Status ToGrpcStatus(const absl::Status& status);
// UNKNOWN (what gRPC makes of broken connections at times) becomes UNAVAILABLE.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace quire

#endif  // QUIRE_COMMON_RPC_GRPC_STATUS_H_
