// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A library as one rank calls it: an Api, and the rank's number for what its errors say. Every call of the Api is
// checked here. The device of a rank is one, and so is its NCCL.
// On which devices the ranks of a world of threads run has one rule, and it is asked here.
//
//   belay::cuda::runtime_api api;
//   belay::cuda::device gpu(api, rank.number());  // backend_error: no driver, or no such device
//
//   if (belay::cuda::placed_ranks(api, 4) == belay::cuda::rank_devices::one_each)
//     belay::launch(belay::nccl::world(api, nccl, belay::host::world(4)), train);
//   else
//     belay::launch(belay::cuda::world(api, belay::host::world(4)), train);
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/cuda/device_api.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <device_api Api>
class captured_branch;

/// Which of the devices of an Api, from 0.
struct device_number {
  int value = 0;  ///< as the library numbers them
};

/// Stays where it is, and ends before the Api.
template <class Api>
class library_of_rank {
 public:
  using api_type = Api;
  using status_type = typename Api::status_type;

  library_of_rank(const library_of_rank&) = delete;
  library_of_rank& operator=(const library_of_rank&) = delete;

  /// The Api and the rank's number in the world, of which it was made.
  [[nodiscard]] Api& api() const noexcept { return *api_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

  /// Throws the backend_error of `call`, which was about `bytes`, unless it has succeeded.
  void expect(const status_type& got, const char* call, std::size_t bytes, where at) const {
    if (api_->succeeded(got)) [[likely]]
      return;
    failed_.store(true, std::memory_order_relaxed);
    throw error_of(got, call, bytes, at);
  }
  /// Takes the result of `call` where nothing may throw: one line on standard error says the first failure that no
  /// exception has told.
  void note(const status_type& got, const char* call) const noexcept {
    if (api_->succeeded(got) || failed_.exchange(true, std::memory_order_relaxed)) return;
    std::fprintf(stderr, "%s\n", error_of(got, call, 0, {}).what());
  }
  [[nodiscard]] backend_error error_of(const status_type& got, const std::string& call, std::size_t bytes,
                                       where at) const {
    return backend_error({call, rank_, bytes, api_->text(got), at});
  }

 protected:
  /// The rank is for what its errors say.
  library_of_rank(Api& api, int rank) noexcept : api_(&api), rank_(rank) {}
  ~library_of_rank() = default;

 private:
  Api* api_;
  int rank_;
  mutable std::atomic<bool> failed_{false};
};

/// Stays where it is: memory, streams and kits of the rank point to it, and end before it. The Api outlives it.
template <device_api Api>
class device : public library_of_rank<Api> {
 public:
  using typename library_of_rank<Api>::status_type;

  /// Of the calling thread, which is rank `rank`'s host thread: the Api's own device, or the one with that number.
  explicit device(Api& api, int rank = 0, where at = where::current()) : library_of_rank<Api>(api, rank) { open(at); }
  device(Api& api, int rank, device_number which, where at = where::current())
      : library_of_rank<Api>(api, rank), number_(which) {
    open(at);
  }
  /// Whether the rank's thread captures: what would run at once is in no launch of the graph then.
  [[nodiscard]] bool capturing() const noexcept { return capturing_.load(std::memory_order_relaxed); }
  void begin_capture() const noexcept { capturing_.store(true, std::memory_order_relaxed); }
  void end_capture() const noexcept { capturing_.store(false, std::memory_order_relaxed); }
  /// The branches that are in every capture beside the stream that is captured. By the rank's thread.
  [[nodiscard]] std::span<captured_branch<Api>* const> branches() const noexcept { return branches_; }
  void add_branch(captured_branch<Api>& which) const { branches_.push_back(&which); }
  void remove_branch(const captured_branch<Api>& which) const noexcept {
    branches_.erase(std::remove(branches_.begin(), branches_.end(), &which), branches_.end());
  }
  /// Makes the calling thread one of the device too. Throws backend_error.
  void open(where at = where::current()) const { this->expect(opened(), "open", 0, at); }
  /// Makes the calling thread, which may not throw, one of the device too; `note` takes a failure.
  void open_and_note() const noexcept { this->note(opened(), "open"); }

 private:
  [[nodiscard]] status_type opened() const { return number_ ? this->api().open(number_->value) : this->api().open(); }

  std::optional<device_number> number_;  // none: the Api's own
  mutable std::atomic<bool> capturing_{false};
  mutable std::vector<captured_branch<Api>*> branches_;
};

/// A device for each rank, or one that all share. There are no mixtures.
enum class rank_devices : std::uint8_t { one_each, one_shared };

/// How many devices this process sees. Throws backend_error where there is no driver.
template <device_api Api>
[[nodiscard]] int device_count(Api& api, int rank = 0, where at = where::current()) {
  int devices = 0;
  const auto got = api.count_devices(devices);
  if (!api.succeeded(got)) throw backend_error({"count_devices", rank, 0, api.text(got), at});
  return devices;
}

/// A device for each of `ranks` threads of this process if there are enough, else all share the first. Throws
/// backend_error where there is no driver.
template <device_api Api>
[[nodiscard]] rank_devices placed_ranks(Api& api, int ranks, where at = where::current()) {
  return device_count(api, 0, at) >= ranks ? rank_devices::one_each : rank_devices::one_shared;
}

}  // namespace belay::inline BELAY_ABI::cuda
