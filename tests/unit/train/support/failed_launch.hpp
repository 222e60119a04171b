// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a launch throws in which one call of a backend fails, and which calls are tried.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "belay/core/error.hpp"
#include "test_length.hpp"

namespace failed_launch {

struct thrown {
  std::string what;  // empty: nothing was thrown
  belay::error_kind kind = belay::error_kind::none;
  int rank = -1;  // of which it is

  [[nodiscard]] bool has(const std::string& part) const { return what.find(part) != std::string::npos; }
};
template <class Launch>
thrown of(const Launch& launch) {
  try {
    launch();
  } catch (const belay::backend_error& problem) {
    return {problem.what(), problem.kind(), problem.about().rank};
  } catch (const belay::comm_error& problem) {
    return {problem.what(), problem.kind(), problem.about().culprits.size() == 1 ? problem.about().culprits[0] : -1};
  } catch (const belay::error& problem) {
    return {problem.what(), problem.kind(), -1};
  }
  return {};
}

/// Which calls of many are tried: all in a soak, else the first of each name, and every so many.
class sample {
 public:
  sample(int of_each, std::uint64_t every) : of_each_(of_each), every_(every) {}
  [[nodiscard]] bool has(const std::string& name, std::uint64_t k) {
    return is_soak() || k % every_ == 0 || ++seen_[name] <= of_each_;
  }

 private:
  int of_each_;
  std::uint64_t every_;
  std::map<std::string, int> seen_;
};

/// That `call` has failed is told: by a backend_error, or where a communication of its rank did by what its peers
/// throw, by its rank, its name, and the bytes of one that has some.
inline void check(const thrown& got, int rank, const std::string& call) {
  CAPTURE(got.what);
  CHECK((got.kind == belay::error_kind::backend || got.kind == belay::error_kind::communication));
  CHECK(got.rank == rank);
  CHECK(got.has("rank " + std::to_string(rank) + ": " + call));
  CHECK(got.has("injected"));
  for (const char* moves : {"all_reduce", "all_gather", "reduce_scatter", "send", "receive", "copy", "allocate"})
    if (call == moves) CHECK(got.has(call + " of "));  // so many bytes
}
/// The calls of a device, how many of them were made when the last step was over, and what the training had by then.
struct device_calls {
  std::vector<std::string> names;
  std::size_t trained = 0;
  std::vector<double> losses;
};
/// Checks that an injected failure of call `k` of a device, by any rank, was named. What ends something throws nothing,
/// as when it waits for what is queued, nor what comes after the training: then that was as usual.
inline void check_device(const thrown& got, const device_calls& made, std::uint64_t k, const device_calls& usual) {
  if (made.names.size() < k) return;  // threads have made fewer this time
  const std::string& call = made.names[k - 1];
  CAPTURE(call);
  if (got.what.empty()) {
    bool ends = k > made.trained;
    // A watchdog's thread may begin at any time; that it could not open the device is printed and keeps nobody waiting.
    for (const char* part : {"destroy_", "release", "unregister_", "record", "await", "open"})
      ends = ends || call.starts_with(part);
    CHECK(ends);
    CHECK(made.losses == usual.losses);
    return;
  }
  CHECK((got.rank == 0 || got.rank == 1));
  check(got, got.rank, call);
}

}  // namespace failed_launch
