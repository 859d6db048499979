// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status, and CHECK for our own bugs.
#ifndef QUIRE_COMMON_STATUS_MACROS_H_
#define QUIRE_COMMON_STATUS_MACROS_H_

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define QUIRE_CONCAT_INNER_(a, b) a##b
#define QUIRE_CONCAT_(a, b) QUIRE_CONCAT_INNER_(a, b)

#define RETURN_IF_ERROR(expr)                           \
  do {                                                  \
    if (absl::Status status_ = (expr); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expr) \
  QUIRE_ASSIGN_OR_RETURN_(QUIRE_CONCAT_(status_or_, __LINE__), lhs, expr)
#define QUIRE_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                            \
  if (!tmp.ok()) {                              \
    return tmp.status();                        \
  }                                             \
  lhs = std::move(tmp).value()

// Ends the process: an invariant of ours is broken. Never for what a peer, a file or a flag causes.
#define QUIRE_CHECK(condition)                                                              \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);    \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)

#endif  // QUIRE_COMMON_STATUS_MACROS_H_
