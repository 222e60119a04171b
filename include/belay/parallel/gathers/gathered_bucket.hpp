// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A bucket of divided parameters, as gathers see it.
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/parallel/file_shares.hpp"
#include "belay/parallel/gathers/reached_values.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// Counts and offsets are in elements.
template <class T, class Group>
struct gathered_bucket {
  struct place {
    parameter_base<T>* parameter = nullptr;
    std::size_t offset = 0;  // in the bucket
  };

  const Group* group = nullptr;  // the ranks that divide it
  std::span<const T> share;      // of this rank; addresses where it is in a file
  std::size_t before = 0;        // of the bucket, before the share
  std::span<const std::size_t> counts;
  std::size_t count = 0;  // of the whole bucket
  std::vector<place> parameters;
  std::shared_ptr<const void> kept;                            // while a gather is under way
  std::shared_ptr<const reached_shares<T>> reached = nullptr;  // null: its ranks gather together
  file_shares* file = nullptr;                                 // where the share is in one
};

}  // namespace belay::inline BELAY_ABI
