// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a stream was given once, to be launched again as one piece of work.
//
//   belay::cuda::graph<Api> step = kit.stream().capture([&] { kit.each(n, first), kit.each(n, second); });
//   kit.stream().launch(step);
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/cuda/captured_branch.hpp"
#include "belay/backend/cuda/device.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Made by `stream::capture`, of an Api that is a `capturing_api`. The device outlives it; one that is running may be
/// destroyed.
template <device_api Api>
class graph {
 public:
  using handle_type = graph_handle<Api>;
  using member_type = captured_member<Api>;

  /// Takes what `end_capture` has made. The stream has recorded its places `first` to `last` meanwhile; `members` are
  /// what else is in it.
  graph(std::shared_ptr<handle_type> made, std::uint64_t first, std::uint64_t last,
        std::vector<std::shared_ptr<member_type>> members) noexcept
      : made_(std::move(made)), first_(first), last_(last), members_(std::move(members)) {}
  graph(graph&&) noexcept = default;
  graph& operator=(graph&& other) noexcept {
    std::swap(made_, other.made_);
    std::swap(first_, other.first_);
    std::swap(last_, other.last_);
    std::swap(members_, other.members_);
    std::swap(launched_, other.launched_);
    return *this;
  }
  ~graph() = default;

  /// The Api's own handle, shared with what may have to end it first; the places of the stream that it stands for.
  [[nodiscard]] handle_type& handle() const noexcept { return *made_; }
  [[nodiscard]] std::uint64_t first_place() const noexcept { return first_; }
  [[nodiscard]] std::uint64_t last_place() const noexcept { return last_; }
  /// The branches' parts of the graph.
  [[nodiscard]] std::span<const std::shared_ptr<member_type>> members() const noexcept { return members_; }
  /// True once: of the first launch.
  [[nodiscard]] bool take_first_launch() noexcept { return !std::exchange(launched_, true); }

 private:
  std::shared_ptr<handle_type> made_;
  std::uint64_t first_, last_;
  std::vector<std::shared_ptr<member_type>> members_;
  bool launched_ = false;
};

}  // namespace belay::inline BELAY_ABI::cuda
