// Between the messages of proto/quire/v1/worker.proto and the structs of the engine.
#ifndef QUIRE_WORKER_ENGINE_MESSAGES_H_
#define QUIRE_WORKER_ENGINE_MESSAGES_H_

#include "quire/v1/worker.pb.h"
#include "worker/engine/request.h"

namespace quire {

// All but id, root and times.
EngineRequest EngineRequestFromSubmit(const v1::Submit& submit);

v1::Started StartedToProto(const RequestStarted& started);
v1::Delta DeltaToProto(ChoiceDelta delta);
v1::Finished FinishedToProto(const RequestFinished& finished);
v1::WorkerStats StatsToProto(const EngineStats& stats);

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_MESSAGES_H_
