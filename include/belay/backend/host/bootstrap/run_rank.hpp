// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank from its first call to its last: however its body ends, its peers are told, and none waits for it afterwards.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "belay/backend/host/membership/membership.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// How a body ended.
struct run_result {
  std::exception_ptr error;  // null: it returned
  std::string what;
  bool aborted_the_world = false;  // its failure was the first

  void rethrow() const {
    if (error) std::rethrow_exception(error);
  }
};

/// Runs the body; returns when its started operations are over too.
[[nodiscard]] BELAY_DECL run_result run_rank_body(const epoch_view& view,
                                                                 const std::shared_ptr<membership>& source,
                                                                 function_ref<void(rank&)> body);

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/run_rank.ipp"  // IWYU pragma: export
#endif
