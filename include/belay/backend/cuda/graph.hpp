// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a stream was given once, to be launched again as one piece of work.
//
//   belay::cuda::graph<Api> step = kit.stream().capture([&] { kit.each(n, first), kit.each(n, second); });
//   kit.stream().launch(step);
#pragma once

#include <cstdint>
#include <utility>

#include "belay/backend/cuda/device.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Made by `stream::capture`, of an Api that is a `capturing_api`. The device outlives it; one that is running may be
/// destroyed.
template <device_api Api>
class graph {
 public:
  using handle_type = typename Api::graph_type;

  /// Takes what `end_capture` has made. The stream has recorded its places `first` to `last` meanwhile.
  graph(const device<Api>& on, handle_type made, std::uint64_t first, std::uint64_t last) noexcept
      : device_(&on), made_(made), first_(first), last_(last) {}
  graph(graph&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        made_(other.made_),
        first_(other.first_),
        last_(other.last_),
        launched_(other.launched_) {}
  graph& operator=(graph&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(made_, other.made_);
    std::swap(first_, other.first_);
    std::swap(last_, other.last_);
    std::swap(launched_, other.launched_);
    return *this;
  }
  ~graph() {
    if (device_ != nullptr) device_->note(device_->api().destroy_graph(made_), "destroy_graph");
  }

  /// The Api's own handle; the places of the stream that it stands for.
  [[nodiscard]] handle_type handle() const noexcept { return made_; }
  [[nodiscard]] std::uint64_t first_place() const noexcept { return first_; }
  [[nodiscard]] std::uint64_t last_place() const noexcept { return last_; }
  /// True once: of the first launch.
  [[nodiscard]] bool take_first_launch() noexcept { return !std::exchange(launched_, true); }

 private:
  const device<Api>* device_;
  handle_type made_;
  std::uint64_t first_, last_;
  bool launched_ = false;
};

}  // namespace belay::inline BELAY_ABI::cuda
